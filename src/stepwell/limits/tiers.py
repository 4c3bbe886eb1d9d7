"""The bounds of the tiers: their budgets by default, and how much one step moves."""

from typing import Final

from stepwell.limits.memory import MIB as _MIB

BODIES_BYTES_MAX: Final = 4 * 1024 * _MIB
ARENA_BYTES: Final = 1024 * _MIB  # all segments of shared memory that hold bodies
ARENA_LIVE_PERCENT: Final = 70  # the rest is for segments being filled, dead space, and bodies that are being converted
HOT_TOKENS: Final = 200_000
WARM_ENTRIES: Final = 100_000
BODY_COUNTS_SHARED_MAX: Final = 1_024  # counts of references that bodies share: about 300 kB
COLD_ENTRIES: Final = 1_000_000
HOT_TTL_MS: Final = 60 * 60 * 1000
WARM_TTL_MS: Final = 24 * 60 * 60 * 1000
COLD_RETENTION_MS: Final = 90 * 24 * 60 * 60 * 1000
PROMOTION_THRESHOLD: Final = 5
MOVES_PER_STEP_MAX: Final = 4_096  # about 20 ms of the loop
SWEEP_MOVES_MAX: Final = 1_000
SWEEP_SECONDS: Final = 60.0
KEPT_ENTRIES: Final = 1_000_000  # fragments stored with `keep`, which no tier counts: each takes half a kilobyte
EXPIRED_PER_STEP_MAX: Final = 1_000  # fragments that are deleted in a turn because they have expired
WRITERS_CACHED_MAX: Final = 1_024  # sessions, with their work, whose fragments share one object that names them
EQUAL_BODIES_ROWS_PER_STEP: Final = 20_000  # fragments that a store enters into the index of bodies: about 10 ms
EXPIRES_AT_MS_MAX: Final = 253_402_300_799_000  # the end of the year 9999: no later time can be shown
EXPIRES_AFTER_MS_MAX: Final = 100 * 366 * 24 * 60 * 60 * 1000  # a hundred years after a read, which is long before it
