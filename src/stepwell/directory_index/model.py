"""The state of a directory's index at one revision: the files that were read, and the rows of their parts.

The rows are those that a manager would keep of the same files. All of them are in the warm tier: a directory has no
tiers, and nothing in it is used more than the rest. A row of kind `file` stands for each file, and one more for the
commits of the repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepwell.domain.tiers.model import FragmentRow
from stepwell.ingest.redaction import Redaction

Span = tuple[int, int]
"""The bytes of a part: from the first to before the second, in the redacted text of its file."""

NO_SPAN: Span = (0, 0)
"""The span of a row that is not a part of a file."""


class IndexedFile(Struct, frozen=True, array_like=True):
    """A file as it was read. It is the same file as long as its size and time are the same.

    `mtime_ns` is 0 for a file that was written just before it was read; `digest` then tells. `skipped` is the reason
    why the file has no parts. A file that workers died of has no digest: it is tried again when it has changed.
    """

    source: str
    size: int
    mtime_ns: int
    digest: str
    skipped: str = ""
    redactions: tuple[Redaction, ...] = ()


class DirectoryState(Struct, frozen=True):
    """The rows of a directory at one revision, in order of serial; the span of each, a row of `spans`; and the files by
    source.

    `revision` grows with each change, and `epoch` names the history that it counts. `commits` is the body of the row
    with the commits of the repository, because no file has it; empty without one.
    """

    epoch: str
    revision: int
    rows: Sequence[FragmentRow]
    spans: NDArray[np.int32]
    files: Mapping[str, IndexedFile]
    commits: bytes = b""

    @classmethod
    def empty(cls, epoch: str) -> DirectoryState:
        """Return the state before anything was read."""
        return cls(epoch, 0, [], np.zeros((0, 2), dtype=np.int32), {})

    @property
    def at(self) -> tuple[str, int]:
        """The epoch and the revision."""
        return self.epoch, self.revision
