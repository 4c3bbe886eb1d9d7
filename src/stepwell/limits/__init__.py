"""Every bound in the system, with its unit at the end of its name and its reason beside it.

A bound that a user may want to move is a default here and a field of a configuration Struct elsewhere.
The relations that the code relies on are asserted at the bottom, so that no edit can break them unnoticed.
The bounds of some subjects have modules of their own: `limits.tiers`, `limits.teams`, `limits.pools`, `limits.logs`,
`limits.memory` and `limits.directory`. All are used as `limits.NAME`.
"""

from typing import Final

from stepwell.limits.directory import *
from stepwell.limits.logs import *
from stepwell.limits.memory import *
from stepwell.limits.pools import *
from stepwell.limits.teams import *
from stepwell.limits.tiers import *

# Messages. The manager holds a whole frame in memory, once for each peer that is sending one.
FRAME_BYTES_MAX: Final = 16 * MIB
BODY_BYTES_MAX: Final = 64 * MIB
INLINE_BODY_BYTES_MAX: Final = 64 * KIB  # a larger one is uploaded beside the frames
METADATA_ENTRIES_MAX: Final = 64
METADATA_BYTES_MAX: Final = 16 * KIB
BATCH_COMMANDS_MAX: Final = 1_000  # about 10 ms of the loop, for the usual commands
COMMANDS_PER_RUN: Final = 50  # commands of a batch between two reads of the clock: below a millisecond
DEMOTIONS_PER_RUN: Final = 32  # demotions that the stores among them may cause: about a fifth of a millisecond
YOUNG_OBJECTS: Final = 10_000  # new objects in the manager between two garbage collections: about a millisecond each
MALLOC_KEPT_BYTES: Final = 512 * KIB  # a larger freed buffer is returned to the system
SMALL_REQUEST_COMMANDS: Final = 16  # a request with more commands is executed in slices, behind the small ones
LARGE_SECONDS_PER_TURN: Final = 0.0005  # processor time of a turn that all large requests share, beside small ones
LARGE_SECONDS_ALONE: Final = 0.005  # the same while no small request comes: fewer turns, and so fewer commits
ALONE_SECONDS: Final = 0.1  # large requests are alone if no small one was answered for this time
TURN_SECONDS_MAX: Final = 0.05  # past this time since a turn began, a peer's further requests wait for the next turn
GREETING_BYTES_MAX: Final = 64 * KIB  # a frame before Hello: an unknown peer must not make the manager allocate more
FRAME_SECONDS_MAX: Final = 30.0  # from the first byte of a frame to its last
IDLE_CONNECTIONS_MAX: Final = 8  # idle connections of one client; others that a burst of threads opened are closed
STREAM_COMMANDS: Final = 200  # commands in a frame of store_many or get_many: one is applied while the next is built
STREAM_BYTES: Final = MIB  # bodies in a frame of store_many: larger frames are not faster, and buffers keep their size
REPLY_BYTES_MAX: Final = 6 * MIB  # past it a page ends, and further reads of a batch are refused as Busy
SIMPLE_SOURCE_CHARS_MAX: Final = 256  # a fragment with a longer source is not read on the fast path
SIMPLE_RESULT_BYTES: Final = 4 * KIB  # an upper bound of the size of one fast-path result in a reply
ERROR_CHARS_MAX: Final = 2_000  # an error message: it may quote its input, and a reader needs only the beginning
REPR_CHARS_MAX: Final = 160  # the `repr` of a value: two lines of a terminal
REPR_NAME_CHARS_MAX: Final = 48  # a name or a text in it
HANDLE_BYTES: Final = 128  # the size of one handle in a frame, rounded up

# Names and texts. They are held in memory with every row, and the first three are keys of tables.
PROJECT_CHARS_MAX: Final = 128
FRAGMENT_ID_CHARS_MAX: Final = 512  # room for a path and the name of a part of that file
LABEL_CHARS_MAX: Final = 64  # a kind, tool, alias or capability, or the name of a strategy
IDENTIFIER_CHARS_MAX: Final = 64  # an id that a client creates; a ULID has 26 characters
NAME_PART_CHARS_MAX: Final = 64  # each part of `[[server:]namespace/]name`
SOURCE_CHARS_MAX: Final = 4_096  # the longest path that Linux allows
METADATA_KEY_CHARS_MAX: Final = 128
METADATA_VALUE_CHARS_MAX: Final = 8_192
CURSOR_CHARS_MAX: Final = 600  # a little more than the longest key, which is the id of a fragment
NAMES_CACHED_MAX: Final = 1_024  # labels and project names whose pattern was matched; a manager sees few different ones
DETAIL_DEPTH_MAX: Final = 16
OUTLINE_NAME_CHARS_MAX: Final = 256  # the name of a part of a file, such as a path of headings: no reader needs more
OUTLINE_REFS_MAX: Final = 64  # names that a part of a file refers to
OUTLINE_REFS_CHARS_MAX: Final = 2_000  # all references of one part together: a fragment should not be mostly metadata
OUTLINE_REDACTED_MAX: Final = 64  # places in one part at which a secret was redacted; the last one stands for the rest
OUTLINE_ANCHOR_CHARS_MAX: Final = 400  # the source in the id of a part: the rest of the id is for the name of the part
OUTLINE_ANCHORS_CACHED_MAX: Final = 256  # escaped sources: the rows of one file are usually handled together

