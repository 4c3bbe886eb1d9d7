"""Capturing: what changed in a tree is recorded, by content, entirely or not at all."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.testing import LocalRuntime
from tests.support.client.applicable_plans import AFTER, BEFORE, change_into, executed_plan, executing
from tests.support.trees import build, discard, file, read
from tests.support.wait import eventually


@pytest.fixture
def client(runtime: LocalRuntime) -> Iterator[sw.Client]:
    with runtime.client(projects=["p"]) as connected:
        yield connected


@pytest.fixture
def context(client: sw.Client) -> sw.PlanExecutionContext:
    return executing(client)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield build(tmp_path / "root", BEFORE)
    discard(tmp_path / "root")


def states(context: sw.PlanExecutionContext) -> list[sw.ChangesetState]:
    return [each.state for each in context.changesets()]


def test_every_kind_of_change(client: sw.Client, context: sw.PlanExecutionContext, root: Path) -> None:
    """With modes, links, empty directories and moves, under the tool's name, in a changeset that is closed."""
    with context.capture(root, tool="editor") as captured:
        assert (captured.changeset_id, captured.entries) == (None, ())
        change_into(root, AFTER)
    assert captured.changeset_id is not None
    assert context.get(captured.changeset_id).state is sw.ChangesetState.CLOSED
    assert tuple(context.entries(captured.changeset_id)) == captured.entries
    assert {(each.path, each.operation.value, each.source_path) for each in captured.entries} == {
        ("binary", "create", None),
        ("changed", "modify", None),
        ("empty", "delete", None),
        ("gone/deep/file", "delete", None),
        ("link", "modify", None),
        ("mode", "modify", None),
        ("new name", "move", "old name"),
        ("new/empty", "create", None),
    }
    assert {each.tool for each in captured.entries} == {"editor"}
    assert repr(captured) == f"<stepwell.types.Captured {captured.changeset_id!r}: 8 entries>"
    (binary,) = [each for each in captured.entries if each.path == "binary"]
    assert (binary.after and binary.after.mode) == 0o100400
    assert bytes(context.body(sw.Digest.of(b"old").value)) == b"old", "what was there is kept, to go back to"
    assert client.plans.complete_execute(context.plan_id).executed_attempt == 1


def test_nothing_changed(context: sw.PlanExecutionContext, root: Path) -> None:
    """There is no changeset then."""
    with context.capture(root) as captured:
        (root / "changed").write_bytes(b"old")
    assert (captured.changeset_id, captured.entries, states(context)) == (None, (), [])


