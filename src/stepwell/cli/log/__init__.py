"""`stepwell log`: lists of entries that agents and scripts append to, read and follow.

    make test 2>&1 | stepwell log append build --project shop
    stepwell log last build -n 20 --project shop
    stepwell log follow build --project shop

A log exists from its first append. Each command takes the name of a log and `--project`.
"""

from typing import Final

from stepwell.cli.common.apps import group_app
from stepwell.cli.log.exit_codes import EXIT_CODES

app: Final = group_app(
    __name__,
    {
        "append": "Append entries to a log",
        "last": "Print the last entries of a log",
        "since": "Print the entries of a log behind a position",
        "follow": "Print each entry of a log as it is appended",
        "pop": "Remove the last entry of a log and print it",
        "list": "List the logs of a project",
        "retain": "Set how many entries a log retains, and for how long",
        "clear": "Remove all entries of a log",
        "delete": "Delete a log",
    },
    about="A log is a list of entries in a project, to which any number of processes append.",
    epilog=EXIT_CODES,
)
