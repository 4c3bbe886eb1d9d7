"""Shared memory: bodies and catalogues of projects, written by the manager and read in place by clients.

The manager writes segments: sealed memfds, or unnamed files for cold bodies. A client gets the descriptor of a segment
once, maps it read-only and reads bodies where they lie, without a copy and without a request. Bytes in a segment never
change after they were written, so that readers need no lock.

    `writer`       the manager's side: segments, arena, body store, background conversion, uploads, catalogues
    `reader`       the clients' side: mappings, and the replay of catalogues to views of a project
    `compression`  the packed form of warm and cold bodies, used by both sides

Order of reading: `writer.segments`, `writer.arena`, `writer.body_store`, `writer.compaction`; then `writer.catalogue`
with its counterpart `reader.catalogue_reader`, and `reader.mappings`.

Allowed imports: `domain` (rows, tiers and references), `protocol.handles` (the layout that both sides share), `limits`
and `errors`. `writer` is imported by the manager only and `reader` by clients only; import-linter checks both.

Invariants:
    A handle stays readable for as long as a client maps its segment, whatever the manager does meanwhile.
    A reader pins a segment and nothing else: a slow or dead client delays no writer.
    A body is in one place at any time; it moves by being written elsewhere first.
"""