# Connections and sessions: the resources of the manager that one peer may hold.
PEERS_MAX: Final = 512
SESSIONS_MAX: Final = 4_096  # sessions outlive their connections by the grace
SESSIONS_PER_PROCESS_MAX: Final = 2_048  # one process leaves room for the sessions of others
DESCRIPTORS_MAX: Final = 65_536  # to which the manager raises its limit: far more than its bounds allow it to open
RECEIVE_BYTES_PER_TURN: Final = 256 * KIB
RECEIVE_BYTES_CLIENT: Final = 64 * KIB
COMMANDS_PER_TURN: Final = 64  # for each peer; further requests wait for the next turn, behind the other peers
OUTBOX_BYTES_MAX: Final = 4 * MIB  # unread replies of one peer: past it, the requests of that peer wait until it reads
STALL_SECONDS_MAX: Final = 30.0  # a peer that neither reads its replies nor finishes its frame is cut off
HELLO_SECONDS_MAX: Final = 10.0  # a new connection that has not said Hello by then is closed
DRAIN_SECONDS_MAX: Final = 5.0  # after SIGTERM, the manager waits at most this long for peers to read their replies
DRAIN_POLL_SECONDS: Final = 0.01  # between two turns while the manager waits for peers to read their last replies
CONNECTIONS_PER_CLIENT_MAX: Final = 64  # one for each thread that is inside a call at the same moment
ADDRESS_BYTES_MAX: Final = 107  # the path of a Unix socket: the kernel allows 108 bytes, including the final NUL
LISTEN_BACKLOG: Final = 128  # connections that wait to be accepted: past it, a connect blocks or is tried again
SOCKET_DIRECTORY_SECONDS: Final = 3_600.0  # an empty socket directory of this age is not one that a manager starts in
SOCKET_DIRECTORIES_MAX: Final = 1_000  # dead socket directories that a start removes; the next start removes others
SOCKET_DIRECTORY_ATTEMPTS_MAX: Final = 10  # a directory that another manager removes is made again, before a listen
LOG_EVENTS_BURST: Final = 20  # events of one name that peers caused and that are logged at once
LOG_EVENT_SECONDS: Final = 1.0  # then one of that name is logged in this time, with the number of those left out
STALE_SOCKET_SECONDS: Final = 1.0  # a starting manager waits this long for an earlier one at the same address to accept
GOODBYE_SECONDS_MAX: Final = 1.0  # a closing client without a connection tries this long to release its leases
SPIN_SECONDS: Final = 200e-6  # longer than the other side takes for a request, so that both processes stay awake
SPIN_SKIPS_MAX: Final = 64  # waits without spinning after repeated misses: their number doubles up to this
REPLIES_REMEMBERED_MAX: Final = 1_024  # replies of one session that the client has not acknowledged
REPLIES_REMEMBERED_BYTES_MAX: Final = 4 * MIB
HOUSEKEEPING_SECONDS: Final = 0.25  # the interval of the manager's timers: no timeout is more exact than this
RECONNECT_SECONDS_MAX: Final = 30.0  # a client waits this long for a durable manager to restart
RESTART_LOCK_BYTES: Final = 16 * KIB  # the file that says why a manager was not restarted: an error and its details
RECONNECT_PAUSE_SECONDS: Final = 0.02  # the first pause between two attempts to reconnect
RECONNECT_PAUSE_SECONDS_MAX: Final = 0.25  # the pause grows up to this
SESSION_GRACE_SECONDS: Final = 30.0  # sessions and leases outlive a lost connection by this, but not a dead process
PROJECTS_PER_SESSION_MAX: Final = 64  # an eviction in a scoped session merges one LRU list for each project

# Pages.
PAGE_ROWS_MAX: Final = 1_000
FRAGMENT_ROW_BYTES: Final = 4 * KIB  # one fragment in a frame, without source, metadata and body, rounded up
SCAN_ROWS_MAX: Final = 2_000  # rows that one page may examine before it returns its cursor
PATTERN_CHARS_MAX: Final = 512
GLOBS_MAX: Final = 16  # globs of one list command
WILDCARDS_MAX: Final = 32  # wildcards of all globs of one list command: each row is matched against all of them
PATTERN_MEMORY_BYTES_MAX: Final = 256 * KIB  # a pattern that needs more is refused; compiling one takes about 1 ms

