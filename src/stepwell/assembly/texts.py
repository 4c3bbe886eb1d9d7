"""The texts of fragments, read through the view when a stage needs them and not before.

A body is in shared memory or on disk, and reading and counting it are the expensive operations of an assembly. Stages
therefore go by the sizes and tokens that the rows have, and read only what they are about to show or to judge.
"""

from __future__ import annotations

import codecs
from typing import Final

from msgspec import Struct

from stepwell.domain.tiers.model import FragmentRow
from stepwell.errors import BodyGone
from stepwell.strategies.protocol import StrategyView

GONE: Final = "its body is gone"
NO_TEXT: Final = "its body is no text"
EMPTY: Final = "its body is empty"


class Unreadable(Struct, frozen=True):
    """The reason why a fragment has no text to show."""

    reason: str


def read(view: StrategyView, row: FragmentRow, bytes_max: int | None = None) -> str | Unreadable:
    """Return the text of a fragment, or its first `bytes_max` bytes, without blank lines around it.

    A body that was deleted or replaced after the strategies ran, that is not UTF-8 or that is empty is `Unreadable`.
    That is no error: other fragments take its place.
    """
    try:
        seen = view.get(row.fragment_id, project=row.project)
        if seen is None or seen.row.digest != row.digest:
            return Unreadable(GONE)
        body = seen.body if bytes_max is None else seen.body[:bytes_max]
        text = codecs.utf_8_decode(body, "strict", len(body) == row.size)[0]
    except BodyGone:
        return Unreadable(GONE)
    except UnicodeDecodeError:
        return Unreadable(NO_TEXT)
    return text.rstrip().lstrip("\r\n") or Unreadable(EMPTY)
