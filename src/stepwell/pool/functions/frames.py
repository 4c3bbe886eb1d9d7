"""What a program and its workers say to each other: a length, what it is, and a pickle."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from stepwell import limits
from stepwell.errors import InvalidArgument

HEADER: Final = struct.Struct("!QB")

Call = tuple[Callable[..., object], tuple[object, ...], dict[str, object]]
Failure = tuple[str, str, bytes | None]
"""What a function raised: in a line, with its traceback, and itself if it can be sent."""


class FrameKind(IntEnum):
    """What a frame is."""

    READY = 0  # a worker can be given work
    TASK = 1
    RESULT = 2
    FAILURE = 3


def bounded(data: bytes) -> bytes:
    """What fits into a frame."""
    if len(data) > limits.FUNCTION_FRAME_BYTES_MAX:
        raise InvalidArgument(f"{len(data)} bytes are more than the {limits.FUNCTION_FRAME_BYTES_MAX} of a message")
    return data
