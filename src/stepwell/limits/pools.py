"""The bounds of token pools."""

from typing import Final

POOLS_MAX: Final = 256  # a session that ends returns its leases of all of them in one step
LEASES_PER_POOL_MAX: Final = 256  # the row of a pool has all of its leases, and is written with each change
POOL_TOKENS_MAX: Final = 10**12
POOL_PERIOD_MS_MAX: Final = 31 * 24 * 60 * 60 * 1000
POOL_SOFT_PERCENT: Final = 80
POOL_ROW_BYTES: Final = 512  # a pool in a frame, or one of its leases, rounded up