# Plans.
ACTIONS_MAX: Final = 100_000
PLANS_MAX: Final = 100_000
NAME_CHARS_MAX: Final = 200  # the name of an action or actor, before it is made canonical
ARGUMENTS_MAX: Final = 64
INVARIANTS_MAX: Final = 64  # each of an action and of a plan: every child inherits them
PROJECTS_PER_PLAN_MAX: Final = 64  # as many as a session can have in its scope
DEPENDENCIES_MAX: Final = 64  # siblings that one child depends on
TEXT_CHARS_MAX: Final = 64_000
TRANSACTION_CHANGES_MAX: Final = 10_000  # rows that one transaction may change: about 50 ms of the loop
REVERSIONS_MAX: Final = 3
ATTEMPTS_MAX: Final = 100  # it also bounds the errors of a plan: one or two are appended in each attempt
LEASE_MS: Final = 300_000
LEASE_MS_MIN: Final = 10
LEASE_MS_MAX: Final = 24 * 60 * 60 * 1000
LEASES_PER_SESSION_MAX: Final = 256  # all leases of a session are released in one step when the session ends
EXPIRIES_PER_STEP_MAX: Final = 256
DECISIONS_PER_PLAN_MAX: Final = 1_000
DECISIONS_SEEN_MAX: Final = 256  # decisions that are sent with a request: the nearest ones of a plan and its ancestors
DECISIONS_SEEN_CHARS_MAX: Final = 64_000  # the texts of these decisions together: a request has to fit into a task
SUBPLANS_MAX: Final = 256
SUBPLAN_DEPTH_MAX: Final = 8
PLANS_PER_TREE_MAX: Final = 1_024  # cancelling a whole tree is one step
CLOSED_PLANS_MAX: Final = 10_000  # ended trees that are kept for readers; they take room from plans that have not ended
PLAN_RETENTION_MS: Final = 30 * 24 * 60 * 60 * 1000  # long enough for an audit after a month
FORGOTTEN_ROWS_PER_STEP_MAX: Final = 2_000  # about 20 ms of the loop
MAX_PARALLEL: Final = 5
MAX_PARALLEL_MAX: Final = 50
SUBPLAN_RETRIES_MAX: Final = 10  # a child that fails more often needs another strategy
CONFLICTS_MAX: Final = 500  # conflicts of one merge: they are sent with their plan, and each needs its own changeset
MERGED_ENTRIES: Final = 400  # entries of a merge that are recorded in one transaction: about 10 ms of the loop
MERGED_BYTES: Final = 4 * MIB  # the bodies of these entries, unless a single one is larger
PATHS_PER_DIFF_REQUEST: Final = 200  # paths whose bodies a diff of a plan locates in one request
HEARTBEAT_SECONDS_MAX: Final = 2.0  # between two renewals of a lease: a holder learns this soon that the lease is lost
AGENT_POLL_SECONDS: Final = 5.0  # an agent without a ready child asks this often: events may be lost with a connection
AGENT_UNWATCHED_POLL_SECONDS: Final = 0.25  # the same for an agent without events, because there are too many watchers
AGENTS_REMEMBERED_MAX: Final = 64  # sessions that asked for children of one plan: enough to know that there are others
RETRY_HEAD_START_MS: Final = 10_000  # a failed child waits so long for another agent before the same one gets it again
VALIDATIONS_MAX: Final = 16  # each of an action and of a plan
VALIDATION_ARGUMENTS_MAX: Final = 64
VALIDATION_ARGUMENT_CHARS_MAX: Final = 4_096
VALIDATION_SECONDS: Final = 600.0
VALIDATION_SECONDS_MAX: Final = 24 * 60 * 60.0
VALIDATION_OUTPUT_CHARS_MAX: Final = 8_000  # the end of the output, because commands report failures last
VALIDATION_OUTPUT_CHARS_SHOWN: Final = 1_000  # of it in an error's message; `details` has all of it
VALIDATION_COMMAND_CHARS_SHOWN: Final = 200  # of a command in an error's message

# Tasks and strategies.
STRATEGIES_MAX: Final = 256  # strategies that all workers of a manager offer together
CAPABILITIES_MAX: Final = 32  # capabilities of one strategy
STRATEGY_PROBLEMS_MAX: Final = 16  # strategies that a worker reports as not loaded; the last one stands for the rest
STRATEGY_PROBLEM_CHARS_MAX: Final = 400  # the source of such a strategy, or the reason: a few lines of `status`
TASK_PAYLOAD_BYTES_MAX: Final = 512 * KIB  # a request, or the results of shares that are to be merged
TASKS_BYTES_MAX: Final = 256 * MIB  # payloads and results of all tasks that the manager holds
TASK_RESULT_BYTES_MAX: Final = 64 * KIB  # a result inside a message; a larger one is uploaded
TASKS_MAX: Final = 100_000  # tasks that have not ended: about 100 MB
TASKS_PER_SESSION_MAX: Final = 20_000  # unfinished tasks of one session, so that one session leaves room for others
TASKS_ENDED_MAX: Final = 20_000  # ended tasks whose outcome no client has fetched: past it, the oldest is deleted
TASK_PRIORITY_MAX: Final = 9
TASK_DEADLINE_MS: Final = 60_000  # the time for one attempt: past it the worker is killed
TASK_DEADLINE_MS_MAX: Final = 24 * 60 * 60 * 1000
TASK_PREFETCHED_MS: Final = 50  # a prefetched task stays with its busy worker this long, even if another worker is idle
TASK_DEATHS_MAX: Final = 3  # workers that died while they had the task: then the task is quarantined
TASKS_ACKNOWLEDGED_TOGETHER: Final = 64  # outcomes in one acknowledgement, because each one wakes the manager
TASKS_PER_STEP_MAX: Final = 1_000  # tasks that are leased, deleted or expired in one step: about 10 ms of the loop
EVIDENCE_CHARS_MAX: Final = 8_000  # the last output of a worker that died
EVIDENCE_SECONDS: Final = 1.0  # the outcome of a quarantined task waits this long for evidence from the supervisor
EXECUTOR_GRACE_SECONDS: Final = 10.0  # past a deadline: time to replace a dead worker and to report the outcome
BREAKER_FAILURES_MAX: Final = 3  # failures of a strategy in a row that open its circuit breaker
BREAKER_PAUSE_SECONDS: Final = 30.0  # the first pause of an open breaker; it doubles with each failed trial
BREAKER_PAUSE_SECONDS_MAX: Final = 600.0  # the pause doubles up to this
WORKERS_MAX: Final = 256
WORKER_SETTLED_SECONDS: Final = 1.0  # a worker that has lived longer than this is replaced at once
WORKER_PAUSE_SECONDS_MAX: Final = 2.0  # the longest pause before a replacement, after several workers died early
WORKER_GOODBYE_SECONDS: Final = 0.5  # a worker that is stopped has this long to finish its task
WORKER_START_SECONDS_MAX: Final = 30.0  # from the start of the process until it is ready for work
WORKER_STARTS_FAILED_MAX: Final = 3  # failed starts in a row after which the pool gives up
WORKER_START_PAUSE_SECONDS: Final = 0.1  # the pause after the first failed start; it doubles with each further one
WORKER_PAUSE_DOUBLINGS_MAX: Final = 10  # doublings of the pause before a replacement: by then it is at its maximum
WORKER_CHECK_SECONDS: Final = 1.0  # a supervisor wakes up at least this often
WORKER_RELEASE_SECONDS: Final = 0.2  # time for the manager to note that workers stop; a Ctrl-C should end within 2 s
WORKER_PROGRESS_SECONDS: Final = 0.05  # between two progress reports of a task, because each costs the manager time
WORKER_READY_BYTES_MAX: Final = 128 * KIB  # a worker's report to its supervisor: the bounds of its problems, in JSON
WORKER_OUTPUT_CHARS_MAX: Final = 2_000  # output of a worker that does not start, quoted in the error message
WORKER_END_SECONDS_MAX: Final = 5.0  # threads that a function left running may delay the worker's end this long
FUNCTION_FRAME_BYTES_MAX: Final = 16 * 1024 * MIB  # a pickled function with its arguments, or its result
FUNCTION_PART_BYTES: Final = MIB  # bytes of a large result that are received before other workers have their turn
CLASSES_KNOWN_MAX: Final = 4_096  # copies of the program's classes that a worker keeps, with their attributes
REQUEST_DEPTH_MAX: Final = 64  # steps that the graph strategy follows references: far more than any use needs
REQUEST_TOKENS_MAX: Final = 2**31  # a budget: larger than the context window of any model

