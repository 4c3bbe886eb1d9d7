"""Read and split files: by the workers, a few files at a time, or in this process if no worker can.

Jobs are submitted ahead of the results that are used, so that workers never wait for this process. Every failure of
a job ends in an outcome for each of its files: a job that no worker takes is done here; a job that killed its worker is
tried again file by file, and only the file that workers die of is skipped.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import DecodeError

from stepwell import limits
from stepwell.client.session.tokens import counter
from stepwell.errors import (
    BodyGone,
    Busy,
    DeadlineExceeded,
    MemoryExceeded,
    NotFound,
    StartFailed,
    TaskFailed,
    TaskQuarantined,
    WorkerDied,
)
from stepwell.ingest import files
from stepwell.ingest.files import FileRequest, FileSkipped, FileSplit, Outcome, OutcomeWithBytes, SplitJob
from stepwell.ingest.secret_policy import SecretPolicy

_JOB_SECONDS_MAX: Final = limits.TASK_DEADLINE_MS / 1000 + limits.EXECUTOR_GRACE_SECONDS
"""The time after which a submitted job counts as not taken by any worker: longer than a job may take."""

_Chunk = tuple[FileRequest, ...]

SubmitJobs = Callable[[Sequence[bytes]], "Sequence[Future[bytes]]"]
"""A function that gives encoded `SplitJob`s to worker processes. It raises `NotFound` or `Busy` if none takes them."""


class FileSplitter:
    """Splits files of one root, counting tokens as the manager does; for one thread.

    The policy says which secrets are redacted.
    """

    def __init__(self, submit: SubmitJobs, root: Path, encoding: str, policy: SecretPolicy) -> None:
        self._submit_jobs = submit
        self._root = os.fsencode(root)
        self._encoding = encoding
        self._policy = policy
        self._count = counter(encoding).count

    def split_all(self, asked: Iterable[tuple[FileRequest, int]]) -> Iterator[OutcomeWithBytes]:
        """Yield the outcome, with the bytes, of each file, in the given order; the sizes balance the jobs.

        Closing the generator before its end cancels the jobs that are left.
        """
        chunks = _chunks(asked)
        pending: deque[tuple[_Chunk, Future[bytes] | None]] = deque()
        try:
            while True:
                if len(pending) <= limits.INGEST_JOBS_IN_FLIGHT // 2:
                    pending.extend(self._submit([*islice(chunks, limits.INGEST_JOBS_IN_FLIGHT - len(pending))]))
                if not pending:
                    return
                yield from self._chunk_outcomes(*pending.popleft())
        finally:
            for _, future in pending:
                if future is not None:
                    future.cancel()

    def split_here(self, asked: FileRequest) -> OutcomeWithBytes:
        """Split one file in this process. A file that a splitter fails on is skipped, like an unreadable one."""
        try:
            return files.split_file(self._root, asked, self._count, self._policy)
        except Exception as error:  # noqa: BLE001 - one file of many
            return FileSkipped(asked.source, f"splitting it failed: {type(error).__name__}: {error}"), b""

    def _submit(self, chunks: Sequence[_Chunk]) -> Iterator[tuple[_Chunk, Future[bytes] | None]]:
        """Submit one job for each chunk, and return the chunks with their futures; None if no worker can take jobs."""
        payloads = [files.encoder.encode(SplitJob(self._root, self._encoding, chunk, self._policy)) for chunk in chunks]
        try:
            futures: Sequence[Future[bytes] | None] = self._submit_jobs(payloads)
        except (NotFound, Busy):
            futures = [None] * len(chunks)
        return zip(chunks, futures, strict=True)

    def _chunk_outcomes(self, chunk: _Chunk, future: Future[bytes] | None) -> Iterator[OutcomeWithBytes]:
        """Yield the outcomes of a chunk, from its job or, without a usable result, from this process."""
        outcomes = None if future is None else self._result(chunk, future)
        if outcomes is None:
            yield from map(self.split_here, chunk)
            return
        for asked, outcome in zip(chunk, outcomes, strict=True):
            yield self._with_body(asked, outcome)

    def _with_body(self, asked: FileRequest, outcome: Outcome) -> OutcomeWithBytes:
        """Return a worker's outcome with the file's bytes.

        A file that the worker could not read is tried here, because the worker may run in another file system.
        """
        match outcome:
            case FileSplit():
                return files.reread_split(self._root, outcome, self._count, self._policy)
            case FileSkipped() if not outcome.digest and not outcome.is_unsafe:
                return self.split_here(asked)
            case _:
                return outcome, b""

    def _result(self, chunk: _Chunk, future: Future[bytes]) -> Sequence[Outcome] | None:
        """Return the outcomes of a job; None if the chunk must be split in this process.

        A job that killed its worker, or ran too long, is not tried here, because it would do the same to this process:
        its files are tried one by one, and a single one is skipped.
        """
        try:
            outcomes = files.outcomes_decoder.decode(future.result(_JOB_SECONDS_MAX))
            return outcomes if [each.source for each in outcomes] == [each.source for each in chunk] else None
        except (TaskQuarantined, DeadlineExceeded, MemoryExceeded, WorkerDied) as error:
            return self._retry_each(chunk, error.message)
        except (TaskFailed, NotFound, Busy, BodyGone, DecodeError, StartFailed):
            return None
        except TimeoutError:
            # A job that no worker has taken can be cancelled. One that runs for so long would not end here, either.
            return None if future.cancel() else self._retry_each(chunk, "it takes too long")

    def _retry_each(self, chunk: _Chunk, reason: str) -> Sequence[Outcome]:
        """Return the outcomes of the files of a failed job, each tried as a job of its own; a single one is skipped."""
        if len(chunk) == 1:
            return [FileSkipped(chunk[0].source, f"splitting it failed: {reason}", is_unsafe=True)]
        return [outcome for each in chunk for outcome in self._retry_alone(each)]

    def _retry_alone(self, asked: FileRequest) -> Sequence[Outcome]:
        """Return the outcome of one file of a failed job, as a job of its own."""
        for chunk, future in self._submit([(asked,)]):
            if future is not None and (outcomes := self._result(chunk, future)) is not None:
                return outcomes
        return [self.split_here(asked)[0]]


def _chunks(asked: Iterable[tuple[FileRequest, int]]) -> Iterator[_Chunk]:
    """Yield groups of files for one job each: bounded in number and bytes, unless one file is larger."""
    chunk: list[FileRequest] = []
    weight = 0
    for each, size in asked:
        is_full = len(chunk) == limits.INGEST_JOB_FILES or weight + size > limits.INGEST_JOB_BYTES
        if chunk and is_full:
            yield tuple(chunk)
            chunk, weight = [], 0
        chunk.append(each)
        weight += size
    if chunk:
        yield tuple(chunk)
