"""Children worked on by processes that fail and die: each ends in a state that is true, and all come together."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.process import SpawnedProcess
from stepwell.testing import Clock, LocalRuntime
from tests.support.client.subplans import content, declared, tree
from tests.support.processes import CONTEXT, kill, spawned
from tests.support.programs import subplan_agents
from tests.support.seeds import seeded
from tests.support.soak import IS_LONG

CHILDREN, AGENTS, KILLS, ROUNDS = (50, 8, 40, 3) if IS_LONG else (10, 3, 2, 1)
SEED = random.SystemRandom().randrange(1_000_000) if IS_LONG else 8
END_SECONDS = 240.0


class Crew:
    """Processes that work, of which some are killed, and others take their place."""

    def __init__(self, address: str, plan_id: str, script: subplan_agents.Script) -> None:
        self._arguments = (address, plan_id, script)
        self._all: list[SpawnedProcess] = []
        self.killed = 0

    def hire(self) -> None:
        process = SpawnedProcess(subplan_agents.agent, self._arguments)
        process.start()
        self._all.append(process)

    def kill_one(self, chance: random.Random) -> None:
        """Of those that live, at whatever they are, mostly of those that came first; and another one comes."""
        alive = [each for each in self._all if each.exitcode is None]
        if alive:
            victim = chance.choice(alive[: AGENTS // 2] if chance.random() < 0.8 else alive)
            assert victim.pid is not None
            kill(victim.pid)
            victim.join()
            self.killed += 1
            self.hire()

    @property
    def is_over(self) -> bool:
        return all(each.exitcode is not None for each in self._all)

    def end(self) -> list[int | None]:
        """Nobody is left; how each came to its end."""
        for each in self._all:
            each.join(END_SECONDS)
            if each.exitcode is None:
                each.kill()
                each.join()
        codes = [each.exitcode for each in self._all]
        for each in self._all:
            each.close()
        return codes


def torment(watch: sw.Watch, crew_: Crew, chance: random.Random) -> None:
    """Kill somebody every so many events, which are moments of the work and not of the clock, until all is over."""
    until_s = time.monotonic() + END_SECONDS
    left = chance.randrange(10, 40)
    while not crew_.is_over and time.monotonic() < until_s:
        if watch.get(0.05) is None:
            continue
        left -= 1
        if left <= 0 and crew_.killed < KILLS:
            crew_.kill_one(chance)
            left = chance.randrange(10, 2_000 // KILLS if IS_LONG else 60)


def check_truth(client: sw.Client, parent: sw.Plan, script: subplan_agents.Script) -> int:
    """Each child says what happened to it, and has all of its work, once. How often one was taken from the dead."""
    assert parent.subplans is not None
    taken = 0
    for number, child in enumerate(parent.subplans.children):
        plan = client.plans.get_plan(child.plan_id)
        lost = [fault for fault in plan.errors if fault.message.startswith("lease lost")]
        failed = subplan_agents.own_failures(plan)
        taken += len(lost)
        assert len(lost) + failed == len(plan.errors)
        if number in script.doomed:
            assert (str(plan.position), failed) == ("execute/errored", subplan_agents.RETRIES + 1)
            continue
        assert (str(plan.position), failed) == ("execute/complete", script.failures[number])
        expected = {path: content(after)[0] for path, (_, after) in script.work(number).items()}
        left = tree(client.execution(child.plan_id))
        assert {path: each and each[0] for path, each in left.items()} == expected
    return taken


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_agents_that_fail_and_die(round_: int) -> None:
    """Killed at random moments, they leave the same tree in every run: that of one who did all of it in order."""
    seeded(SEED)
    chance = random.Random(f"{SEED} {round_}")
    script = subplan_agents.Script(SEED, CHILDREN)
    with sw.Runtime.start(workers=0, log_level="error") as runtime, runtime.client() as client:
        names = [subplan_agents.alias_of(number) for number in range(CHILDREN)]
        parent = declared(client, names, max_parallel=AGENTS, retries=subplan_agents.RETRIES)
        crew_ = Crew(runtime.address, parent.plan_id, script)
        with client.watch() as watch:
            for _ in range(AGENTS):
                crew_.hire()
            try:
                torment(watch, crew_, chance)
            finally:
                codes = crew_.end()
        assert Counter(codes) == Counter({0: len(codes) - crew_.killed, -signal.SIGKILL: crew_.killed})
        assert crew_.killed
        taken = check_truth(client, parent, script)
        print(f"{crew_.killed} of {len(codes)} agents were killed, {taken} of them at work")
        check_merge(client, parent, script)


def check_merge(client: sw.Client, parent: sw.Plan, script: subplan_agents.Script) -> None:
    """In declared order, equal to the model; then conflicts are resolved, and the parent goes on."""
    context = client.execution(parent.plan_id)
    with pytest.raises(sw.PlanNotReady, match="let it finish, or cancel it"):
        context.merge_children()
    assert parent.subplans is not None
    ids = [child.plan_id for child in parent.subplans.children]
    for number in script.doomed:
        client.plans.cancel_plan(ids[number], "it fails and fails")
    plan = context.merge_children()
    assert plan.merged is not None
    assert plan.merged.children == tuple(ids[number] for number in script.done())
    expected, conflicts = script.merged()
    assert tree(context) == expected
    assert [(each.path, each.alias) for each in plan.conflicts] == conflicts
    for _ in conflicts:
        with pytest.raises(sw.MergeConflicts):
            client.plans.complete_execute(parent.plan_id)
        context.resolve(subplan_agents.HOT, accept="theirs")
    assert tree(context)[subplan_agents.HOT] == ((b"%d was here\n" % int(conflicts[-1][1][1:])), None)
    client.plans.complete_execute(parent.plan_id)
    client.plans.apply_plan(parent.plan_id)


@pytest.mark.parametrize("is_taken", [False, True], ids=["queued", "executed by another"])
def test_stopped_for_longer_than_its_lease(*, is_taken: bool) -> None:
    """Whoever is stopped, and then goes on, can do nothing of all that it could do before."""
    clock = Clock()
    with LocalRuntime(workers=0, clock=clock) as runtime, runtime.client() as client:
        ours, theirs = CONTEXT.Pipe()
        with ours, theirs, spawned(subplan_agents.hold_two, runtime.address, theirs) as owner:
            assert owner.pid is not None
            ids = ours.recv()
            os.kill(owner.pid, signal.SIGSTOP)
            clock.advance(limits.SWEEP_SECONDS)
            ours.send(limits.SWEEP_SECONDS)
            for plan_id in ids:
                assert is_queued(client, plan_id)
                if is_taken:
                    client.plans.start_execute(plan_id)
            before = [client.plans.get_plan(plan_id) for plan_id in ids]
            os.kill(owner.pid, signal.SIGCONT)
            outcomes = ours.recv()
            assert outcomes == dict.fromkeys(outcomes, "LeaseLost")
            assert len(outcomes) == len(subplan_agents.DEEDS)
            assert [client.plans.get_plan(plan_id) for plan_id in ids] == before


def is_queued(client: sw.Client, plan_id: str) -> bool:
    return str(client.plans.get_plan(plan_id).position) == "execute/queued"
