"""A machine that gives every command to the domain and to a naive model, and lets them differ in nothing.

A model is written to be obviously right, not fast: plain lists and dicts, copied whole before every step, so
that a refusal is undone by taking the copy. It shares no code with what it is compared with, except the
commands that both are given.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

from hypothesis.stateful import RuleBasedStateMachine, invariant

from stepwell.domain import invariants, machine
from stepwell.domain.commands import Command, Write
from stepwell.domain.replies import Reply
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import TierBudget
from stepwell.domain.verdict import Origin
from stepwell.errors import Refused, TransactionAborted
from tests.support.domain.world import NOON_MS, arrives, image

UPLOADS = {1: b"wwwwwww", 2: b"uploaded"}
"""The uploads that every session has."""


class Refusal(Exception):
    """The model refuses, with the name of the error that it expects."""


def content(body: bytes | int) -> bytes:
    """A body that came inline, or was uploaded under that number."""
    if isinstance(body, int) and body not in UPLOADS:
        raise Refusal("InvalidArgument")
    return UPLOADS[body] if isinstance(body, int) else body


class Model(Protocol):
    """What a model has to do."""

    def apply(self, command: Command[Reply], origin: Origin, revision: int) -> bool:
        """Do it and say whether anything changed, or raise a `Refusal`; `revision` is that of a write."""
        ...

    def seen_in(self, state: State) -> object:
        """The part of a state that the model speaks of, as plain values."""
        ...

    def view(self) -> object:
        """The same of the model."""
        ...


class AgainstModel(RuleBasedStateMachine):
    """Apply to both, compare everything."""

    model: Model

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.now_ms = NOON_MS
        self.revision = 0

    def begin(self, model: Model, budget: TierBudget | None = None) -> None:
        self.state = State(budget)
        self.model = model

    def origin(self, session: str = "alice", projects: frozenset[str] | None = None) -> Origin:
        uploads = {number: (digest_of(body), len(body)) for number, body in UPLOADS.items()}
        return Origin(session, self.now_ms, projects, uploads)

    def both(self, command: Command[Reply], origin: Origin) -> Reply | None:
        """One command: the same refusal, or the same effect, and a revision if it wrote."""
        expected = self._foresee([command], origin)
        before = image(self.state)
        try:
            outcome = machine.apply(self.state, command, origin)
        except Refused as error:
            self._agree(f"{error.kind} at 0", expected, before)
            return None
        self.revision += expected == "write"
        self._agree("write" if isinstance(command, Write) or outcome.changes else "read", expected)
        assert outcome.revision == self.revision
        assert arrives(outcome.reply, outcome.revision)
        return outcome.reply

    def both_at_once(self, commands: Sequence[Write[Reply]], origin: Origin) -> None:
        """A transaction: all of it at one revision, or an abort at the command that the model names too."""
        expected = self._foresee(commands, origin)
        before = image(self.state)
        try:
            outcomes = machine.apply_all(self.state, commands, origin)
        except TransactionAborted as error:
            self._agree(f"{error.details['cause']} at {error.details['index']}", expected, before)
            return
        self._agree("write" if commands else "read", expected)
        self.revision += 1
        assert {outcome.revision for outcome in outcomes} <= {self.revision}

    def _agree(self, actual: str, expected: str, before: dict[str, object] | None = None) -> None:
        assert actual == expected
        assert before is None or image(self.state) == before

    def _foresee(self, commands: Sequence[Command[Reply]], origin: Origin) -> str:
        """What the model does with it: "read", "write", or the kind of the refusal."""
        saved = copy.deepcopy(self.model)
        wrote = False
        for index, command in enumerate(commands):
            try:
                changed = self.model.apply(command, origin, self.revision + 1)
            except Refusal as refusal:
                self.model = saved
                return f"{refusal} at {index}"
            wrote |= isinstance(command, Write) or changed
        return "write" if wrote else "read"

    @invariant()
    def nothing_differs(self) -> None:
        if hasattr(self, "model"):
            assert self.model.seen_in(self.state) == self.model.view()
            assert invariants.check(self.state) == []
            assert self.state.revision == self.revision
