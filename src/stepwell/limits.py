"""Every bound in the system, with its unit at the end of its name and its reason beside it.

A bound that a user may want to move is a default here and a field of a configuration Struct elsewhere.
The relations that the code relies on are asserted at the bottom, so that no edit can break them unnoticed.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Messages. The manager holds a whole frame in memory, once for each peer that is sending one.
FRAME_BYTES_MAX: Final = 16 * MIB
BODY_BYTES_MAX: Final = 64 * MIB
INLINE_BODY_BYTES_MAX: Final = 64 * KIB  # a larger one is uploaded beside the frames
METADATA_ENTRIES_MAX: Final = 64
METADATA_BYTES_MAX: Final = 16 * KIB
BATCH_COMMANDS_MAX: Final = 1_000  # about 10 ms of the loop, for the usual commands
COMMANDS_PER_RUN: Final = 50  # of a batch, executed between two looks at the clock: below a millisecond
YOUNG_OBJECTS: Final = 10_000  # of the manager, between two collections: about a millisecond each
MALLOC_KEPT_BYTES: Final = 512 * KIB  # a freed buffer that is larger goes back to the system
REQUEST_SECONDS_MAX: Final = 0.25  # of work: past it, the rest of a batch answers Busy, and did not happen
TURN_SECONDS_MAX: Final = 0.05  # past it, a peer's further requests wait for the next turn
GREETING_BYTES_MAX: Final = 64 * KIB  # of a frame before Hello: an unidentified peer must not make us allocate more
FRAME_SECONDS_MAX: Final = 30.0  # from a frame's first byte to its last
IDLE_CONNECTIONS_MAX: Final = 8  # that a client keeps: what a burst of threads opened is closed again
STREAM_COMMANDS: Final = 200  # of store_many and get_many: one frame is applied while the next is made
STREAM_BYTES: Final = MIB  # of store_many's bodies in a frame: larger ones are not quicker, and buffers keep their size
REPLY_BYTES_MAX: Final = 6 * MIB  # of rows: past it a page ends, and the rest of a batch's reads answer Busy, unread
SIMPLE_SOURCE_CHARS_MAX: Final = 256  # of a fragment that the fast path returns
SIMPLE_RESULT_BYTES: Final = 4 * KIB  # that a result of the fast path takes in a reply, at the most
ERROR_CHARS_MAX: Final = 2_000  # of an error message: it quotes its input, and a reader needs no more of that
HANDLE_BYTES: Final = 128  # that the place of a body takes in a frame, rounded up

# Names and texts. They are held in memory with every row, and the first three are keys of tables.
PROJECT_CHARS_MAX: Final = 128
FRAGMENT_ID_CHARS_MAX: Final = 512  # a path and the name of a part of the file fit
LABEL_CHARS_MAX: Final = 64  # a kind, a tool, an alias, a capability, the name of a strategy
IDENTIFIER_CHARS_MAX: Final = 64  # of an id that a client makes; a ULID has 26
NAME_PART_CHARS_MAX: Final = 64  # of each part of `[[server:]namespace/]name`
SOURCE_CHARS_MAX: Final = 4_096  # as long as a path can be
METADATA_KEY_CHARS_MAX: Final = 128
METADATA_VALUE_CHARS_MAX: Final = 8_192
CURSOR_CHARS_MAX: Final = 600  # the longest key, which is a fragment's id, and a little more
NAMES_CACHED_MAX: Final = 1_024  # labels and projects whose pattern was matched; both are few
DETAIL_DEPTH_MAX: Final = 16
OUTLINE_NAME_CHARS_MAX: Final = 256  # of a part of a file, a heading path say: no reader needs more
OUTLINE_REFS_MAX: Final = 64  # names that a part of a file refers to
OUTLINE_REFS_CHARS_MAX: Final = 2_000  # of these together: a fragment should not be mostly metadata
OUTLINE_ANCHOR_CHARS_MAX: Final = 400  # of a source in an id: the rest is for the name of the part
OUTLINE_ANCHORS_CACHED_MAX: Final = 256  # sources: the rows of one file are usually handled together

# Connections and sessions: the resources of the manager that one peer may hold.
PEERS_MAX: Final = 512
SESSIONS_MAX: Final = 4_096  # sessions outlive their connections by the grace
RECEIVE_BYTES_PER_TURN: Final = 256 * KIB
RECEIVE_BYTES_CLIENT: Final = 64 * KIB
COMMANDS_PER_TURN: Final = 64  # for each peer; further requests wait for the next turn, behind the other peers
OUTBOX_BYTES_MAX: Final = 4 * MIB  # past it the peer's requests wait until it reads
STALL_SECONDS_MAX: Final = 30.0  # a peer that neither reads its replies nor finishes its frame is cut off
HELLO_SECONDS_MAX: Final = 10.0  # until a new connection has to say Hello
DRAIN_SECONDS_MAX: Final = 5.0  # on SIGTERM: how long unread replies may hold up the end
DRAIN_POLL_SECONDS: Final = 0.01  # between two turns while the manager waits for peers to read their last replies
CONNECTIONS_PER_CLIENT_MAX: Final = 64  # one for each thread that is inside a call at the same moment
ADDRESS_BYTES_MAX: Final = 107  # of a Unix socket's path: the kernel takes 108, with the NUL at the end
LISTEN_BACKLOG: Final = 128  # connections that wait to be accepted: past it, dialling blocks or is told to try again
STALE_SOCKET_SECONDS: Final = 1.0  # in which a manager accepts, before a new one decides that its address is taken
GOODBYE_SECONDS_MAX: Final = 1.0  # how long a client that was cut off tries to give up its leases
SPIN_SECONDS: Final = 200e-6  # longer than the other side takes for a request: both stay awake and warm
SPIN_SKIPS_MAX: Final = 64  # waits without spinning after repeated misses: the count doubles up to this
REPLIES_REMEMBERED_MAX: Final = 1_024  # for each session, of requests that it has not said to be answered
REPLIES_REMEMBERED_BYTES_MAX: Final = 4 * MIB
HOUSEKEEPING_SECONDS: Final = 0.25  # between two passes of the manager's timers: no timeout is exact to less
RECONNECT_SECONDS_MAX: Final = 30.0  # how long a client waits for a durable manager to come back
RECONNECT_PAUSE_SECONDS: Final = 0.02  # between two attempts
RECONNECT_PAUSE_SECONDS_MAX: Final = 0.25  # it grows up to this
SESSION_GRACE_SECONDS: Final = 30.0  # leases outlive a lost connection by this, not a dead process
PROJECTS_PER_SESSION_MAX: Final = 64  # a scoped eviction merges that many orders

# Tiers.
BODIES_BYTES_MAX: Final = 4 * 1024 * MIB
ARENA_BYTES: Final = 1024 * MIB  # of segments in shared memory
ARENA_LIVE_PERCENT: Final = 70  # the rest: segments being filled, dead space not yet reclaimed, forms in transition
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
FRAGMENT_ROW_BYTES: Final = 4 * KIB  # of a fragment in a frame, without source, metadata and body, rounded up
SCAN_ROWS_MAX: Final = 2_000  # rows that one page may examine before it returns its cursor
PATTERN_CHARS_MAX: Final = 512
GLOBS_MAX: Final = 16  # of one page
WILDCARDS_MAX: Final = 32  # of all globs of a page: each row is matched against all of them
PATTERN_MEMORY_BYTES_MAX: Final = 256 * KIB  # a pattern that needs more is refused; compiling one takes about 1 ms

# Plans.
ACTIONS_MAX: Final = 100_000
PLANS_MAX: Final = 100_000
NAME_CHARS_MAX: Final = 200  # of an action or an actor, before it is made canonical
ARGUMENTS_MAX: Final = 64
INVARIANTS_MAX: Final = 64  # of an action and of a plan, each: every child inherits them
PROJECTS_PER_PLAN_MAX: Final = 64  # as many as a session can have in its scope
DEPENDENCIES_MAX: Final = 64  # of a child on its siblings
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
DECISIONS_SEEN_MAX: Final = 256  # that go with a request: the nearest of a plan and its ancestors
DECISIONS_SEEN_CHARS_MAX: Final = 64_000  # of their texts together: a request has to fit into a task
SUBPLANS_MAX: Final = 256
SUBPLAN_DEPTH_MAX: Final = 8
PLANS_PER_TREE_MAX: Final = 1_024  # cancelling a tree is one step
CLOSED_PLANS_MAX: Final = 10_000  # trees that are over: kept to be read, at the cost of room for plans that are not
PLAN_RETENTION_MS: Final = 30 * 24 * 60 * 60 * 1000  # an audit comes within a month, or has a copy
FORGOTTEN_ROWS_PER_STEP_MAX: Final = 2_000  # about 20 ms of the loop
MAX_PARALLEL: Final = 5
MAX_PARALLEL_MAX: Final = 50
SUBPLAN_RETRIES_MAX: Final = 10  # of a child that fails: what fails more often needs another strategy
CONFLICTS_MAX: Final = 500  # of one merge: they travel with their plan, and each is resolved by a changeset of its own
MERGED_ENTRIES: Final = 400  # recorded at once: about 10 ms of the loop, and never too many uploads
MERGED_BYTES: Final = 4 * MIB  # of their bodies, unless one is larger
DIFFED_AT_ONCE: Final = 200  # paths of a plan: their bodies are mapped together
HEARTBEAT_SECONDS_MAX: Final = 2.0  # between two renewals of a lease: a caller learns within this time that it was lost
WORK_LOOK_SECONDS: Final = 5.0  # between two questions while no child is ready: events may be lost with a connection
WORK_PAUSE_SECONDS: Final = 0.25  # the same for an agent that gets no events, because there are too many watchers
VALIDATIONS_MAX: Final = 16  # of an action and of a plan, each
VALIDATION_ARGUMENTS_MAX: Final = 64
VALIDATION_ARGUMENT_CHARS_MAX: Final = 4_096
VALIDATION_SECONDS: Final = 600.0
VALIDATION_SECONDS_MAX: Final = 24 * 60 * 60.0
VALIDATION_OUTPUT_CHARS_MAX: Final = 8_000  # the end of it: what failed is said last

# Tasks and strategies.
STRATEGIES_MAX: Final = 256  # that the workers of a manager offer together
CAPABILITIES_MAX: Final = 32  # of one strategy
TASK_PAYLOAD_BYTES_MAX: Final = 512 * KIB  # a request, or the shares of one that are to be merged
TASKS_BYTES_MAX: Final = 256 * MIB  # of payloads and results that wait
TASK_RESULT_BYTES_MAX: Final = 64 * KIB  # that a message carries; a larger one is uploaded
TASKS_MAX: Final = 100_000  # that are not over: about 100 MB
TASKS_PER_SESSION_MAX: Final = 20_000  # of these; one session leaves room for others
TASKS_ENDED_MAX: Final = 20_000  # whose outcome no client has fetched: past it, the oldest is deleted
TASK_PRIORITY_MAX: Final = 9
TASK_DEADLINE_MS: Final = 60_000  # of work on one attempt: past it the worker is killed
TASK_DEADLINE_MS_MAX: Final = 24 * 60 * 60 * 1000
TASK_AHEAD_MS: Final = 50  # what a worker is to do next is left to it so long, even if another one is idle
TASK_DEATHS_MAX: Final = 3  # of workers that had a task: then it is not given to another one
TASKS_ACKNOWLEDGED_TOGETHER: Final = 64  # outcomes: each acknowledgement wakes the manager, so they go in groups
TASKS_PER_STEP_MAX: Final = 1_000  # given out, dropped or expired at once: about 10 ms of the loop
EVIDENCE_CHARS_MAX: Final = 8_000  # of what a dead worker has left
EVIDENCE_SECONDS: Final = 1.0  # how long a quarantined task waits for that before its client is told
EXECUTOR_GRACE_SECONDS: Final = 10.0  # past a deadline: a worker that died has a successor, and the outcome was told
BREAKER_FAILURES_MAX: Final = 3  # of a strategy, in a row: then it is not asked for a while
BREAKER_PAUSE_SECONDS: Final = 30.0  # that while, at first; twice as long after each trial that fails
BREAKER_PAUSE_SECONDS_MAX: Final = 600.0  # it grows up to this
WORKERS_MAX: Final = 256
WORKER_SETTLED_SECONDS: Final = 1.0  # a worker that lives longer than this is replaced at once
WORKER_PAUSE_SECONDS_MAX: Final = 2.0  # before a worker takes the place of one that died young, again and again
WORKER_GOODBYE_SECONDS: Final = 0.5  # that a worker has to end its task when it is not wanted any more
WORKER_START_SECONDS_MAX: Final = 30.0  # from its spawning until it can be given work
WORKER_STARTS_FAILED_MAX: Final = 3  # one after another: then the pool gives up
WORKER_START_PAUSE_SECONDS: Final = 0.1  # after the first that failed; then twice as long each time
WORKER_PAUSE_DOUBLINGS_MAX: Final = 10  # of the pause before a worker is replaced: by then it is at its maximum
WORKER_CHECK_SECONDS: Final = 1.0  # at least this often a supervisor wakes up
WORKER_RELEASE_SECONDS: Final = 0.2  # for the manager to note that workers stop; a Ctrl-C should end within 2 s
WORKER_PROGRESS_SECONDS: Final = 0.05  # between two reports of a task's progress, because each costs the manager
WORKER_OUTPUT_CHARS_MAX: Final = 2_000  # of a worker that does not start, in the message of the error
WORKER_END_SECONDS_MAX: Final = 5.0  # what a function left running may hold up its worker's end
FUNCTION_FRAME_BYTES_MAX: Final = 16 * 1024 * MIB  # a function with its arguments, or its result
FUNCTION_PART_BYTES: Final = MIB  # of a large result, received before other workers have their turn
CLASSES_KNOWN_MAX: Final = 4_096  # copies of the program's classes that a worker keeps, with what they hold
REQUEST_DEPTH_MAX: Final = 64  # steps along references: far more than any use has
REQUEST_TOKENS_MAX: Final = 2**31  # of a budget: larger than the context window of any model

# Indexes and searches of the strategies, in a worker process.
INDEXED_PROJECTS_MAX: Final = PROJECTS_PER_SESSION_MAX  # whose indexes a worker keeps: no request has more projects
INDEXED_BODY_BYTES_MAX: Final = MIB  # of a longer body, its beginning: the rest seldom has other terms
INDEX_BATCH_PIECES: Final = 1 << 20  # read before they become postings: some tens of megabytes
INDEX_DEAD_SLOTS_MAX: Final = 1_000  # beyond as many as there are fragments: then the slots are numbered anew
INDEX_PIECES_REMEMBERED_MAX: Final = 1 << 17  # with their terms, while fragments are read: about 20 MB
INDEX_RUN_POSTINGS_MAX: Final = 1 << 18  # of a run that is merged into another: some milliseconds of a request
TERM_WORDS_REMEMBERED_MAX: Final = 1 << 15  # with their terms: few words are most of every text
EMBEDDED_BYTES_MAX: Final = 4_096  # of a body, its beginning: the mean of more words is a mean of everything
EMBEDDED_WORDS_REMEMBERED_MAX: Final = 1 << 15  # with their vectors, 32 MB: few words are most of every text
SEMANTIC_FRAGMENTS_MAX: Final = 200_000  # of a view: 20 s to read at first, 40 s on a busy machine, of a task's 60
QUERY_TERMS_MAX: Final = 128  # the first ones: the commonest take 80 ms together among 100,000 fragments
RAREST_TERMS_EXAMINED_MAX: Final = 48  # the first of a long text: the rarest of these are looked for
REASON_WORDS_MAX: Final = 8  # of the query, named in the reason of a hit
GRAPH_SEEDS_MAX: Final = 32  # hits of a project to start from: a worse hit says little about its neighbours
GRAPH_EXPANDED_MAX: Final = 256  # fragments of a project whose neighbours are examined
DECISION_GENERATIONS_MAX: Final = 4  # of ancestors whose words are looked for: older ones count as the last of these
DECISION_NAMES_MAX: Final = 128  # looked up for each generation: the names that its latest decisions mention
DECISION_TERMS_MAX: Final = 16  # the rarest of a generation's words
DECISION_HITS_MAX: Final = 200  # of a generation's words
DECISION_PARTS_MAX: Final = 64  # of a source that a decision names

# Assembling an answer, in the client.
EXPAND_SOURCES_MAX: Final = 128  # whose parts are examined: the sources with the best hits
EXPAND_PARTS_MAX: Final = 10_000  # in these sources: about 10 ms
EXPAND_ADDED_MAX: Final = 1_000  # parts that become candidates though no strategy named them
EXPAND_JUDGED_MAX: Final = 16  # of the best hits, searched for the words of the query
EXPAND_JUDGED_BYTES: Final = 8 * KIB  # of each of these hits
PACK_LEADERS_MAX: Final = 100  # of the best hits that are tried first
PACK_SHORTENED_MAX: Final = 32  # tried in a shorter form at the end, for the tokens that are left
PACK_FILLS_MAX: Final = 3  # how often the tokens that are left over are filled again: each time counts the whole text
SHORTENED_FROM_BYTES: Final = 64 * KIB  # of a body, from which a shorter form is made: about 2 ms
SHORTENED_LINE_CHARS_MAX: Final = 200  # of a line in a shorter form
SIGNATURE_LINES_MAX: Final = 8  # of a signature that has several lines
SUMMARY_MEMBERS_MAX: Final = 64  # definitions or paragraphs in a summary
HEADING_CHARS_MAX: Final = 300  # of a source in a heading: its end tells more than its beginning
REPLAY_NAMED_MAX: Final = 10  # missing bodies that a message names; `details` has all of them

# Changesets.
CHANGESETS_PER_PLAN_MAX: Final = 1_000
ENTRIES_PER_PLAN_MAX: Final = 100_000  # a proof covers all of them in one step: about 100 ms of the loop
ACTIVE_PER_CONTEXT_MAX: Final = 64
PATH_CHARS_MAX: Final = 4_096
PATH_CHARS_SHOWN: Final = 200  # of a path that a message quotes
PATHS_LISTED_MAX: Final = 100  # in the details of a refusal: the message counts the others

# Receipts.
RECEIPTS_MAX: Final = 1_000  # past it, the oldest is deleted: a receipt explains a recent answer
RECEIPT_BYTES_MAX: Final = 4 * MIB  # 10,000 candidates of 400 bytes each
RECEIPTS_BYTES_MAX: Final = 256 * MIB  # of all of them
RECEIPTS_PERCENT_MAX: Final = 10  # of all bodies' bytes: fragments are what the room is for
TITLE_CHARS_MAX: Final = 200  # a line of a list
RECEIPT_ROW_BYTES: Final = 2 * KIB  # of a receipt in a page, without its projects, rounded up

# Ingesting.
INGEST_FILE_BYTES_MAX: Final = 4 * MIB  # a larger file is data, and would be about 2,000 fragments without a reader
INGEST_SNIFFED_BYTES: Final = 8 * KIB  # of a file that are searched for a null byte before all of it is decoded
INGEST_LINE_CHARS_MAX: Final = 300  # a longer line is no definition and no heading, and would keep a pattern busy
INGEST_REFERENCE_CHARS_MAX: Final = 200  # a longer reference is no name and no path
INGEST_TURNS_MAX: Final = 5_000  # of one file: a longer conversation is split by size
INGEST_TURNS_EXAMINED: Final = 20  # lines, of which half have to be turns before a file counts as a conversation
INGEST_GIT_SECONDS_MAX: Final = 60.0  # to list what it knows: then the directory is walked
INGEST_SETTLED_NS: Final = 2_000_000_000  # a file that is younger may change again within one tick of its clock
INGEST_JOB_FILES: Final = 16  # that a worker splits at once: what it answers fits in a message, mostly
INGEST_JOB_BYTES: Final = 256 * KIB  # of them, unless one is larger
INGEST_JOBS_AHEAD: Final = 64  # submitted and not stored yet: enough for any number of workers that helps
INGEST_COMMANDS: Final = 250  # in a transaction of many files: about 20 ms of the loop
INGEST_ATTEMPTS_MAX: Final = 5  # at a file that another client stores at the same time
INGEST_BUSY_SECONDS_MAX: Final = 30.0  # that it waits while room is made for what it stores
INGEST_BUSY_PAUSE_SECONDS: Final = 0.05  # between two attempts
INGEST_WARM_PERCENT: Final = 50  # of warm for one project: the rest of a larger tree goes to cold
INGEST_PAUSE_SECONDS: Final = 0.5  # between two looks at a tree that is watched
INGEST_PAUSE_SECONDS_MAX: Final = 5.0  # it grows up to this while nothing changes
INGEST_PAUSE_RATIO: Final = 10.0  # and is so many times as long as the look: watching takes a tenth of a core at most
INGEST_SKIPPED_MAX: Final = 1_000  # named in a report; those beyond are counted

# Trees.
TREE_PART_BYTES: Final = MIB  # of a file that are read, hashed or written at once
TREE_DELTAS_MAX: Final = ENTRIES_PER_PLAN_MAX  # paths of one transaction: all that a plan may have changed
TREE_LOCK_SECONDS: Final = 60.0  # to wait for another process at the same tree: a large change is a matter of seconds
TREE_LOCK_PAUSE_SECONDS: Final = 0.01  # between two attempts at the lock of a tree
TREE_LOCK_BYTES_MAX: Final = 4_096  # of the lock's file that are read: it has a process id, a few bytes
TREE_TRANSACTION_NAME_CHARS_MAX: Final = 128  # with a suffix it is the name of a directory, which has 255 at most
TREE_ENTRIES_MAX: Final = 500_000  # of a tree that is captured: about 200 MB
TREE_SPOOL_BYTES_MAX: Final = 4 * 1024 * MIB  # of old contents during a capture, in the directory for temporary files
TREE_ATTEMPTS_MAX: Final = 5  # at reading a file that another program writes at the same time
TREE_NAMED_MAX: Final = 20  # paths in a message; `details` has all of them
MERGE_SECONDS_MAX: Final = 60.0  # of one file

# Applying.
APPLY_WAIT_SECONDS: Final = 600.0  # for another process at the same plan or tree: as long as a validation may take
APPLY_LOOK_SECONDS: Final = 1.0  # of such a wait, before the plan is read again to see if waiting is still needed
APPLY_REPORTS_MAX: Final = 3  # attempts to report a tree's outcome to the manager after an answer was lost
VALIDATION_LOOK_SECONDS: Final = 0.25  # until a validation whose lease was lost is stopped

# Watching.
WATCHERS_MAX: Final = 64  # each looks at every event
EVENTS_BUFFERED: Final = 10_000  # in memory, for watchers that are a little behind: about 10 MB
EVENTS_PER_FRAME: Final = 200  # or the one step that has more
EVENTS_TOLD_PER_TURN: Final = 1_000  # to all watchers together: about 2 ms
WATCHER_OUTBOX_BYTES: Final = 256 * KIB  # past it a watcher gets no more until it reads
UNTOLD_SECONDS: Final = 0.25  # at most this often a watcher is told that nothing of what happened concerns it

# Clients of an event loop.
REQUESTS_IN_FLIGHT_MAX: Final = 128  # on one connection: further ones wait their turn, instead of being refused
UNSENT_BYTES_MAX: Final = MIB  # that wait for the manager to read them: past it, further requests wait
UPLOADING_CONNECTIONS_MAX: Final = 4  # each carries the large bodies of one request at a time
FRAMES_AHEAD_MAX: Final = 16  # that a watch has received and not given out: past it the manager has to wait
LOOP_THREADS_MAX: Final = 8  # for what takes long, and would hold up the loop
BUILT_BYTES_MAX: Final = 64 * KIB  # of bodies whose tokens are counted in the loop: about 2 ms; more go to a thread

# Test doubles (`stepwell.testing`).
CLOCK_STEPS_MAX: Final = 1_000  # in which a clock advances over a long time: about 100 ms
FAULT_WAIT_SECONDS: Final = 10.0  # for a fault that another thread is about to meet: past it, the test hangs
LEAK_SETTLE_SECONDS: Final = 3.0  # for what is ending to end: a worker may outlive its manager by 2 s
LEAK_POLL_SECONDS: Final = 0.01  # between two looks at what is left
LOCAL_RUNTIME_END_SECONDS_MAX: Final = DRAIN_SECONDS_MAX + 5.0  # for its manager's thread to end

# Counting tokens.
TOKENIZED_CHARS: Final = 32 * KIB  # in one call of the tokenizer, about 1 ms: past it, the next border ends the piece
TOKENIZED_CHARS_MAX: Final = 64 * KIB  # a piece without a border ends here
TOKENIZER_CACHED_CHARS_MAX: Final = 8 * MIB  # then its cache is cleared: it is bounded in entries, and takes 13 B/char

# The command line.
SKIPPED_SHOWN_BY_ASSEMBLE: Final = 3  # files that were not read: the answer is what the user wants to see
SKIPPED_SHOWN_BY_INGEST: Final = 10  # --json has all of them
RECEIPT_ENTRIES_SHOWN: Final = 100  # candidates of a receipt; --json has all of them
FRAGMENTS_SHOWN: Final = 10  # of each strategy; --json has all of them
DOCTOR_PROBLEMS_SHOWN: Final = 20  # of each check of a data directory; --json has all that are listed
OUTPUT_LINES_SHOWN: Final = 10  # of the end of a validation's output
PLANS_SHOWN: Final = 10  # whose ids begin with a prefix that is not unique
PLAN_PREFIX_CHARS_MIN: Final = 6  # a shorter prefix matches all plans of several hours, because ids begin with the time
DIFFSTAT_SIGNS_MAX: Final = 40  # of the bar of the file that changes most
EVALUATION_THREADS: Final = 4  # questions under way at once, so that no worker waits for the next one
WORKER_MEMORY_BYTES_MIN: Final = 64 * MIB  # an interpreter with its modules takes half of it
PIPE_COLUMNS: Final = 10_000  # wider than a path with its heading, because a table is folded at the width

# The store.
RECENCY_SECONDS: Final = 10.0  # reads are written down this often: a crash forgets the order of later ones
RECENCY_ROWS_PER_TURN: Final = 500  # about 2 ms
EVENTS_KEPT: Final = 100_000  # for watchers that come late
EVENTS_TRIMMED_PER_TURN: Final = 1_000
BODY_PART_BYTES: Final = MIB  # of a large body, written at once
PARTS_TRIMMED_PER_TURN: Final = 2  # of large bodies that are gone: about 50 ms
TIDY_SECONDS: Final = 1.0  # until replies that have reached their callers, and parts of gone bodies, are deleted
WAL_PAGES: Final = 4_000  # of 4 KiB: then they are written back to the database, about 20 ms, if no reader needs them
WAL_BYTES_KEPT: Final = 16 * MIB  # a log that grew under a reader is cut to this when it is used again
SQLITE_BUSY_SECONDS: Final = 5.0  # that a connection waits for the lock of another tool's
INSPECT_ATTEMPTS_MAX: Final = 3  # to read a database at which managers start or stop meanwhile
BACKUP_STEPS_PER_CHECK: Final = 1_000  # of SQLite's virtual machine, between two checks for a Ctrl-C
LOCK_FILE_BYTES_MAX: Final = 4 * KIB  # read of a lock file that describes its holder
PROBLEMS_LISTED_MAX: Final = 1_000  # of one check of a data directory: those beyond are counted
PROBLEMS_SHOWN: Final = 5  # in the message with which a manager refuses a damaged directory; the doctor lists them all

# The manager's process.
MANAGER_START_SECONDS_MAX: Final = 30.0  # from its spawning until it serves: a large data directory takes seconds
MANAGER_END_SECONDS_MAX: Final = DRAIN_SECONDS_MAX + 5.0  # from its release to its end; then it is killed
RESTARTS_MAX: Final = 5  # of a manager that dies, within
RESTARTS_SECONDS: Final = 60.0
RESTART_PAUSE_SECONDS: Final = 0.1  # before the second; then twice as long each time

# Shared memory.
SEGMENT_BYTES_MAX: Final = 16 * MIB  # of bodies that share one; a larger body has a segment of its own
SEGMENT_BYTES_MIN: Final = 64 * KIB
SEGMENTS_PER_ARENA: Final = 32  # a small arena has small segments, so that one that is being filled is a small part
ALLOCATION_BYTES: Final = MIB  # asked of the kernel at a time: about 0.3 ms
PREPARED_BYTES_PER_TURN: Final = 4 * MIB  # for an upload, before it is granted
FILE_SEGMENT_BYTES: Final = 64 * MIB
FILE_BYTES_MAX: Final = 16 * 1024 * MIB  # of cold bodies on disk, dead space included
DESCRIPTORS_PER_FRAME_MAX: Final = 200  # the kernel takes 253 at a time
DEAD_PERCENT_MAX: Final = 20  # of all segments' bytes: past it, the most dead one is emptied
WORK_BYTES_PER_SLICE: Final = 256 * KIB  # compressed, expanded or moved at once: about 1 ms
WORK_SECONDS_PER_TURN: Final = 0.001
WORK_SECONDS_MAX: Final = 0.01  # of that, before a store that finds no room is refused
PACKED_PERCENT_MAX: Final = 90  # a body that compresses worse stays as it is
TRY_AGAIN_SECONDS: Final = 5.0  # until what found no room, on disk say, is tried again
PRESSED_PERCENT: Final = 75  # of the arena in use: then forms change between busy turns too, not only in idle ones
UPLOADS_PERCENT_MAX: Final = 50  # of the arena, for all uploads that are under way, unless they are one peer's
ASK_AGAIN_MAX: Final = 100  # for a body that moves whenever it is asked for
UPLOADS_PER_REQUEST_MAX: Final = 1_000
UPLOAD_SECONDS_MAX: Final = 60.0  # from the grant to the last byte
GRANT_SECONDS_MAX: Final = 30.0  # how long an offer waits for room
MAPPED_MAX: Final = 5_000  # segments that a client may say it has: so many fit in a greeting
RELEASED_PER_MESSAGE_MAX: Final = 1_000
RETIRED_REMEMBERED: Final = 4_096  # segments that a late descriptor does not bring back
RETIRED_BYTES_MAX: Final = 1024 * MIB  # in retired segments that some client still maps
CATALOGUE_SEGMENT_BYTES_MIN: Final = 64 * KIB
CATALOGUE_SEGMENT_BYTES_MAX: Final = 4 * MIB
CATALOGUE_ROWS_PER_SLICE: Final = 500  # listed between two turns: about 1 ms
CATALOGUE_SHED_SECONDS: Final = 1.0  # since its last use: a catalogue in use is not dropped for a body
CATALOGUES_MAX: Final = 256  # projects that are looked at: past it the one that was asked for the longest ago goes
CATALOGUE_RECORDS_MIN: Final = 4_096  # out of date before a catalogue is listed anew
CATALOGUE_IDLE_SECONDS: Final = 600.0  # without a use: then it is dropped, and built again on demand
VIEW_STATES_PER_PROJECT_MAX: Final = 4  # that a client keeps: a reader that is a little behind finds its own

assert STREAM_COMMANDS * INLINE_BODY_BYTES_MAX < FRAME_BYTES_MAX, "a stream's inline bodies are one frame"
assert REPLY_BYTES_MAX + 2 * INLINE_BODY_BYTES_MAX + 4 * METADATA_BYTES_MAX < FRAME_BYTES_MAX - MIB, (
    "a stream's frame is full past this, and has one more store or change"
)
assert BATCH_COMMANDS_MAX * SIMPLE_RESULT_BYTES < REPLY_BYTES_MAX, "a batch on the fast path is one reply"
assert 2 * REPLY_BYTES_MAX < FRAME_BYTES_MAX, "a full reply, and the row that filled it, are one frame"
assert INLINE_BODY_BYTES_MAX < BODY_BYTES_MAX <= ARENA_BYTES * ARENA_LIVE_PERCENT // 100 <= BODIES_BYTES_MAX, (
    "the largest body has room in the arena"
)
assert INDEXED_PROJECTS_MAX >= PROJECTS_PER_SESSION_MAX, "a request's indexes fit in the cache together"
assert RECONNECT_SECONDS_MAX <= SESSION_GRACE_SECONDS, "a client that comes back in time finds its session"
assert SWEEP_MOVES_MAX <= MOVES_PER_STEP_MAX, "a sweep is a step"
assert HOT_TTL_MS <= WARM_TTL_MS <= COLD_RETENTION_MS, "tiers are ordered"
assert SUBPLAN_RETRIES_MAX < ATTEMPTS_MAX, "retries that are declared can be made"
assert MERGED_ENTRIES + 3 <= BATCH_COMMANDS_MAX, "entries recorded at once, with their beginning and end, are a batch"
assert 2 * MERGED_ENTRIES <= UPLOADS_PER_REQUEST_MAX, "and so are their bodies"
assert MERGED_BYTES + 2 * INLINE_BODY_BYTES_MAX < FRAME_BYTES_MAX // 2, "and one frame"
assert CONFLICTS_MAX < CHANGESETS_PER_PLAN_MAX, "every conflict can be resolved, behind the changeset of the merge"
assert CONFLICTS_MAX * PATH_CHARS_MAX < REPLY_BYTES_MAX, "a plan with its conflicts is one reply"
assert 2 * VALIDATIONS_MAX * VALIDATION_OUTPUT_CHARS_MAX < REPLY_BYTES_MAX // 4, "and so is one with its validations"
assert CLOSED_PLANS_MAX < PLANS_MAX, "plans that are over leave room for others"
assert PLANS_PER_TREE_MAX < FORGOTTEN_ROWS_PER_STEP_MAX, "a tree's plans are forgotten in one step"
assert OUTLINE_ANCHOR_CHARS_MAX < FRAGMENT_ID_CHARS_MAX <= CURSOR_CHARS_MAX, "an id has room for a part's name"
assert OUTLINE_REFS_CHARS_MAX <= METADATA_VALUE_CHARS_MAX, "an outline fits into metadata"
assert RECEIPTS_MAX <= SCAN_ROWS_MAX, "a page of receipts examines all of them at the most"
assert INLINE_BODY_BYTES_MAX <= RECEIPT_BYTES_MAX <= RECEIPTS_BYTES_MAX, "the largest receipt has room"
assert WATCHER_OUTBOX_BYTES < OUTBOX_BYTES_MAX, "a watcher is never full of events alone, unless of one step"
assert EVIDENCE_SECONDS < EXECUTOR_GRACE_SECONDS, "no executor gives a task up while its evidence is awaited"
assert EVENTS_BUFFERED <= EVENTS_KEPT, "what is in memory is in the store too"
assert REQUESTS_IN_FLIGHT_MAX + UPLOADING_CONNECTIONS_MAX + CONNECTIONS_PER_CLIENT_MAX < REPLIES_REMEMBERED_MAX, (
    "whatever is in flight when a connection breaks can be sent again"
)
