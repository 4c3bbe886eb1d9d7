"""The layout of the fragment index: the table in shared memory in which clients look up hot fragments.

The manager is the only writer; clients map the table read-only and look a fragment up without a request. The index has
two segments:

- *Slots*: a header and then slots of equal size, numbered from 1. A fragment is one encoded `IndexRecord` in one slot,
  or in a chain of slots if it is long. A slot never moves, so a client remembers where a fragment was.
- *Cells*: a hash table from names to slots. The cell of a name is the first free one from the place of its hash on, so
  that no empty cell is between the two (linear probing). When the table is too full, a larger one replaces it.

All numbers are 8-byte words in the byte order of the machine, at multiples of 8 bytes, so that a word is read and
written in one step. Two words of the header make reads consistent:

- `SEQUENCE` is odd while a turn is being published. A reader that sees the same even number before and after has read
  a committed state, also across the fragments of a transaction.
- `VALID_UNTIL` is the time, in nanoseconds since the machine was started, up to which the index may be read. The
  manager moves it forward with each turn, and no later manager acknowledges anything before it has passed. So a
  manager that is dead or stopped is not read for longer than that.

This order of reads and writes is enough on x86-64, where neither loads nor stores change places among themselves. On
other machines there is no index.
"""

from __future__ import annotations

import platform
import struct
from hashlib import blake2b
from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from stepwell.domain.tiers.model import FragmentRow
from stepwell.protocol.handles import Handle

WORD_BYTES: Final = 8
SLOT_BYTES: Final = 256
SLOT_WORDS: Final = SLOT_BYTES // WORD_BYTES

# Words of the header, which takes the place of slot 0.
SEQUENCE: Final = 0
VALID_UNTIL: Final = 1
CELLS: Final = 2  # the number of the segment with the hash table in use
NOW_MS: Final = 3  # the manager's wall-clock time of the latest turn

# Words of a slot, before its part of the record.
STAMP: Final = 0  # of the first slot of a record: another one for each record that was ever written; 0 if it is free
LENGTH: Final = 1  # of the first slot of a record: the bytes of the whole record
NEXT: Final = 2  # the slot in which the record goes on, or 0
ACCESS_COUNT: Final = 3  # of the fragment, as far as the manager knows: it changes without a new record
ACCESSED_MS: Final = 4  # the time of the latest access
PAYLOAD: Final = 5 * WORD_BYTES  # the offset of the part of the record
PAYLOAD_BYTES: Final = SLOT_BYTES - PAYLOAD
CHAIN_SLOTS_MAX: Final = 8
"""The slots that one record may take. A fragment with a longer row is read by a request."""

# Words of a cell.
HASH: Final = 0
SLOT: Final = 1  # 0: the cell is empty
CELL_WORDS: Final = 2
CELL_BYTES: Final = CELL_WORDS * WORD_BYTES

KEY_BYTES: Final = 16
"""The length of the random key of the hash, so that no choice of names has one place in every manager."""

_FIRST_WORD: Final = struct.Struct("<Q").unpack_from


class IndexRecord(Struct, frozen=True, array_like=True, gc=False):
    """A hot fragment in the index: its row, and the place of its raw body."""

    row: FragmentRow
    handle: Handle


encode_record: Final = Encoder().encode
decode_record: Final = Decoder(IndexRecord).decode


def is_supported() -> bool:
    """Return True if this machine keeps the order of reads and writes that the index needs."""
    return platform.machine().lower() in {"x86_64", "amd64"}


def hash_of(key: bytes, project: str, fragment_id: str) -> int:
    """Return the hash of a fragment's name, which no two fragments are expected to share, but may.

    The key is a prefix of what is hashed: BLAKE2 has no length extension, and its own keys take four times as long.
    """
    name = f"{project}\0{fragment_id}".encode()
    word: int = _FIRST_WORD(blake2b(key + name).digest())[0]
    return word


def place_of(hashed: int, mask: int) -> int:
    """Return the first word of the cell at which the search for a hash begins.

    `mask` is the number of the table's words, which is a power of two, less the words of one cell. The next cell is at
    `place + CELL_WORDS & mask`.
    """
    return hashed * CELL_WORDS & mask
