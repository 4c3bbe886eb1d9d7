"""The bounds of shared memory: segments, bodies, catalogues, and the index of reads."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Segments and bodies.
SEGMENT_BYTES_MAX: Final = 16 * MIB  # a segment that bodies share; a larger body has a segment of its own
SEGMENT_BYTES_MIN: Final = 64 * KIB
SEGMENTS_PER_ARENA: Final = 32  # a small arena has small segments, so that the unfilled one is a small part of it
ALLOCATION_BYTES: Final = MIB  # allocated by the kernel in one call: about 0.3 ms
PREPARED_BYTES_PER_TURN: Final = 4 * MIB  # memory of one upload that is allocated in one turn, before it is granted
FILE_SEGMENT_BYTES: Final = 64 * MIB
FILE_BYTES_MAX: Final = 16 * 1024 * MIB  # files of cold bodies, including dead space
DESCRIPTORS_PER_FRAME_MAX: Final = 200  # the kernel passes at most 253 descriptors in one call
DEAD_PERCENT_MAX: Final = 20  # dead bytes of all segments: past it, the segment with the most dead bytes is emptied
WORK_BYTES_PER_SLICE: Final = 256 * KIB  # compressed, expanded or moved in one step of background work: about 1 ms
WORK_SECONDS_PER_TURN: Final = 0.001
QUEUE_SLICE_BODIES: Final = 1_000  # bodies that are taken from the queue of conversions at once
WORK_SECONDS_MAX: Final = 0.01  # background work that a store without room waits for before it is refused
PACKED_PERCENT_MAX: Final = 90  # a body whose compressed size is a larger share stays uncompressed
BLOCKED_RETRY_SECONDS: Final = 5.0  # conversions that found no room are tried again after this time
PRESSED_PERCENT: Final = 75  # of the arena: past it, background work runs between busy turns too, not only in idle ones
UPLOADS_PERCENT_MAX: Final = 50  # of the arena, for all uploads in progress, unless all are from one peer
MOVED_BODY_ATTEMPTS_MAX: Final = 100  # attempts to read a body or a catalogue that the manager moves after each answer
UPLOADS_PER_REQUEST_MAX: Final = 1_000
UPLOAD_SECONDS_MAX: Final = 60.0  # from the grant of an upload to its last byte
GRANT_SECONDS_MAX: Final = 30.0  # an offered upload waits this long for room
MAPPED_MAX: Final = 5_000  # segments that a client reports as mapped: so many fit into a greeting
RELEASED_PER_MESSAGE_MAX: Final = 1_000
RETIRED_REMEMBERED: Final = 4_096  # retired segments that a client remembers, so that a late descriptor maps none again
RETIRED_BYTES_MAX: Final = 1024 * MIB  # retired segments that a client still maps

# Catalogues, which clients replay to views.
CATALOGUE_SEGMENT_BYTES_MIN: Final = 64 * KIB
CATALOGUE_SEGMENT_BYTES_MAX: Final = 4 * MIB
CATALOGUE_ROWS_PER_SLICE: Final = 500  # rows that are listed between two turns: about 1 ms
CATALOGUE_DROP_SECONDS: Final = 1.0  # a catalogue that was used within this time is not dropped to make room for a body
CATALOGUES_MAX: Final = 256  # projects with a catalogue: past it, the least recently requested one is dropped
CATALOGUE_RECORDS_MIN: Final = 4_096  # stale records that a catalogue may have, however small its project is
CATALOGUE_IDLE_SECONDS: Final = 600.0  # without a request: then a catalogue is dropped, and built again on demand
VIEW_STATES_PER_PROJECT_MAX: Final = 4  # replayed states that a client caches, for readers of slightly older views

# The index of hot fragments.
INDEX_SLOTS_MAX: Final = 2**20  # fragments in the index of reads; longer rows take several slots of 256 bytes
INDEX_CELLS_MIN: Final = 4_096  # of the first hash table: 64 KiB
INDEX_CELLS_MAX: Final = 2**21  # of the largest one: 32 MiB
INDEX_GROWTH: Final = 8  # the factor from one hash table to the next
INDEX_CELLS_PERCENT_GROWTH: Final = 50  # past it, a larger hash table is filled
INDEX_CELLS_PERCENT_MAX: Final = 87  # of cells in use: a search for an absent name then looks at some thirty cells
INDEX_CELLS_LOOKED_AT_MAX: Final = 1_024  # in one search: a table that is being changed may have no end
INDEX_CELLS_PER_SLICE: Final = 1_000  # cells that are copied into it between two turns: about 1 ms
INDEX_ROWS_PER_SLICE: Final = 16  # fragments that are entered in an idle moment: about 60 µs
INDEX_ROWS_PER_READ: Final = 32  # fragments that are entered when a client has asked for one
INDEX_ROWS_PER_TURN_MAX: Final = 64  # of those: about 0.25 ms
INDEX_PROJECTS_PER_SLICE: Final = 16  # projects that are put on the list of those to enter
INDEX_VALID_MS: Final = 500  # a manager that is dead or stopped is not read for longer than this
INDEX_REPORT_MS: Final = 100  # a client that reads asks for a fragment after this time, and reports its reads
INDEX_READS_MAX: Final = 2**16  # or after so many reads: their report takes the manager 50 ms at most, in many turns
INDEX_READS_PER_REPORT_MAX: Final = 1_000  # so that the manager counts a report within a millisecond
INDEX_COUNT_PER_REPORT_MAX: Final = 1_000_000_000  # a counter: the sum over all reports stays an 8-byte integer
INDEX_READS_PER_COMMAND: Final = 16  # reads in a report that count as one command of a turn
INDEX_KNOWN_PARTS: Final = 8  # when there are too many, one of so many parts of them is dropped
INDEX_KNOWN_MAX: Final = 65_536  # records that a client keeps decoded: about 64 MiB
INDEX_ATTEMPTS_MAX: Final = 1_000  # to read a record between two publications, about 50 µs; then the client asks
