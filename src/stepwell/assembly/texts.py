"""Bodies: the texts of those fragments that may be shown, read when they are wanted and not before."""

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
    """Why there is nothing to show."""

    reason: str


def read(view: StrategyView, row: FragmentRow, bytes_max: int | None = None) -> str | Unreadable:
    """The text of a fragment, or its beginning, without empty lines around it."""
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
