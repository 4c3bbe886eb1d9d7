"""Changesets: the changes of files that a plan records while it executes, by content.

A plan records changes inside an execution context, which has a stack of open changesets. Each change is an entry: a
path with its content before and after. Closing a changeset makes its entries count; aborting it makes them not count.
Neither can be undone. The closed changesets of the attempt that executed are what an apply brings into a tree.

Entry points:

- `commands` has the requests; `rules` decides them and has the functions that plans need of changesets.
- `model` has the stored values (`Changeset`, `EntryRow`, `ContextRow`, `Content`) and `Change`, which a client gives.
- `net_changes` combines many entries into one net change for each path.
- `paths` checks paths and file modes, also for the code that walks real trees.

Imports: this package may import the core of the domain and `domain.tiers` (for digests and bodies). `rules` also reads
plans and their leases, because changes are recorded under a plan's lease. It does no I/O.

Invariants:

- Entries are only appended, and only to an open changeset. `seq` numbers the entries of a changeset without gaps,
  `ordinal` those of a plan.
- A content names bytes by their digest. `held` says that the manager stores the bytes too.
- Every path is relative, normalised and in Unicode's normal form C, so that one file has one spelling.
"""
