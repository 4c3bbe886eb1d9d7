"""The twin: alone it does what the services do, so that what goes wrong between two callers is the race and no more."""

import pickle
from collections.abc import Callable
from functools import partial

import pytest

import stepwell as sw
from stepwell.client.session.tokens import counter
from tests.doubles.unsynchronised import Unsynchronised
from tests.support.features.schedules import FirstHeld

BUDGET = sw.TierBudget(hot_tokens=20)


def fragment(fragment_id: str, tokens: int | None = 10, body: str = "body") -> sw.Fragment:
    return sw.Fragment(fragment_id=fragment_id, project="p", body=body, tokens=tokens)


def create(services: Unsynchronised, name: str = "fix", *, reusable: bool = True) -> sw.types.Action:
    return services.plans.create_action(
        name,
        description="d",
        definition_of_done="done",
        strategy_actor="local/a",
        execution_actor="local/b",
        reusable=reusable,
    )


def executing(services: Unsynchronised) -> sw.Plan:
    create(services)
    plan_id = services.plans.use_action("fix", projects=["p"]).plan_id
    services.plans.start_strategize(plan_id)
    services.plans.complete_strategize(plan_id)
    services.plans.execute_plan(plan_id)
    return services.plans.start_execute(plan_id)


def test_one_caller_loses_nothing() -> None:
    """Overflow goes down, least recently used first, with body and tokens."""
    tiers = Unsynchronised(budget=BUDGET).tiers
    for name in ("a", "b"):
        tiers.store(fragment(name, body=name))
    tiers.get("a", project="p")
    tiers.store(fragment("c", tokens=None, body="c" * 30))
    found = {name: tiers.get(name, project="p") for name in ("a", "b", "c")}
    assert {name: each.tier for name, each in found.items()} == {
        "a": sw.Tier.HOT,
        "b": sw.Tier.WARM,
        "c": sw.Tier.HOT,
    }
    assert [each.text for each in found.values()] == ["a", "b", "c" * 30]
    metrics = tiers.metrics()
    counted = counter().count(b"c" * 30)
    assert (metrics.hot.tokens, metrics.warm.tokens, metrics.body_bytes) == (10 + counted, 10, 32)


def test_moves_are_between_neighbours() -> None:
    """Up and down by one tier, and no further than the ends."""
    tiers = Unsynchronised(budget=BUDGET).tiers
    tiers.store(fragment("a"), tier=sw.Tier.COLD)
    assert [tiers.promote("a", project="p").tier for _ in range(2)] == [sw.Tier.WARM, sw.Tier.HOT]
    assert tiers.promote("a", project="p").note is sw.types.Note.ALREADY_THERE
    assert [tiers.demote("a", project="p").tier for _ in range(2)] == [sw.Tier.WARM, sw.Tier.COLD]


def test_eviction_lowers_and_from_cold_deletes() -> None:
    tiers = Unsynchronised(budget=BUDGET).tiers
    tiers.store(fragment("a"))
    tiers.store(fragment("b"))
    assert [move.fragment_id for move in tiers.evict_lru(count=2).moves] == ["a", "b"]
    tiers.demote("a", project="p")
    assert [move.target for move in tiers.evict_lru(sw.Tier.COLD).moves] == [None]
    with pytest.raises(sw.NotFound):
        tiers.get("a", project="p")


