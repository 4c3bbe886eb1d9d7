"""Children by ability, asked for by processes at the same moment: each child once, and by one that can do it."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack

import stepwell as sw
from tests.support.processes import CONTEXT, spawned
from tests.support.programs import able_agents
from tests.support.programs.able_agents import Finding
from tests.support.seeds import seeded
from tests.support.soak import IS_LONG

ROUNDS, CHILDREN = (20, 100) if IS_LONG else (20, 40)
SEED = 23
ABLE: tuple[tuple[tuple[str, ...] | None, bool | None], ...] = (
    (None, None),
    ((), None),
    (("gpu",), None),
    (("gpu",), False),
    (("python",), None),
    (("gpu", "python"), True),
    (("gpu", "python", "rust"), None),
    (("rust",), True),
)
"""What each of the 8 agents can do: labels, and which kind of children. The first one can do everything."""
NEEDS = ((), ("gpu",), ("python",), ("gpu", "python"), ("rust",))


def declare(client: sw.Client, chance: random.Random, *, has_all: bool) -> sw.Plan:
    """A plan with children that need something each; without `has_all`, one of them needs what nobody can."""
    parent = client.plans.begin("writes", projects=["p"], arguments={"how": "x"})
    children = [
        sw.subplan(
            chance.choice(["writes", "writes", "reads"]),
            alias=f"c{number}",
            arguments={"how": chance.choice(["once", "well", "well"])},
            labels=chance.choice(NEEDS),
        )
        for number in range(CHILDREN)
    ]
    if not has_all:
        children.insert(CHILDREN // 2, sw.subplan("writes", alias="x", arguments={"how": "x"}, labels="nobody"))
    return client.plans.declare_subplans(parent.plan_id, children, max_parallel=50, retries=1)


def check(client: sw.Client, parent: sw.Plan, found: list[Finding], able: tuple[int, ...]) -> Counter[int]:
    """Nobody was given what it cannot do, and everything was done once that somebody can do."""
    assert parent.subplans is not None
    for number, (given, _) in zip(able, found, strict=True):
        labels, read_only = ABLE[number]
        for _, needed, is_read_only in given:
            assert labels is None or {*needed} <= {*labels}
            assert read_only in {None, is_read_only}
    plans = [client.plans.get_plan(child.plan_id) for child in parent.subplans.children]
    completed = Counter(plan_id for _, done in found for plan_id in done.completed)
    assert {*completed.values()} == {1}
    assert completed.keys() == {plan.plan_id for plan in plans if plan.labels != ("nobody",)}
    for plan in plans:
        attempts = sum(given.count((plan.plan_id, plan.labels, plan.read_only)) for given, _ in found)
        assert attempts == (plan.attempt if plan.labels != ("nobody",) else 0)
    return Counter({number: len(done.completed) for number, (_, done) in zip(able, found, strict=True)})


def test_each_child_is_done_once_by_an_agent_that_can() -> None:
    """Eight agents; of a child that none of them can do, all say that it is for others, and it stays queued."""
    chance = seeded(SEED)
    with (
        sw.Runtime.start(workers=0, log_level="error") as runtime,
        runtime.client() as client,
        ExitStack() as stack,
    ):
        for name, read_only in (("writes", False), ("reads", True)):
            client.plans.create_action(
                name,
                description="{how}",
                definition_of_done="",
                strategy_actor="planner",
                execution_actor="coder",
                arguments=[sw.Argument(name="how")],
                read_only=read_only,
            )
        turns = []
        for _ in ABLE:
            ours, theirs = CONTEXT.Pipe()
            stack.enter_context(ours)
            stack.enter_context(theirs)
            stack.enter_context(spawned(able_agents.work, runtime.address, theirs))
            turns.append(ours)
        shares: Counter[int] = Counter()
        for round_ in range(ROUNDS):
            has_all = round_ % 2 == 0
            parent = declare(client, chance, has_all=has_all)
            able = tuple(range(len(ABLE)) if has_all else range(1, len(ABLE)))  # without the one that can do everything
            for number in able:
                turns[number].send((parent.plan_id, *ABLE[number]))
            found = [turns[number].recv() for number in able]
            shares += check(client, parent, found, able)
            for _, done in found:
                assert done.is_over or done.is_for_others
                assert has_all or not done.is_over
        for turn in turns:
            turn.send(None)
        shown = ", ".join(f"{ABLE[number]}: {count}" for number, count in sorted(shares.items()))
        print(f"{ROUNDS} rounds of {CHILDREN} children among {len(ABLE)} agents; completed by each: {shown}")
