"""`stepwell diff`: explain the difference between two answers of `stepwell assemble`.

It compares the receipts of the answers: which fragments came, went or changed their rank, and whether the files, the
strategies or the budget were the reason. Without arguments it compares the last two answers, the older one first. It
starts no workers, because everything is in the receipts.
"""

from __future__ import annotations

import argparse
from typing import Final

from stepwell.assembly.explain import diff
from stepwell.cli.common.output import print_struct, write_result
from stepwell.cli.common.source import add_source, open_source, source_of
from stepwell.cli.why import latest_receipts
from stepwell.errors import InvalidArgument

SUMMARY: Final = "Explain the differences between two answers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("receipts", metavar="RECEIPT", nargs="*", help="two ids (default: of the last two answers)")
    add_source(parser, is_option=True)
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")


def run(arguments: argparse.Namespace) -> int:
    """Print the difference, as text or with `--json` as an object. Raise `InvalidArgument` for one receipt or more than
    two.
    """
    if len(arguments.receipts) not in {0, 2}:
        raise InvalidArgument("give two receipts, or none for those of the last two answers")
    # `latest_receipts` has the newest first; the difference is read from the older answer to the newer one.
    with open_source(source_of(arguments), workers=0) as client:
        before, after = (client.receipt(each) for each in arguments.receipts or reversed(latest_receipts(client, 2)))
    found = diff(before, after)
    if arguments.json:
        print_struct(found)
    else:
        write_result(f"{found}\n")
    return 0