MISTAKES: dict[str, tuple[type[Exception], Callable[[Unsynchronised], object]]] = {
    "no project": (sw.InvalidArgument, lambda services: services.tiers.get("a")),
    "no fragment": (sw.NotFound, lambda services: services.tiers.get("a", project="p")),
    "no action": (sw.NotFound, lambda services: services.plans.get_action("no")),
    "no plan": (sw.NotFound, lambda services: services.plans.get_plan("no")),
    "same name": (sw.AlreadyExists, lambda services: (create(services), create(services))),
    "started": (sw.PlanNotReady, lambda services: services.plans.start_execute(executing(services).plan_id)),
    "none active": (
        sw.NoActiveChangeset,
        lambda services: services.execution("x").record_change(sw.Change(path="a", after=b"")),
    ),
    "not active": (sw.NotFound, lambda services: services.execution("x").close_changeset("no")),
    "no changeset": (sw.NotFound, lambda services: services.execution("x").entries("no")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_refusals_are_those_of_the_services(mistake: str) -> None:
    refusal, make = MISTAKES[mistake]
    with pytest.raises(refusal):
        make(Unsynchronised())


def test_a_spent_action_is_refused() -> None:
    plans = (services := Unsynchronised()).plans
    create(services, reusable=False)
    plans.use_action("local/fix", projects=["p"])
    with pytest.raises(sw.ActionUnavailable):
        plans.use_action("fix", projects=["p"])


def test_one_worker_records_in_its_changeset() -> None:
    """Contents as bytes, as digests and absent, each with the operation that follows."""
    services = Unsynchronised()
    plan = executing(services)
    context = services.execution(plan.plan_id)
    changeset_id = context.start_changeset()
    context.record_change(sw.Change(path="a", after=b"1"))
    context.record_change(sw.Change(path="a", before=sw.Digest.of(b"1"), after=None))
    context.close_changeset(changeset_id)
    entries = [*services.execution(plan.plan_id).entries(changeset_id)]
    assert [(each.seq, each.operation) for each in entries] == [(1, sw.Operation.CREATE), (2, sw.Operation.DELETE)]


def test_every_seam_is_named() -> None:
    """A scenario can hold a caller at any point at which another can come in between."""
    points: list[str] = []
    services = Unsynchronised(budget=BUDGET, seam=points.append)
    for name in ("a", "b", "c"):
        services.tiers.store(fragment(name))
    services.tiers.get("a", project="p")
    services.tiers.promote("a", project="p")
    services.tiers.demote("a", project="p")
    services.tiers.evict_lru()
    context = services.execution(executing(services).plan_id)
    services.plans.start_ready([services.plans.use_action("fix", projects=["p"]).plan_id], labels=())
    services.plans.begin_apply("x", tree="/t")
    context.record_change(sw.Change(path="a", after=context.start_changeset().encode()))
    context.close_changeset(next(iter(context._changesets)))
    assert {point.partition(":")[0] for point in points} == {
        "store",
        "enforce_hot_budget",
        "get",
        "promote",
        "demote",
        "evict_lru",
        "create_action",
        "use_action",
        "start_strategize",
        "complete_strategize",
        "execute_plan",
        "start_execute",
        "begin_apply",
        "start_ready",
        "execution",
        "start_changeset",
        "record_change",
        "close_changeset",
    }


def test_two_agents_are_given_one_child() -> None:
    """What an agent can do is compared, as the services do; but between the finding and the start another one finds."""
    schedule = FirstHeld("start_ready: found, not started")
    services = Unsynchronised(seam=schedule.seam)
    create(services)
    needs = ((), ("gpu",), ("gpu", "python"))
    ids = [services.plans.use_action("fix", projects=["p"], labels=labels).plan_id for labels in needs]
    found = schedule.run([partial(services.plans.start_ready, ids[1:], labels=("gpu",))] * 2)
    assert [isinstance(each, sw.Plan) and each.plan_id for each in found] == [ids[1]] * 2
    assert services.plans.start_ready(ids[1:], labels=("gpu",)) is None


def test_two_plans_have_their_turn_at_once() -> None:
    """One caller after the other is refused; but between the check and the beginning another one checks."""
    schedule = FirstHeld("begin_apply: checked, not begun")
    services = Unsynchronised(seam=schedule.seam)
    tasks = [partial(services.plans.begin_apply, plan_id, tree="/t") for plan_id in ("a", "b")]
    assert schedule.run(tasks) == [None, None]
    assert services.plans.begun == ["b", "a"]
    with pytest.raises(sw.TreeQueued):
        services.plans.begin_apply("c", tree="/t")


def test_another_process_has_a_copy() -> None:
    """Sent elsewhere it is not shared: what is stored there is not here."""
    here = Unsynchronised()
    there: Unsynchronised = pickle.loads(pickle.dumps(here))  # noqa: S301
    there.tiers.store(fragment("a"))
    there.close()
    with pytest.raises(sw.NotFound):
        here.tiers.get("a", project="p")


def test_equal_bodies_of_two_callers_get_two_ids() -> None:
    """Alone the twin finds the equal body. A second caller between its look and its store finds none either.

    The services give one id to all: `tests/crossprocess/test_state_keepers.py`.
    """
    alone = Unsynchronised().tiers
    alone.store(fragment("a"), unique=True)
    assert alone.store(fragment("b"), unique=True).note is sw.types.Note.EQUAL_BODY
    replies: list[str] = []

    def come_in(point: str) -> None:
        if point == "store: no equal body, not stored" and not replies:
            replies.append("second")
            replies.append(services.tiers.store(fragment("b"), unique=True).fragment_id)

    services = Unsynchronised(seam=come_in)
    replies.append(services.tiers.store(fragment("a"), unique=True).fragment_id)
    assert replies == ["second", "b", "a"]
