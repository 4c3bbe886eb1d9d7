"""Applying: entirely or not at all, by one of many, and consistent with what the manager knows."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.client.workflows import wait as plan_wait
from stepwell.testing import Clock, LocalRuntime
from stepwell.trees.lock import RootLock
from tests.support.client.applicable_plans import AFTER, BEFORE, executed_plan, executing
from tests.support.trees import before_each_step, build, discard, file, kept, read, recorded_steps
from tests.support.wait import eventually

PASSES = sw.Validation("passes", ("true",))
FAILS = sw.Validation("fails", ("sh", "-c", "echo wrong; exit 3"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tree that a plan expects."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    yield build(tmp_path / "root", BEFORE)
    discard(tmp_path / "root")


@pytest.fixture
def client(runtime: LocalRuntime) -> Iterator[sw.Client]:
    with runtime.client(projects=["p"]) as connected:
        yield connected


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody waits for an event."""
    is_waiting, await_event = threading.Event(), plan_wait.wait_for_event

    def noting(watch: sw.Watch | None, plan_id: str, seconds: float) -> None:
        is_waiting.set()
        await_event(watch, plan_id, seconds)

    monkeypatch.setattr(plan_wait, "wait_for_event", noting)
    return is_waiting


def state(client: sw.Client, context: sw.PlanExecutionContext) -> str:
    return str(client.plans.get_plan(context.plan_id).position)


def test_applied_with_proof(client: sw.Client, root: Path) -> None:
    """From executed to applied in one call; a second one gives the same; nothing is left over."""
    context = executed_plan(client, root.parent, validations=[PASSES])
    plan = context.apply(root)
    assert plan.applied is not None
    assert (plan.applied.paths, plan.applied.root) == (9, str(root))
    assert [(each.name, each.exit_code) for each in plan.applied.validations] == [("passes", 0)]
    assert (read(root), kept(root)) == (AFTER, set())
    assert context.apply(root) == plan
    with pytest.raises(sw.PlanError, match="was applied at"):
        context.apply(root.parent)
    assert str(root).startswith("/")
    rolled_back = context.rollback(root, reason="no")
    assert (rolled_back.rolled_back and rolled_back.rolled_back.reason) == "no"
    assert (read(root), kept(root)) == (BEFORE, set())
    assert context.rollback(root) == rolled_back
    assert client.session.leases == {}


def test_rolled_back_is_not_applied_again(client: sw.Client, root: Path) -> None:
    """The tree has none of it, so no caller is told that it is applied; the error says what leads on."""
    context = executed_plan(client, root.parent)
    context.apply(root)
    context.rollback(root, reason="it broke")
    for where in (root, root.parent):
        with pytest.raises(sw.AlreadyRolledBack, match=r"it broke.*use action 'local/plan-\d+' again") as raised:
            context.apply(where)
        assert raised.value.details["reason"] == "it broke"
    assert (read(root), kept(root)) == (BEFORE, set())


def test_rollback_that_was_not_reported(runtime: LocalRuntime, client: sw.Client, root: Path) -> None:
    """A process that dies between the tree and its report has rolled back; the next apply reports that, and says so."""
    context = executed_plan(client, root.parent)
    context.apply(root)
    with runtime.faults.drop_request(of="RollBackPlan", times=6), pytest.raises(sw.OutcomeUnknown):
        context.rollback(root)
    assert client.plans.get_plan(context.plan_id).rolled_back is None
    with pytest.raises(sw.AlreadyRolledBack):
        context.apply(root)
    assert client.plans.get_plan(context.plan_id).rolled_back is not None
    assert (read(root), kept(root)) == (BEFORE, set())


