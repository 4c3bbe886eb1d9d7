"""The jobs of a strategy worker: tasks that are no strategy, see no view, and define their payload and result.

The manager queues a job like a task of a strategy. A job is offered with a capability of its own, so that clients do
not list it among the strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from stepwell.client.session.tokens import counter
from stepwell.domain.tasks.model import JOB, StrategyOffer
from stepwell.ingest import files


def split_files(payload: bytes) -> bytes:
    """Read files and return where their parts begin and end. A file that cannot be read or split costs only itself."""
    job = files.job_decoder.decode(payload)
    count = counter(job.encoding).count
    return files.encoder.encode([files.split_file(job.root, each, count, job.policy)[0] for each in job.files])


JOBS: Final[Mapping[str, Callable[[bytes], bytes]]] = {files.SPLIT_JOB: split_files}
"""Each job by the name under which clients submit it. A strategy of the same name would never run."""

OFFERS: Final = tuple(StrategyOffer(name, (JOB,)) for name in JOBS)
