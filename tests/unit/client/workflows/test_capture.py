"""Capturing: what changed in a tree is recorded, by content, entirely or not at all."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.testing import LocalRuntime
from tests.support.client.applicable_plans import AFTER, BEFORE, change_into, executing
from tests.support.trees import build, discard, file


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
