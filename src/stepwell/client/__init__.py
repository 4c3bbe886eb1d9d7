"""The blocking client: a program's side of the conversation with a manager.

Layers, each importing only the ones below it (an import contract in `pyproject.toml` checks this):

    client, plan_lifecycle, execution    facades: the classes that programs use, documented for `help()`
    workflows                            operations of several requests, files or threads
    api                                  one method for each command, called blocking, in a batch, or awaited
    session                              connections, resending, leases, tokens, bodies, tasks

Entry points: `stepwell.connect` and `Runtime.client` return a `client.Client`. Its services are `tiers`, `plans`,
`receipts` and `strategies`; `Client.execution` makes a `PlanExecutionContext` for one plan.

The package may import `assembly`, `trees`, `ingest`, `strategies`, `transport`, `memory.reader`,
`memory.compression`, `storage.body_reader`, `protocol` and `domain`; never `manager` or `pool`. `aio` builds on it.

Threads: a client, its services and its contexts may be used from any number of threads. In a forked child they begin a
session of their own, and a pickled client connects anew. Leases stay with the session that they were given to.

Invariants:

- The manager is the only process that changes fragments and plans, each command in one step. So clients need no lock
  against each other.
- A request keeps its number when it is sent again after a lost connection, and the manager remembers its answers. So a
  command takes effect once; if that cannot be known, the call raises `OutcomeUnknown`.
- Only the client's process changes a user's files, in transactions that a crash does not tear (`stepwell.trees`).
"""
