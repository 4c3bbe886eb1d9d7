"""The clients' side of shared memory: read-only, without requests.

`mappings.Mappings` maps the segments that the manager sends. `catalogue_reader.replay` turns a catalogue in these
segments into a view of a project at one revision, and `changes` into the difference between two revisions.
`persistent_map` and `row_chunks` are the immutable collections of such a view: a new view shares with the one before it
what has not changed.

Any thread of a client may use a mapping or a view: mappings are locked, views are immutable.

Allowed imports: `domain` for the rows, `protocol.handles` for the layout, `memory.compression`, `limits` and `errors`;
never `memory.writer`.

Invariants: nothing here writes to shared memory. A memoryview of a body stays readable for as long as the program holds
it, and a state at one revision never changes.
"""
