"""`stepwell action`: the templates that plans are made from.

An action has to exist before `stepwell plan new` can use it:

    stepwell action create team/fix-bug --argument ticket --validate 'tests=pytest -q'
    stepwell plan new team/fix-bug --project shop --argument ticket=4711
"""

from typing import Final

from stepwell.cli.common.apps import group_app
from stepwell.cli.common.error_report import EXIT_CODES

app: Final = group_app(
    __name__,
    {
        "create": "Create an action",
        "list": "List actions by name",
    },
    about="An action is a template: its texts, arguments and validations become those of a plan.",
    epilog=EXIT_CODES,
)
