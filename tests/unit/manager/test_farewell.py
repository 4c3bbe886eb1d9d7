"""The last message of a manager: to which peers it goes, and which reason it names."""

import resource

import pytest

from stepwell import limits
from stepwell.errors import ManagerFault, OutcomeUnknown, ResourceExhausted, StepwellError, StoreFailed
from stepwell.manager.farewell import cause_of, defect_error, farewell, reject_waiting
from stepwell.manager.state_owner import StateBroken
from stepwell.protocol.messages import ManagerEnded, Refusal, Request, Response
from tests.support.manager.peers import joined
from tests.support.managers import Stage
from tests.support.peers import RawPeer, store

LAST = ManagerEnded(Refusal.of(StoreFailed("the disk is full"), 0))


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, kind, text",
    [
        (StoreFailed("the disk is full"), StoreFailed, "the disk is full"),
        (MemoryError(), ResourceExhausted, "memory"),
        (caused(StateBroken("x"), MemoryError()), ResourceExhausted, "memory"),
        (caused(StateBroken("x"), KeyError("y")), ManagerFault, "StateBroken"),
        (KeyError("y"), ManagerFault, "report it"),
    ],
)
def test_cause(error: BaseException, kind: type[StepwellError], text: str) -> None:
    """An error of ours is told as it is, want of memory as that, and everything else as a defect."""
    found = cause_of(error)
    assert type(found) is kind
    assert text in found.message


def test_defect_of_one_message() -> None:
    """The outcome is unknown if something changed; otherwise the error says whether memory or a defect is to blame."""
    assert type(defect_error(KeyError("x"), changed=True)) is OutcomeUnknown
    assert type(defect_error(MemoryError(), changed=True)) is OutcomeUnknown
    assert type(defect_error(KeyError("x"), changed=False)) is ManagerFault
    assert type(defect_error(MemoryError(), changed=False)) is ResourceExhausted
    assert len(defect_error(KeyError("x" * 10_000), changed=False).message) <= limits.ERROR_CHARS_MAX


def test_end_in_good_order_says_nothing() -> None:
    """Only an error is a reason, and it goes on."""
    sent: list[ManagerEnded] = []
    with farewell(sent.append):
        pass
    assert not sent
    with pytest.raises(StateBroken), farewell(sent.append):
        raise StateBroken("x")
    assert [each.refusal.kind for each in sent] == ["ManagerFault"]


def test_every_connection_is_told_and_nothing_is_acknowledged(stage: Stage) -> None:
    """The peer with a request that was applied and not committed gets no reply; one that said nothing is told too."""
    with joined(stage, "writer") as writer, joined(stage, "idle") as idle, RawPeer(stage.address) as stranger:
        stage.turn()
        writer.send(Request(1, (store("a"),)))
        stage.loop._apply(stage.loop._poll())
        assert stage.requests.revision == 1
        stage.loop.send_farewell(LAST)
        for peer in (writer, idle, stranger):
            assert peer.receive() == LAST


def test_replies_of_earlier_turns_come_first(stage: Stage) -> None:
    """What was committed is acknowledged, and then the manager says why it ends."""
    with joined(stage, "writer") as writer:
        writer.send(Request(1, (store("a"),)))
        stage.turn_until(lambda: stage.requests.revision == 1)
        stage.loop.send_farewell(LAST)
        assert isinstance(writer.receive(), Response)
        assert writer.receive() == LAST


def test_peers_that_wait_to_be_accepted_are_told(stage: Stage) -> None:
    """Also one that has gone again meanwhile is no problem."""
    with RawPeer(stage.address) as waiting, RawPeer(stage.address) as impatient:
        impatient.close()
        reject_waiting(stage.listener, LAST)
        assert waiting.receive() == LAST
        assert waiting.receive() is None


def test_no_descriptors_for_peers_that_wait(stage: Stage) -> None:
    """Then they are not told, and the manager ends all the same."""
    with RawPeer(stage.address) as waiting:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            reject_waiting(stage.listener, LAST)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        stage.listener.close()
        assert waiting.receive() is None