# Indexes and searches of the strategies, in a worker process.
INDEXED_PROJECTS_MAX: Final = PROJECTS_PER_SESSION_MAX  # whose indexes a worker keeps: no request has more projects
INDEXED_BODY_BYTES_MAX: Final = MIB  # only the beginning of a longer body is indexed: the rest seldom has other terms
INDEX_BATCH_PIECES: Final = 1 << 20  # pieces that are read before they become postings: some tens of megabytes
INDEX_DEAD_SLOTS_MAX: Final = 1_000  # dead slots beyond the number of fragments: then all slots are numbered anew
INDEX_PIECES_REMEMBERED_MAX: Final = 1 << 17  # pieces whose terms are cached while fragments are read: about 20 MB
INDEX_RUN_POSTINGS_MAX: Final = 1 << 18  # a run that is merged into another one: some milliseconds of a request
TERM_WORDS_REMEMBERED_MAX: Final = 1 << 15  # words whose terms are cached: few words are most of every text
EMBEDDED_BYTES_MAX: Final = 4_096  # the beginning of a body: the mean over more words says less about its subject
EMBEDDED_WORDS_REMEMBERED_MAX: Final = 1 << 16  # words whose vectors are cached, 1 kB each: a large project has as many
SEMANTIC_FRAGMENTS_MAX: Final = 200_000  # of a view: the first read takes 20 s, on a busy machine 40 s of a task's 60 s
QUERY_TERMS_MAX: Final = 256  # the weightiest terms of a query: a long report has several hundred
PASSAGE_TERMS_MAX: Final = (
    32  # the weightiest terms of a query that passages are scored by: each takes 1 ms of 100,000 turns
)
QUERY_PLACES_MAX: Final = 64  # frames, paths and dotted names of a query: each is looked up
QUERY_FILES_PER_NAME_MAX: Final = 256  # files of one name, such as `index.js`, that are compared with a path of a query
FILES_COMPARED_MAX: Final = 128  # the best files for a query, whose importers are counted
QUERIES_REMEMBERED_MAX: Final = 16  # parsed queries: several strategies ask the same
RAREST_TERMS_EXAMINED_MAX: Final = 48  # the first terms of a long text, among which the rarest are searched for
REASON_WORDS_MAX: Final = 8  # words of the query that the reason of a hit names
GRAPH_SEEDS_MAX: Final = 32  # keyword hits of a project to start from: a worse hit says little about its neighbours
GRAPH_EXPANDED_MAX: Final = 256  # fragments of a project whose neighbours are examined
DECISION_GENERATIONS_MAX: Final = 4  # generations of ancestors: older ones count as the last of these
DECISION_NAMES_MAX: Final = 128  # names in the latest decisions of one generation that are looked up
DECISION_TERMS_MAX: Final = 16  # the rarest words of one generation's decisions, which are searched for
DECISION_HITS_MAX: Final = 200  # hits of one generation's words
DECISION_PARTS_MAX: Final = 64  # parts of a source that a decision names

# Assembling an answer, in the client.
EXPAND_SOURCES_MAX: Final = 128  # sources with the best hits, whose parts are examined
EXPAND_PARTS_MAX: Final = 10_000  # parts of these sources: about 10 ms
EXPAND_ADDED_MAX: Final = 1_000  # parts that become candidates though no strategy named them
EXPAND_JUDGED_MAX: Final = 16  # best hits that are searched for the words of the query
EXPAND_JUDGED_BYTES: Final = 8 * KIB  # bytes of each of these hits that are searched
STOP_SCORE: Final = 0.5  # of the best score: matches with less cost tokens and seldom have what is asked for
PACK_ROUNDS_MAX: Final = 4  # packings with less room, if the rendered text has more tokens than its parts have
CUT_CHARS_MIN: Final = 40  # characters that the docstrings of a fragment have to save: the marks cost some of them
CUT_DOCSTRINGS_MAX: Final = 256  # docstrings that are cut from one fragment
SHORTENED_FROM_BYTES: Final = 64 * KIB  # the beginning of a body from which a shorter form is made: about 2 ms
SHORTENED_LINE_CHARS_MAX: Final = 200  # one line of a shorter form
SIGNATURE_LINES_MAX: Final = 8  # lines of one signature
SUMMARY_MEMBERS_MAX: Final = 64  # definitions or paragraphs in a summary
HEADING_CHARS_MAX: Final = 300  # a source in a heading: its end tells more than its beginning
REPLAY_NAMED_MAX: Final = 10  # missing bodies that a message names; `details` has all of them

