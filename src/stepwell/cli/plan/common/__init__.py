"""The parts that several subcommands of `stepwell plan` share.

    plan_id           the plan that a user means
    execution         take or borrow the lease of a plan, and renew it
    conflict_choice   how a user resolves a conflict: options, editor, list
    control           what the subcommands of an operator share
    children          the tree of subplans
    format            texts about plans
    diffstat          lines of a diff, counted
    run_command       run another program as if the user had started it

The modules import `cli.common`, the client and the domain, and no subcommand.
"""
