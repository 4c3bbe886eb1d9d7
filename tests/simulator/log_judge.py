"""The judge of logs: what the clients asked and were told, against the committed events and the entries that are left.

An append is known by the texts of its entries, which no other append has. Positions, pops and heads follow from the
events; the judge applies them in their order to a set of positions for each log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stepwell.domain import events
from stepwell.domain.events import AboutLog

if TYPE_CHECKING:
    from stepwell.aio.client import Client

Key = tuple[str, str]


class LogViolation(AssertionError):
    """A promise about a log was not kept."""


class Append(msgspec.Struct):
    """An append that a client asked for. `first` is known once it was acknowledged."""

    key: Key
    texts: tuple[str, ...]
    expected_head: int | None = None
    first: int | None = None
    head: int | None = None
    is_refused: bool = False


class LogJudge:
    """Collects what clients report of logs, and checks it."""

    def __init__(self) -> None:
        self._appends: list[Append] = []
        self._by_text: dict[str, Append] = {}
        self._popped: dict[tuple[Key, int], str] = {}
        self._pops: list[tuple[Key, int, int]] = []  # position and head
        self.floors: dict[Key, int] = defaultdict(int)  # the latest acknowledged head of each log

    # Reports of clients.

    def ask(self, append: Append) -> Append:
        """Note an append that is about to be sent."""
        self._appends.append(append)
        self._by_text.update(dict.fromkeys(append.texts, append))
        return append

    def acknowledge(self, append: Append, first: int, head: int) -> None:
        """Note that an append was acknowledged."""
        append.first, append.head = first, head
        self.floors[append.key] = max(self.floors[append.key], head)

    def note_popped(self, key: Key, position: int, text: str, head: int) -> None:
        """Note an entry that a client has popped: no other client has."""
        self.check_entry(key, position, text)
        if (key, position) in self._popped:
            raise LogViolation(f"entry {position} of {key} was popped twice")
        self._popped[key, position] = text
        self._pops.append((key, position, head))
        self.floors[key] = max(self.floors[key], head)

    def check_entry(self, key: Key, position: int, text: str) -> None:
        """Check an entry that was read: a client has appended it to this log, there if it is known where."""
        append = self._by_text.get(text)
        if append is None or append.key != key or append.is_refused:
            raise LogViolation(f"entry {position} of {key} has a text that no client has appended: {text!r}")
        if append.first is not None and append.first + append.texts.index(text) != position:
            raise LogViolation(f"{text!r} was appended to {key} at {append.first}, and is at {position}")

    def check_page(self, key: Key, floor: int, head: int, entries: Sequence[tuple[int, str]]) -> None:
        """Check entries that were read together: in order, each once, and not of an older log than known before."""
        if head < floor:
            raise LogViolation(f"stale read of {key}: head {head}, but {floor} was acknowledged before the read")
        positions = [position for position, _ in entries]
        if positions != sorted({*positions}):
            raise LogViolation(f"entries of {key} were read in the order {positions}")
        for position, text in entries:
            self.check_entry(key, position, text)

    # The end of a run.

    async def finish(self, client: Client, committed: Sequence[events.AnyEvent]) -> None:
        """Compare what the clients were told with the events, and the events with the entries that are left."""
        by_log: dict[Key, list[AboutLog]] = defaultdict(list)
        for event in committed:
            if isinstance(event, AboutLog):
                by_log[event.project, event.name].append(event)
        for key in {*by_log, *(append.key for append in self._appends)}:
            self._check_heads(key, by_log[key])
            await self._check_entries(client, key, _live(by_log[key]))

    def _check_heads(self, key: Key, told: Sequence[AboutLog]) -> None:
        """Each acknowledged change is one event, and nothing happened behind a head that was expected."""
        appended = {each.revision: each for each in told if isinstance(each, events.LogAppended)}
        popped = {each.revision: each.position for each in told if isinstance(each, events.LogPopped)}
        for _, position, head in [each for each in self._pops if each[0] == key]:
            if popped.get(head) != position:
                raise LogViolation(f"{key}: the pop of {position} at {head} was acknowledged, and no event has it")
        for append in self._appends:
            if append.key != key or append.head is None or append.first is None:
                continue
            event = appended.get(append.head)
            if event is None or (event.first_position, event.last_position) != (
                append.first,
                append.first + len(append.texts) - 1,
            ):
                raise LogViolation(f"{key}: {append} was acknowledged, and its event is {event}")
            if (since := append.expected_head) is not None:
                between = [each for each in told if since < each.revision < append.head and _is_of_caller(each)]
                if between:
                    raise LogViolation(f"{key}: {append} expected the head {since}, and {between[0]} came between")

    async def _check_entries(self, client: Client, key: Key, live: set[int]) -> None:
        """The entries that are left are those of the events, each with its own text."""
        log = client.log(key[1], project=key[0])
        found = {entry.position: entry.text async for entry in log.entries()}
        if found.keys() != live:
            raise LogViolation(f"{key} has other entries than its events say: {sorted(found.keys() ^ live)[:5]}")
        for position, text in found.items():
            self.check_entry(key, position, text)
        if len({*found.values()}) < len(found):
            raise LogViolation(f"{key} has an entry twice")


def _is_of_caller(event: AboutLog) -> bool:
    return not isinstance(event, events.LogTrimmed)


def _live(told: Sequence[AboutLog]) -> set[int]:
    """Return the positions that are left behind all events of a log."""
    live: set[int] = set()
    last = 0
    for event in told:
        match event:
            case events.LogAppended():
                if event.first_position <= last:
                    raise LogViolation(f"{event}: position {last} was used already")
                last = event.last_position
                live.update(range(event.first_position, last + 1))
                live = {each for each in live if each >= event.first_live}
            case events.LogPopped():
                if not live or max(live) != event.position:
                    raise LogViolation(f"{event}: it is not the last of {sorted(live)[-3:]}")
                live.remove(event.position)
            case events.LogCleared() | events.LogTrimmed() | events.LogRetentionChanged():
                live = {each for each in live if each >= event.first_live}
            case _:
                live, last = set(), 0
    return live
