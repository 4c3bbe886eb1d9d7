"""Processes that apply one plan: many at once, killed at any step, or stopped for longer than their lease."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

import stepwell as sw
from stepwell import limits
from stepwell.testing import Clock, LocalRuntime
from stepwell.trees import syscalls
from tests.support.client.applicable_plans import AFTER, BEFORE, executed_plan, executing
from tests.support.seeds import seeded
from tests.support.soak import IS_LONG
from tests.support.trees import (
    Tree,
    build,
    discard,
    forked,
    kept,
    killed_at,
    outcome,
    random_pair,
    read,
    recorded_steps,
)
from tests.support.wait import PATIENCE_SECONDS

CALLERS = 10
STRIDE = 1 if IS_LONG else 8
TREES = 1_000 if IS_LONG else 3
LEASE_MS = 50_000  # shorter than the step in which the clock is advanced: no renewal comes in between

Prepared = tuple[sw.Client, Path]


@pytest.fixture
def clock() -> Clock:
    """The manager's. It stands still unless a test advances it, so that no lease ends because the machine is busy."""
    return Clock()


@pytest.fixture
def prepared(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prepared]:
    """A client, and a place for a tree. Nobody cuts the power here."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    with LocalRuntime(workers=0, clock=clock) as runtime, runtime.client(projects=["p"]) as client:
        yield client, tmp_path / "root"
    discard(tmp_path / "root")


def nothing_at(client: sw.Client, root: Path) -> None:
    """The next call at a root, for a plan that changes nothing."""
    context = executing(client)
    client.plans.complete_execute(context.plan_id)
    context.apply(root, wait_s=PATIENCE_SECONDS)


def applications(client: sw.Client, since: int, plan_id: str) -> int:
    """How often a plan was applied since a revision."""
    until = client.status().revision
    with client.watch(since) as watch:
        found = 0
        while watch.revision < until and (event := watch.get(60)) is not None:
            if isinstance(event, sw.events.PlanMoved) and event.plan_id == plan_id:
                found += event.state is sw.PlanState.APPLIED
        return found


def test_ten_processes_apply_one_plan(prepared: Prepared) -> None:
    """One applies; all are told the same."""
    client, root = prepared
    build(root, BEFORE)
    validations = [sw.Validation("logs", ("sh", "-c", "echo >> ../runs"))]
    context = executed_plan(client, root.parent, validations=validations)
    since = client.status().revision
    ready, go = os.pipe()

    def call(number: int) -> None:
        os.close(go)
        os.read(ready, 1)  # until everybody is there
        plan = context.apply(root, wait_s=PATIENCE_SECONDS)
        (root.parent / f"told-{number}").write_bytes(msgspec.msgpack.encode(plan))

    children = [forked(partial(call, number)) for number in range(CALLERS)]
    os.close(go)
    os.close(ready)
    assert [outcome(pid) for pid in children] == [0] * CALLERS
    told = {(root.parent / f"told-{number}").read_bytes() for number in range(CALLERS)}
    assert len(told) == 1
    plan = msgspec.msgpack.decode(told.pop(), type=sw.Plan)
    assert plan == client.plans.get_plan(context.plan_id)
    assert plan.applied is not None
    assert (root.parent / "runs").read_text() == "\n", "one has run the validations"
    assert applications(client, since, context.plan_id) == 1
    assert (read(root), kept(root)) == (AFTER, set())


def check_death(client: sw.Client, root: Path, before: Tree, after: Tree, at: int, *, is_cancelled: bool) -> bool:
    """Killed at a step, and then gone on with by another process; whether it had been applied before the kill."""
    build(root, before)
    context = executed_plan(client, root.parent, before, after)
    since = client.status().revision
    assert killed_at(at, lambda: context.apply(root))
    if is_cancelled:
        try:
            client.plans.cancel_plan(context.plan_id, "no more")
        except sw.PlanNotReady:
            is_cancelled = False
        nothing_at(client, root)
        assert read(root) == (before if is_cancelled else after)
    else:
        context.apply(root, wait_s=PATIENCE_SECONDS)
        assert read(root) == after
    assert kept(root) == set()
    assert applications(client, since, context.plan_id) == (0 if is_cancelled else 1)
    applied = client.plans.get_plan(context.plan_id).applied
    assert (applied is None) == is_cancelled
    return applied is not None and applied.session_id != client.session_id


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_death_at_every_step(prepared: Prepared, is_cancelled: bool) -> None:  # noqa: FBT001
    """The next call makes it entirely after, applied once; or, for a plan that was cancelled, entirely before."""
    client, root = prepared
    build(root, BEFORE)
    context = executed_plan(client, root.parent)
    steps = recorded_steps(lambda: context.apply(root))
    told_at = next(number for number, (step, what) in enumerate(steps) if step == "rename" and what.endswith(".spent"))
    numbers = {*range(0, len(steps), STRIDE), *range(told_at - 3, told_at + 3)}
    outcomes = [check_death(client, root, BEFORE, AFTER, at, is_cancelled=is_cancelled) for at in sorted(numbers)]
    assert outcomes == sorted(outcomes), "once applied, always applied"
    assert {*outcomes} == {False, True}


@pytest.mark.parametrize("seed", range(TREES))
def test_death_in_random_trees(prepared: Prepared, seed: int) -> None:
    """The same for trees and changes of every kind."""
    client, root = prepared
    generator = seeded(seed)
    before, after = (
        {path: node for path, node in tree.items() if path.isprintable()} for tree in random_pair(generator)
    )
    build(root, before)
    context = executed_plan(client, root.parent, before, after)
    total = len(recorded_steps(lambda: context.apply(root)))
    for at in sorted(generator.sample(range(total), 3)):
        check_death(client, root, before, after, at, is_cancelled=generator.random() < 0.5)


def assert_applied_or_rolled_back(context: sw.PlanExecutionContext, root: Path) -> None:
    """What an apply says of a plan whose rollback was killed is what is in the tree."""
    try:
        context.apply(root)
    except sw.AlreadyRolledBack:
        assert read(root) == BEFORE
    else:
        assert read(root) == AFTER


@pytest.mark.parametrize("next_call", ["rollback", "apply", "another plan's"])
def test_death_while_rolling_back(prepared: Prepared, next_call: str) -> None:
    """Killed anywhere, and gone on with by the next call, or by that of another plan: the tree and the plan agree.

    An apply never says that the plan is applied while the tree has none of it.
    """
    client, root = prepared
    build(root, BEFORE)
    context = executed_plan(client, root.parent)
    context.apply(root)
    steps = recorded_steps(lambda: context.rollback(root))
    told_at = next(number for number, (step, what) in enumerate(steps) if step == "rename" and what.endswith(".spent"))
    for at in sorted({*range(0, len(steps), 3 * STRIDE), *range(told_at - 2, told_at + 2)}):
        build(root, BEFORE)
        context = executed_plan(client, root.parent)
        context.apply(root)
        assert killed_at(at, lambda: context.rollback(root))  # noqa: B023 it is called now
        match next_call:
            case "rollback":
                assert context.rollback(root).rolled_back is not None
            case "apply":
                assert_applied_or_rolled_back(context, root)
            case _:
                nothing_at(client, root)
        is_back = client.plans.get_plan(context.plan_id).rolled_back is not None
        assert (read(root), kept(root)) == (BEFORE if is_back else AFTER, set())


@pytest.mark.parametrize(
    "step, what, is_applied",
    [("create", "log", True), ("rename", "changed", False), ("rename", ".done", False), ("rename", ".spent", True)],
)
def test_stopped_for_longer_than_its_lease(
    clock: Clock,
    prepared: Prepared,
    step: str,
    what: str,
    is_applied: bool,  # noqa: FBT001
) -> None:
    """While it is stopped nobody else is let into the tree; continued, it can complete nothing, and undoes it.

    Stopped before it has the lease, or after all is told, it has nothing to lose.
    """
    client, root = prepared
    build(root, BEFORE)
    boot_s = time.clock_gettime
    context = executed_plan(client, root.parent)

    def stop(done: str, to: str) -> None:
        if done == step and to.endswith(what):
            syscalls.on_step = syscalls._no_hook
            os.kill(os.getpid(), signal.SIGSTOP)
            pytest.MonkeyPatch().setattr(time, "clock_gettime", lambda number: boot_s(number) + limits.SWEEP_SECONDS)

    def work() -> None:
        syscalls.on_step = stop
        try:
            plan = context.apply(root, lease_ms=LEASE_MS)
        except sw.LeaseLost:
            assert not is_applied
        else:
            assert is_applied
            assert plan.applied is not None

    pid = forked(work)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    try:
        clock.advance(limits.SWEEP_SECONDS)
        assert context_state(client, context) != "apply/processing"
        with pytest.raises(sw.Busy, match=f"process {pid}"):
            nothing_within(client, root)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert outcome(pid) == 0
    assert (read(root), kept(root)) == (AFTER if is_applied else BEFORE, set())
    assert context_state(client, context) == ("apply/applied" if is_applied else "apply/queued")
    assert context.apply(root).applied is not None
    assert read(root) == AFTER


def nothing_within(client: sw.Client, root: Path) -> None:
    context = executing(client)
    client.plans.complete_execute(context.plan_id)
    context.apply(root, wait_s=0)


def context_state(client: sw.Client, context: sw.PlanExecutionContext) -> str:
    return str(client.plans.get_plan(context.plan_id).position)


def test_capture_in_another_process(prepared: Prepared) -> None:
    """It is named while that process lives; killed, it holds nothing."""
    client, root = prepared
    build(root, BEFORE)
    first, second = executing(client), executing(client)
    lease = client.plans.get_plan(first.plan_id).lease
    assert lease is not None
    ready, told = os.pipe()

    def capture() -> None:
        with (
            sw.connect(client.address, projects=["p"]) as own,
            own.execution(first.plan_id, lease=lease.token).capture(root, tool="agent"),
        ):
            os.write(told, b"x")
            signal.alarm(int(PATIENCE_SECONDS))
            signal.pause()

    pid = forked(capture)
    try:
        assert os.read(ready, 1) == b"x"
        with pytest.raises(sw.TreeInUse, match="as tool 'agent'") as raised, second.capture(root / "gone"):
            raise AssertionError("it was refused")
        assert (raised.value.details["pid"], raised.value.details["plan_id"]) == (pid, first.plan_id)
    finally:
        os.kill(pid, signal.SIGKILL)
        assert outcome(pid) == -signal.SIGKILL
    with second.capture(root) as captured:
        (root / "changed").write_bytes(b"mine")
    assert [each.path for each in captured.entries] == ["changed"]
    os.close(ready)
    os.close(told)
