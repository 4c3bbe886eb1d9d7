"""Abilities: what an agent can do, and so which children of a plan it is offered.

An agent that asks for a child says as which actors it works, which labels it can do, and whether it does read-only
children, others, or both. None of the three means that it says nothing about it. A plan needs all of its labels, and
one actor: that of the phase which would start. The manager compares both and does not interpret them.

Labels and actors say nothing about sessions that start a phase by the plan's id: they know what they do.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from msgspec import Struct

from stepwell.domain.bounded_types import canonical


class Abilities(Struct, frozen=True, array_like=True):
    """The abilities of an agent, in canonical form: each name once and in order, so that equal ones compare equal."""

    actors: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    read_only: bool | None = None

    @property
    def is_any(self) -> bool:
        """True if an agent with these abilities is offered every child."""
        return self.actors is None and self.labels is None and self.read_only is None

    def cover(self, actors: AbstractSet[str], labels: Iterable[str], *, is_read_only: bool) -> bool:
        """Return True if the agent works as one of the actors, can do all of the labels, and may do such a plan."""
        return (
            (self.actors is None or not actors.isdisjoint(self.actors))
            and (self.labels is None or set(labels).issubset(self.labels))
            and self.read_only in {None, is_read_only}
        )


class LimitedAgent(Struct, frozen=True, array_like=True):
    """A session that asked for a child with some abilities. `straight` means that it skips strategize."""

    session_id: str
    abilities: Abilities
    straight: bool


def canonical_abilities(
    actors: Iterable[str] | None, labels: Iterable[str] | None, *, read_only: bool | None
) -> Abilities:
    """Return abilities in canonical form. Raise `InvalidArgument` if an actor's name is malformed."""
    return Abilities(
        None if actors is None else label_set(canonical(each, "actor") for each in actors),
        None if labels is None else label_set(labels),
        read_only,
    )


def label_set(labels: Iterable[str]) -> tuple[str, ...]:
    """Return labels in canonical form: each once, and in order."""
    return tuple(sorted({*labels}))
