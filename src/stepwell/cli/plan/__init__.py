"""`stepwell plan`: the life of a plan from a shell, from an action to changed files, and back.

A typical session:

    stepwell action create fix-bug --validate 'tests=pytest -q'
    PLAN=$(stepwell plan new fix-bug --project shop)
    stepwell plan record $PLAN -- ./fix.sh      # run a command, record what it changes
    stepwell plan diff $PLAN                    # look at it
    stepwell plan apply $PLAN --root ../shop    # change another tree in the same way, or not at all
    stepwell plan rollback $PLAN --root ../shop

Each subcommand is a module of its name; `common` has the parts that several of them share.

The modules import the client and the domain. They connect to a running manager, because plans outlive one command.
"""

from typing import Final

from stepwell.cli.common.apps import group_app
from stepwell.cli.common.error_report import EXIT_CODES

# The order follows the life of a plan: create and look, record and compare, apply and undo, intervene.
app: Final = group_app(
    __name__,
    {
        "new": "Create a plan from an action, and print its id",
        "list": "List plans, the oldest first, by default those that are not over",
        "show": "Show a plan: its position, its lease, its changes and its errors",
        "subplans": "Show the children of a plan: their positions, who works on them, and what is merged",
        "merge": "Merge what the children of a plan changed into the plan",
        "resolve": "List, show and resolve the conflicts of a merge",
        "record": "Run a command, and record into a plan what it changes in a tree",
        "diff": "Show what a plan changes, as a unified diff",
        "apply": "Change the files of a tree as a plan says: all of them, or none",
        "queue": "List the plans that wait to be applied to a tree, in the order of their turns",
        "rollback": "Restore the files of a tree as they were before a plan was applied",
        "cancel": "End a plan and all its descendants, for good",
        "retry": "Queue the phase that ended in an error once more",
        "revert": "Send a plan that is not applied back to its beginning, at most three times",
    },
    about="A plan is an action that is used on projects: it records changes, and applies all of them or none.",
    epilog=EXIT_CODES,
)
