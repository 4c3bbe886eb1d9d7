"""Partitions: the parts of a history that do not share a key, each of which is judged alone.

A history is legal if and only if each of its partitions is, which makes the search fast: its time grows with the calls
that overlap in one partition, and not in the whole history. Keys that a transaction or a snapshot connects are one
partition, and a plan or a log is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from stepwell.domain.tiers.body_refs import digest_of
from stepwell.prove.history import History, NoAnswer, NotDone, RecordedCall, WatchRecord, keys_of, writes_of
from stepwell.prove.models import Effect, FragmentModel, LogModel, PlanModel, is_about_logs, is_about_plans

UNKNOWN_VALUE = "(a value that no call has written)"


class Partition(Struct, frozen=True):
    """The calls on keys that belong together, in the order of their starts, and what each complete watch saw."""

    keys: tuple[str, ...]
    calls: tuple[RecordedCall, ...]
    watched: tuple[tuple[Effect, ...], ...] = ()

    @property
    def is_plan(self) -> bool:
        """Return True if it is about a plan."""
        return any(is_about_plans(each.call) for each in self.calls)

    @property
    def is_log(self) -> bool:
        """Return True if it is about a log."""
        return any(is_about_logs(each.call) for each in self.calls)

    def model(self, watched: Sequence[Effect] | None = None) -> FragmentModel | PlanModel | LogModel:
        """Return the specification, with or without the order that a watch has shown."""
        if self.is_plan:
            return PlanModel()
        return LogModel() if self.is_log else FragmentModel(self.keys, watched)


def partitions_of(history: History) -> list[Partition]:
    """Return the partitions of a history. Calls that had no effect and reads without an answer are left out."""
    kept = [each for each in history.calls if not _is_void(each)]
    roots = _connected(keys_of(each.call) for each in kept)
    calls: dict[str, list[RecordedCall]] = {}
    keys: dict[str, dict[str, None]] = {}
    for each in kept:
        names = keys_of(each.call)
        root = _root(roots, names[0])
        calls.setdefault(root, []).append(each)
        keys.setdefault(root, {}).update(dict.fromkeys(names))
    seen = [_by_root(watch, roots) for watch in history.watches if watch.is_complete]
    return [
        _partition(tuple(sorted(keys[root])), found, [each.get(root, []) for each in seen])
        for root, found in calls.items()
    ]


def _is_void(recorded: RecordedCall) -> bool:
    """Return True if a call tells nothing and changes nothing."""
    return isinstance(recorded.outcome, NotDone) or (recorded.is_read and isinstance(recorded.outcome, NoAnswer))


def _partition(
    keys: tuple[str, ...], calls: Sequence[RecordedCall], seen: Iterable[Sequence[tuple[str, str | None]]]
) -> Partition:
    """Return a partition, with the values that the digests of a watch stand for."""
    partition = Partition(keys, tuple(calls))
    if partition.is_plan or partition.is_log:
        return partition
    values = {
        digest_of(value.encode()).hex(): value
        for each in calls
        for _, value in writes_of(each.call)
        if value is not None
    }
    watched = tuple(
        tuple((key, None if digest is None else values.get(digest, UNKNOWN_VALUE)) for key, digest in events)
        for events in seen
    )
    return Partition(keys, partition.calls, watched)


def _by_root(watch: WatchRecord, roots: dict[str, str]) -> dict[str, list[tuple[str, str | None]]]:
    """Return the events of a watch by partition, each in the order of the watch."""
    found: dict[str, list[tuple[str, str | None]]] = {}
    for key, digest in watch.events:
        if key in roots:
            found.setdefault(_root(roots, key), []).append((key, digest))
    return found


def _connected(groups: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return, for each key, another key of its partition that is nearer to the partition's root."""
    roots: dict[str, str] = {}
    for names in groups:
        for name in names:
            roots.setdefault(name, name)
            roots[_root(roots, name)] = _root(roots, names[0])
    return roots


def _root(roots: dict[str, str], key: str) -> str:
    """Return the key that stands for a partition."""
    while roots[key] != key:
        roots[key] = key = roots[roots[key]]
    return key
