"""New ids: of sessions, plans, changesets, decisions, receipts and stores. Each is a ULID.

`ulid.ULID()` counts up from its last id within a millisecond. Processes that were forked in that millisecond would
count up from the same id, and two of them would have one session. It also remembers the last id, so that a simulated
run would depend on the run before it. Therefore each id here has random bits of its own, and nothing is remembered.
"""

from __future__ import annotations

import os
import time
from typing import Final

_NS_PER_MS: Final = 1_000_000
_RANDOM_BITS: Final = 80  # of a ULID, behind its milliseconds
_FRACTION_BITS: Final = 10  # the first of them are the fraction of the millisecond, in steps of a microsecond
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's Base32
_PAIRS: Final = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_SHIFTS: Final = tuple(range(120, -1, -10))  # of the 26 digits of an id, in pairs


def new_id() -> str:
    """Return an id that nothing else has. Ids of one process sort in the order in which they were made."""
    milliseconds, rest_ns = divmod(time.time_ns(), _NS_PER_MS)
    fraction = (rest_ns << _FRACTION_BITS) // _NS_PER_MS
    chance = int.from_bytes(os.urandom(_RANDOM_BITS // 8)) >> _FRACTION_BITS
    number = milliseconds << _RANDOM_BITS | fraction << (_RANDOM_BITS - _FRACTION_BITS) | chance
    # `str(ulid.ULID.from_int(number))` gives the same digits and takes five times as long.
    return "".join([_PAIRS[number >> shift & 0x3FF] for shift in _SHIFTS])
