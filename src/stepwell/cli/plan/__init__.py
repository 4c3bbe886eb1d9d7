"""`stepwell plan`: the life of a plan from a shell, from an action to files that are changed, and back."""

from stepwell.cli.plan.command import SUMMARY, add_arguments, run

__all__ = ["SUMMARY", "add_arguments", "run"]