@pytest.mark.parametrize("ending", ["applied", "constrained", "rolled back"])
def test_root_that_does_not_exist(client: sw.Client, root: Path, ending: str) -> None:
    """It is refused, though there would be nothing to do: the caller believes that there is a tree."""
    context = executed_plan(client, root.parent, validations=[FAILS] if ending == "constrained" else [])
    with suppress(sw.ValidationFailed):
        context.apply(root)
    if ending == "rolled back":
        context.rollback(root)
    for nowhere in (root / "does-not-exist", root / "same"):
        with pytest.raises(sw.InvalidArgument, match="cannot be opened"):
            context.apply(nowhere)
        with pytest.raises(sw.InvalidArgument, match="cannot be opened"):
            context.rollback(nowhere)


def test_worked_in_place(client: sw.Client, root: Path) -> None:
    """What was captured at a root is there already: it is proven, and nothing is touched."""
    context = executing(client)
    with context.capture(root) as captured:
        (root / "changed").write_bytes(b"new")
    assert [(each.path, each.tool) for each in captured.entries] == [("changed", "capture")]
    client.plans.complete_execute(context.plan_id)
    steps = recorded_steps(lambda: context.apply(root))
    assert not [what for _, what in steps if what == "changed"]
    assert state(client, context) == "apply/applied"
    context.rollback(root)
    assert read(root) == BEFORE


def test_nothing_to_apply(client: sw.Client, root: Path) -> None:
    """A plan that changes nothing is applied at any root; what ends as it began is proven, too."""
    context = executing(client)
    changeset_id = context.start_changeset()
    context.record_change(sw.Change(path="temporary", after=b"1"))
    context.record_change(sw.Change(path="temporary", before=b"1"))
    context.close_changeset(changeset_id)
    client.plans.complete_execute(context.plan_id)
    (root / "temporary").touch()
    with pytest.raises(sw.TreeConflict):
        context.apply(root)
    (root / "temporary").unlink()
    assert context.apply(root).applied is not None
    assert read(root) == BEFORE


def test_conflict_lists_every_path(client: sw.Client, root: Path) -> None:
    """Nothing is written, and the plan stays queued: what is in the way can be put right, and it is called again."""
    context = executed_plan(client, root.parent)
    (root / "changed").write_bytes(b"theirs")
    (root / "mode").chmod(0o600)
    found = read(root)
    with pytest.raises(sw.TreeConflict) as raised:
        context.apply(root)
    assert raised.value.details["paths"] == ["changed", "mode"]
    assert str(raised.value) == f"{raised.value.message}\n{raised.value.details['diff']}"
    assert str(raised.value.details["diff"]).startswith("--- changed (expected)\n+++ changed (found)\n@@ ")
    assert (read(root), kept(root), state(client, context)) == (found, set(), "apply/queued")
    build(root, BEFORE)
    assert context.apply(root).applied is not None


def test_rollback_of_what_was_changed_since(client: sw.Client, root: Path) -> None:
    """Refused with the list; nothing is written."""
    context = executed_plan(client, root.parent)
    with pytest.raises(sw.PlanNotReady, match="only what was applied"):
        context.rollback(root)
    context.apply(root)
    (root / "changed").write_bytes(b"theirs")
    (root / "gone").mkdir()
    (root / "gone/deep").touch()
    found = read(root)
    with pytest.raises(sw.TreeConflict) as raised:
        context.rollback(root)
    assert raised.value.details["paths"] == ["changed"] or raised.value.details["paths"] == ["changed", "gone/deep"]
    assert (read(root), kept(root)) == (found, set())
    assert client.plans.get_plan(context.plan_id).rolled_back is None


def test_rollback_is_where_it_was_applied(client: sw.Client, root: Path) -> None:
    """Another tree is refused, while there is the one that it was applied to; one that was moved is not."""
    context = executed_plan(client, root.parent)
    context.apply(root)
    copy = build(root.parent / "copy", AFTER)
    with pytest.raises(sw.InvalidArgument, match="was applied at"):
        context.rollback(copy)
    alias = root.parent / "alias"
    alias.symlink_to(root)
    assert context.rollback(alias).rolled_back is not None
    other = executed_plan(client, root.parent)
    other.apply(root)
    moved = root.rename(root.parent / "moved")
    with pytest.raises(sw.InvalidArgument, match="wherever that tree is now"):
        other.rollback(build(root.parent / "untouched", BEFORE))
    assert other.rollback(moved).rolled_back is not None
    discard(moved)


