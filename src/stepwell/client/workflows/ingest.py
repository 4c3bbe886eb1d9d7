"""Ingest a directory: store its files as fragments of a project, and bring them up to date at each further call.

Workers read and split the files; this process stores the fragments, so that its session's scope applies. All rows of a
file change in one transaction. A file with too many rows for one transaction is first marked as unfinished, and its own
row is written last: so an interrupted ingest is recognised and repeated at the next call.

Fragments go to the warm tier, compressed in shared memory. Hot is for what agents work with now, and a tree would evict
that. When a project fills more than half of warm, further files go to cold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.client.api.strategies import StrategyService
from stepwell.client.api.tiers import ContextTierService, TierCalls
from stepwell.client.api.views import View, Views
from stepwell.client.session.calls import Call
from stepwell.client.session.session import Session
from stepwell.client.session.task_futures import OnProgress
from stepwell.client.workflows.split_files import FileSplitter
from stepwell.domain.replies import FragmentPlaced, FragmentRemoved
from stepwell.domain.tiers.commit_history import HEAD_KEY, HISTORY_ID
from stepwell.domain.tiers.model import Fragment, FragmentRow, Tier
from stepwell.domain.tiers.source_outline import FILE_KIND, file_id
from stepwell.errors import Busy, Conflict, NotFound, TransactionAborted
from stepwell.ingest import changes, history
from stepwell.ingest.changes import FileChange, FragmentPlace
from stepwell.ingest.discovery import DiscoveredTree, discover
from stepwell.ingest.files import SPLIT_JOB, FileRequest, FileSame, FileSkipped, FileSplit, Outcome
from stepwell.ingest.inventory import Inventory, KnownFile, build_inventory, plan, project_name, root_name
from stepwell.ingest.report import IngestCounts, IngestReport
from stepwell.ingest.secret_policy import SecretPolicy

_Call = Call[FragmentPlaced] | Call[FragmentRemoved]

_STALE_CAUSES: Final = frozenset({Conflict.__name__, NotFound.__name__})
"""Causes of an aborted transaction which mean that another process stored or deleted some of its rows meanwhile."""


class ProjectIngest:
    """Ingests directories for one client, which owns it.

    Any number of threads and other processes may ingest at the same time, also the same files: each transaction expects
    the revisions that it was computed from, and is computed again if another process was quicker.
    """

    def __init__(self, session: Session, views: Views, tiers: ContextTierService, strategies: StrategyService) -> None:
        self.session = session
        self.views = views
        self.tiers = tiers
        self.strategies = strategies

    def ingest(
        self,
        path: str | os.PathLike[str],
        project: str | None,
        policy: SecretPolicy,
        on_progress: OnProgress | None,
    ) -> IngestReport:
        """Bring a project up to date with a directory or one file, as `Client.ingest` promises."""
        begun_s = time.monotonic()
        tree = discover(path, policy)
        projects = self.session.channel.projects
        if project is None:
            project = projects[0] if projects and len(projects) == 1 else project_name(tree.root)
        return _IngestPass(self, tree, self.views.open((project,), None), project, policy).run(on_progress, begun_s)


class _FileItem(Struct, frozen=True):
    """A file with the outcome of splitting it, and its redacted bytes if they are to be stored; no outcome if it is
    gone.
    """

    source: str
    outcome: Outcome | None
    data: bytes = b""


class _IngestPass:
    """One pass over a directory, for one thread: split what changed, store it in groups, and count.

    The inventory, what the project has stored of each file, is taken from the view when the pass is made.
    """

    def __init__(
        self, owner: ProjectIngest, tree: DiscoveredTree, view: View, project: str, policy: SecretPolicy
    ) -> None:
        self._owner = owner
        self._tree = tree
        self._project = project
        self._policy = policy
        self._root = root_name(tree.root)
        rows = view.rows(project)
        self._inventory = build_inventory(rows)
        self._history = next((row for row in rows if row.fragment_id == HISTORY_ID), None)
        self._warm_left = self._warm_room(rows)
        encoding = owner.session.channel.welcome.encoding
        submit = partial(owner.strategies.submit_jobs, SPLIT_JOB, project)
        self._splitter = FileSplitter(submit, tree.root, encoding, policy)
        self._counts = IngestCounts()

    def _warm_room(self, rows: Sequence[FragmentRow]) -> int:
        """Return how many more rows of this project may go to warm."""
        ours = self._owner.tiers.metrics().budget.warm_entries * limits.INGEST_WARM_PERCENT // 100
        return ours - sum(row.tier is Tier.WARM for row in rows)

    def run(self, on_progress: OnProgress | None, begun_s: float) -> IngestReport:
        """Do the pass and return its report; `on_progress` is called after each file that is stored."""
        tree, counts = self._tree, self._counts
        planned = plan(tree, self._inventory, self._policy)
        counts.leave_out(tree.secrets)
        for source, reason in tree.skipped.items():
            counts.skip(source, reason)
        # Files whose status is as recorded are counted without reading them.
        for source in planned.unchanged:
            counts.count_unchanged(source, self._inventory[source])
        gone = (_FileItem(source, None) for source in planned.gone)
        split = (_FileItem(outcome.source, outcome, data) for outcome, data in self._splitter.split_all(planned.asked))
        total = len(tree.files) + len(planned.gone)
        done = len(planned.unchanged)
        for item in self._store_in_groups(chain(gone, split)):
            done += 1
            if on_progress is not None:
                on_progress(done, total, item.source)
        self._store_history()
        totals = {name: getattr(counts, name) for name in counts.__struct_fields__}
        return IngestReport(project=self._project, root=self._root, seconds=time.monotonic() - begun_s, **totals)

    def _store_history(self) -> None:
        """Store the commits of the directory's repository if they have changed, or delete them if it has none any more.

        A single file leaves the history alone. Another client that stores it at the same time stores the same.
        """
        if not self._tree.is_whole:
            return
        known = self._history
        head = history.head_of(self._tree.root)
        mark = {HEAD_KEY: head, "root": self._root, "version": self._policy.rules_version}
        if known is not None and known.metadata == mark:
            return
        tiers, project = self._owner.tiers, self._project
        if head:
            body = history.read_history(self._tree.root, self._policy)
            row = Fragment(fragment_id=HISTORY_ID, body=body, project=project, kind=FILE_KIND, metadata=mark)
            self._send([TierCalls.store.call(tiers, row, tier=Tier.WARM)])
        elif known is not None and known.metadata.get("root") == self._root:
            with suppress(TransactionAborted):  # another client has deleted it, or stored another one
                self._send([TierCalls.delete.call(tiers, HISTORY_ID, project=project)])

    def _store_in_groups(self, items: Iterator[_FileItem]) -> Iterator[_FileItem]:
        """Store the items in groups of one transaction each, and yield each item once it is stored."""
        group: list[tuple[_FileItem, FileChange | None]] = []
        commands = weight = 0
        for item in items:
            change = self._change(item, self._inventory)
            more, heavier = (change.commands, change.weight) if change else (0, 0)
            # A group is bounded, so that it is one frame and takes the manager's loop a few milliseconds only.
            if commands + more > limits.INGEST_COMMANDS or weight + heavier > limits.STREAM_BYTES:
                yield from self._flush(group)
                group, commands, weight = [], 0, 0
            group.append((item, change))
            commands += more
            weight += heavier
        yield from self._flush(group)

    def _change(self, item: _FileItem, inventory: Inventory) -> FileChange | None:
        """Return what must be stored and deleted for a file, given what is stored of it; None if nothing."""
        known = inventory.get(item.source) or KnownFile()
        tier = Tier.WARM if self._warm_left > 0 else Tier.COLD
        place = FragmentPlace(self._project, self._root, tier, self._policy)
        match item.outcome:
            case FileSplit() as split:
                change = changes.of_split(split, item.data, known, place)
                self._warm_left -= len(change.stored) + 1  # with the row that stands for the file
                return change
            case FileSame() as same:
                return changes.of_same(same, known, place)
            case FileSkipped() as skipped if skipped.digest:
                return changes.of_skipped(skipped, known, place)
            case _:
                return changes.of_gone(item.source, known) if known.row or known.parts else None

    def _flush(self, group: Sequence[tuple[_FileItem, FileChange | None]]) -> Iterator[_FileItem]:
        """Store a group and yield its items.

        If another process stored the same files meanwhile, read the rows and the files again and retry. Raises
        `Conflict` if that happens `limits.INGEST_ATTEMPTS_MAX` times.
        """
        for item, _ in group:
            self._counts.count(item.source, item.outcome, self._inventory.get(item.source) or KnownFile())
        wanted = [change for _, change in group if change is not None]
        for _ in range(limits.INGEST_ATTEMPTS_MAX):
            try:
                self._commit(wanted)
                break
            except TransactionAborted as error:
                if error.details.get("cause") not in _STALE_CAUSES:
                    raise
            wanted = self._changes_now([item for item, _ in group])
        else:
            raise Conflict(
                f"other clients have stored the same files {limits.INGEST_ATTEMPTS_MAX} times before we could"
            )
        self._counts.stored += sum(len(change.stored) for change in wanted)
        for item, _ in group:
            yield item

    def _changes_now(self, items: Sequence[_FileItem]) -> list[FileChange]:
        """Compute the changes of some files again, from a new view and from the files as they are now."""
        view = self._owner.views.open((self._project,), None)
        inventory = build_inventory(view.rows(self._project), frozenset(item.source for item in items))
        found: list[FileChange] = []
        for item in items:
            known = inventory.get(item.source) or KnownFile()
            outline = known.outline
            again = item
            if item.outcome is not None:
                # With the digest of what is stored, a file that another process has just ingested is not split again.
                is_intact = known.is_intact(outline, self._policy.rules_version)
                asked = FileRequest(item.source, outline.digest if is_intact else "")
                again = _FileItem(item.source, *self._splitter.split_here(asked))
            change = self._change(again, inventory)
            if change is not None:
                found.append(change)
        return found

    def _commit(self, wanted: Sequence[FileChange]) -> None:
        """Store the changes in one transaction; a file that is too large for one goes in parts."""
        if small := [change for change in wanted if change.commands <= limits.BATCH_COMMANDS_MAX]:
            self._send([call for change in small for call in self._calls(change)])
        for change in wanted:
            if change.commands > limits.BATCH_COMMANDS_MAX:
                self._commit_in_parts(change)

    def _commit_in_parts(self, change: FileChange) -> None:
        """Store a large file in several transactions.

        The first one marks the file's own row as unfinished, and the last one makes it final.
        """
        revision = change.expected_revision
        if (unfinished_file := change.unfinished_file()) is not None:
            revision = self._send(self._calls(FileChange(change.source, (), (), unfinished_file, revision)))
        for part in change.in_parts(limits.INGEST_COMMANDS, revision):
            self._send(self._calls(part))

    def _calls(self, change: FileChange) -> list[_Call]:
        """Return the calls of one change; the file's own row comes last, and carries the expected revision."""
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
        """Send the calls in one transaction and return its revision.

        No `Transaction` object is used, because it would keep the bodies in memory for longer. While the manager is
        busy making room in the tiers, this waits and retries: no action of the caller would help.
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
