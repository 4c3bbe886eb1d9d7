"""Outcomes that take more than a message: of a quarantined task, with its evidence; of a large result, in memory."""

from __future__ import annotations

import os

import pytest

from stepwell import limits
from stepwell.domain.tasks.commands import FinishTask, ReportDeath, SubmitTask
from stepwell.domain.tasks.model import TaskState, WorkerDeath
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.limits import KIB
from stepwell.memory.reader.mappings import content
from stepwell.protocol.messages import SegmentsAdded, TasksReceived
from tests.support.manager.peers import ask, joined, noise, refusals, upload
from tests.support.manager.tasks import (
    assigned,
    die,
    done,
    ended,
    ends,
    finish,
    following,
    heard,
    joined_worker,
    later,
    replied,
    submit,
    task_of,
    workers,
)
from tests.support.managers import Stage
from tests.support.peers import RawPeer

EVIDENCE_MS = int(limits.EVIDENCE_SECONDS * 1000)


pytestmark = pytest.mark.usefixtures("unkillable")


# Quarantine.


def quarantine(stage: Stage, client: RawPeer, *, evidence: bool) -> None:
    """A task that three workers die of."""
    joined_worker(stage, "first").close()
    stage.turn_until(lambda: not workers(stage))
    submit(stage, client)
    for number in range(limits.TASK_DEATHS_MAX):
        pid = die(stage, number)
        if evidence:
            replied(stage, client, ReportDeath(pid, f"death {number}"))


def test_quarantine_with_evidence(stage: Stage, client: RawPeer, follower: RawPeer) -> None:
    """Told as soon as it is there, with all of it."""
    quarantine(stage, client, evidence=True)
    told = ended(stage, follower)
    assert told.fault is not None
    assert (told.state, told.fault.kind) == (TaskState.QUARANTINED, "TaskQuarantined")
    assert [death.evidence for death in told.deaths] == ["death 0", "death 1", "death 2"]
    assert heard(stage, follower) == []


def test_quarantine_without_evidence(stage: Stage, client: RawPeer, follower: RawPeer) -> None:
    """It may still come, and is waited for; not for long, and at nobody else's expense."""
    quarantine(stage, client, evidence=False)
    assert heard(stage, follower) == []
    with joined_worker(stage, "healthy") as worker:
        done(stage, worker, client, "t2")
        assert ends(heard(stage, follower)) == ["t2"]
    later(stage, EVIDENCE_MS)
    told = ended(stage, follower)
    assert (told.task_id, told.state) == ("t", TaskState.QUARANTINED)
    assert [death.evidence for death in told.deaths] == ["", "", ""]


def test_quarantine_is_not_told_twice(stage: Stage, client: RawPeer, follower: RawPeer) -> None:
    """Evidence that comes too late changes what is known, and is no second outcome."""
    quarantine(stage, client, evidence=False)
    later(stage, EVIDENCE_MS)
    assert ended(stage, follower).task_id == "t"
    replied(stage, client, ReportDeath(os.getpid(), "late"))
    assert heard(stage, follower) == []
    assert task_of(stage).deaths[-1] == WorkerDeath(os.getpid(), task_of(stage).deaths[-1].at_ms, "late")


def test_quarantine_before_it_follows(stage: Stage, client: RawPeer) -> None:
    """Who comes later waits no longer than from the end of the task."""
    quarantine(stage, client, evidence=False)
    later(stage, EVIDENCE_MS)
    with following(stage, "alice", "t") as follower:
        assert ended(stage, follower).state is TaskState.QUARANTINED


# Large results.


def test_large_result(stage: Stage, worker: RawPeer, client: RawPeer, follower: RawPeer) -> None:
    """It is in shared memory: the follower gets the segment and where to look, and then nothing is left of it."""
    body = noise(300 * KIB)
    submit(stage, client)
    task = assigned(stage, worker)
    upload(stage, worker, 7, body)
    finish(stage, worker, task, 7)
    told = ended(stage, follower)
    assert (told.state, told.result, told.digest) == (TaskState.DONE, None, digest_of(body))
    assert told.handle is not None
    (aside,) = follower.asides
    assert isinstance(aside, SegmentsAdded)
    numbers = [segment.number for segment in aside.segments]
    descriptor = follower.descriptors[numbers.index(told.handle.segment)]
    stored = os.pread(descriptor, told.handle.stored, told.handle.offset)
    assert bytes(content(memoryview(stored), told.handle)) == body
    assert len(stage.owner.bodies) == 1
    follower.send(TasksReceived(("t",)))
    stage.turn_until(lambda: not len(stage.owner.tasks))
    assert len(stage.owner.bodies) == 0
    assert stage.owner.bodies.uploading == 0


def test_large_result_that_is_late(stage: Stage, client: RawPeer) -> None:
    """It is refused, and its bytes are not kept."""
    with joined_worker(stage, "w1") as first, joined(stage, "w1") as again:
        submit(stage, client)
        task = assigned(stage, first)
        first.close()
        stage.turn_until(lambda: not workers(stage))
        upload(stage, again, 7, noise(300 * KIB))
        assert refusals(ask(stage, again, FinishTask("t", task.attempt, 7))) == ["LeaseLost"]
    assert len(stage.owner.bodies) == 0


def test_large_result_of_a_session_that_ends(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """Its bytes go with it."""
    submit(stage, client)
    task = assigned(stage, worker)
    upload(stage, worker, 7, noise(300 * KIB))
    finish(stage, worker, task, 7)
    assert len(stage.owner.bodies) == 1
    client.close()
    session = stage.loop._sessions._by_id["alice"]
    stage.turn_until(lambda: session.connections == 0)
    stage.loop._end_session(session)
    stage.turn_until(lambda: not len(stage.owner.tasks))
    assert len(stage.owner.bodies) == 0


def test_submitted_again_after_it_was_received(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """Nobody remembers: it is done anew. A client does not do that with what it has heard of."""
    done(stage, worker, client)
    with following(stage) as follower:
        ended(stage, follower)
        follower.send(TasksReceived(("t",)))
        stage.turn_until(lambda: not len(stage.owner.tasks))
        replied(stage, client, SubmitTask("t", "s", ("p",), b""))
        finish(stage, worker, assigned(stage, worker), b"again")
        assert ended(stage, follower).result == b"again"