def test_no_root(client: sw.Client, root: Path) -> None:
    """An empty path is not this directory."""
    context = executed_plan(client, root.parent)
    with pytest.raises(sw.InvalidArgument, match="empty path"):
        context.apply("")


def test_bodies_that_nobody_has(client: sw.Client, root: Path) -> None:
    """Every path is named; nothing is written. Where they are not needed, their digests are enough."""
    context = executing(client)
    changeset_id = context.start_changeset()
    for path in ("a", "b"):
        context.record_change(sw.Change(path=path, after=sw.Digest.of(path.encode())))
    context.record_change(sw.Change(path="c", after=b""))
    context.record_change(sw.Change(path="d", after=b"d"))
    context.close_changeset(changeset_id)
    client.plans.complete_execute(context.plan_id)
    with pytest.raises(sw.NotFound, match="bodies are needed") as raised:
        context.apply(root)
    assert raised.value.details["paths"] == ["a", "b"]
    assert (read(root), kept(root)) == (BEFORE, set())
    for path in "ab":
        (root / path).write_bytes(path.encode())
    for path, body in (("c", b""), ("d", b"d")):
        (root / path).write_bytes(body)
    assert context.apply(root).applied is not None


def test_not_ready(client: sw.Client, root: Path) -> None:
    """What is not executed yet, has failed or has ended otherwise is refused, and says what to do."""
    context = executing(client)
    with pytest.raises(sw.PlanNotReady, match="once its execution is complete"):
        context.apply(root)
    client.plans.cancel_plan(context.plan_id, "no")
    with pytest.raises(sw.PlanNotReady, match="nothing of it is applied"):
        context.apply(root)
    other = executed_plan(client, root.parent)
    client.plans.apply_plan(other.plan_id)
    client.plans.start_apply(other.plan_id)
    client.plans.fail_apply(other.plan_id, "disk full")
    with pytest.raises(sw.PlanNotReady, match=r"disk full.*retry_plan"):
        other.apply(root)
    client.plans.retry_plan(other.plan_id)
    assert other.apply(root).applied is not None
    with pytest.raises(sw.InvalidArgument, match="no path"):
        context.apply("a\0b")
    queued = executed_plan(client, root.parent)
    with pytest.raises(sw.InvalidArgument, match="cannot be opened"):
        queued.apply(root / "nowhere")


def test_child_is_applied_with_its_parent(client: sw.Client, root: Path) -> None:
    """It is refused at once, and not tried for ever."""
    parent = executing(client)
    name = client.plans.get_plan(parent.plan_id).action_name
    declared = client.plans.declare_subplans(parent.plan_id, [sw.subplan(name, alias="child")])
    assert declared.subplans is not None
    child_id = declared.subplans.children[0].plan_id
    client.plans.start_strategize(child_id)
    client.plans.proceed(child_id)
    client.plans.complete_execute(child_id)
    with pytest.raises(sw.PlanNotReady, match="with its parent"):
        client.execution(child_id).apply(root)


def test_constrained(client: sw.Client, root: Path) -> None:
    """A required validation that fails leaves the tree as it was; all of them were run, in the changed tree."""
    looks = sw.Validation("looks", ("cat", "changed"), required=False)
    absent = sw.Validation("absent", ("there is no such program",), required=False)
    context = executed_plan(client, root.parent, validations=[FAILS, looks, absent])
    with pytest.raises(sw.ValidationFailed) as raised:
        context.apply(root)
    failure = raised.value
    assert (failure.command, failure.exit_code, failure.output) == (FAILS.command, 3, "wrong\n")
    assert failure.details["validations"] == ["fails"]
    assert "the required validation 'fails', `sh -c 'echo wrong; exit 3'`, ended with 3" in failure.message
    assert failure.message.endswith("the end of its output:\n    wrong")
    plan = client.plans.get_plan(context.plan_id)
    assert (str(plan.position), plan.applied) == ("apply/constrained", None)
    assert plan.constrained is not None
    assert plan.constrained.reason == "required validations have not passed: fails"
    assert [(each.exit_code, each.output) for each in plan.constrained.validations[:2]] == [(3, "wrong\n"), (0, "new")]
    assert plan.constrained.validations[2].exit_code is None
    assert (read(root), kept(root)) == (BEFORE, set())
    for where in (root, root.parent):
        with pytest.raises(sw.ValidationFailed) as again:
            context.apply(where)
        assert (again.value.message, again.value.details) == (failure.message, failure.details)
    assert client.plans.get_plan(context.plan_id) == plan


