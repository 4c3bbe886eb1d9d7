"""Every bound in the system, with its unit at the end of its name and its reason beside it.

A bound that a user may want to move is a default here and a field of a configuration Struct elsewhere.
The relations that the code relies on are asserted at the bottom, so that no edit can break them unnoticed.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# What one message may be. A frame is held in memory whole, once for each peer that is sending one.
FRAME_BYTES_MAX: Final = 16 * MIB
BODY_BYTES_MAX: Final = 4 * MIB
METADATA_ENTRIES_MAX: Final = 64
METADATA_BYTES_MAX: Final = 16 * KIB
BATCH_COMMANDS_MAX: Final = 1_000  # about 10 ms of the loop, for the usual commands
REQUEST_SECONDS_MAX: Final = 0.25  # of work: past it, the rest of a batch answers Busy, and did not happen
TURN_SECONDS_MAX: Final = 0.05  # past it, a peer's further requests wait for the next turn
GREETING_BYTES_MAX: Final = 64 * KIB  # a frame from whoever has not said Hello
FRAME_SECONDS_MAX: Final = 30.0  # from a frame's first byte to its last
IDLE_CONNECTIONS_MAX: Final = 8  # that a client keeps: what a burst of threads opened is closed again
STREAM_COMMANDS: Final = 200  # of store_many and get_many: one frame is applied while the next is made
REPLY_BODIES_BYTES_MAX: Final = 6 * MIB  # past it the rest of a batch's reads answer Busy, unread
ERROR_CHARS_MAX: Final = 2_000  # an error message quotes what it was given; nobody reads more

# What one peer may hold of the manager.
PEERS_MAX: Final = 512
SESSIONS_MAX: Final = 4_096  # sessions outlive their connections by the grace
RECEIVE_BYTES_PER_TURN: Final = 256 * KIB
RECEIVE_BYTES_CLIENT: Final = 64 * KIB
COMMANDS_PER_TURN: Final = 64  # for each peer; further requests wait for the next turn, behind everybody else
OUTBOX_BYTES_MAX: Final = 4 * MIB  # past it the peer's requests wait until it reads
STALL_SECONDS_MAX: Final = 30.0  # a peer that neither reads its replies nor finishes its frame is cut off
HELLO_SECONDS_MAX: Final = 10.0  # a connection that never says who it is
DRAIN_SECONDS_MAX: Final = 5.0  # on SIGTERM: how long unread replies may hold up the end
CONNECTIONS_PER_CLIENT_MAX: Final = 64  # one for each thread that is inside a call at the same moment
GOODBYE_SECONDS_MAX: Final = 1.0  # how long a client that was cut off tries to give up its leases
SPIN_SECONDS: Final = 200e-6  # longer than the other side takes for a request: both stay awake and warm
SESSION_GRACE_SECONDS: Final = 30.0  # leases outlive a lost connection by this, not a dead process
PROJECTS_PER_SESSION_MAX: Final = 64  # a scoped eviction merges that many orders

# Tiers.
BODIES_BYTES_MAX: Final = 4 * 1024 * MIB
HOT_TOKENS: Final = 200_000
WARM_ENTRIES: Final = 100_000
COLD_ENTRIES: Final = 1_000_000
HOT_TTL_MS: Final = 60 * 60 * 1000
WARM_TTL_MS: Final = 24 * 60 * 60 * 1000
COLD_RETENTION_MS: Final = 90 * 24 * 60 * 60 * 1000
PROMOTION_THRESHOLD: Final = 5
MOVES_PER_STEP_MAX: Final = 4_096  # about 20 ms of the loop
SWEEP_MOVES_MAX: Final = 1_000
SWEEP_SECONDS: Final = 60.0
PAGE_ROWS_MAX: Final = 1_000
SCAN_ROWS_MAX: Final = 2_000  # rows that one page may examine before it returns its cursor
PATTERN_CHARS_MAX: Final = 512
WILDCARDS_MAX: Final = 32  # of all globs of a page: each row is matched against all of them
PATTERN_MEMORY_BYTES_MAX: Final = 256 * KIB  # a pattern that needs more is refused; compiling one takes about 1 ms

# Plans.
ACTIONS_MAX: Final = 100_000
PLANS_MAX: Final = 100_000
ARGUMENTS_MAX: Final = 64
TEXT_CHARS_MAX: Final = 64_000
TRANSACTION_CHANGES_MAX: Final = 10_000  # rows that one transaction may change: about 50 ms of the loop
REVERSIONS_MAX: Final = 3
ATTEMPTS_MAX: Final = 100  # errors are append-only, one or two an attempt; this bounds them
LEASE_MS: Final = 300_000
LEASE_MS_MIN: Final = 10
LEASE_MS_MAX: Final = 24 * 60 * 60 * 1000
LEASES_PER_SESSION_MAX: Final = 256  # all of them are lost in one step when the session ends
EXPIRIES_PER_STEP_MAX: Final = 256
DECISIONS_PER_PLAN_MAX: Final = 1_000
SUBPLANS_MAX: Final = 256
SUBPLAN_DEPTH_MAX: Final = 8
PLANS_PER_TREE_MAX: Final = 1_024  # cancelling a tree is one step
MAX_PARALLEL: Final = 5
MAX_PARALLEL_MAX: Final = 50

# Changesets.
CHANGESETS_PER_PLAN_MAX: Final = 1_000
ENTRIES_PER_PLAN_MAX: Final = 100_000  # a proof covers all of them in one step: about 30 ms of the loop
ACTIVE_PER_CONTEXT_MAX: Final = 64
PATH_CHARS_MAX: Final = 4_096

assert BODY_BYTES_MAX * 2 < FRAME_BYTES_MAX, "a change carries two bodies, before and after"
assert REPLY_BODIES_BYTES_MAX + 2 * BODY_BYTES_MAX < FRAME_BYTES_MAX, "a full reply is one frame"
assert SWEEP_MOVES_MAX <= MOVES_PER_STEP_MAX, "a sweep is a step"
assert HOT_TTL_MS <= WARM_TTL_MS <= COLD_RETENTION_MS, "tiers are ordered"
