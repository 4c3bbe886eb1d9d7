"""Checks of a data directory, for `stepwell doctor`.

`doctor.examine` is the entry point. It reads the database through `storage.readonly`, which changes nothing, restores a
state from the rows and lists everything that is wrong: unreadable pages and rows, violated invariants, missing or
altered bodies, wrong sums, inconsistent sessions and events. `body_check` reads the bodies byte by byte.

Allowed imports: `domain`, `protocol.codec`, `storage` and `memory.compression`. Nothing of a running manager is used,
so that a directory can be examined while a manager serves it.

Invariants: the directory is not changed; a problem never ends the examination, it is listed and the rest goes on.
"""
