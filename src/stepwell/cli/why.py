"""`stepwell why FRAGMENT`: explain why a fragment is in an answer, or why it is not.

The fragment is named by its id, by its source, or by SOURCE:LINE; a source can match several fragments, and each is
explained. The explanation comes from the receipt of the answer: which strategies proposed the fragment, its scores, and
the decision with its reason. Without `--receipt` it is about the last answer. No workers are started.
"""

from __future__ import annotations

import argparse
from typing import Final

from stepwell.assembly.explain import why
from stepwell.assembly.receipt import ReceiptEntry
from stepwell.cli.common.output import write_result
from stepwell.cli.common.source import add_source, open_source, source_of
from stepwell.client.client import Client
from stepwell.errors import NotFound

SUMMARY: Final = "Explain why a fragment is in an answer, or is not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fragment", metavar="FRAGMENT", help="its id, or a source, or SOURCE:LINE")
    add_source(parser)
    parser.add_argument("--receipt", metavar="ID", help="of the answer (default: of the last one)")


def run(arguments: argparse.Namespace) -> int:
    """Print an explanation for each fragment that matches. If none matches, the explanation of the name itself
    says so.
    """
    with open_source(source_of(arguments), workers=0) as client:
        receipt = client.receipt(arguments.receipt or latest_receipts(client, 1)[0])
    # A dict keeps the order of the receipt and drops duplicates.
    matching = {entry.fragment_id: None for entry in receipt.entries if _matches(entry, arguments.fragment)}
    for fragment_id in matching or [arguments.fragment]:
        write_result(f"{why(receipt, fragment_id)}\n")
    return 0


def latest_receipts(client: Client, count: int) -> list[str]:
    """Return the ids of the last `count` receipts, newest first. Raise `NotFound` if there are fewer answers."""
    found = [each.receipt_id for each in client.receipts.list(limit=count).receipts]
    if len(found) < count:
        raise NotFound(f"{count - len(found)} more answers have to be there: ask with `stepwell assemble` first")
    return found


def _matches(entry: ReceiptEntry, given: str) -> bool:
    """Return True if the text names the entry: by fragment id, by source, or by a line that the fragment contains."""
    if given in {entry.fragment_id, entry.source}:
        return True
    source, _, line = given.rpartition(":")
    if entry.lines is None or entry.source != source or not line.isdecimal():
        return False
    first, last = entry.lines
    return first <= int(line) <= last