def test_many_and_large(context: sw.PlanExecutionContext, root: Path) -> None:
    """More than fit in a frame, and larger than what goes in one."""
    with context.capture(root) as captured:
        for number in range(2 * limits.STREAM_COMMANDS + 1):
            (root / f"{number:03}").write_bytes(str(number).encode())
        for number in range(3):
            (root / f"large {number}").write_bytes(os.urandom(limits.STREAM_BYTES // 2 + 1))
    assert len(captured.entries) == 2 * limits.STREAM_COMMANDS + 4
    assert [each.path for each in captured.entries] == sorted(each.path for each in captured.entries)
    large = (root / "large 2").read_bytes()
    assert bytes(context.body(sw.Digest.of(large).value)) == large


def test_exception_in_the_block(context: sw.PlanExecutionContext, root: Path) -> None:
    """It is raised as it is, and nothing is recorded."""
    mistake = ZeroDivisionError("mine")
    with pytest.raises(ZeroDivisionError) as raised, context.capture(root):
        (root / "changed").write_bytes(b"new")
        raise mistake
    assert raised.value is mistake
    assert states(context) == []


def test_names_that_cannot_be_recorded(context: sw.PlanExecutionContext, root: Path) -> None:
    """All are named, what is wrong with each too, and nothing is recorded."""
    with pytest.raises(sw.InvalidArgument, match=r"2 paths .* normal form C") as raised, context.capture(root):
        (root / "fine").touch()
        (root / os.fsdecode(b"\xff")).touch()
        (root / "e\u0301").touch()
    assert raised.value.details["paths"] == ["'e\\u0301'", "'\\udcff'"]
    assert states(context) == []


def test_refused_at_the_end(runtime: LocalRuntime, context: sw.PlanExecutionContext, root: Path) -> None:
    """In the middle of many: what was recorded does not count."""
    with runtime.faults.refuse(2, of="RecordChange"), pytest.raises(sw.Busy), context.capture(root) as captured:
        for number in range(5 * limits.STREAM_COMMANDS):
            (root / str(number)).touch()
    assert (captured.changeset_id, states(context)) == (None, [sw.ChangesetState.ABORTED])
    with context.capture(root) as captured:
        (root / "changed").write_bytes(b"new")
    assert [each.path for each in captured.entries] == ["changed"]


def test_lease_lost_in_the_block(client: sw.Client, context: sw.PlanExecutionContext, root: Path) -> None:
    """Somebody else works on it by now: nothing is recorded."""
    with pytest.raises(sw.PlanError), context.capture(root):
        (root / "changed").write_bytes(b"new")
        client.plans.fail_execute(context.plan_id, "given up")
    assert states(context) == []


def test_refused_at_the_beginning(runtime: LocalRuntime, client: sw.Client, root: Path) -> None:
    """What could not be recorded later is not begun; with the lease, another client may."""
    context = executing(client)
    lease = client.plans.get_plan(context.plan_id).lease
    assert lease is not None
    with runtime.client(projects=["p"]) as other:
        with pytest.raises(sw.LeaseLost, match="lease="), other.execution(context.plan_id).capture(root):
            pass
        with other.execution(context.plan_id, lease=lease.token).capture(root) as captured:
            (root / "changed").write_bytes(b"new")
    assert len(captured.entries) == 1
    client.plans.complete_execute(context.plan_id)
    with pytest.raises(sw.PlanNotReady, match="while it executes"), context.capture(root):
        pass


def test_own_changeset(context: sw.PlanExecutionContext, root: Path) -> None:
    """One that is open in the same context stays the one to which its changes go."""
    mine = context.start_changeset()
    with context.capture(root) as captured:
        (root / "changed").write_bytes(b"new")
        assert context.record_change(sw.Change(path="a", after=b"a")).changeset_id == mine
    assert context.record_change(sw.Change(path="b", after=b"b")).changeset_id == mine
    assert captured.changeset_id != mine
    assert BEFORE["changed"] == file(b"old")


def refuse_capture(context: sw.PlanExecutionContext, root: Path) -> sw.TreeInUse:
    """The error with which a capture is refused."""
    with pytest.raises(sw.TreeInUse) as raised, context.capture(root):
        raise AssertionError("it was refused")
    return raised.value


def test_overlapping_captures(client: sw.Client, context: sw.PlanExecutionContext, root: Path) -> None:
    """The second would record the first one's files, and the first the second one's: it is refused, and names it."""
    other = executing(client)
    with context.capture(root, tool="first") as captured:
        (root / "changed").write_bytes(b"new")
        for overlapping in (root, root / "gone/deep", root.parent):
            refusal = refuse_capture(other, overlapping)
            assert f"for plan {context.plan_id!r}, as tool 'first'" in refusal.message
            assert refusal.details == {
                "pid": os.getpid(),
                "plan_id": context.plan_id,
                "tool": "first",
                "root": str(root),
            }
    assert [each.path for each in captured.entries] == ["changed"]
    with other.capture(root) as captured:
        (root / "same").write_bytes(b"other")
    assert [each.path for each in captured.entries] == ["same"], "and then it is free"


def test_apply_is_refused_while_a_capture_runs(client: sw.Client, context: sw.PlanExecutionContext, root: Path) -> None:
    """What it changed would be recorded as the agent's change: it is refused, and stays as it was."""
    applied, queued = executed_plan(client, root.parent), executed_plan(client, root.parent, AFTER, BEFORE)
    applied.apply(root)
    with context.capture(root):
        with pytest.raises(sw.TreeInUse, match=context.plan_id):
            queued.apply(root)
        with pytest.raises(sw.TreeInUse, match=context.plan_id):
            applied.rollback(root)
        assert applied.apply(root).applied is not None, "which only asks"
        assert read(root) == AFTER
    assert str(client.plans.get_plan(queued.plan_id).position) == "apply/queued"
    assert queued.apply(root).applied is not None
    assert read(root) == BEFORE


def expiry(client: sw.Client, context: sw.PlanExecutionContext) -> int:
    lease = client.plans.get_plan(context.plan_id).lease
    return lease.expires_at_ms if lease else 0


class TestWorkspace:
    """A copy of a tree, for one agent, and what it changes there."""

    def test_recorded_and_applied(self, client: sw.Client, context: sw.PlanExecutionContext, root: Path) -> None:
        """Every kind of change; the tree is as it was until the plan is applied, and the copy is gone."""
        with context.workspace(root, tool="editor") as path:
            assert (read(path), path.name) == (BEFORE, root.name)
            change_into(path, AFTER)
            assert read(root) == BEFORE
        assert not path.parent.exists()
        (changeset,) = context.changesets()
        assert changeset.state is sw.ChangesetState.CLOSED
        assert {entry.tool for entry in context.entries(changeset.changeset_id)} == {"editor"}
        client.plans.complete_execute(context.plan_id)
        assert context.apply(root).applied is not None
        assert read(root) == AFTER

    @pytest.mark.parametrize("mistake", [ZeroDivisionError, KeyboardInterrupt])
    def test_exception(self, context: sw.PlanExecutionContext, root: Path, mistake: type[BaseException]) -> None:
        """Nothing is recorded, and nothing is left."""
        with pytest.raises(mistake), context.workspace(root) as path:
            (path / "changed").write_bytes(b"new")
            raise mistake
        assert (states(context), path.exists(), read(root)) == ([], False, BEFORE)

    def test_refused_at_the_end(self, context: sw.PlanExecutionContext, root: Path) -> None:
        with pytest.raises(sw.InvalidArgument, match="cannot be recorded"), context.workspace(root) as path:
            (path / "e\u0301").touch()
        assert (states(context), path.exists()) == ([], False)

    def test_lease_is_renewed(
        self, client: sw.Client, context: sw.PlanExecutionContext, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As long as the work takes, because it would be lost with the copy."""
        monkeypatch.setattr(limits, "HEARTBEAT_SECONDS_MAX", 0.001)
        begun = client.plans.get_plan(context.plan_id).lease
        assert begun is not None
        with context.workspace(root, lease_ms=2 * limits.LEASE_MS) as path:
            eventually(lambda: expiry(client, context) > begun.expires_at_ms + limits.LEASE_MS // 2)
            (path / "changed").write_bytes(b"new")
        assert [*context.net_changes()] == ["changed"]

    def test_goes_on_from_earlier_work(self, client: sw.Client, context: sw.PlanExecutionContext, root: Path) -> None:
        """What the plan has recorded is in the next copy, so that all of it can be applied."""
        with context.workspace(root) as path:
            (path / "changed").write_bytes(b"first")
            (path / "new").write_bytes(b"new")
        with context.workspace(root) as path:
            assert ((path / "changed").read_bytes(), (path / "new").read_bytes()) == (b"first", b"new")
            (path / "changed").write_bytes(b"second")
        client.plans.complete_execute(context.plan_id)
        context.apply(root)
        assert (root / "changed").read_bytes() == b"second"

    def test_tree_that_has_changed_since(self, context: sw.PlanExecutionContext, root: Path) -> None:
        """The plan could not be applied any more, which is said before more work is done."""
        with context.workspace(root) as path:
            (path / "changed").write_bytes(b"first")
        (root / "changed").write_bytes(b"by another program")
        with pytest.raises(sw.TreeConflict, match="changed"), context.workspace(root):
            pass
        assert [each.state for each in context.changesets()] == [sw.ChangesetState.CLOSED]

    def test_many_agents(self, client: sw.Client, root: Path) -> None:
        """Each has a copy without the changes of the others, at the same time, though it is one tree."""
        contexts = [executing(client) for _ in range(3)]
        with ExitStack() as stack:
            paths = [stack.enter_context(each.workspace(root)) for each in contexts]
            for number, path in enumerate(paths):
                assert read(path) == BEFORE
                (path / f"own {number}").write_bytes(b"x")
        assert [[*each.net_changes()] for each in contexts] == [["own 0"], ["own 1"], ["own 2"]]

    def test_refused_at_the_beginning(self, client: sw.Client, context: sw.PlanExecutionContext, root: Path) -> None:
        """Before anything is copied."""
        with pytest.raises(sw.InvalidArgument, match="cannot be opened"), context.workspace(root / "nowhere"):
            pass
        with pytest.raises(sw.InvalidArgument, match="tool"), context.workspace(root, tool="two words"):
            pass
        with pytest.raises(sw.InvalidArgument, match="lease_ms"), context.workspace(root, lease_ms=0):
            pass
        client.plans.complete_execute(context.plan_id)
        with pytest.raises(sw.PlanNotReady, match="while it executes"), context.workspace(root):
            pass
