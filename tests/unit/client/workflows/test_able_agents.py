"""Agents that say what they can do: none is given what it cannot do, and none waits for what it never gets."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import executing
from tests.support.client.subplans import declared

GPU = "gpu"


def do_nothing(_plan: sw.Plan, _context: sw.WorkContext) -> None:
    """Work that is done at once."""


def of(client: sw.Client, plan_ids: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the labels of plans."""
    return [client.plans.get_plan(plan_id).labels for plan_id in plan_ids]


@pytest.fixture
def parent(client: sw.Client) -> sw.Plan:
    """Two children for any agent, and two for one with a label."""
    plan = executing(client, "able", (client.projects or ("p",))[0])
    children = [
        sw.subplan(plan.action_name, alias=f"c{number}", labels=GPU if number % 2 else ()) for number in range(4)
    ]
    return client.plans.declare_subplans(plan.plan_id, children)


class TestLabels:
    def test_one_name_is_a_name(self, client: sw.Client, parent: sw.Plan) -> None:
        """And not its letters."""
        assert client.plans.use_action(parent.action_name, projects=parent.projects, labels=GPU).labels == (GPU,)
        assert client.plans.begin(parent.action_name, projects=parent.projects, labels=["b", GPU]).labels == ("b", GPU)
        found = client.plans.start_ready(parent.plan_id, labels="g")
        assert found.plan is not None
        assert found.plan.labels == ()

    def test_each_does_what_it_can(self, client: sw.Client, parent: sw.Plan) -> None:
        """The one that cannot do what is left ends, and says why; the other one does the rest."""
        done = client.plans.work_on(parent.plan_id, do_nothing, labels=())
        assert of(client, done.completed) == [(), ()]
        assert (done.is_over, done.is_for_others) == (False, True)
        rest = client.plans.work_on(parent.plan_id, do_nothing, labels=(GPU, "cpu"))
        assert of(client, rest.completed) == [(GPU,), (GPU,)]
        assert (rest.is_over, rest.is_for_others) == (True, False)

    def test_listed(self, client: sw.Client, parent: sw.Plan) -> None:
        found = client.plans.list_plans(parent_plan_id=parent.plan_id, label=GPU)
        assert [each.labels for each in found] == [(GPU,), (GPU,)]

    def test_in_a_batch_and_a_transaction(self, client: sw.Client, parent: sw.Plan) -> None:
        """As everywhere."""
        with client.batch() as batch:
            first = batch.plans.start_ready(parent.plan_id, labels=(GPU,))
            second = batch.plans.start_ready(parent.plan_id, labels=())
        with client.transaction() as transaction:
            third = transaction.plans.start_ready(parent.plan_id, labels=())
            fourth = transaction.plans.start_ready(parent.plan_id, labels=())
        plans = [each.result().plan for each in (first, second, third, fourth)]
        assert [plan and plan.labels for plan in plans] == [(), (), None, None]

    def test_watched(self, client: sw.Client, parent: sw.Plan) -> None:
        """The event of a new plan says what it needs."""
        with client.watch() as watch:
            client.plans.use_action(parent.action_name, projects=parent.projects, labels=GPU)
            created = next(each for each in watch if isinstance(each, sw.events.PlanCreated))
        assert created.labels == (GPU,)


