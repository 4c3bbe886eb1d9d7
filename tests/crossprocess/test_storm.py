"""Many processes with many threads do everything at once, and nothing of it is lost, mixed up or out of order."""

from collections import Counter
from pathlib import Path

import msgspec

import stepwell as sw
from stepwell.domain.tiers.body_refs import digest_of
from tests.support.processes import run_all
from tests.support.programs.history import violations
from tests.support.programs.storm import (
    BUDGET,
    PROJECTS,
    RACES,
    SHARED,
    THREADS,
    WALK,
    Expected,
    Report,
    create_action,
    work,
)
from tests.support.seeds import seeded
from tests.support.soak import IS_LONG

PROCESSES = 8
COMMANDS = 100_000 if IS_LONG else 20_000
SEED = 1281


def test_storm_loses_nothing_and_keeps_one_order(tmp_path: Path) -> None:
    """8 processes of 4 threads, many mixed commands: every fragment, change and win is where it has to be,
    the budget is kept, and one total order that agrees with real time explains every reply.
    """
    seeded(SEED)
    with sw.Runtime.start(workers=0, budget=BUDGET) as runtime, runtime.client() as client:
        create_action(client, WALK)
        each = COMMANDS // (PROCESSES * THREADS) + 1
        run_all(work, [(runtime.address, number, each, SEED, str(tmp_path)) for number in range(PROCESSES)])
        report = Report()
        for number in range(PROCESSES):
            report.merge(msgspec.msgpack.decode((tmp_path / f"{number}.report").read_bytes(), type=Report))
        assert report.commands >= COMMANDS
        assert sum(operation.is_write for operation in report.history) > COMMANDS / 4
        assert violations(report.history) == []
        check_fragments(client, report.fragments)
        check_races(client, report)
        check_plans(client, report)


def check_fragments(client: sw.Client, expected: dict[str, Expected]) -> None:
    """Everything that was stored last and not deleted is there, whole, in one tier, and counted once."""
    rows = [row for project in PROJECTS for row in client.tiers.scoped(project=project)]
    found = {row.fragment_id: Expected(row.project, row.digest, row.tokens) for row in rows}
    assert len(found) == len(rows)
    shared = {each: found.pop(each) for each in SHARED if each in found}
    assert found == expected
    metrics = client.tiers.metrics()
    for tier, usage in ((sw.Tier.HOT, metrics.hot), (sw.Tier.WARM, metrics.warm), (sw.Tier.COLD, metrics.cold)):
        inside = [row for row in rows if row.tier is tier]
        assert (usage.entries, usage.tokens, usage.bytes) == (
            len(inside),
            sum(row.tokens for row in inside),
            sum(row.size for row in inside),
        )
    assert metrics.hot.tokens <= BUDGET.hot_tokens
    assert metrics.warm.entries <= BUDGET.warm_entries
    for project in PROJECTS:
        ids = [each for each, fragment in (expected | shared).items() if fragment.project == project]
        bodies = client.tiers.get_many(ids, project=project)
        assert {each: digest_of(stored.body) for each, stored in bodies.items()} == {
            each: (expected | shared)[each].digest for each in ids
        }


def check_races(client: sw.Client, report: Report) -> None:
    """Of all who created one name, one won."""
    assert report.losses > 0
    assert set(Counter(report.wins).values()) == {1}
    names = {action.name for action in client.plans.list_actions(limit=1_000).actions}
    assert names == {f"local/{name}" for name in (*report.wins, WALK)}
    assert len(names) <= RACES + 1


def check_plans(client: sw.Client, report: Report) -> None:
    """Every plan went its way, and every change is in the changeset that its context had open."""
    assert report.plans
    for plan_id in report.plans:
        assert str(client.plans.get_plan(plan_id).position) == "execute/complete"
    context = client.execution(report.plans[0])
    for changeset_id, changes in report.changesets.items():
        recorded = [(entry.path, entry.after and entry.after.digest) for entry in context.entries(changeset_id)]
        assert recorded == changes
