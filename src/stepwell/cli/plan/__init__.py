"""`stepwell plan`: the life of a plan from a shell, from an action to changed files, and back.

A typical session:

    stepwell action create fix-bug --validate 'tests=pytest -q'
    PLAN=$(stepwell plan new fix-bug --project shop)
    stepwell plan record $PLAN -- ./fix.sh      # run a command, record what it changes
    stepwell plan diff $PLAN                    # look at it
    stepwell plan apply $PLAN --root ../shop    # change another tree in the same way, or not at all
    stepwell plan rollback $PLAN --root ../shop

`command` lists the subcommands; each is a value of type `Subcommand` at the end of its module. `resolve` finds the plan
that a user means, `format` has the texts that several of them print, `diffstat` counts lines of a diff, `children`
shows the tree of subplans, and `run_command` runs another program.

The modules import the client and the domain. They connect to a running manager, because plans outlive one command.
"""

from stepwell.cli.plan.command import SUMMARY, add_arguments, run

__all__ = ["SUMMARY", "add_arguments", "run"]
