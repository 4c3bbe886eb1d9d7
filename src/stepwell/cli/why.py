"""`stepwell why FRAGMENT`: explain why a fragment is in an answer, or why it is not.

The explanation comes from the receipt of the answer: which strategies proposed the fragment, its scores, and the
decision with its reason. No process is started. `why` and `diff` name the directory, the manager and the receipts in
the same way.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec.structs import asdict

from stepwell.assembly.explain import CandidateOutcome, outcomes
from stepwell.assembly.receipt import Receipt, ReceiptEntry
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json, write_result
from stepwell.cli.common.parameters import argument, json_flag, option
from stepwell.cli.common.receipts import open_receipts
from stepwell.cli.common.secret_options import IncludeSecrets, RedactEntropy, secret_policy
from stepwell.cli.common.source import (
    SourceAddress,
    SourcePathOption,
    SourceProject,
    source_of,
    the_path,
)

app: Final = command_app()


@app.command(cls=ShellCommand)
@reports_errors
def run(
    *,
    fragment: Annotated[str, argument("FRAGMENT", "its id, or a source, or SOURCE:LINE")],
    path: Annotated[str | None, argument("PATH", "the same as --path")] = None,
    path_option: SourcePathOption = None,
    receipt: Annotated[
        str | None, option("--receipt", metavar="ID", about="receipt of the answer (default: that of the last one)")
    ] = None,
    address: SourceAddress = None,
    project: SourceProject = None,
    include_secrets: IncludeSecrets = False,
    redact_entropy: RedactEntropy = False,
    json: Annotated[
        bool,
        json_flag(
            "`receipt_id`, `query`, `revision`, `candidates` (their number), `last_kept_score` and `fragments`, a "
            "list, each with its `rank` and with the fields of an entry of `stepwell.Receipt` by name"
        ),
    ] = False,
) -> int:
    """A source can match several fragments, and each is explained: which strategies named it, its scores, and what
    became of it and why. A fragment that no strategy has named is an error.
    """
    policy = secret_policy(include_secrets=include_secrets, redact_entropy=redact_entropy)
    source = source_of(the_path(path, path_option), address, project, policy)
    with open_receipts(source) as receipts:
        receipt_id = receipt or receipts.latest(1)[0]
        found = receipts.get(receipt_id)
    # A dict keeps the order of the receipt and drops duplicates. A name that matches nothing is explained as such.
    matching = dict.fromkeys(entry.fragment_id for entry in found.entries if _matches(entry, fragment))
    explained = [each for fragment_id in matching or [fragment] for each in outcomes(found, fragment_id)]
    if json:
        print_json(_json_object(receipt_id, found, explained))
    else:
        write_result("".join(f"{each}\n" for each in explained))
    return 0


def _json_object(receipt_id: str, receipt: Receipt, explained: list[CandidateOutcome]) -> dict[str, object]:
    """Return the object for `--json`."""
    return {
        "receipt_id": receipt_id,
        "query": receipt.request.query,
        "revision": receipt.revision,
        "candidates": len(receipt.entries),
        "last_kept_score": explained[0].last_kept_score,
        "fragments": [{"rank": each.rank, **_fields(each.entry)} for each in explained],
    }


def _fields(entry: ReceiptEntry) -> dict[str, object]:
    """Return the fields of an entry by name, as JSON values."""
    return {name: to_json_value(value) for name, value in asdict(entry).items()}


def _matches(entry: ReceiptEntry, given: str) -> bool:
    """Return True if the text names the entry: by fragment id, by source, or by a line that the fragment contains."""
    if given in {entry.fragment_id, entry.source}:
        return True
    source, _, line = given.rpartition(":")
    if entry.lines is None or entry.source != source or not line.isdecimal():
        return False
    first, last = entry.lines
    return first <= int(line) <= last