def test_several_validations_fail(client: sw.Client, root: Path) -> None:
    """The first is described, all are named; much output is cut to its end in the message, and all in the details."""
    noisy = sw.Validation("noisy", ("sh", "-c", "seq 2000; exit 1"))
    absent = sw.Validation("absent", ("there is no such program",))
    context = executed_plan(client, root.parent, validations=[PASSES, noisy, absent])
    with pytest.raises(sw.ValidationFailed, match=r"'noisy' \(and 1 more\)") as raised:
        context.apply(root)
    assert raised.value.details["validations"] == ["noisy", "absent"]
    assert raised.value.message.endswith("\n    1999\n    2000")
    assert len(raised.value.message) < limits.ERROR_CHARS_MAX
    assert len(raised.value.output) == limits.VALIDATION_OUTPUT_CHARS_MAX


def test_validation_that_changes_the_tree(client: sw.Client, root: Path) -> None:
    """It proved something else than what would be kept: undone but for what it changed, which is named; errored."""
    careless = sw.Validation("careless", ("sh", "-c", "echo mine > changed"))
    context = executed_plan(client, root.parent, validations=[careless])
    with pytest.raises(sw.TreeConflict, match="left alone") as raised:
        context.apply(root)
    assert raised.value.details["paths"] == ["changed"]
    assert read(root) == BEFORE | {"changed": file(b"mine\n")}
    assert state(client, context) == "apply/errored"


def test_validation_that_changes_what_was_there_already(client: sw.Client, root: Path) -> None:
    """Also where the tree was found as it shall be, it is read once more."""
    careless = sw.Validation("careless", ("sh", "-c", "echo mine > changed"))
    context = executed_plan(client, root.parent, validations=[careless])
    build(root, AFTER)
    with pytest.raises(sw.TreeConflict, match="not committed"):
        context.apply(root)
    assert state(client, context) == "apply/errored"


def test_failure_on_the_way(client: sw.Client, root: Path) -> None:
    """The tree is as it was, the plan errored with the reason; `retry_plan` leads out."""
    context = executed_plan(client, root.parent)

    def full(step: str, what: str) -> None:
        if (step, what) == ("rename", "mode"):
            raise OSError(28, "no space left")

    with before_each_step(full), pytest.raises(sw.TreeFailed, match="no space left"):
        context.apply(root)
    assert (read(root), kept(root)) == (BEFORE, set())
    plan = client.plans.get_plan(context.plan_id)
    assert (str(plan.position), "no space left" in plan.errors[-1].message) == ("apply/errored", True)
    client.plans.retry_plan(context.plan_id)
    assert context.apply(root).applied is not None


def test_one_of_many_threads_applies(client: sw.Client, root: Path) -> None:
    """All get the same plan."""
    context = executed_plan(client, root.parent, validations=[PASSES])
    with ThreadPoolExecutor(8) as threads:
        plans = [*threads.map(lambda _: context.apply(root), range(8))]
    assert len({plan.applied.at_ms for plan in plans if plan.applied}) == 1
    assert plans == [plans[0]] * 8
    assert (read(root), kept(root)) == (AFTER, set())


