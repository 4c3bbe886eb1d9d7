"""The verbs of `stepwell plan`."""

from __future__ import annotations

import argparse
from typing import Final

from stepwell.cli.plan import diffing, ending, listing, making, recording, showing, steering
from stepwell.cli.verbs import Verb, add_verbs, run_verb

SUMMARY: Final = "Follow a plan, and what it changes, from its beginning to its end"

_VERBS: Final[dict[str, Verb]] = {
    "new": making.NEW,
    "list": listing.LIST,
    "show": showing.SHOW,
    "record": recording.RECORD,
    "diff": diffing.DIFF,
    "apply": ending.APPLY,
    "rollback": ending.ROLLBACK,
    "cancel": steering.CANCEL,
    "retry": steering.RETRY,
    "revert": steering.REVERT,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_verbs(parser, _VERBS)


def run(arguments: argparse.Namespace) -> int:
    return run_verb(arguments)
