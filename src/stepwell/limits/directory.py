"""The bounds of the index of a directory, which commands use without a manager."""

from typing import Final

from stepwell.limits.memory import KIB as _KIB
from stepwell.limits.memory import MIB as _MIB

DIRECTORY_TEXTS_MAX: Final = 64  # texts of files that a command keeps: an answer shows parts of fewer files
DIRECTORY_ROUND_BYTES: Final = 8 * _MIB  # of files that are split and then indexed: bounds the texts in memory
DIRECTORY_FILES_ALONE_MAX: Final = 64  # changed files that a command splits itself: starting workers would take longer
DIRECTORY_BYTES_ALONE_MAX: Final = _MIB  # and their bytes
DIRECTORY_SPLIT_SECONDS_MAX: Final = 30.0  # for a worker to split the files of one job: most take some milliseconds
DIRECTORY_UNSAVED_FILES_MAX: Final = 4  # changed files that the cache need not have: reading them again takes less time
DIRECTORY_UNSAVED_BYTES_MAX: Final = 128 * _KIB  # and their bytes
DIRECTORY_RECEIPTS_MAX: Final = 200  # receipts that are kept for `why` and `diff`: the oldest is deleted first
DIRECTORY_STRATEGY_START_SECONDS: Final = 30.0  # for a worker to start and to import the strategies of other packages
