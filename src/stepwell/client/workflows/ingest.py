"""Ingesting: the files of a directory, as fragments of a project, and kept so.

Files are read and split by the workers; they are stored from here, so that this session's scope holds. All rows of a
file change in one transaction. A file with too many rows for one is marked as unfinished first, and its own row is
written last: what was interrupted is seen, and done again, the next time.

What is stored goes to warm, compressed in shared memory: hot is for what agents work with now, and a tree would push
that out. A tree that would fill more than half of warm goes, from there on, to cold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from msgspec import Struct, field

from stepwell import limits
from stepwell.client.api.calls import Call
from stepwell.client.api.strategies import StrategyService
from stepwell.client.api.tiers import ContextTierService, TierCalls
from stepwell.client.api.views import View, Views
from stepwell.client.session.session import Session
from stepwell.client.session.task_futures import OnProgress
from stepwell.client.workflows.split_files import FileSplitter
from stepwell.domain.replies import FragmentPlaced, FragmentRemoved
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import file_id
from stepwell.domain.tiers.tier import Tier
from stepwell.errors import Busy, Conflict, NotFound, TransactionAborted
from stepwell.ingest import changes
from stepwell.ingest.changes import FileChange, FragmentPlace
from stepwell.ingest.discovery import DiscoveredTree, discover
from stepwell.ingest.files import FileRequest, FileSame, FileSkipped, FileSplit, Outcome
from stepwell.ingest.inventory import Inventory, KnownFile, build_inventory, plan, project_name, root_name

_Call = Call[FragmentPlaced] | Call[FragmentRemoved]

_STALE: Final = frozenset({Conflict.__name__, NotFound.__name__})
"""Why a transaction is refused of whose rows somebody else has stored or deleted some."""


class IngestReport(Struct, frozen=True, kw_only=True):
    """What has become of a directory since the last time, and what it comes to now."""

    project: str
    root: str
    added: int  # files
    changed: int
    deleted: int  # a file that was renamed is one that is deleted, and one that is added
    unchanged: int
    skipped: dict[str, str]  # by source, the reason; of the first 1,000
    skipped_count: int
    fragments: int  # of all files, without the row that stands for each
    tokens: int  # of those
    stored: int  # fragments that were written this time
    seconds: float

    @property
    def is_changed(self) -> bool:
        """Whether any file is another than the last time."""
        return bool(self.added or self.changed or self.deleted)


class ProjectIngest:
    """Ingests for one client. Safe from any number of threads, and beside any number of other processes."""

    def __init__(self, session: Session, views: Views, tiers: ContextTierService, strategies: StrategyService) -> None:
        self.session = session
        self.views = views
        self.tiers = tiers
        self.strategies = strategies

    def ingest(self, path: str | os.PathLike[str], project: str | None, on_progress: OnProgress | None) -> IngestReport:
        """Bring a project up to date with a directory, or with one file of it."""
        begun_s = time.monotonic()
        tree = discover(path)
        projects = self.session.channel.projects
        if project is None:
            project = projects[0] if projects and len(projects) == 1 else project_name(tree.root)
        return _Run(self, tree, self.views.open((project,), None), project).report(on_progress, begun_s)


class _Tally(Struct):
    """What is counted on the way."""

    added: int = 0
    changed: int = 0
    deleted: int = 0
    unchanged: int = 0
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    skipped_count: int = 0
    fragments: int = 0
    tokens: int = 0
    stored: int = 0

    def skip(self, source: str, reason: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < limits.INGEST_SKIPPED_MAX:
            self.skipped[source] = reason

    def keep(self, source: str, known: KnownFile) -> None:
        """A file that is what it was, be it one that is not read."""
        if reason := known.outline.skipped:
            self.skip(source, reason)
            return
        self.unchanged += 1
        self._hold(row.tokens for row in known.parts.values())

    def settle(self, item: _Item, known: KnownFile) -> None:
        """A file that was looked at, and what was known of it before."""
        was_there = known.row is not None and not known.outline.skipped
        match item.outcome:
            case FileSplit(parts=parts):
                self.changed += was_there
                self.added += not was_there
                self._hold(part.tokens for part in parts)
            case FileSame():
                self.keep(item.source, known)
            case FileSkipped(reason=reason):
                self.skip(item.source, reason)
                self.deleted += was_there
            case None:
                self.deleted += was_there

    def _hold(self, tokens: Iterator[int]) -> None:
        for each in tokens:
            self.fragments += 1
            self.tokens += each


class _Item(Struct, frozen=True):
    """A file, what it has become, and its bytes if they are to be stored. Without an outcome, it is gone."""

    source: str
    outcome: Outcome | None
    data: bytes = b""


class _Run:
    """One pass over a directory."""

    def __init__(self, owner: ProjectIngest, tree: DiscoveredTree, view: View, project: str) -> None:
        self._owner = owner
        self._tree = tree
        self._project = project
        self._root = root_name(tree.root)
        rows = view.rows(project)
        self._inventory = build_inventory(rows)
        self._warm_left = self._room(rows)
        self._splitter = FileSplitter(owner.strategies, project, tree.root, owner.session.channel.welcome.encoding)
        self._tally = _Tally()

    def _room(self, rows: Sequence[FragmentRow]) -> int:
        """How many more rows of this project warm has for us."""
        ours = self._owner.tiers.metrics().budget.warm_entries * limits.INGEST_WARM_PERCENT // 100
        return ours - sum(row.tier is Tier.WARM for row in rows)

    def report(self, on_progress: OnProgress | None, begun_s: float) -> IngestReport:
        """Do it, and say what came of it."""
        tree, tally = self._tree, self._tally
        planned = plan(tree, self._inventory)
        for source, reason in tree.skipped.items():
            tally.skip(source, reason)
        for source in planned.unchanged:
            tally.keep(source, self._inventory[source])
        gone = (_Item(source, None) for source in planned.gone)
        looked = (_Item(outcome.source, outcome, data) for outcome, data in self._splitter.looks(planned.asked))
        total = len(tree.files) + len(planned.gone)
        done = len(planned.unchanged)
        for item in self._stored(chain(gone, looked)):
            done += 1
            if on_progress is not None:
                on_progress(done, total, item.source)
        counts = {name: getattr(tally, name) for name in tally.__struct_fields__}
        return IngestReport(project=self._project, root=self._root, seconds=time.monotonic() - begun_s, **counts)

    def _stored(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Each of them, when it is stored: as many at a time as make a transaction."""
        group: list[tuple[_Item, FileChange | None]] = []
        commands = weight = 0
        for item in items:
            change = self._change(item, self._inventory)
            more, heavier = (change.commands, change.weight) if change else (0, 0)
            if commands + more > limits.INGEST_COMMANDS or weight + heavier > limits.STREAM_BYTES:
                yield from self._flush(group)
                group, commands, weight = [], 0, 0
            group.append((item, change))
            commands += more
            weight += heavier
        yield from self._flush(group)

    def _change(self, item: _Item, inventory: Inventory) -> FileChange | None:
        """What there is to store and delete, given what is there; None if nothing."""
        known = inventory.get(item.source) or KnownFile()
        place = FragmentPlace(self._project, self._root, Tier.WARM if self._warm_left > 0 else Tier.COLD)
        match item.outcome:
            case FileSplit() as split:
                change = changes.of_split(split, item.data, known, place)
                self._warm_left -= len(change.stored) + 1
                return change
            case FileSame() as same:
                return changes.of_same(same, known, place)
            case FileSkipped() as skipped if skipped.digest:
                return changes.of_skipped(skipped, known, place)
            case _:
                return changes.of_gone(item.source, known) if known.row or known.parts else None

    def _flush(self, group: Sequence[tuple[_Item, FileChange | None]]) -> Iterator[_Item]:
        """Store a group. If others have stored the same files meanwhile, look at them, and at the files, again."""
        for item, _ in group:
            self._tally.settle(item, self._inventory.get(item.source) or KnownFile())
        wanted = [change for _, change in group if change is not None]
        for _ in range(limits.INGEST_ATTEMPTS_MAX):
            try:
                self._commit(wanted)
                break
            except TransactionAborted as error:
                if error.details.get("cause") not in _STALE:
                    raise
            wanted = self._anew([item for item, _ in group])
        else:
            raise Conflict(f"others have stored the same files {limits.INGEST_ATTEMPTS_MAX} times before we could")
        self._tally.stored += sum(len(change.stored) for change in wanted)
        for item, _ in group:
            yield item

    def _anew(self, items: Sequence[_Item]) -> list[FileChange]:
        view = self._owner.views.open((self._project,), None)
        inventory = build_inventory(view.rows(self._project), frozenset(item.source for item in items))
        found: list[FileChange] = []
        for item in items:
            known = inventory.get(item.source) or KnownFile()
            outline = known.outline
            again = item
            if item.outcome is not None:
                asked = FileRequest(item.source, outline.digest if known.is_intact(outline) else "")
                again = _Item(item.source, *self._splitter.look_at(asked))
            change = self._change(again, inventory)
            if change is not None:
                found.append(change)
        return found

    def _commit(self, wanted: Sequence[FileChange]) -> None:
        """All of it in one transaction, but for what is too large for one, which goes alone."""
        if small := [change for change in wanted if change.commands <= limits.BATCH_COMMANDS_MAX]:
            self._send([call for change in small for call in self._calls(change)])
        for change in wanted:
            if change.commands > limits.BATCH_COMMANDS_MAX:
                self._commit_in_parts(change)

    def _commit_in_parts(self, change: FileChange) -> None:
        """The file's own row says first that it is unfinished, and last what it is."""
        revision = change.expected_revision
        if (unfinished_file := change.unfinished_file()) is not None:
            revision = self._send(self._calls(FileChange(change.source, (), (), unfinished_file, revision)))
        for part in change.in_parts(limits.INGEST_COMMANDS, revision):
            self._send(self._calls(part))

    def _calls(self, change: FileChange) -> list[_Call]:
        tiers, project, expected = self._owner.tiers, self._project, change.expected_revision
        calls: list[_Call] = [TierCalls.delete.call(tiers, part_id, project=project) for part_id in change.deleted]
        calls += [TierCalls.store.call(tiers, fragment, tier=tier) for fragment, tier in change.stored]
        if change.file is not None:
            fragment, tier = change.file
            calls.append(TierCalls.store.call(tiers, fragment, tier=tier, expected_revision=expected))
        elif expected:
            gone = file_id(change.source)
            calls.append(TierCalls.delete.call(tiers, gone, project=project, expected_revision=expected))
        return calls

    def _send(self, calls: Sequence[_Call]) -> int:
        """In one transaction, whose revision it returns. An object of that name would keep the bodies for longer.

        While room is made for them, it waits: nobody else can do anything about it.
        """
        if not calls:
            return 0
        until_s = time.monotonic() + limits.INGEST_BUSY_SECONDS_MAX
        while True:
            try:
                return self._owner.session.perform_together(calls)[-1][1]
            except Busy:
                if time.monotonic() > until_s or self._owner.session.channel.connections.is_closed_within(
                    limits.INGEST_BUSY_PAUSE_SECONDS
                ):
                    raise
