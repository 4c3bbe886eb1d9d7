"""The subcommands of `stepwell plan`, in the order in which `--help` lists them.

The order follows the life of a plan: create and look, record and compare, apply and undo, intervene.
"""

from __future__ import annotations

import argparse
from typing import Final

from stepwell.cli.common.subcommand import Subcommand, add_subcommands, run_subcommand
from stepwell.cli.plan import apply, control, diff, new, record, show
from stepwell.cli.plan import list as listing

SUMMARY: Final = "Create, record, inspect, apply and roll back plans"

_VERBS: Final[dict[str, Subcommand]] = {
    "new": new.NEW,
    "list": listing.LIST,
    "show": show.SHOW,
    "record": record.RECORD,
    "diff": diff.DIFF,
    "apply": apply.APPLY,
    "rollback": apply.ROLLBACK,
    "cancel": control.CANCEL,
    "retry": control.RETRY,
    "revert": control.REVERT,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_subcommands(parser, _VERBS)


def run(arguments: argparse.Namespace) -> int:
    return run_subcommand(arguments)
