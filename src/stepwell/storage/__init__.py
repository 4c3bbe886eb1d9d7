"""Storage: how a manager's state survives the manager.

A data directory holds one SQLite database, a mark of its last commit and a lock file. Its manager is the only writer
and commits each turn of its loop as one transaction. Clients read cold bodies straight from the database, and the
command line inspects and copies it, all while the manager writes.

Entry points:
    `store.Store` is the interface that the manager uses. `sqlite.SqliteStore` implements it durably, and
    `null_store.NullStore` stores nothing.
    `files.directory.DataDirectory` locks a data directory. `body_reader.BodyFile` reads bodies in a client.
    `loss.accept_loss` begins a new epoch after a loss of commits.
    `readonly.inspect` reads a database without a trace, for the doctor. `backup.back_up` copies one.

Order of reading: `store` (the interface), `sqlite` (a commit), `changes` and `redo_log` (a turn as one row, and its way
into the tables), `log_view` (the same for readers), `table` and `rows` (a row as columns, with a checksum), `schema`
(tables and migrations), `database` (opening, and what counts as damage), `load` (reading all back), `files.mark` and
`loss` (lost commits), `files.private_files` (what is opened at all); then the others.

Allowed imports: `domain` for the rows, `protocol.messages` for a default, `limits` and `errors`.

Invariants:
    A commit is atomic. When it has returned, it survives what the durability promises.
    A database that fails its checks is left byte for byte unchanged.
    A commit that was acknowledged and is not there is noticed, and so is a row that is not the one that was written.
    Revisions compare within one epoch only. A copy, or a loss of commits, starts a new epoch.
"""