# Changesets.
CHANGESETS_PER_PLAN_MAX: Final = 1_000
ENTRIES_PER_PLAN_MAX: Final = 100_000  # a proof covers all of them in one step: about 100 ms of the loop
ACTIVE_PER_CONTEXT_MAX: Final = 64
PATH_CHARS_MAX: Final = 4_096
PATH_CHARS_SHOWN: Final = 200  # characters of a path that a message quotes
PATHS_LISTED_MAX: Final = 100  # paths in the details of a refusal: the message counts the others

# Receipts.
RECEIPTS_MAX: Final = 1_000  # past it, the oldest is deleted: a receipt explains a recent answer
RECEIPT_BYTES_MAX: Final = 4 * MIB  # 10,000 candidates of 400 bytes each
RECEIPTS_BYTES_MAX: Final = 256 * MIB  # all receipts together
RECEIPTS_PERCENT_MAX: Final = 10  # receipts as a share of the bytes of all bodies, because the room is for fragments
TITLE_CHARS_MAX: Final = 200  # the title of a receipt is one line of a list
RECEIPT_ROW_BYTES: Final = 2 * KIB  # one receipt in a page, without its projects, rounded up

# Ingesting.
INGEST_FILE_BYTES_MAX: Final = 4 * MIB  # a larger file is data: about 2,000 fragments that no query needs
INGEST_SNIFFED_BYTES: Final = 8 * KIB  # the beginning of a file, which is searched for a null byte before decoding
INGEST_LINE_CHARS_MAX: Final = 300  # a longer line is neither a definition nor a heading, and matching it takes long
INGEST_REFERENCE_CHARS_MAX: Final = 200  # a longer reference is neither a name nor a path
SYNTAX_DEPTH_MAX: Final = 40  # nested nodes of a syntax tree that are looked into for definitions: programs have a few
SYNTAX_BRACKETS_MAX: Final = 1_000  # brackets that are open at one place of a program: far more than any has
INGEST_TURNS_MAX: Final = 5_000  # turns of one file: a longer conversation is split by size
INGEST_TURNS_EXAMINED: Final = 20  # the first lines: if half of them are turns, the file is a conversation
INGEST_GIT_SECONDS_MAX: Final = 60.0  # time for git to list its files: past it, the directory is walked
INGEST_SETTLED_NS: Final = 2_000_000_000  # a younger file may change again within one tick of its clock
INGEST_JOB_FILES: Final = 16  # files that one job splits: mostly, the result fits into a message
INGEST_JOB_BYTES: Final = 256 * KIB  # bytes of the files of one job, unless a single file is larger
INGEST_JOBS_IN_FLIGHT: Final = 64  # jobs that are submitted and not stored yet: enough for any useful number of workers
INGEST_COMMANDS: Final = 250  # commands of one transaction for several files: about 20 ms of the loop
INGEST_ATTEMPTS_MAX: Final = 5  # attempts to store a file that other clients store at the same time
INGEST_BUSY_SECONDS_MAX: Final = 30.0  # the wait while the manager makes room for fragments
INGEST_BUSY_PAUSE_SECONDS: Final = 0.05  # between two attempts
INGEST_WARM_PERCENT: Final = 50  # of the warm tier for one project: the rest of a larger tree goes to cold
INGEST_PAUSE_SECONDS: Final = 0.5  # the first pause between two passes over a watched tree
INGEST_PAUSE_SECONDS_MAX: Final = 5.0  # the pause doubles up to this while nothing changes
INGEST_PAUSE_RATIO: Final = 10.0  # a pause takes this many times as long as a pass: at most a tenth of a core
HISTORY_COMMITS_MAX: Final = 1_000  # the last commits of a repository that are read: git lists them in about 50 ms
HISTORY_FILES_MAX: Final = 30  # files of one commit: a larger one says nothing about any of them
HISTORY_MESSAGE_CHARS_MAX: Final = 2_000  # of a message: the rest seldom has other words
HISTORY_BYTES_MAX: Final = 512 * KIB  # all messages and paths together: the row of a history is small beside its files
HISTORY_SECONDS_MAX: Final = 5.0  # for git to list them: past it, there is no history
INGEST_SKIPPED_MAX: Final = 1_000  # skipped files that a report names; it counts the others
SECRET_BYTES_MAX: Final = 64 * KIB  # the window in which one secret is matched: the longest private keys have 13 KiB

