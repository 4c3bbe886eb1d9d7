"""`stepwell demo`: many callers at once, and what is true afterwards."""

from stepwell.cli.demo.command import SUMMARY, add_arguments, run

__all__ = ["SUMMARY", "add_arguments", "run"]
