"""A LocalRuntime is what it stands for: the same calls have the same results, errors and revisions as of a process."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import act, executing, fragment
from tests.support.spelled import spelled

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

BUDGET = sw.TierBudget(hot_tokens=10, warm_entries=3, cold_entries=6)
AnyRuntime = sw.Runtime | LocalRuntime


class Transcript:
    """What a scenario told, with everything left out that differs between two runs: ids by number, no times or pids."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}

    def tell(self, what: object) -> None:
        text = re.sub(r"(\w+_ms=)\d{13}|(\bpid=)\d+", r"\1\2…", spelled(what))
        text = re.sub(
            r"\b0[0-9A-Z]{25}\b", lambda found: self._names.setdefault(found[0], f"#{len(self._names)}"), text
        )
        self.lines.append(text)

    def attempt(self, deed: Callable[[], object]) -> None:
        """What it gives, or how it is refused."""
        try:
            self.tell(deed())
        except sw.StepwellError as error:
            self.tell((type(error), error.message, error.details))


def tiers(client: sw.Client, told: Transcript) -> None:
    """Stores, reads, moves, what does not fit, and what the tiers say of themselves."""
    for number in range(4):
        told.tell(client.tiers.store(fragment(str(number), f"body {number}", 4)))
    told.tell(client.tiers.store(sw.Fragment(fragment_id="counted", body="how many tokens has this?")))
    told.attempt(lambda: (client.tiers.get("0").text, client.tiers.get("0").access_count))
    told.attempt(lambda: client.tiers.get("absent"))
    told.tell(client.tiers.promote("0"))
    told.tell(client.tiers.demote("3"))
    told.tell(client.tiers.evict_lru(sw.Tier.HOT, 2))
    told.attempt(lambda: client.tiers.store(fragment("0", "again"), expected_revision=1))
    told.attempt(lambda: client.tiers.store(fragment("0", "again"), expected_revision=0))
    told.attempt(lambda: client.tiers.get("0", project="elsewhere"))
    told.attempt(lambda: client.tiers.store(fragment("large", b"x" * 1_000_000)))
    told.tell(bytes(client.tiers.get("large").body) == b"x" * 1_000_000)
    told.attempt(lambda: client.tiers.store_many([fragment(f"more {number}", b"x", 11) for number in range(5)]))
    told.tell(client.tiers.list(limit=3))
    told.tell(client.tiers.metrics())
    for row in client.tiers.list().rows:
        told.tell(client.tiers.delete(row.fragment_id))


def plans(client: sw.Client, told: Transcript) -> None:
    """A plan's life with a changeset, from its action to a proof, and what is refused on the way."""
    plan = executing(client, "life", "plans")
    told.tell(plan)
    context = client.execution(plan.plan_id)
    told.attempt(lambda: context.record_change(sw.Change(path="a", before=None, after=b"a\n")))
    changeset_id = context.start_changeset()
    told.tell(context.record_change(sw.Change(path="a", before=None, after=b"a\n")))
    told.tell(context.record_change(sw.Change(path="b", before=b"b\n" * 40_000, after=None)))
    told.tell(context.close_changeset(changeset_id))
    told.attempt(lambda: context.record_change(sw.Change(path="c", before=None, after=b""), changeset_id=changeset_id))
    told.tell(context.diff(changeset_id)[:200])
    told.tell(context.summary(changeset_id))
    told.attempt(lambda: client.plans.start_strategize(plan.plan_id))
    told.attempt(lambda: client.plans.complete_execute(plan.plan_id, lease=77))
    told.tell(client.plans.record_decision(plan.plan_id, question="why", choice="because"))
    told.tell(client.plans.complete_execute(plan.plan_id))
    told.tell(client.plans.apply_plan(plan.plan_id))
    told.tell(client.plans.start_apply(plan.plan_id))
    told.attempt(lambda: client.plans.complete_apply(plan.plan_id, proof={}))
    told.tell(client.plans.cancel_plan(plan.plan_id, "enough"))
    told.tell(client.plans.list_plans())


def bundles(client: sw.Client, told: Transcript) -> None:
    """A batch with refusals in it, a transaction, and one that is aborted."""
    with client.batch() as batch:
        pending = [batch.tiers.store(fragment("a")), batch.tiers.get("absent"), batch.tiers.get("a")]
    told.tell(pending[0].result())
    told.attempt(pending[1].result)
    told.tell([pending[0].revision, pending[2].revision])
    with client.transaction() as transaction:
        stored = [transaction.tiers.store(fragment(name)) for name in "bc"]
    told.tell([each.result() for each in stored])

    def abort() -> None:
        with client.transaction() as transaction:
            transaction.tiers.store(fragment("d"))
            transaction.tiers.delete("absent")

    told.attempt(abort)
    told.attempt(lambda: client.tiers.get("d"))


def watching(client: sw.Client, told: Transcript) -> None:
    """Events from a revision on, in order; the rest of what a client has."""
    since = client.status().revision
    act(client, "watched")
    for name in "abcd":
        client.tiers.store(fragment(name, name, 4))
    client.tiers.delete("a")
    with client.watch(since) as watch:
        while watch.revision < client.status().revision:
            told.tell(watch.get(60))
    told.attempt(lambda: client.watch(10_000))
    told.tell([(each.fragment_id, each.text, each.row.tier) for each in client.view()])
    told.tell(client.receipts.store("r", ["watching"], "title", b"receipt"))
    told.tell(client.receipts.get("r"))
    told.attempt(lambda: client.assemble(sw.ContextRequest(query="a", projects=["watching"], budget_tokens=10)))
    status = client.status()
    told.tell((status.revision, status.durability, status.encoding, status.sessions, status.metrics))


def transcript(started: AbstractContextManager[AnyRuntime]) -> list[str]:
    told = Transcript()
    with started as runtime:
        for scenario in (tiers, plans, bundles, watching):
            with runtime.client(projects=[scenario.__name__]) as client:
                scenario(client, told)
    return told.lines


@pytest.mark.parametrize("is_kept", [False, True], ids=["in memory", "in a directory"])
def test_same_results(tmp_path: Path, *, is_kept: bool) -> None:
    """Whatever a client can be told, it is told by both, word for word."""
    here, there = (str(tmp_path / name) if is_kept else None for name in ("here", "there"))
    local = transcript(LocalRuntime(budget=BUDGET, data_dir=here, workers=0))
    durability = "process" if is_kept else None
    assert local == transcript(sw.Runtime.start(budget=BUDGET, data_dir=there, durability=durability, workers=0))
    assert len(local) > 50


def found(client: sw.Client) -> Iterator[str]:
    """What the built-in strategies find, of fragments that make them differ."""
    for name in ("fox", "dog", "foxes and dogs"):
        client.tiers.store(fragment(name, f"the quick brown {name} jumps", 5))
    answer = client.assemble(
        sw.ContextRequest(query="brown fox", projects=["p"], budget_tokens=50), strategies=["keyword", "recency"]
    )
    yield from (each.fragment_id for each in answer.fragments)
    yield answer.render()
    yield from (f"{report.strategy} {report.kept} {report.failure}" for report in answer.strategies)


def test_same_answers() -> None:
    """An answer of a worker in a thread is that of a worker in a process."""
    with LocalRuntime() as runtime:
        local = [*found(runtime.client(projects=["p"]))]
    with sw.Runtime.start(workers=1) as process, process.client(projects=["p"]) as client:
        assert [*found(client)] == local
    assert "fox" in local
