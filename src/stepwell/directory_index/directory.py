"""`DirectoryIndex`: the index of one directory, for one command that asks about it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final, Self, cast

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.assembly import components, pipeline
from stepwell.assembly.answer import Answer
from stepwell.assembly.inputs import AssemblyInputs
from stepwell.assembly.stages.allocate import candidate_tokens
from stepwell.client.session.tokens import counter
from stepwell.directory_index import contents
from stepwell.directory_index.cache import CacheDirectory
from stepwell.directory_index.installed_strategies import IndexLocation
from stepwell.directory_index.model import DirectoryState
from stepwell.directory_index.receipts import ReceiptFiles
from stepwell.directory_index.refresh import Comparison, OnProgress, Refresh, compare
from stepwell.directory_index.strategy_runs import Asked, OnStrategyProgress, run_all
from stepwell.directory_index.view import DirectoryView, FileTexts
from stepwell.errors import Busy, ResourceExhausted, StoreDamaged
from stepwell.identifiers import new_id
from stepwell.ingest.discovery import discover
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.strategies.execution import checked_deadline
from stepwell.strategies.index.index_cache import IndexCaches
from stepwell.strategies.protocol import ContextRequest, StrategyView
from stepwell.strategies.registry import Registry, built_in


class FilesLeftOut(Struct, frozen=True):
    """The files that no answer has: skipped ones with the reasons, and secret ones with what they are.

    Both name at most `limits.INGEST_SKIPPED_MAX`; the counts are of all.
    """

    skipped: dict[str, str]
    skipped_count: int
    secrets: dict[str, str]
    secrets_count: int


class DirectoryIndex:
    """The index of one directory. One command owns it, and uses it in one thread.

    Opening reads the cache, if there is one; `refresh` brings the index to the files as they are, and `assemble`
    answers. A cache that fails is no error: the command then works without it, and `notice` is told in a sentence.

    A thread prepares the counting of tokens meanwhile. It ends within a second; leaving the block waits for it.
    """

    def __init__(
        self, path: Path, project: str, policy: SecretPolicy, cache: CacheDirectory, notice: Callable[[str], None]
    ) -> None:
        self._project: Final = project
        self._policy: Final = policy
        self._notice: Final = notice
        self._counter: Final = counter()
        self._version: Final = contents.version_of(policy, self._counter.encoding)
        self._path: Final = path
        self._tree = discover(path, policy)
        self._texts: Final = FileTexts(os.fsencode(self._tree.root))
        self._cache: CacheDirectory | None = cache
        self._is_damaged = False
        try:
            cache.prepare()
        except OSError as error:
            self._do_without_cache(error)
        self._preparing: Final = threading.Thread(target=self._counter.prepare, name="stepwell-tokens")
        self._preparing.start()
        self._load()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._preparing.join()

    @property
    def view(self) -> StrategyView:
        """The view of the present state."""
        return cast("StrategyView", self._view)

    def refresh(self, on_progress: OnProgress | None = None) -> FilesLeftOut:
        """Bring the index to the files as they are, and return the files that are left out.

        A few changed files are read again at each question, until so many have changed that the index is written anew.
        """
        comparison = compare(self._tree, self._state)
        if self._cache is None or (comparison.is_small and not self._is_damaged):
            return self._left_out(self._follow(comparison, on_progress))
        with self._locked(lambda: self._notice("another command reads the same files: waiting for it")):
            if self._is_replaced():
                self._load()  # another command has read files, perhaps all of them
                self._tree = discover(self._path, self._policy)
                comparison = compare(self._tree, self._state)
            unread = self._follow(comparison, on_progress)
            if self._is_damaged or self._saved[0] != self._state.at:
                self._save()
        return self._left_out(unread)

    def assemble(
        self,
        request: ContextRequest,
        *,
        strategies: Sequence[str] | None = None,
        deadline_s: float | None = None,
        stages: Mapping[str, str] | None = None,
        on_progress: OnStrategyProgress | None = None,
    ) -> Answer:
        """Return an answer about the files, and keep its receipt. `refresh` comes before it.

        The named strategies are asked, or all that there are. `deadline_s` is the time that each of them may take.
        """
        chosen = components.named(stages or {})
        limit_s = limits.TASK_DEADLINE_MS / 1000 if deadline_s is None else checked_deadline(deadline_s)
        asked = Asked(request, strategies, candidate_tokens(request.budget_tokens), limit_s)
        runs = run_all(asked, self.view, Registry(built_in(self._caches)), self._location, on_progress)
        for problem in runs.problems:
            self._notice(f"strategy {problem.name} of {problem.source} cannot be loaded: {problem.reason}")
        inputs = AssemblyInputs(request, self.view, runs.results, self._count, runs.failures, runs.offers)
        answer = pipeline.assemble(inputs, chosen)
        self._save_new_indexes()
        return self._keep_receipt(answer)

    @contextmanager
    def _locked(self, on_wait: Callable[[], None]) -> Generator[None]:
        """Hold the lock of the cache for the duration of the block; where it cannot be had, do without the cache."""
        with ExitStack() as held:
            if self._cache is not None:
                try:
                    held.enter_context(self._cache.locked(on_wait))
                except OSError as error:
                    self._do_without_cache(error)
            yield

    def _load(self) -> None:
        """Take over the state and the indexes in the cache, or begin with empty ones."""
        self._caches = IndexCaches()
        state, self._stamp = None, None
        if self._cache is not None:
            self._stamp = self._cache.index_stamp()
            try:
                state = contents.load(self._cache.index, self._version, self._project, self._caches)
            except (StoreDamaged, OSError) as error:
                self._caches = IndexCaches()
                if not self._is_damaged:
                    self._notice(f"the cache cannot be used, and is built again: {error}")
                self._is_damaged = True
        self._state = DirectoryState.empty(new_id()) if state is None else state
        self._saved = self._state.at, self._known_indexes()
        self._view = DirectoryView(self._project, self._state, self._texts)

    def _is_replaced(self) -> bool:
        """Return True if another command has written the index since this one has read or written it."""
        return self._cache is not None and self._cache.index_stamp() != self._stamp

    def _follow(self, comparison: Comparison, on_progress: OnProgress | None) -> Mapping[str, str]:
        """Bring the state and the indexes to the files; return the files that could not be read, with the reasons."""
        encoding, count = self._counter.encoding, self._counter.count
        refresh = Refresh(self._tree, self._project, self._policy, encoding=encoding, count=count)
        for state, delta in () if comparison.is_same else refresh.rounds(self._state, comparison, on_progress):
            self._state, self._view = state, DirectoryView(self._project, state, self._texts, delta)
            for cache in self._caches.following(self._project):
                cache.get(self.view, self._project)
        self._texts.clear()
        return refresh.unread

    def _left_out(self, unread: Mapping[str, str]) -> FilesLeftOut:
        """Return the files that are not in the index, and those in it that have no text."""
        without_text = {file.source: file.skipped for file in self._state.files.values() if file.skipped}
        skipped = {**self._tree.skipped, **unread, **without_text}
        return FilesLeftOut(
            dict(islice(skipped.items(), limits.INGEST_SKIPPED_MAX)),
            len(skipped),
            dict(islice(self._tree.secrets.items(), limits.INGEST_SKIPPED_MAX)),
            len(self._tree.secrets),
        )

    def _count(self, text: str) -> int:
        """Count the tokens of a text; an empty one has none, though an empty body counts as one."""
        self._preparing.join()
        return self._counter.count(text.encode()) if text else 0

    def _known_indexes(self) -> frozenset[str]:
        """Return the names of the indexes that are at the present state."""
        known = {name: cache.known(self._project) for name, cache in self._caches.stored().items()}
        return frozenset(
            name for name, index in known.items() if index is not None and index.followed == self._state.at
        )

    def _save(self) -> None:
        """Write the state and its indexes to the cache. The caller holds the lock."""
        if self._cache is None:
            return
        try:
            contents.save(self._cache.index, self._version, self._project, self._state, self._caches)
            self._saved, self._stamp = (self._state.at, self._known_indexes()), self._cache.index_stamp()
            self._is_damaged = False
        except OSError as error:
            self._do_without_cache(error)

    def _save_new_indexes(self) -> None:
        """Write the indexes that this question was the first to need, unless another command writes or has written."""
        saved = self._saved[1]
        if self._cache is None or not saved or self._known_indexes() <= saved:
            return
        with suppress(Busy), self._locked(_refuse_to_wait):
            if not self._is_replaced():
                self._save()

    def _location(self) -> IndexLocation:
        """Return where workers find the index at its present state, which is written if it is not there."""
        if self._cache is not None and self._saved[0] != self._state.at:
            with self._locked(lambda: None):
                self._save()
        if self._cache is None:
            raise ResourceExhausted("strategies of other packages read the cache, and nothing can be written there")
        root = os.fsencode(self._tree.root)
        return IndexLocation(os.fsencode(self._cache.index), self._version, self._project, root, *self._state.at)

    def _keep_receipt(self, answer: Answer) -> Answer:
        """Return the answer with the id of its receipt; without one if the receipt cannot be written."""
        if self._cache is None:
            return answer
        try:
            return replace(answer, receipt_id=ReceiptFiles(self._cache.receipts).add(answer.receipt))
        except OSError as error:
            self._do_without_cache(error)
            return answer

    def _do_without_cache(self, error: OSError) -> None:
        self._cache = None
        self._notice(f"nothing is cached for the next time: {error}")


def _refuse_to_wait() -> None:
    raise Busy("another command has the lock of the cache")
