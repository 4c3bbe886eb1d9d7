"""`stepwell diff`: explain the difference between two answers of `stepwell assemble`.

It compares the receipts of the answers: which fragments came, went or changed their rank, and whether the files, the
strategies or the budget were the reason. It starts no process, because everything is in the receipts. `why` and `diff`
name the directory, the manager and the receipts in the same way.
"""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.assembly.explain import diff
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import reports_errors
from stepwell.cli.common.output import print_struct, write_result
from stepwell.cli.common.parameters import argument, json_flag, option
from stepwell.cli.common.receipts import open_receipts
from stepwell.cli.common.secret_options import IncludeSecrets, RedactEntropy, secret_policy
from stepwell.cli.common.source import SourceAddress, SourcePathOption, SourceProject, source_of
from stepwell.errors import InvalidArgument

app: Final = command_app()

_COUNT: Final = 2  # answers that are compared


@app.command(cls=ShellCommand)
@reports_errors
def run(
    *,
    receipts: Annotated[list[str] | None, argument("RECEIPT", "the same as --receipt")] = None,
    receipt: Annotated[
        list[str] | None,
        option("--receipt", metavar="ID", about="receipt of an answer; give two (default: those of the last two)"),
    ] = None,
    path: SourcePathOption = None,
    address: SourceAddress = None,
    project: SourceProject = None,
    include_secrets: IncludeSecrets = False,
    redact_entropy: RedactEntropy = False,
    json: Annotated[
        bool,
        json_flag(
            "`differences`, a list, each with `project`, `fragment_id`, `change` and `reason`; `unchanged`, their "
            "number; and `tokens`, of both answers"
        ),
    ] = False,
) -> int:
    """Without arguments it compares the last two answers, the older one first."""
    given = [*(receipts or ()), *(receipt or ())]
    if len(given) not in {0, _COUNT}:
        raise InvalidArgument("give two receipts, or none for those of the last two answers")
    policy = secret_policy(include_secrets=include_secrets, redact_entropy=redact_entropy)
    # `latest_receipts` has the newest first; the difference is read from the older answer to the newer one.
    with open_receipts(source_of(path, address, project, policy)) as kept:
        before, after = (kept.get(each) for each in given or reversed(kept.latest(_COUNT)))
    found = diff(before, after)
    if json:
        print_struct(found)
    else:
        write_result(f"{found}\n")
    return 0
