"""The jobs of a strategy worker: tasks that are no strategy, see no view, and define their payload and result.

The manager queues a job like a task of a strategy. A job is offered with a capability of its own, so that clients do
not list it among the strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from stepwell.client.tokens import counter
from stepwell.domain.task import CHORE, Offered
from stepwell.ingest import files


def split_files(payload: bytes) -> bytes:
    """Read files and return where their parts begin and end. A file that cannot be read or split costs only itself."""
    chore = files.chore_decoder.decode(payload)
    count = counter(chore.encoding).count
    return files.encoder.encode([files.look_at(chore.root, each, count)[0] for each in chore.files])


JOBS: Final[Mapping[str, Callable[[bytes], bytes]]] = {files.CHORE: split_files}
"""Each job by the name under which clients submit it. A strategy of the same name would never run."""

OFFERS: Final = tuple(Offered(name, (CHORE,)) for name in JOBS)
