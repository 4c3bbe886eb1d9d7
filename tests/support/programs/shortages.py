"""A client that makes random operations during a shortage of a resource, and knows the expected state."""

import os
import random
from collections.abc import Callable

import pytest

import stepwell as sw
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.limits import KIB

SMALL, LARGE = 48 * KIB, 300 * KIB
"""What comes in a frame, and what is uploaded."""

FULL = (sw.TierFull, sw.Busy, sw.ResourceExhausted)


class Model:
    """Random operations of one client, and the expected state after each, refused or not."""

    def __init__(self, client: sw.Client, generator: random.Random) -> None:
        self._client = client
        self._random = generator
        self._noise = generator.randbytes(2 * LARGE)
        self._serial = 0
        self.digests: dict[str, bytes] = {}
        self.refused = self.done = 0

    def act(self) -> None:
        """Make one operation. A refusal says that there is no room, and changes nothing."""
        deeds = [self._store, self._store, self._batch, self._transaction, self._move, self._move, self._delete]
        deed = self._random.choice(deeds)
        try:
            deed()
            self.done += 1
        except FULL as refusal:
            self.note(refusal)

    def note(self, refusal: sw.Refused) -> None:
        """Check that the refusal names the resource that is short."""
        assert "memory" in refusal.message, refusal
        self.refused += 1

    def _fragment(self) -> sw.Fragment:
        self._serial += 1
        size = self._random.choice((100, SMALL, LARGE))
        start = self._random.randrange(LARGE)
        body = f"{self._serial} ".encode() + self._noise[start : start + size]
        return sw.Fragment(fragment_id=str(self._random.randrange(30)), body=body, tokens=1)

    def _keep(self, fragment: sw.Fragment) -> None:
        assert isinstance(fragment.body, bytes)
        self.digests[fragment.fragment_id] = digest_of(fragment.body)

    def _store(self) -> None:
        fragment = self._fragment()
        self._client.tiers.store(fragment, tier=self._random.choice([*sw.Tier]))
        self._keep(fragment)

    def _batch(self) -> None:
        fragments = [self._fragment() for _ in range(4)]
        with self._client.batch() as batch:
            stored = [batch.tiers.store(fragment) for fragment in fragments]
        for fragment, pending in zip(fragments, stored, strict=True):
            try:
                pending.result()
                self._keep(fragment)
            except FULL as refusal:
                self.note(refusal)

    def _transaction(self) -> None:
        fragments = [self._fragment() for _ in range(4)]
        try:
            with self._client.transaction() as transaction:
                for fragment in fragments:
                    transaction.tiers.store(fragment)
        except sw.TransactionAborted as aborted:
            self.note(aborted)
            return
        for fragment in fragments:
            self._keep(fragment)

    def _move(self) -> None:
        if self.digests:
            move = self._random.choice((self._client.tiers.promote, self._client.tiers.demote))
            move(self._random.choice([*self.digests]))

    def _delete(self) -> None:
        if self.digests:
            name = self._random.choice([*self.digests])
            self._client.tiers.delete(name)
            del self.digests[name]

    def check(self) -> None:
        """Everything is there, whole, and nothing else."""
        found = self._client.tiers.get_many(self.digests)
        assert {name: digest_of(each.body) for name, each in found.items()} == self.digests
        assert {row.fragment_id: row.digest for row in self._client.tiers.scoped()} == self.digests

    def check_view(self) -> None:
        view = self._client.view()
        assert {each.fragment_id: digest_of(each.body) for each in view} == self.digests


class Shortage:
    """A system call that fails as if its resource were used up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
        self.is_on = False
        self.failures = 0
        self._code = code
        self._call: Callable[..., object] = getattr(os, name)
        monkeypatch.setattr(os, name, self._called)

    def _called(self, *arguments: object) -> object:
        if self.is_on:
            self.failures += 1
            raise OSError(self._code, os.strerror(self._code))
        return self._call(*arguments)
