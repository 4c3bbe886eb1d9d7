"""Logs: named lists of entries in a project, to which any number of processes append.

An append commutes with other appends and costs the same for ten entries and for a million. Everything else is
compare-and-set: each command can name the head, the revision of the log's last change, that the caller expects.

- `model`: `LogEntry`, which a caller appends, the rows of logs and entries, and `LogStatus`.
- `commands` and `rules`: append, read, pop, clear, retain, delete, list, and the manager's own trimming.
- `entries`: the entries of one log in memory, in order.
- `table`: all logs and all entries, and which of them have rows to delete.

It imports the domain's core, and of other subjects only values of `tiers`, because the body of an entry is a body like
any other.

Invariants: positions grow from 1 and are never used twice in a log. What retention, `clear` or `delete` removes is
invisible at once: a row says so, in one step, and the rows of dead entries are deleted later, a bounded number at a
time.
"""
