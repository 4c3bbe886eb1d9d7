"""The bounds of logs: lists of entries to which any number of processes append."""

from typing import Final

from stepwell.limits.memory import KIB as _KIB
from stepwell.limits.memory import MIB as _MIB

LOGS_MAX: Final = 100_000
LOG_ENTRIES_MAX: Final = 2_000_000  # of all logs together, dead ones that still have a row included: about 1 GB
LOG_APPENDED_MAX: Final = 256  # entries of one append: about 3 ms of the loop
LOG_INLINE_BYTES: Final = 4 * _MIB  # bodies inside one append: others are uploaded, however small they are
LOG_ROW_BYTES: Final = _KIB  # one entry in a page, without metadata and body, rounded up
LOG_PAGE_BYTES: Final = 4 * _MIB  # bodies of one page, unless a single one is larger: a reader reads all of them
LOG_WATCH_ENTRIES: Final = 100  # entries that a watch reads at once
LOG_ROWS_PER_STEP: Final = 200  # rows of dead entries that are deleted at once: about 1 ms of the loop
LOG_ROWS_PER_APPEND: Final = 16  # rows of dead entries that an append deletes besides as many as it adds
LOG_POPPED_MS: Final = 60_000  # the body of a popped entry stays readable this long for the client that popped it
LOG_POPPED_MAX: Final = 1_024  # popped entries whose bodies stay readable: past it, the oldest goes earlier
LOG_POPPED_BYTES: Final = 64 * _MIB  # their bodies, unless a single one is larger
