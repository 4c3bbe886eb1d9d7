"""`stepwell assemble`: print the best context for a question, within a budget of tokens.

Without `--connect` the command answers from an index of the directory, which it keeps in the cache. It first reads the
files that changed since the last time. With `--connect` it asks a running manager.

Stdout has the context alone, so that it can be piped into a model's prompt. With `--explain` a Markdown table of the
candidates follows; with `--json` stdout has one object instead. Files that were left out, redacted places, failed
strategies and names that match nothing are reported on stderr. On a terminal a table of the strategies is printed to
stderr too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, cast

import msgspec
from msgspec import Struct

from stepwell import limits
from stepwell.assembly.answer import Answer
from stepwell.assembly.components import named
from stepwell.assembly.stages.pack import NO_ROOM
from stepwell.cli.common import progress_bar
from stepwell.cli.common.answer_text import print_answer
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.completions import complete_plans
from stepwell.cli.common.exit_codes import FAILED
from stepwell.cli.common.output import print_error, print_struct
from stepwell.cli.common.parameters import JsonFlag, argument, flag, option, whole_number
from stepwell.cli.common.request_options import Deadline, Fill, StopScore, Strategies, stop_score_of
from stepwell.cli.common.secret_options import (
    IncludeSecrets,
    LeftOut,
    RedactEntropy,
    report_left_out,
    report_redacted,
    secret_policy,
)
from stepwell.cli.common.source import Source, SourceAddress, SourcePath, SourceProject, source_of
from stepwell.directory_index.cache import cache_directory, delete_unredacted
from stepwell.directory_index.directory import DirectoryIndex
from stepwell.domain.tiers.source_outline import FILE_KIND
from stepwell.errors import InvalidArgument
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.strategies.protocol import ContextRequest, StrategyView

if TYPE_CHECKING:
    from stepwell.client.client import Client

app: Final = command_app()


class _Question(Struct, frozen=True):
    """A request, and how it is to be answered."""

    request: ContextRequest
    components: dict[str, str]
    plan_id: str | None
    strategies: list[str] | None
    deadline_s: float | None


@app.command(cls=ShellCommand)
def run(
    *,
    question: Annotated[str, argument("QUESTION", "in words")],
    path: SourcePath = None,
    address: SourceAddress = None,
    project: SourceProject = None,
    include_secrets: IncludeSecrets = False,
    redact_entropy: RedactEntropy = False,
    budget: Annotated[
        int, option("--budget", metavar="TOKENS", about="bound of the whole text that is printed", parse=whole_number)
    ] = 8_000,
    fill: Fill = False,
    stop_score: StopScore = None,
    focus: Annotated[
        list[str] | None, option("--focus", metavar="SOURCE...", about="one or more paths or ids to begin at")
    ] = None,
    kinds: Annotated[
        list[str] | None, option("--kinds", metavar="KIND...", about="one or more of code, markdown, text, turn, ...")
    ] = None,
    strategies: Strategies = None,
    plan: Annotated[
        str | None,
        option(
            "--plan",
            metavar="ID",
            about="a plan of that manager, whose decisions are part of the context",
            complete=complete_plans,
        ),
    ] = None,
    component: Annotated[
        list[str] | None,
        option("--component", metavar="STAGE=NAME", about="replace a stage; may be given several times"),
    ] = None,
    deadline: Deadline = None,
    json: JsonFlag = False,
    explain: Annotated[
        bool, flag("--explain", "also print the decision about every candidate, with its reason")
    ] = False,
) -> int:
    """Without --connect it answers from an index of the directory, in the cache; it first reads the files that changed
    since the last time. With --connect it asks a running manager; a PATH is read into that manager first.

    Stdout has the context alone, so that it can be piped. The exit code is 1 if nothing is found that matches and fits,
    or if every strategy failed.
    """
    source = source_of(
        path, address, project, secret_policy(include_secrets=include_secrets, redact_entropy=redact_entropy)
    )
    # A later --component for the same stage replaces an earlier one.
    components = dict(map(_component, component or ()))
    named(components)  # raises for an unknown component now, before processes are started
    request = ContextRequest(
        projects=[source.project],
        query=question,
        focus=focus or [],
        kinds=kinds or [],
        budget_tokens=budget,
        stop_score=stop_score_of(stop_score, fill=fill),
    )
    answer = _answer(source, _Question(request, components, plan, strategies, deadline))
    if json:
        print_struct(_json_object(answer, with_receipt=explain))
    else:
        print_answer(answer, with_receipt=explain)
    report_redacted(answer.redacted)
    _report_failures(answer)
    return 0 if answer.fragments else FAILED


def _answer(source: Source, question: _Question) -> Answer:
    """Return the answer to a question about a source: of a running manager, or of the index of a directory."""
    if source.address is not None:
        from stepwell.client.client import connect  # noqa: PLC0415 - a client is needed here only

        with connect(source.address, [source.project]) as client:
            return _from_manager(client, source, question)
    return _from_directory(source, question)


def _from_directory(source: Source, question: _Question) -> Answer:
    """Bring the index of a directory up to date, and return its answer."""
    if question.plan_id is not None:
        raise InvalidArgument("a plan is kept by a manager: name one with --connect")
    delete_unredacted(source.root)
    cache = cache_directory(source.root, source.policy)
    path = source.path or source.root
    with DirectoryIndex(path, source.project, source.policy, cache, print_error) as directory:
        with progress_bar.count_bar() as on_reading:
            left_out = directory.refresh(on_reading)
        report_left_out(left_out)
        _report_skipped(left_out)
        with progress_bar.strategy_bars() as on_progress:
            answer = directory.assemble(
                question.request,
                strategies=question.strategies,
                deadline_s=question.deadline_s,
                stages=question.components,
                on_progress=on_progress,
            )
    _report_unknown_names(directory.view, question.request, answer)
    return answer


def _from_manager(client: Client, source: Source, question: _Question) -> Answer:
    """Bring the project up to date with the source's path, if there is one, and return the answer."""
    if source.path is not None:
        with progress_bar.count_bar() as on_reading:
            report = client.ingest(
                source.path,
                include_secrets=source.policy is SecretPolicy.INCLUDE,
                redact_entropy=source.policy is SecretPolicy.REDACT_ENTROPY,
                on_progress=on_reading,
            )
        report_left_out(report)
        _report_skipped(report)
    with progress_bar.strategy_bars() as on_progress:
        answer = client.assemble(
            question.request,
            plan_id=question.plan_id,
            strategies=question.strategies,
            deadline_s=question.deadline_s,
            components=question.components,
            on_progress=on_progress,
        )
    _report_unknown_names(cast("StrategyView", client.view()), question.request, answer)
    return answer


