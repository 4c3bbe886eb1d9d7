"""The verbs of `stepwell plan`."""

from __future__ import annotations

import argparse
from typing import Final

from stepwell.cli.common.subcommand import Verb, add_verbs, run_verb
from stepwell.cli.plan import apply, control, diff, new, record, show
from stepwell.cli.plan import list as listing

SUMMARY: Final = "Follow a plan, and what it changes, from its beginning to its end"

_VERBS: Final[dict[str, Verb]] = {
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
    add_verbs(parser, _VERBS)


def run(arguments: argparse.Namespace) -> int:
    return run_verb(arguments)
