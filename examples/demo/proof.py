"""What is true afterwards: everything is read back and compared, nothing is inferred from the absence of errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from examples.demo.job import Findings, Job, Services, execution
from stepwell.domain.plans.model import Plan
from stepwell.errors import NotFound


class Proof(Struct, frozen=True, kw_only=True):
    """What was expected and what was found."""

    fragments: int
    fragments_found: int  # with the body that was stored
    hot_tokens: int  # the budget
    hot_highest: int  # that anybody ever read
    readings: int  # in between, by a reader
    revisions: int  # made by a store, and read at
    names: int
    names_won_once: int  # by one caller, whose action it is
    changes: int
    changes_right: int  # in their caller's own changeset, and nothing else in it
    broken: tuple[str, ...]  # errors that no caller should ever see
    seconds: float

    @property
    def holds(self) -> bool:
        return (
            self.fragments_found == self.fragments
            and self.hot_highest <= self.hot_tokens
            and self.names_won_once == self.names
            and self.changes_right == self.changes
            and not self.broken
        )


def verify(
    services: Services,
    job: Job,
    plan: Plan,
    findings: Sequence[Findings],
    *,
    seconds: float,
    readings: Sequence[int] = (),
) -> Proof:
    """Compare what the callers did with what is there. `readings` are hot tokens, as a reader saw them meanwhile."""
    metrics = services.tiers.metrics()
    return Proof(
        fragments=sum(len(job.fragments(each.caller)) for each in findings),
        fragments_found=sum(_fragments_found(services, job, each.caller) for each in findings),
        hot_tokens=metrics.budget.hot_tokens,
        hot_highest=max(metrics.hot.tokens, *readings, *(each.hot_highest for each in findings)),
        readings=len(readings),
        revisions=len({revision for each in findings for revision in each.revisions}),
        names=len(job.names),
        names_won_once=_names_won_once(services, job, findings),
        changes=sum(len(job.paths(each.caller)) for each in findings),
        changes_right=sum(_changes_right(services, job, plan, each) for each in findings),
        broken=tuple(error for each in findings for error in each.broken),
        seconds=seconds,
    )


def _fragments_found(services: Services, job: Job, caller: int) -> int:
    found = 0
    for fragment in job.fragments(caller):
        try:
            found += services.tiers.get(fragment.fragment_id, project=job.project).text == fragment.body
        except NotFound:
            continue
    return found


def _names_won_once(services: Services, job: Job, findings: Sequence[Findings]) -> int:
    winners = {name: [each.caller for each in findings if name in each.wins] for name in job.names}
    return sum(
        len(callers) == 1 and _description(services, name) == f"of caller {callers[0]}"
        for name, callers in winners.items()
    )


def _description(services: Services, name: str) -> str | None:
    """Of an action, if it was not lost as a whole."""
    try:
        return services.plans.get_action(name).description
    except NotFound:
        return None


def _changes_right(services: Services, job: Job, plan: Plan, findings: Findings) -> int:
    if findings.changeset_id is None:
        return 0
    try:
        recorded = Counter(entry.path for entry in execution(services, plan).entries(findings.changeset_id))
    except NotFound:  # lost as a whole
        return 0
    own = set(job.paths(findings.caller))
    strangers = sum(count for path, count in recorded.items() if path not in own)
    return max(0, sum(recorded[path] == 1 for path in own) - strangers)
