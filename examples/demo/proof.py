"""The proof: everything that the callers did is read back and compared with what they should have done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from examples.demo.job import Findings, Job, Services, execution
from stepwell.domain.plans.model import Plan
from stepwell.errors import NotFound


class Proof(Struct, frozen=True, kw_only=True):
    """The expected and the found numbers.

    - `fragments_found` counts fragments that have the body that was stored.
    - `hot_tokens` is the budget, `hot_highest` the largest value that any caller or reader saw.
    - `revisions` counts the revisions at which a caller read the tiers, `readings` the other reads.
    - `names_won_once` counts actions that one caller created, whose description the action has.
    - `changes_right` counts changes that are once, and alone, in the changeset of their caller.
    - `broken` has the errors that no caller should ever see.
    """

    fragments: int
    fragments_found: int
    hot_tokens: int
    hot_highest: int
    readings: int
    revisions: int
    names: int
    names_won_once: int
    changes: int
    changes_right: int
    broken: tuple[str, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """True if nothing was lost, the budget was never exceeded and no call broke."""
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
    """Compare what the callers did with the state. `readings` are the hot tokens that a reader saw meanwhile."""
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
    """Return how many of a caller's fragments are stored with their own body."""
    found = 0
    for fragment in job.fragments(caller):
        try:
            found += services.tiers.get(fragment.fragment_id, project=job.project).text == fragment.body
        except NotFound:
            continue
    return found


def _names_won_once(services: Services, job: Job, findings: Sequence[Findings]) -> int:
    """Return how many actions exactly one caller created, and belong to that caller."""
    winners = {name: [each.caller for each in findings if name in each.wins] for name in job.names}
    return sum(
        len(callers) == 1 and _description(services, name) == f"of caller {callers[0]}"
        for name, callers in winners.items()
    )


def _description(services: Services, name: str) -> str | None:
    """Return the description of an action, or None if the action was lost as a whole."""
    try:
        return services.plans.get_action(name).description
    except NotFound:
        return None


def _changes_right(services: Services, job: Job, plan: Plan, findings: Findings) -> int:
    """Return how many of a caller's changes are in its changeset exactly once, less the changes of other
    callers there.
    """
    if findings.changeset_id is None:
        return 0
    try:
        recorded = Counter(entry.path for entry in execution(services, plan).entries(findings.changeset_id))
    except NotFound:  # lost as a whole
        return 0
    own = set(job.paths(findings.caller))
    foreign = sum(count for path, count in recorded.items() if path not in own)
    return max(0, sum(recorded[path] == 1 for path in own) - foreign)
