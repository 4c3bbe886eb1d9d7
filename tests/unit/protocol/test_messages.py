"""The picture of who sends what is the one of the messages that there are."""

from typing import get_args

import pytest

from stepwell.protocol import messages

PICTURE = [line for line in (messages.__doc__ or "").splitlines() if line.startswith("    ")]


def senders(name: str) -> set[str]:
    """The sides of the picture on which a message stands: left of its arrow is a peer, right of it the manager."""
    sides: set[str] = set()
    for line in PICTURE:
        if "──▶" in line and name in line.partition("──▶")[0].split():
            sides.add("peer")
        if "◀──" in line and name in line.partition("◀──")[2].split()[:1]:
            sides.add("manager")
    return sides


@pytest.mark.parametrize("kind", get_args(messages.ClientMessage), ids=lambda kind: kind.__name__)
def test_peers_send_it(kind: type) -> None:
    """Every message of a peer is in the picture, with an arrow to the manager."""
    assert senders(kind.__name__) == {"peer"}


@pytest.mark.parametrize(
    "kind",
    [each for each in get_args(messages.ManagerMessage) if each is not messages.Rejected],
    ids=lambda k: k.__name__,
)
def test_the_manager_sends_it(kind: type) -> None:
    """Every message of the manager is in the picture, with an arrow to the peer."""
    assert senders(kind.__name__) == {"manager"}


def test_nothing_else_is_in_the_picture() -> None:
    """A name in the picture is that of a message; `Rejected` stands beside `Welcome`."""
    known = {kind.__name__ for kind in (*get_args(messages.ClientMessage), *get_args(messages.ManagerMessage))}
    drawn = {line.partition("──▶")[0].strip() for line in PICTURE if "──▶" in line}
    drawn |= {line.partition("◀──")[2].split()[0] for line in PICTURE if "◀──" in line}
    assert drawn - {"the raw bytes"} == known - {"Rejected"}
    assert any("or Rejected" in line for line in PICTURE)