@pytest.fixture(params=["watching", "looking"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by events, or looking now and then, where so many watch that nobody else may."""
    if request.param == "looking":
        monkeypatch.setattr(limits, "WATCHERS_MAX", 0)
        monkeypatch.setattr(limits, "APPLY_POLL_SECONDS", 0.01)


@pytest.mark.usefixtures("attention")
def test_waits_for_whoever_works_on_it(
    runtime: LocalRuntime, client: sw.Client, root: Path, waits: threading.Event
) -> None:
    """What the other one came to is the outcome."""
    context = executed_plan(client, root.parent)
    client.plans.apply_plan(context.plan_id)
    lease = client.plans.start_apply(context.plan_id).lease
    assert lease is not None
    with pytest.raises(sw.Busy, match="were not enough"):
        context.apply(root, wait_s=0)
    with runtime.client(projects=["p"]) as other, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.execution(context.plan_id).apply, root, wait_s=60)
        assert waits.wait(60)
        client.plans.renew_lease(context.plan_id)
        client.plans.constrain_apply(context.plan_id, "somebody says so")
        with pytest.raises(sw.ValidationFailed, match="somebody says so") as raised:
            waiting.result()
    assert (raised.value.command, raised.value.exit_code, raised.value.output) == ((), None, "")
    assert read(root) == BEFORE


def test_events_that_were_missed_are_looked_for(
    runtime: LocalRuntime, client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits and cannot be told looks."""
    context = executed_plan(client, root.parent)
    client.plans.apply_plan(context.plan_id)
    client.plans.start_apply(context.plan_id)

    def missed(*_: object) -> None:
        with runtime.client(projects=["p"]) as other, suppress(sw.PlanError):
            other.plans.cancel_plan(context.plan_id, "meanwhile")
        raise sw.EventsMissed("they are forgotten")

    monkeypatch.setattr(sw.Watch, "get", missed)
    with pytest.raises(sw.PlanNotReady, match="cancelled"):
        context.apply(root)


def test_takes_over_from_whoever_lost_its_lease(
    runtime: LocalRuntime, client: sw.Client, root: Path, waits: threading.Event
) -> None:
    """A client that goes away, and its plan with it: the one that waits does the work."""
    context = executed_plan(client, root.parent)
    client.plans.apply_plan(context.plan_id)
    with ThreadPoolExecutor(1) as threads:
        with runtime.client(projects=["p"]) as other:
            other.plans.start_apply(context.plan_id)
            waiting = threads.submit(context.apply, root, wait_s=60)
            assert waits.wait(60)
        plan = waiting.result()
    assert plan.applied is not None
    assert (plan.applied.attempt, plan.applied.session_id) == (plan.attempt, client.session_id)


def test_turns_at_a_root(client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes the tree is waited for, without the plan's lease, and named when the time is over."""
    monkeypatch.setattr(limits, "APPLY_POLL_SECONDS", 0.01)
    context, applied = executed_plan(client, root.parent), executed_plan(client, root.parent)
    applied.apply(root)
    with RootLock(root):
        for call in (context.apply, applied.rollback):
            with pytest.raises(sw.Busy, match=rf"process {os.getpid()} .* 0.05 s were not enough"):
                call(root, wait_s=0.05)
        assert state(client, context) == "apply/queued"
        assert applied.apply(root).applied is not None


def test_quicker_at_another_root(runtime: LocalRuntime, client: sw.Client, root: Path) -> None:
    """Whoever gets the lease applies it at its root; the other's stays as it was, and the outcome says where."""
    context = executed_plan(client, root.parent)
    elsewhere = build(root.parent / "elsewhere", BEFORE)
    done: list[sw.Plan] = []

    def quicker(step: str, what: str) -> None:
        if step == "create" and what == "log" and not done:  # staged, and the lease not taken yet
            done.append(client.plans.get_plan(context.plan_id))
            with runtime.client(projects=["p"]) as other:
                done.append(other.execution(context.plan_id).apply(elsewhere))

    with before_each_step(quicker), pytest.raises(sw.PlanError, match="was applied at") as caught:
        context.apply(root)
    assert caught.value.details["root"] == str(elsewhere)
    plan = done[1]
    assert plan.applied is not None
    assert plan.applied.root == str(elsewhere)
    assert (read(root), kept(root), read(elsewhere)) == (BEFORE, set(), AFTER)
    discard(elsewhere)


@pytest.mark.parametrize("moment, behind", [("changed", "mode"), ("mode", "new name")])
def test_lost_lease(root: Path, moment: str, behind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost in the middle: the next step does not happen, all is undone, and the plan is free for others."""
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS_MAX", 0.01)  # the lease is long, but its end is noticed soon
    clock = Clock()
    with LocalRuntime(workers=0, clock=clock) as runtime, runtime.client(projects=["p"]) as client:
        context = executed_plan(client, root.parent)

        names: list[str] = []

        def late(step: str, what: str) -> None:
            if step in {"rename", "link"}:
                names.append(what)
            if (step, what) == ("rename", moment) and names.count(moment) == 1:
                clock.advance(limits.SWEEP_SECONDS)  # in one step, so that no renewal comes in between
                eventually(lambda: state(client, context) == "apply/queued")
                eventually(lambda: not [each for each in threading.enumerate() if each.name == "stepwell-heartbeat"])

        with before_each_step(late), pytest.raises(sw.LeaseLost):
            context.apply(root, lease_ms=50_000)
        assert behind not in names
        assert (read(root), kept(root), state(client, context)) == (BEFORE, set(), "apply/queued")
        assert context.apply(root).applied is not None


def test_stopped_for_longer_than_the_lease(client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has told it, but its own clock does."""
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS_MAX", limits.LEASE_MS / 1000)  # nor does it ask meanwhile
    context = executed_plan(client, root.parent)
    clock = time.clock_gettime

    def late(step: str, what: str) -> None:
        if (step, what) == ("rename", "mode"):
            monkeypatch.setattr(time, "clock_gettime", lambda number: clock(number) + 400)

    with before_each_step(late), pytest.raises(sw.LeaseLost, match="not renewed in time"):
        context.apply(root)
    assert (read(root), kept(root)) == (BEFORE, set())


def test_refused_at_the_end(runtime: LocalRuntime, client: sw.Client, root: Path) -> None:
    """What the manager will not have is not in the tree."""
    context = executed_plan(client, root.parent)
    with runtime.faults.refuse(of="CompleteApply"), pytest.raises(sw.Busy):
        context.apply(root)
    assert (read(root), kept(root), state(client, context)) == (BEFORE, set(), "apply/errored")
    client.plans.retry_plan(context.plan_id)
    context.apply(root)
    with runtime.faults.refuse(of="RollBackPlan"), pytest.raises(sw.Busy):
        context.rollback(root)
    assert (read(root), kept(root)) == (AFTER, set())
    assert context.rollback(root).rolled_back is not None


@pytest.mark.parametrize("times", [1, 2])
def test_replies_that_are_lost(runtime: LocalRuntime, client: sw.Client, root: Path, times: int) -> None:
    """Sent again by the client, or asked for: applied once, and the tree agrees; likewise for other ends."""
    context = executed_plan(client, root.parent)
    with runtime.faults.drop_reply(of="CompleteApply", times=times):
        assert context.apply(root).applied is not None
    assert (read(root), kept(root)) == (AFTER, set())
    with runtime.faults.drop_reply(of="RollBackPlan", times=times):
        assert context.rollback(root).rolled_back is not None
    assert (read(root), kept(root)) == (BEFORE, set())
    context = executed_plan(client, root.parent, validations=[FAILS])
    with runtime.faults.drop_reply(of="ConstrainApply", times=times), pytest.raises(sw.ValidationFailed):
        context.apply(root)
    assert client.plans.get_plan(context.plan_id).constrained is not None
    assert (read(root), kept(root)) == (BEFORE, set())


def test_requests_that_are_lost(runtime: LocalRuntime, client: sw.Client, root: Path) -> None:
    """Nobody knows what came of it, and it is told again; a refusal then says nothing, because it may yet come."""
    context = executed_plan(client, root.parent)
    with runtime.faults.drop_request(of="CompleteApply", times=2), runtime.faults.refuse(3, of="CompleteApply"):
        assert context.apply(root).applied is not None
    assert (read(root), kept(root)) == (AFTER, set())


def test_cancelled_while_it_was_told(runtime: LocalRuntime, client: sw.Client, root: Path) -> None:
    """Whatever is under way would be refused: undone."""
    context = executed_plan(client, root.parent)

    def cancel(step: str, what: str) -> None:
        if step == "rename" and what.endswith(".done"):
            client.plans.cancel_plan(context.plan_id, "meanwhile")

    with runtime.faults.drop_request(of="CompleteApply", times=2), before_each_step(cancel):
        with pytest.raises(sw.LeaseLost, match="cancelled"):
            context.apply(root)
    assert (read(root), kept(root)) == (BEFORE, set())


def test_nobody_knows(root: Path) -> None:
    """The tree stays after, and done, until the lease is over; then the next call goes on from there."""
    clock = Clock()
    with LocalRuntime(workers=0, clock=clock) as runtime, runtime.client(projects=["p"]) as client:
        context = executed_plan(client, root.parent)
        with runtime.faults.drop_request(of="CompleteApply", times=6), pytest.raises(sw.OutcomeUnknown):
            context.apply(root)
        assert (read(root), kept(root)) == (AFTER, {f"{context.plan_id}-1.done"})
        other = executed_plan(client, root.parent, AFTER, BEFORE)
        for each in (context, other):
            with pytest.raises(sw.Busy, match="apply/processing"):
                each.apply(root, wait_s=0)
        clock.advance(400)
        steps = recorded_steps(lambda: context.apply(root))
        assert not [what for _, what in steps if what == "changed"], "it was there, and was not touched again"
        assert (read(root), kept(root)) == (AFTER, set())
        with runtime.faults.drop_request(of="RollBackPlan", times=6), pytest.raises(sw.OutcomeUnknown):
            context.rollback(root)
        assert kept(root) == {f"{context.plan_id}-2-back.done"}
        other.apply(root)
        assert client.plans.get_plan(context.plan_id).rolled_back is not None
        assert (read(root), kept(root)) == (BEFORE, set())


def test_manager_dies_at_the_end(root: Path) -> None:
    """There is nobody to ask: what was done stays, and is left alone by whoever asks another manager."""
    with LocalRuntime(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        context = executed_plan(client, root.parent)
        with runtime.faults.kill_at_reply(of="CompleteApply"), pytest.raises((sw.OutcomeUnknown, sw.RuntimeLost)):
            context.apply(root)
    left = {f"{context.plan_id}-1.done", "mine.done"}
    (root / ".stepwell/mine.done").mkdir()
    assert read(root) == AFTER
    with LocalRuntime(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        executed_plan(client, root.parent, AFTER, BEFORE).apply(root)
    assert (read(root), kept(root)) == (BEFORE, left)


def test_manager_comes_back(root: Path, tmp_path: Path) -> None:
    """Killed when it had committed the end, and started again: it is told again, and was applied once."""
    with LocalRuntime(workers=0, data_dir=tmp_path / "data") as runtime, runtime.client(projects=["p"]) as client:
        context = executed_plan(client, root.parent)
        with runtime.faults.kill_at_reply(of="CompleteApply"):
            plan = context.apply(root)
        assert plan.applied is not None
        assert (read(root), kept(root)) == (AFTER, set())


def test_settling_that_fails(client: sw.Client, root: Path) -> None:
    """It is applied all the same; what is left over is seen to by the next call."""
    context = executed_plan(client, root.parent)

    def broken(step: str, what: str) -> None:
        if step == "rename" and what.endswith(".spent"):
            raise OSError(5, "input/output error")

    with before_each_step(broken):
        plan = context.apply(root)
        assert plan.applied is not None
        assert kept(root) == {f"{context.plan_id}-1.done"}
        assert context.apply(root) == plan
    assert context.apply(root) == plan
    assert (read(root), kept(root)) == (AFTER, set())


def test_half_forgotten(runtime: LocalRuntime, client: sw.Client, root: Path) -> None:
    """A rollback that cannot be told any more is left as it is, and holds up nobody."""
    context = executed_plan(client, root.parent)
    context.apply(root)
    with runtime.faults.drop_request(of="RollBackPlan", times=6), pytest.raises(sw.OutcomeUnknown):
        context.rollback(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlanApi, "roll_back", forgotten)
        executed_plan(client, root.parent).apply(root)
    assert (read(root), kept(root)) == (AFTER, {f"{context.plan_id}-1-back.done"})


def forgotten(*_: object, **__: object) -> None:
    raise sw.PlanNotReady("it is being forgotten")


@pytest.mark.parametrize("call", ["another's", "its own"])
def test_cancelled_when_nobody_knew(call: str, root: Path) -> None:
    """What was done and will not be told any more is undone, by whichever call comes next at that root."""
    clock = Clock()
    with LocalRuntime(workers=0, clock=clock) as runtime, runtime.client(projects=["p"]) as client:
        context = executed_plan(client, root.parent)
        with runtime.faults.drop_request(of="CompleteApply", times=6), pytest.raises(sw.OutcomeUnknown):
            context.apply(root)
        client.plans.cancel_plan(context.plan_id, "no more")
        assert read(root) == AFTER
        if call == "its own":
            with pytest.raises(sw.PlanNotReady):
                context.apply(root)
        else:
            executed_plan(client, root.parent, {"same": BEFORE["same"]}, {}).apply(root)
        assert kept(root) == set()
        assert read(root) == (BEFORE if call == "its own" else {k: v for k, v in BEFORE.items() if k != "same"})


def test_applied_elsewhere_when_nobody_knew(root: Path) -> None:
    """Where it was done and not told, it is undone; the plan says where it is applied."""
    clock = Clock()
    elsewhere = build(root.parent / "elsewhere", BEFORE)
    with LocalRuntime(workers=0, clock=clock) as runtime, runtime.client(projects=["p"]) as client:
        context = executed_plan(client, root.parent)
        with runtime.faults.drop_request(of="CompleteApply", times=6), pytest.raises(sw.OutcomeUnknown):
            context.apply(root)
        clock.advance(400)
        context.apply(elsewhere)
        with pytest.raises(sw.PlanError, match="was applied at"):
            context.apply(root)
        assert (read(root), kept(root), read(elsewhere)) == (BEFORE, set(), AFTER)
    discard(elsewhere)


def test_rollback_waits_for_whoever_may_be_telling(root: Path, waits: threading.Event) -> None:
    """Another plan's end at the same root is not decided: it is waited for, and then undone."""
    clock = Clock()
    with LocalRuntime(workers=0, clock=clock) as runtime, runtime.client(projects=["p"]) as client:
        first = executed_plan(client, root.parent)
        first.apply(root)
        second = executed_plan(client, root.parent, {"same": file(b"same")}, {"same": file(b"other")})
        with runtime.faults.drop_request(of="CompleteApply", times=6), pytest.raises(sw.OutcomeUnknown):
            second.apply(root)
        with pytest.raises(sw.Busy, match="apply/processing"):
            first.rollback(root, wait_s=0)
        waits.clear()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(first.rollback, root, wait_s=60)
            assert waits.wait(60)  # whoever is still greeting would be late by so much
            clock.advance(400)
            assert waiting.result().rolled_back is not None
        assert (read(root), kept(root)) == (BEFORE, set())


def test_empty_files(client: sw.Client, root: Path) -> None:
    """Their body is known, though nobody gave it."""
    context = executing(client)
    changeset_id = context.start_changeset()
    context.record_change(sw.Change(path="new", after=sw.Digest.of(b"")))
    context.close_changeset(changeset_id)
    client.plans.complete_execute(context.plan_id)
    context.apply(root)
    assert read(root) == BEFORE | {"new": file(b"")}
