"""Files, read and split by whoever can: the workers, a few files at a time, or this process if there are none."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import DecodeError

from stepwell import limits
from stepwell.client.api.strategies import StrategyService
from stepwell.client.session.tokens import counter
from stepwell.errors import BodyGone, Busy, DeadlineExceeded, MemoryExceeded, NotFound, TaskFailed, TaskQuarantined
from stepwell.ingest import files
from stepwell.ingest.files import FileRequest, FileSkipped, FileSplit, Outcome, OutcomeWithBytes, SplitJob

_PATIENCE_SECONDS: Final = limits.TASK_DEADLINE_MS / 1000 + limits.EXECUTOR_GRACE_SECONDS
"""Longer than the first of many chores can take, if anybody does it."""

_Chunk = tuple[FileRequest, ...]


class FileSplitter:
    """Looks at files of one root, for one project."""

    def __init__(self, strategies: StrategyService, project: str, root: Path, encoding: str) -> None:
        self._strategies = strategies
        self._project = project
        self._root = os.fsencode(root)
        self._encoding = encoding
        self._count = counter(encoding).count

    def looks(self, asked: Iterable[tuple[FileRequest, int]]) -> Iterator[OutcomeWithBytes]:
        """What has become of files of known sizes, in their order. Leaving it before the end cancels the rest."""
        chunks = _chunks(asked)
        waiting: deque[tuple[_Chunk, Future[bytes] | None]] = deque()
        try:
            while True:
                if len(waiting) <= limits.INGEST_CHORES_AHEAD // 2:
                    waiting.extend(self._submit([*islice(chunks, limits.INGEST_CHORES_AHEAD - len(waiting))]))
                if not waiting:
                    return
                yield from self._settled(*waiting.popleft())
        finally:
            for _, future in waiting:
                if future is not None:
                    future.cancel()

    def look_at(self, asked: FileRequest) -> OutcomeWithBytes:
        """One file, here. A text that defeats us is reported like one that cannot be read."""
        try:
            return files.split_file(self._root, asked, self._count)
        except Exception as error:  # noqa: BLE001 - one file of many
            return FileSkipped(asked.source, f"splitting it failed: {type(error).__name__}: {error}"), b""

    def _submit(self, chunks: Sequence[_Chunk]) -> Iterator[tuple[_Chunk, Future[bytes] | None]]:
        """With a future each, if there are workers that do such things and have time."""
        payloads = [files.encoder.encode(SplitJob(self._root, self._encoding, chunk)) for chunk in chunks]
        try:
            futures: Sequence[Future[bytes] | None] = self._strategies.submit_chores(
                files.SPLIT_JOB, self._project, payloads
            )
        except (NotFound, Busy):
            futures = [None] * len(chunks)
        return zip(chunks, futures, strict=True)

    def _settled(self, chunk: _Chunk, future: Future[bytes] | None) -> Iterator[OutcomeWithBytes]:
        outcomes = None if future is None else self._result(chunk, future)
        if outcomes is None:
            yield from map(self.look_at, chunk)
            return
        for asked, outcome in zip(chunk, outcomes, strict=True):
            yield self._completed(asked, outcome)

    def _completed(self, asked: FileRequest, outcome: Outcome) -> OutcomeWithBytes:
        """What a worker found, with the bytes; what it could not read, perhaps we can: it may live elsewhere."""
        match outcome:
            case FileSplit():
                return files.reread_split(self._root, outcome, self._count)
            case FileSkipped() if not outcome.digest and not outcome.is_feared:
                return self.look_at(asked)
            case _:
                return outcome, b""

    def _result(self, chunk: _Chunk, future: Future[bytes]) -> Sequence[Outcome] | None:
        """None if it is to be done here. What workers die of is not: it costs the file that they died of."""
        try:
            outcomes = files.outcomes_decoder.decode(future.result(_PATIENCE_SECONDS))
            return outcomes if [each.source for each in outcomes] == [each.source for each in chunk] else None
        except (TaskQuarantined, DeadlineExceeded, MemoryExceeded) as error:
            if len(chunk) == 1:
                return [FileSkipped(chunk[0].source, f"splitting it failed: {error.message}", is_feared=True)]
            return [outcome for each in chunk for outcome in self._alone(each)]
        except (TaskFailed, NotFound, Busy, BodyGone, DecodeError):
            return None
        except TimeoutError:  # nobody does it
            future.cancel()
            return None

    def _alone(self, asked: FileRequest) -> Sequence[Outcome]:
        for chunk, future in self._submit([(asked,)]):
            if future is not None and (outcomes := self._result(chunk, future)) is not None:
                return outcomes
        return [self.look_at(asked)[0]]


def _chunks(asked: Iterable[tuple[FileRequest, int]]) -> Iterator[_Chunk]:
    """As many files as a worker is given at once."""
    chunk: list[FileRequest] = []
    weight = 0
    for each, size in asked:
        is_full = len(chunk) == limits.INGEST_CHORE_FILES or weight + size > limits.INGEST_CHORE_BYTES
        if chunk and is_full:
            yield tuple(chunk)
            chunk, weight = [], 0
        chunk.append(each)
        weight += size
    if chunk:
        yield tuple(chunk)