def _report_skipped(report: LeftOut) -> None:
    """Name a few files that were not read, with the reason, and count the others."""
    for source, reason in [*report.skipped.items()][: limits.SKIPPED_SHOWN_BY_ASSEMBLE]:
        print_error(f"left out {source}: {reason}")
    if report.skipped_count > limits.SKIPPED_SHOWN_BY_ASSEMBLE:
        print_error(f"left out {report.skipped_count - limits.SKIPPED_SHOWN_BY_ASSEMBLE:,} more")


def _report_unknown_names(view: StrategyView, request: ContextRequest, answer: Answer) -> None:
    """Report kinds, focus paths and projects that match nothing.

    Strategies ignore a name that they do not find, so a spelling mistake would only show as a worse answer. The rows
    are read only if there is a name to check or nothing was found.
    """
    if answer.fragments and not request.kinds and not request.focus:
        return
    rows = [row for project in request.projects for row in view.rows(project) if row.kind != FILE_KIND]
    if not rows:
        print_error(f"nothing is stored in project {request.projects[0]!r}: name another, or a PATH to be read first")
        return
    kinds = {row.kind for row in rows}
    for kind in request.kinds:
        if kind not in kinds:
            print_error(f"nothing is of kind {kind!r}, only of {', '.join(sorted(kinds))}")
    names = {f"/{name}" for row in rows for name in (row.source, row.fragment_id)}
    for focus in request.focus:
        if not any(name.endswith(f"/{focus}") for name in names):
            print_error(f"nothing is called {focus!r}: give a path as the answer names it, or a fragment's id")


def _report_failures(answer: Answer) -> None:
    """Report the strategies that failed and, if the answer is empty, why: nothing matches, or nothing fits."""
    for failure in answer.failures:
        print_error(f"{failure.strategy}: {failure.message}")
    if answer.fragments or len(answer.failures) == len(answer.strategies):
        return
    if any(entry.reason == NO_ROOM for entry in answer.receipt.entries):
        print_error("nothing that matches fits: give a larger --budget")
        return
    advice = ", or fill the budget with --fill" if answer.receipt.entries else ""
    print_error(f"nothing matches the question: ask with other words{advice}")
    without_hits = [f"{each.strategy}: {each.explanation}" for each in answer.strategies if not each.candidates]
    for each in without_hits if len(without_hits) == len(answer.strategies) else []:
        print_error(each)


def _component(text: str) -> tuple[str, str]:
    """Return the parts of STAGE=NAME."""
    stage, is_given, name = text.partition("=")
    if not is_given:
        raise InvalidArgument(f"--component is STAGE=NAME, such as fuse=reciprocal, not {text!r}")
    return stage, name


def _json_object(answer: Answer, *, with_receipt: bool) -> dict[str, object]:
    """Return the object for `--json`. The receipt is large, so it is part of it only with `--explain`."""
    found = msgspec.structs.asdict(answer)
    if not with_receipt:
        del found["receipt"]
    return found
