"""What a worker does that is no strategy: it looks at no view, and its payload and its result are of its own kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from stepwell.client.session.tokens import counter
from stepwell.domain.tasks.model import JOB, StrategyOffer
from stepwell.ingest import files


def split_files(payload: bytes) -> bytes:
    """Read files and say where their parts begin and end. One that cannot be read, or split, costs only itself."""
    chore = files.job_decoder.decode(payload)
    count = counter(chore.encoding).count
    return files.encoder.encode([files.split_file(chore.root, each, count)[0] for each in chore.files])


CHORES: Final[Mapping[str, Callable[[bytes], bytes]]] = {files.SPLIT_JOB: split_files}
"""By the name under which they are asked for; a strategy of the same name would never be."""

OFFERS: Final = tuple(StrategyOffer(name, (JOB,)) for name in CHORES)