# Trees.
TREE_PART_BYTES: Final = MIB  # bytes of a file that are read, hashed or written at once
TREE_DELTAS_MAX: Final = ENTRIES_PER_PLAN_MAX  # paths of one transaction: all that a plan may have changed
TREE_LOCK_SECONDS: Final = 60.0  # the wait for another process at the same tree: a large change takes seconds
TREE_LOCK_PAUSE_SECONDS: Final = 0.01  # between two attempts at the lock of a tree
TREE_LOCK_BYTES_MAX: Final = 4_096  # bytes that are read from the lock file: it holds a process id
TREE_LOCK_NAME_BYTES: Final = 8  # random bytes in the name of a use of a tree: no two have the same
TREE_TABLE_SECONDS: Final = 5.0  # the wait for the table of tree locks, which a process holds for a moment only
TREE_TABLE_PAUSE_SECONDS: Final = 0.001  # between two attempts at the lock of that table
TREE_USE_BYTES_MAX: Final = 64 * KIB  # a use of a tree: a path, and the inode of each directory above it
TREE_TRANSACTION_NAME_CHARS_MAX: Final = 128  # with seal and suffix it is a directory's name, of at most 255 bytes
TREE_LOG_BYTES_MAX: Final = 256 * MIB  # of 100,000 paths, 2,600 bytes for each
TREE_KEY_BYTES: Final = 32  # no key can be found by trying
TREE_NONCE_BYTES: Final = 16  # no two transactions have the same
TREE_ENTRIES_MAX: Final = 500_000  # entries of a captured tree: about 200 MB
TREE_SPOOL_BYTES_MAX: Final = 4 * 1024 * MIB  # saved contents of one capture, in the directory for temporary files
TREE_ATTEMPTS_MAX: Final = 5  # attempts to read a file that another program writes at the same time
TREE_NAMED_MAX: Final = 20  # paths that a message names; `details` has all of them
CONFLICT_DIFF_FILES_MAX: Final = 3  # files in the diff of a conflict: a person looks at the others in the tree
CONFLICT_DIFF_LINES_MAX: Final = 20  # lines of that diff
CONFLICT_DIFF_LINE_CHARS_MAX: Final = 160  # characters of one of them
CONFLICT_DIFF_CONTEXT_LINES: Final = 2  # equal lines around a difference
CONFLICT_DIFF_WINDOW_LINES: Final = 100  # lines of each side that are compared: the time grows with the cube
CONFLICT_DIFF_BYTES_MAX: Final = MIB  # a larger file is not compared
MERGE_SECONDS_MAX: Final = 60.0  # git merge-file for one file

# Applying.
APPLY_WAIT_SECONDS: Final = 600.0  # the wait for another process at the same plan or tree: as long as a validation
APPLY_POLL_SECONDS: Final = 1.0  # a waiting process reads the plan this often, to see whether it still has to wait
APPLY_REPORTS_MAX: Final = 3  # attempts to report the outcome of a tree transaction after an answer was lost
VALIDATION_POLL_SECONDS: Final = 0.25  # a running validation is stopped this soon after its lease is lost

# Watching.
WATCHERS_MAX: Final = 64  # the manager filters every event for each watcher
EVENTS_BUFFERED: Final = 10_000  # changes in memory for watchers that are a little behind: about 10 MB
EVENTS_PER_FRAME: Final = 200  # events in one frame, unless a single revision has more
EVENTS_SENT_PER_TURN: Final = 1_000  # events that are examined for all watchers together: about 2 ms
WATCHER_OUTBOX_BYTES: Final = 256 * KIB  # past it, a watcher gets no more events until it reads
WATCHER_POSITION_SECONDS: Final = 0.25  # a watcher that may see none of the new events gets its position this often

# Clients of an event loop.
REQUESTS_IN_FLIGHT_MAX: Final = 128  # requests on one connection: further ones wait instead of being refused
UNSENT_BYTES_MAX: Final = MIB  # bytes that the manager has not read yet: past it, further requests wait
UPLOADING_CONNECTIONS_MAX: Final = 4  # each carries the large bodies of one request at a time
PUSHED_FRAMES_MAX: Final = 16  # frames that a watch has received and not returned: past it, the socket is not read
LOOP_THREADS_MAX: Final = 8  # threads for operations that would block the event loop
BUILT_BYTES_MAX: Final = 64 * KIB  # text whose tokens are counted in the loop, about 2 ms; more is counted in a thread

# Test doubles (`stepwell.testing`).
CLOCK_STEPS_MAX: Final = 1_000  # steps in which a test clock advances over a long time: about 100 ms
FAULT_WAIT_SECONDS: Final = 10.0  # the wait for an armed fault to happen: past it, the test fails
LEAK_SETTLE_SECONDS: Final = 3.0  # time for resources to end: a worker may outlive its manager by 2 s
LEAK_POLL_SECONDS: Final = 0.01  # between two snapshots while resources are ending
LOCAL_RUNTIME_END_SECONDS_MAX: Final = DRAIN_SECONDS_MAX + 5.0  # time for the manager's thread to end

# Counting tokens.
TOKENIZED_CHARS: Final = 32 * KIB  # in one call of the tokenizer, about 1 ms: past it, the next border ends the piece
TOKENIZED_CHARS_MAX: Final = 64 * KIB  # a piece without a border ends here
COUNTED_ALONE_CHARS_MAX: Final = MIB  # counted in the caller's thread, in up to 0.1 s; a longer text on all cores
COUNTED_TOGETHER_PIECES: Final = 64  # pieces in one call for all cores, up to 0.2 s: so long a fork may have to wait
TOKENIZER_CACHED_CHARS_MAX: Final = 8 * MIB  # then the tokenizer cache, which takes 13 bytes per character, is cleared

