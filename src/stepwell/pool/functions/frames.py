"""The messages between a program and its function workers: a length, a kind, and a pickle.

| kind | sent by | pickle |
|---|---|---|
| READY | worker, once | nothing |
| CALL | program | a `Call`: the function and its arguments |
| RESULT | worker | the returned value |
| FAILURE | worker | a `Failure`: the exception in words and, if it can be pickled, as itself |

A worker answers each CALL with one RESULT or FAILURE before it reads the next CALL.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from stepwell import limits
from stepwell.errors import InvalidArgument
from stepwell.text import plural

HEADER: Final = struct.Struct("!QB")
"""The number of bytes that follow, and the kind."""

Call = tuple[Callable[..., object], tuple[object, ...], dict[str, object]]
Failure = tuple[str, str, bytes | None]
"""The exception in one line, its traceback, and the pickled exception or None."""


class FrameKind(IntEnum):
    """The kind of a frame; the table above says which side sends it."""

    READY = 0
    CALL = 1
    RESULT = 2
    FAILURE = 3


def require_fits(data: bytes) -> bytes:
    """Return the data; raise InvalidArgument if they are too large for a frame."""
    if len(data) > limits.FUNCTION_FRAME_BYTES_MAX:
        raise InvalidArgument(
            f"{plural(len(data), 'byte')} are more than the {limits.FUNCTION_FRAME_BYTES_MAX} of a message"
        )
    return data
