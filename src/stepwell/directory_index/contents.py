"""An index as a whole: its state and the indexes that strategies keep of it, to and from a file.

The file has the rows once. Each index names them by their places. The version says which code can use the file: other
code may split files or cut words in another way, so it begins anew.
"""

from __future__ import annotations

import functools
import gc
import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from stepwell.directory_index import array_file
from stepwell.directory_index.model import DirectoryState, IndexedFile
from stepwell.domain.tiers.commit_history import HISTORY_ID
from stepwell.domain.tiers.model import FragmentRow
from stepwell.errors import StoreDamaged
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.strategies.index import embeddings
from stepwell.strategies.index.index_cache import IndexCaches
from stepwell.strategies.index.snapshot import IndexSnapshot, RowPlaces, require

_FORMAT: Final = "1"
_PACKAGE: Final = Path(__file__).parent.parent
_DECIDING: Final = ("client/session", "directory_index", "domain/tiers", "ingest", "limits", "strategies/index")
"""The packages whose code decides what is in an index."""
_VALUES: Final = "values"
"""The name of the array with the encoded values of an index."""

_encoder: Final = msgspec.msgpack.Encoder()
_rows_decoder: Final = msgspec.msgpack.Decoder(list[FragmentRow])


class _Identity(Struct, frozen=True, array_like=True):
    """The part of a state that has no array of its own."""

    project: str
    epoch: str
    revision: int
    files: list[IndexedFile]


_identity_decoder: Final = msgspec.msgpack.Decoder(_Identity)


def version_of(policy: SecretPolicy, encoding: str) -> str:
    """Return the version of an index: it differs if the same files may be indexed in another way."""
    return f"{_FORMAT} {_code_digest()} {policy.rules_version} {encoding}"


@functools.cache
def _code_digest() -> str:
    """Return a hash of the names, sizes and times of the modules that decide what is in an index.

    So an upgrade, a downgrade and an edited module begin anew, without a number that has to be raised by hand. A
    package in an archive has the archive's size and time. The model for embeddings counts as well: it may come and go.
    """
    modules = sorted(path for folder in _DECIDING for path in (_PACKAGE / folder).rglob("*.py"))
    archives = [path for path in _PACKAGE.parents if path.is_file()]
    model = embeddings.installed_at()
    seen = ((str(path), path.stat()) for path in (*modules, *archives, *([model] if model else [])))
    facts = [(name.removeprefix(str(_PACKAGE)), found.st_size, found.st_mtime_ns) for name, found in seen]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def save(path: Path, version: str, project: str, state: DirectoryState, caches: IndexCaches) -> None:
    """Write a state and its indexes. Indexes that are not at its revision are left out."""
    places = {row.fragment_id: place for place, row in enumerate(state.rows)}
    identity = _Identity(project, state.epoch, state.revision, [*state.files.values()])
    arrays: dict[str, NDArray[Any]] = {
        "identity": _bytes(_encoder.encode(identity)),
        "rows": _bytes(_encoder.encode(state.rows)),
        "commits": _bytes(state.commits),
        "spans": state.spans,
    }
    for name, cache in caches.stored().items():
        index = cache.known(project)
        if index is not None and index.followed == state.at:
            snapshot = index.snapshot(places)
            arrays |= {f"{name}/{key}": array for key, array in snapshot.arrays.items()}
            arrays[f"{name}/{_VALUES}"] = _bytes(snapshot.values)
    array_file.write(path, version, arrays)


def load(path: Path, version: str, project: str, caches: IndexCaches) -> DirectoryState | None:
    """Return the state in a file, and put its indexes into the caches.

    None if there is no file, or one of another version. Raise `StoreDamaged` if it cannot be used.
    """
    arrays = array_file.read(path, version)
    if arrays is None:
        return None
    try:
        with _without_collections():
            return _state(arrays, project, caches)
    except (msgspec.MsgspecError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise StoreDamaged(f"{str(path)!r} cannot be read: {error}") from error


def _state(arrays: dict[str, NDArray[Any]], project: str, caches: IndexCaches) -> DirectoryState:
    identity = _identity_decoder.decode(arrays["identity"].data)
    rows = _rows_decoder.decode(arrays["rows"].data)
    if identity.project != project:  # the same files under another name, which a user may choose
        rows = [replace(row, project=project) for row in rows]
    spans = arrays["spans"]
    files = {each.source: each for each in identity.files}
    require(spans.shape == (len({row.fragment_id for row in rows}), 2), "each row has an id and a span")
    require({row.source for row in rows if row.fragment_id != HISTORY_ID} <= files.keys(), "each row is of a file")
    commits = arrays["commits"].tobytes()
    state = DirectoryState(identity.epoch, identity.revision, rows, spans, files, commits)
    places = RowPlaces(rows, state.at)
    for name, cache in caches.stored().items():
        if f"{name}/{_VALUES}" in arrays:
            prefix = f"{name}/"
            found = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
            cache.restore(project, IndexSnapshot(found, bytes(found.pop(_VALUES).data)), places)
    return state


@contextmanager
def _without_collections() -> Generator[None]:
    """Make many objects without the garbage collector, which would examine all of them again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)
