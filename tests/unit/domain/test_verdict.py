"""Scope is checked in one place, and every command has exactly one function that decides it."""

from collections.abc import Iterator
from typing import get_args

import pytest
from msgspec import Struct

from stepwell.domain import machine, replies
from stepwell.domain.commands import AnyCommand, AnyRead, AnyWrite, Command, Ephemeral, Internal, Read, Write
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.verdict import DECIDERS, Origin
from stepwell.errors import InvalidArgument, OutOfScope, TierFull
from tests.support.domain.world import origin


def leaves(root: type[Struct]) -> Iterator[type[Struct]]:
    """The classes below one that have no classes below them, without those that `Generic` makes."""
    below = root.__subclasses__()
    if not below:
        yield root
    for each in below:
        yield from leaves(each)


def of_stepwell(root: type[Struct]) -> set[type[Struct]]:
    return {each for each in leaves(root) if each.__module__.startswith("stepwell.")}


def test_every_command_is_decided() -> None:
    """What a peer can send, and what the manager asks of itself, has a decider; and no decider is idle."""
    assert machine.RULES
    assert set(DECIDERS) == set(get_args(AnyCommand)) | of_stepwell(Internal)


def test_unions_are_closed() -> None:
    """Every command is a member of its union, so that a decoder knows it; nothing else is."""
    assert set(get_args(AnyRead)) == of_stepwell(Read)
    assert set(get_args(AnyWrite)) == of_stepwell(Write)
    assert set(get_args(AnyCommand)) == of_stepwell(Read) | of_stepwell(Write) | of_stepwell(Ephemeral)
    assert of_stepwell(Command) == set(get_args(AnyCommand)) | of_stepwell(Internal)
    assert not set(get_args(AnyCommand)) & of_stepwell(Internal)


def test_replies_are_closed() -> None:
    """So is the union of what they answer."""
    assert set(get_args(replies.AnyReply)) == of_stepwell(replies.Reply)


@pytest.mark.parametrize("kind", sorted(of_stepwell(Command), key=str), ids=lambda kind: kind.__name__)
def test_command_names_its_reply(kind: type[Struct]) -> None:
    """The type parameter of a command is a member of the union of replies."""
    (base,) = (each for each in getattr(kind, "__orig_bases__", ()) if get_args(each))
    assert get_args(base)[0] in get_args(replies.AnyReply)


TAGS_IN_STORES: dict[type[Struct], str] = {
    replies.FragmentRemoved: "FragmentDeleted",
    replies.DecisionFound: "DecisionRecorded",
    replies.EntryFound: "ChangeRecorded",
}


@pytest.mark.parametrize(
    "kind", sorted(of_stepwell(Command) | of_stepwell(replies.Reply), key=str), ids=lambda kind: kind.__name__
)
def test_messages_are_frozen_and_tagged(kind: type[Struct]) -> None:
    """Nobody changes a message, and a decoder can tell it from all others by its name, or by its name in old stores."""
    config = kind.__struct_config__
    tag = TAGS_IN_STORES.get(kind, kind.__name__)
    assert (config.frozen, config.array_like, config.tag) == (True, True, tag)


def test_unrestricted_sees_all() -> None:
    """Without projects a session is unrestricted."""
    origin().require(["p", "q"])
    assert origin().sees(["p", "q"])


def test_scope() -> None:
    """With projects it sees those, and no plan that also touches another."""
    scoped = origin(projects={"p", "q"})
    scoped.require(["p"])
    scoped.require([])
    assert scoped.sees(["p", "q"])
    assert not scoped.sees(["p", "r"])
    with pytest.raises(OutOfScope, match="project 'r' is not in this session's scope: p, q; connect with it in") as e:
        scoped.require(["p", "r", "s"])
    assert e.value.details == {"project": "r"}


def test_empty_scope_sees_nothing() -> None:
    """It is not mistaken for none at all."""
    assert not origin(projects=()).sees(["p"])


def test_inline_body_is_held_by_its_content() -> None:
    """Nothing has to be known of it before."""
    assert origin().resolve_body(b"body") == (digest_of(b"body"), 4)


def test_upload_is_held_as_it_was_received() -> None:
    """By the number under which this connection offered it."""
    held = (digest_of(b"large"), 5)
    assert Origin("alice", 0, uploads={7: held}).resolve_body(7) == held


def test_unknown_upload() -> None:
    """Another connection's numbers are none here, and the refusal says what to do."""
    with pytest.raises(InvalidArgument, match="no upload 3 on this connection: offer it and send its bytes") as caught:
        origin().resolve_body(3)
    assert caught.value.details == {"upload": 3}


def test_refused_upload() -> None:
    """Whoever uses it hears why, each time, and what is remembered keeps no frames alive."""
    refusal = TierFull("no room", limit=5)
    asking = Origin("alice", 0, uploads={0: refusal})
    for _ in range(2):
        with pytest.raises(TierFull, match=r"^no room$") as caught:
            asking.resolve_body(0)
        assert caught.value.details == {"limit": 5}
    assert refusal.__traceback__ is None