# The command line.
SKIPPED_SHOWN_BY_ASSEMBLE: Final = 3  # files that were not read: a user of assemble wants to see the answer
SECRETS_SHOWN: Final = 3  # secret files that were left out, and redacted places of an answer; the others are counted
SKIPPED_SHOWN_BY_INGEST: Final = 10  # files that were not read; --json has all of them
RECEIPT_ENTRIES_SHOWN: Final = 100  # candidates of a receipt; --json has all of them
FRAGMENTS_SHOWN: Final = 10  # fragments of each strategy; --json has all of them
DOCTOR_PROBLEMS_SHOWN: Final = 20  # problems of each check of a data directory; --json has all that are listed
OUTPUT_LINES_SHOWN: Final = 10  # last lines of a validation's output, also in an error's message
PLANS_SHOWN: Final = 10  # plans that an ambiguous prefix of an id matches
PLAN_PREFIX_CHARS_MIN: Final = 6  # a shorter prefix matches all plans of several hours, because ids begin with the time
DIFFSTAT_SIGNS_MAX: Final = 40  # the length of the bar of the file with the most changes
EVALUATION_THREADS: Final = 4  # questions that are asked at once, so that no worker waits for the next one
PROVE_ROUND_MS: Final = 20  # time in which all lanes of `prove` use the same keys: about 50 calls on two cores
PROVE_SQLITE_ROUND_MS: Final = 500  # the same for LangGraph's store, in which a call takes some tens of milliseconds
PROVE_CALLS_PER_ROUND: Final = 6  # calls of one lane in a round: a partition stays short enough to be searched
PROVE_PROCESSES_MAX: Final = 64
PROVE_THREADS_MAX: Final = 16  # of one process
PROVE_SECONDS_MAX: Final = 3_600.0  # a longer history would not fit into memory
PROVE_PEER_SECONDS_MAX: Final = 5.0  # for each peer: those that lose updates do so within a second
PROVE_EXAMPLES_MAX: Final = 8  # illegal partitions that are shrunk, to print the one that is understood most easily
PROVE_PLANS_MAX: Final = 1_000  # plans that one run creates before it begins: about a second
PROVE_SEARCH_STEPS_MAX: Final = 200_000  # states of one search: a few seconds, and far more than a legal history needs
PROVE_SHRINK_SEARCHES_MAX: Final = 5_000  # searches for the smallest illegal part: a few seconds
PROVE_LOG_SEARCHES_MAX: Final = 100  # the same of a log, whose states are more
PROVE_LOG_STEPS_MAX: Final = 5_000  # states of one of these searches: some tens of milliseconds
PROVE_KILL_SECONDS_MIN: Final = 0.2  # between the restart of a manager and the next kill
PROVE_KILL_SECONDS_MAX: Final = 1.0
PROVE_START_SECONDS_MAX: Final = 60.0  # until all worker processes of a run are connected, or have ended
PROVE_POLL_SECONDS: Final = 0.05  # between two looks at worker processes, at the clock and at the bar
PROVE_REPORT_BYTES_MAX: Final = 4 * KIB  # a line between a worker process and the trial
WORKER_MEMORY_BYTES_MIN: Final = 64 * MIB  # an interpreter with its modules takes half of it
COMPLETION_SECONDS: Final = 2.0  # a user who has pressed Tab waits no longer than that for a manager's answer
PIPE_COLUMNS: Final = 10_000  # wider than any path with its heading, because rich folds a table at this width

# The store.
RECENCY_SECONDS: Final = 10.0  # the interval at which access times are written: a crash loses the order of later reads
RECENCY_ROWS_PER_TURN: Final = 500  # access times that are written in one turn: about 2 ms
EVENTS_KEPT: Final = 100_000  # events in the store, for watchers that resume late
EVENTS_TRIMMED_PER_TURN: Final = 1_000
BODY_PART_BYTES: Final = MIB  # one part of a large body, which is written at once
PARTS_TRIMMED_PER_TURN: Final = 2  # parts of deleted bodies that one commit deletes: about 50 ms
TIDY_SECONDS: Final = 1.0  # the interval at which acknowledged replies and parts of deleted bodies are deleted
TABLES_BEHIND_SECONDS_MAX: Final = 10.0  # the tables of a manager that runs have what was committed before that
REDO_SECONDS: Final = 6.0  # the interval at which the tables begin to follow the redo log, while requests come
REDO_BYTES_MAX: Final = 32 * MIB  # records in the redo log: past it, each commit moves more of them than it adds
REDO_SLICE_BYTES: Final = 64 * KIB  # records that move into the tables at once: about 2 ms
REDO_SLICE_RECORDS: Final = 256  # small records cost more for each byte
WAL_PAGES: Final = 4_000  # pages of 4 KiB in the log before a checkpoint, which takes about 20 ms
WAL_BYTES_KEPT: Final = 16 * MIB  # a log that grew while a reader was open is truncated to this when it is used again
SQLITE_BUSY_SECONDS: Final = 5.0  # the wait for a lock that another tool holds
INSPECT_ATTEMPTS_MAX: Final = 3  # attempts to read a database while managers start or stop on it
BACKUP_STEPS_PER_CHECK: Final = 1_000  # steps of SQLite's virtual machine between two checks for Ctrl-C
MARK_BYTES_MAX: Final = 256  # bytes that are read from a mark: half a sector, which a disk writes at once
MARK_READ_ATTEMPTS: Final = 100  # reads of a mark that a manager is writing: the next one sees a whole record
LOCK_FILE_BYTES_MAX: Final = 4 * KIB  # bytes that are read from a lock file, which describes its holder
OTHER_FILES_SHOWN: Final = 3  # files in the message that refuses a data directory with other content
PROBLEMS_LISTED_MAX: Final = 1_000  # problems of one check of a data directory; the others are counted
PROBLEMS_SHOWN: Final = 5  # problems in the message of a manager that refuses a damaged directory; the doctor lists all

