"""`stepwell pool`: budgets of model tokens that agents share.

stepwell pool create team --tokens 200000 --per minute
stepwell pool list
"""

from typing import Final

from stepwell.cli.common.apps import group_app
from stepwell.cli.common.error_report import EXIT_CODES

app: Final = group_app(
    __name__,
    {
        "create": "Create a pool of tokens",
        "list": "List pools, with what is spent, leased and free",
        "resize": "Change the number of tokens of a pool",
        "delete": "Delete a pool of which no session holds tokens",
    },
    about="A pool bounds the tokens that all agents together use. Agents lease tokens and return the rest.",
    epilog=EXIT_CODES,
)
