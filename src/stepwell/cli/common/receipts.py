"""The receipts that `why` and `diff` read, as both commands name them: by `--receipt`, or the last ones."""

from __future__ import annotations

from stepwell.client.client import Client
from stepwell.errors import NotFound
from stepwell.text import plural


def latest_receipts(client: Client, count: int) -> list[str]:
    """Return the ids of the last `count` receipts, newest first. Raise `NotFound` if there are fewer answers."""
    found = [each.receipt_id for each in client.receipts.list(limit=count).receipts]
    if len(found) < count:
        missing = plural(count - len(found), "answer is", "answers are")
        raise NotFound(f"{missing} missing: ask with `stepwell assemble` first")
    return found