# The manager's process.
MANAGER_START_SECONDS_MAX: Final = 30.0  # from the start of the process until it serves: large directories take seconds
MANAGER_REPORT_BYTES_MAX: Final = 64 * KIB  # a line on the lifeline: how the start went, or why the manager ended
MANAGER_END_SECONDS_MAX: Final = DRAIN_SECONDS_MAX + 5.0  # from the request to end; past it, the process is killed
RESTARTS_MAX: Final = 5  # deaths of a manager within `RESTARTS_SECONDS` after which the supervisor gives up
RESTARTS_SECONDS: Final = 60.0
RESTART_PAUSE_SECONDS: Final = 0.1  # the pause before the second restart; it doubles with each further one

assert STREAM_COMMANDS * INLINE_BODY_BYTES_MAX < FRAME_BYTES_MAX, "a stream's inline bodies are one frame"
assert REPLY_BYTES_MAX + 2 * INLINE_BODY_BYTES_MAX + 4 * METADATA_BYTES_MAX < FRAME_BYTES_MAX - MIB, (
    "a stream closes a frame past this size, and one more store or change still fits"
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
assert AGENT_POLL_SECONDS * 1000 < RETRY_HEAD_START_MS, "an agent that has missed an event asks in time for a retry"
assert MERGED_ENTRIES + 3 <= BATCH_COMMANDS_MAX, "entries recorded at once, with their beginning and end, are a batch"
assert 2 * MERGED_ENTRIES <= UPLOADS_PER_REQUEST_MAX, (
    "the bodies of entries that are recorded at once are the uploads of one request"
)
assert MERGED_BYTES + 2 * INLINE_BODY_BYTES_MAX < FRAME_BYTES_MAX // 2, (
    "inline bodies of entries that are recorded at once fit into one frame"
)
assert CONFLICTS_MAX < CHANGESETS_PER_PLAN_MAX, "every conflict can be resolved, behind the changeset of the merge"
assert CONFLICTS_MAX * PATH_CHARS_MAX < REPLY_BYTES_MAX, "a plan with its conflicts is one reply"
assert 2 * VALIDATIONS_MAX * VALIDATION_OUTPUT_CHARS_MAX < REPLY_BYTES_MAX // 4, (
    "a plan with its validations is one reply"
)
assert VALIDATION_OUTPUT_CHARS_SHOWN + VALIDATION_COMMAND_CHARS_SHOWN < ERROR_CHARS_MAX, (
    "the message of a failed validation is a message"
)
assert CLOSED_PLANS_MAX < PLANS_MAX, "plans that are over leave room for others"
assert PLANS_PER_TREE_MAX < FORGOTTEN_ROWS_PER_STEP_MAX, "a tree's plans are forgotten in one step"
assert OUTLINE_ANCHOR_CHARS_MAX < FRAGMENT_ID_CHARS_MAX <= CURSOR_CHARS_MAX, "an id has room for a part's name"
assert OUTLINE_REFS_CHARS_MAX <= METADATA_VALUE_CHARS_MAX, "an outline fits into metadata"
assert RECEIPTS_MAX <= SCAN_ROWS_MAX, "a page of receipts examines all of them at the most"
assert INLINE_BODY_BYTES_MAX <= RECEIPT_BYTES_MAX <= RECEIPTS_BYTES_MAX, "the largest receipt has room"
assert LOG_INLINE_BYTES + LOG_APPENDED_MAX * (2 * METADATA_BYTES_MAX + KIB) < FRAME_BYTES_MAX - MIB, (
    "the bodies inside an append, and the metadata of all its entries, are one frame"
)
assert LOG_APPENDED_MAX <= UPLOADS_PER_REQUEST_MAX, "the bodies of an append are the uploads of one request"
assert RECONNECT_SECONDS_MAX * 1000 < LOG_POPPED_MS, "a client that comes back in time can read what it has popped"
assert WATCHER_OUTBOX_BYTES < OUTBOX_BYTES_MAX, (
    "events alone do not fill the outbox of a watcher, unless one revision has very many"
)
assert WORKERS_MAX * STRATEGY_PROBLEMS_MAX * (LABEL_CHARS_MAX + 2 * STRATEGY_PROBLEM_CHARS_MAX) * 4 < FRAME_BYTES_MAX, (
    "the problems of all workers are one frame, with 4 bytes for each character"
)
assert STRATEGY_PROBLEMS_MAX * (LABEL_CHARS_MAX + 2 * STRATEGY_PROBLEM_CHARS_MAX + 64) * 6 < WORKER_READY_BYTES_MAX, (
    "the problems of a worker are one report, with 6 bytes for each character, as an escape in JSON"
)
assert EVIDENCE_SECONDS < EXECUTOR_GRACE_SECONDS, "no executor gives a task up while its evidence is awaited"
assert REDO_SECONDS + TIDY_SECONDS < TABLES_BEHIND_SECONDS_MAX, "the tables have time to follow the redo log"
assert EVENTS_BUFFERED <= EVENTS_KEPT, "events that are in memory are in the store too"
assert REQUESTS_IN_FLIGHT_MAX + UPLOADING_CONNECTIONS_MAX + CONNECTIONS_PER_CLIENT_MAX < REPLIES_REMEMBERED_MAX, (
    "every request that is in flight when a connection breaks can be sent again"
)
assert INDEX_READS_MAX & (INDEX_READS_MAX - 1) == 0, "it is a power of two, so that the reads are counted by a mask"
assert INDEX_REPORT_MS * 2 <= INDEX_VALID_MS, "a client that reads causes a turn before the index expires"
