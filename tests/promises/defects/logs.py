"""Defects that break the promise of logs."""

from __future__ import annotations

from tests.promises.model import Defect

COMMUTE = (
    "Appends to a log commute: without an expected head none is refused because of another process, and no two entries "
    "have one position."
)
POPPED = "Each entry is popped by one caller at most."
WATCHED = (
    "A watch of a log gives each entry once, in the one order, without a gap, also across kills of the manager; "
    "entries that were removed before it has read them are told by `EntriesMissed`."
)

RULES = "tests/unit/domain/logs/test_rules.py"
CLIENT = "tests/unit/client/api/test_logs.py"
PROPERTY = "tests/property/test_logs.py"

DEFECTS = (
    Defect(
        16,
        COMMUTE,
        "The position behind the last entry of an append is given again.",
        "domain/logs/rules.py",
        "        next_position=first + count,\n",
        "        next_position=first + count - (count > 1),\n",
        (f"{RULES}::test_positions_are_never_used_twice", f"{PROPERTY}"),
    ),
    Defect(
        16,
        POPPED,
        "A pop returns the last entry and leaves it in the log.",
        "domain/logs/rules.py",
        "    return Verdict(EntryPopped(*key, last, after.head), tuple(changes))\n",
        "    return Verdict(EntryPopped(*key, last, after.head))\n",
        (f"{RULES}::test_positions_are_never_used_twice", f"{RULES}::test_popped_body_is_readable_for_a_while"),
    ),
    Defect(
        16,
        WATCHED,
        "A watch does not say that entries were removed before it has read them.",
        "client/api/log_watch.py",
        "            if not self._is_told:\n",
        "            if self._is_told:\n",
        (f"{CLIENT}::test_watch_that_missed_entries",),
    ),
    Defect(
        16,
        WATCHED,
        "A watch returns the last entry of each page twice.",
        "client/api/log_watch.py",
        "            self._entries.extend(page.entries)\n",
        "            self._entries.extend((*page.entries, page.entries[-1]))\n",
        (f"{CLIENT}::test_watch",),
    ),
)