class TestRefusals:
    @pytest.mark.parametrize(
        "labels, advice",
        [(["a b"], "labels is malformed"), (["x"] * 65, "give at most 64 labels")],
        ids=["name", "many"],
    )
    def test_labels(self, client: sw.Client, parent: sw.Plan, labels: list[str], advice: str) -> None:
        with pytest.raises(sw.InvalidArgument, match=advice):
            client.plans.start_ready(parent.plan_id, labels=labels)

    @pytest.mark.parametrize(
        "actors, advice", [([], "give 1 to 16 actors"), (["No Body"], "did you mean 'no-body'")], ids=["none", "name"]
    )
    def test_actors(self, client: sw.Client, parent: sw.Plan, actors: list[str], advice: str) -> None:
        with pytest.raises(sw.InvalidArgument, match=advice):
            client.plans.work_on(parent.plan_id, do_nothing, actors=actors)

    def test_too_many_labels_of_a_plan(self, client: sw.Client, parent: sw.Plan) -> None:
        labels = [f"l{number}" for number in range(limits.PLAN_LABELS_MAX + 1)]
        with pytest.raises(sw.InvalidArgument, match="give at most 32 labels"):
            client.plans.use_action(parent.action_name, projects=parent.projects, labels=labels)


class TestActors:
    def test_a_strategy_is_left_to_the_executing_actor(self, client: sw.Client) -> None:
        """An agent that only plans has done its part; the one that executes goes on from there."""
        parent = declared(client, ["a", "b"])
        phases: list[str] = []

        def run(plan: sw.Plan, _context: sw.WorkContext) -> None:
            phases.append(str(plan.phase))

        planned = client.plans.work_on(parent.plan_id, run, straight=False, actors=["planner"])
        assert (phases, len(planned.completed), planned.is_for_others) == (["strategize"] * 2, 2, True)
        executed = client.plans.work_on(parent.plan_id, run, straight=False, actors="coder")
        assert executed.completed == planned.completed
        assert (phases[2:], executed.is_over) == (["execute"] * 2, True)
        assert not client.session.leases.keys() & {*planned.completed}

    def test_one_that_does_both(self, client: sw.Client) -> None:
        """It goes on with the child that it has planned."""
        parent = declared(client, ["a", "b"])
        tried: list[tuple[str, str]] = []

        def run(plan: sw.Plan, _context: sw.WorkContext) -> None:
            tried.append((plan.plan_id, str(plan.phase)))

        done = client.plans.work_on(parent.plan_id, run, straight=False, actors=["coder", "local/planner"])
        first, second = done.completed
        assert tried == [(each, phase) for each in (first, second) for phase in ("strategize", "execute")]


def test_failed_child_that_only_one_agent_can_do(runtime: LocalRuntime, client: sw.Client, parent: sw.Plan) -> None:
    """It is not held back for an agent that cannot do it, although that one is waiting."""
    assert parent.subplans is not None
    held = client.plans.start_ready(parent.plan_id, straight=True, labels=()).plan
    assert held is not None
    with runtime.client(projects=parent.projects) as other:
        waiting = other.plans.start_ready(parent.plan_id, straight=True, labels=())
        assert waiting.plan is not None
        assert not other.plans.start_ready(parent.plan_id, straight=True, labels=()).is_for_others
        failed = client.plans.start_ready(parent.plan_id, straight=True, labels=GPU).plan
        assert failed is not None
        client.plans.fail_execute(failed.plan_id, "no")
        client.plans.retry_plan(failed.plan_id)
        again = client.plans.start_ready(parent.plan_id, straight=True, labels=GPU).plan
        assert again is not None
        assert again.plan_id == failed.plan_id


def test_waits_for_what_may_come_back(runtime: LocalRuntime, client: sw.Client, parent: sw.Plan) -> None:
    """A child in other hands may be lost there; an agent that can do it is there then."""
    done: list[sw.types.WorkDone] = []
    with runtime.client(projects=parent.projects) as other:
        for _ in range(2):
            assert client.plans.start_ready(parent.plan_id, straight=True, labels=()).plan is not None
        worker = threading.Thread(
            target=lambda: done.append(other.plans.work_on(parent.plan_id, do_nothing, labels=()))
        )
        worker.start()
        held = [each for each in client.session.leases if each != parent.plan_id]
        client.plans.complete_execute(held[0])
        client.plans.fail_execute(held[1], "no")
        worker.join(60)
    assert [(each.completed, each.is_for_others, len(each.errored)) for each in done] == [((), True, 1)]
