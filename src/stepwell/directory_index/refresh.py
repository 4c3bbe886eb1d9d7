"""Bringing an index up to date: which files have changed, what is in them now, and the indexes that follow.

Few changed files are split by the process itself; many by worker processes, while this process indexes what they have
split already. The index advances in rounds, each a revision of its own, so that the texts in memory are bounded.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.client.workflows.split_files import FileSplitter
from stepwell.directory_index.model import DirectoryState
from stepwell.directory_index.round import Round
from stepwell.directory_index.view import StateChange
from stepwell.directory_index.workers import start_workers
from stepwell.domain.tiers.commit_history import HEAD_KEY, HISTORY_ID
from stepwell.errors import Busy
from stepwell.ingest import history
from stepwell.ingest.discovery import DiscoveredTree
from stepwell.ingest.files import (
    Count,
    FileRequest,
    FileSkipped,
    OutcomeWithBytes,
    SplitJob,
    encoder,
    job_decoder,
    split_file,
)
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.text import plural

OnProgress = Callable[[int, int, str], None]
"""Called with the number of files that are done, the number of all, and the source of the last one."""


class Comparison(Struct, frozen=True):
    """The files of a directory beside those of an index: the ones to be read, with their sizes, and the ones that are
    gone. `head` is the commit that is checked out, if it is another one; else None.
    """

    asked: tuple[tuple[FileRequest, int], ...]
    gone: tuple[str, ...]
    head: str | None

    @property
    def is_same(self) -> bool:
        """True if nothing has changed."""
        return not self.asked and not self.gone and self.head is None

    @property
    def bytes(self) -> int:
        """The bytes of the files to be read."""
        return sum(size for _, size in self.asked)

    @property
    def is_small(self) -> bool:
        """True if the same work at the next question would take less time than writing the index does."""
        return (
            self.head is None
            and len(self.asked) + len(self.gone) <= limits.DIRECTORY_UNSAVED_FILES_MAX
            and self.bytes <= limits.DIRECTORY_UNSAVED_BYTES_MAX
        )


def compare(tree: DiscoveredTree, state: DirectoryState) -> Comparison:
    """Compare the files that are there with those of an index, by size and time."""
    asked: list[tuple[FileRequest, int]] = []
    for found in tree.files:
        known = state.files.get(found.source)
        if known is None or not known.mtime_ns or (known.size, known.mtime_ns) != (found.size, found.mtime_ns):
            asked.append((FileRequest(found.source, known.digest if known else ""), found.size))
    gone = state.files.keys() - {found.source for found in tree.files}
    head = history.head_of(tree.root) if tree.is_whole else ""
    known_head = next((row.metadata.get(HEAD_KEY, "") for row in state.rows if row.fragment_id == HISTORY_ID), "")
    return Comparison(tuple(asked), tuple(sorted(gone)), None if head == known_head else head)


class Refresh:
    """One refresh of one directory, by one thread: yields the state after each round, with the change since the last.

    `count` counts tokens in `encoding`, and `policy` says which secrets are redacted.
    """

    def __init__(
        self, tree: DiscoveredTree, project: str, policy: SecretPolicy, *, encoding: str, count: Count
    ) -> None:
        self._tree: Final = tree
        self._project: Final = project
        self._policy: Final = policy
        self._encoding: Final = encoding
        self._count: Final = count
        self.unread: Final[dict[str, str]] = {}
        """The files that could not be read, with the reasons. They are tried again at the next question."""

    def rounds(
        self, state: DirectoryState, comparison: Comparison, on_progress: OnProgress | None
    ) -> Iterator[tuple[DirectoryState, StateChange]]:
        """Yield the state after each round. An index has to follow each of them."""
        begun = Round(state, self._project, self._count)
        for source in comparison.gone:
            begun.remove(source)
        if comparison.head is not None:
            begun.set_commits(comparison.head, self._commits(comparison.head))
        seen = {found.source: found for found in self._tree.files}
        done, total = len(self._tree.files) - len(comparison.asked), len(self._tree.files)
        with self._splitter(comparison) as splitter:
            for outcome, data in splitter:
                if isinstance(outcome, FileSkipped) and outcome.is_unsafe:
                    found = seen[outcome.source]
                    outcome = replace(outcome, size=found.size, mtime_ns=found.mtime_ns)  # noqa: PLW2901
                elif isinstance(outcome, FileSkipped) and not outcome.digest:
                    self.unread[outcome.source] = outcome.reason
                begun.add(outcome, data)
                done += 1
                if on_progress is not None:
                    on_progress(done, total, outcome.source)
                if begun.bytes >= limits.DIRECTORY_ROUND_BYTES:
                    state, delta = begun.end()
                    yield state, delta
                    begun = Round(state, self._project, self._count)
        if begun.is_changed:
            yield begun.end()

    @contextmanager
    def _splitter(self, comparison: Comparison) -> Generator[Iterator[OutcomeWithBytes]]:
        """Yield the outcomes of all files to be read, which worker processes split if they are many."""
        root = self._tree.root
        is_few = len(comparison.asked) <= limits.DIRECTORY_FILES_ALONE_MAX
        if is_few and comparison.bytes <= limits.DIRECTORY_BYTES_ALONE_MAX:
            alone = FileSplitter(_no_worker, root, self._encoding, self._policy)
            yield (alone.split_here(asked) for asked, _ in comparison.asked)
            return
        executor = start_workers()
        try:

            def submit(payloads: Sequence[bytes]) -> list[Future[bytes]]:
                return [executor.submit(split_job, payload) for payload in payloads]

            yield FileSplitter(submit, root, self._encoding, self._policy).split_all(comparison.asked)
        finally:
            executor.kill_workers()  # all jobs are done, or the command ends in the middle
            executor.shutdown()

    def _commits(self, head: str) -> bytes:
        """Return the encoded commits up to `head`; nothing without a repository."""
        return history.read_history(self._tree.root, self._policy) if head else b""


def split_job(payload: bytes) -> bytes:
    """Read and split some files, in a worker process. It dies if that takes too long: it would never end otherwise."""
    from stepwell.client.session.tokens import counter  # noqa: PLC0415 - loads a vocabulary, in the worker

    job: SplitJob = job_decoder.decode(payload)
    count = counter(job.encoding).count
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.DIRECTORY_SPLIT_SECONDS_MAX)
    try:
        return encoder.encode([split_file(job.root, each, count, job.policy)[0] for each in job.files])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _no_worker(payloads: Sequence[bytes]) -> list[Future[bytes]]:
    """Refuse jobs: this process splits the files itself."""
    raise Busy(f"no worker is started for {plural(len(payloads), 'job')}")
