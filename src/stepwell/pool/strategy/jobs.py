"""What a worker does that is no strategy: it looks at no view, and its payload and its result are of its own kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from stepwell.client.tokens import counter
from stepwell.domain.task import CHORE, Offered
from stepwell.ingest import files


def split_files(payload: bytes) -> bytes:
    """Read files and say where their parts begin and end. One that cannot be read, or split, costs only itself."""
    chore = files.chore_decoder.decode(payload)
    count = counter(chore.encoding).count
    return files.encoder.encode([files.look_at(chore.root, each, count)[0] for each in chore.files])


JOBS: Final[Mapping[str, Callable[[bytes], bytes]]] = {files.CHORE: split_files}
"""By the name under which they are asked for; a strategy of the same name would never be."""

OFFERS: Final = tuple(Offered(name, (CHORE,)) for name in JOBS)
