"""The manager: the process that owns the state and serves it to clients.

One thread runs one loop. A turn of the loop polls the sockets, reads and applies requests one after the other, commits
everything that the turn changed in one transaction, and only then sends the replies. From this order follow the
promises of the project: requests take effect one at a time, and no client hears of an effect that could still be lost.

Entry points:
    `process.serve` runs a manager until it is told to stop; `process.main` is the same for a spawned process.
    `loop.Loop` is the loop itself, which tests turn by hand.
    `check.doctor.examine` checks a data directory without a manager.

Order of reading: `loop` (a turn), `acceptor`, `connection`, `handshake` and `sessions` (who is connected),
`request_handler` and `reply_cache` (from a request to its response, once), `large_requests` (the same in slices),
`state_owner` (the only holder of the state), `journal` (what a
turn commits), `housekeeping` (what the manager does by itself). Then one module for each further concern: `uploads`,
`deferred`, `shared_segments`, `event_feed` and `watchers`, `task_dispatch`, `recovery`, `process`.

Allowed imports: `domain`, `protocol`, `transport`, `storage`, `memory.writer`, `memory.compression` and `telemetry`.
The client never imports this package, and this package never imports the client: they share the protocol alone.

Invariants:
    Only the thread that made the `StateOwner` uses the state. All other uses raise `NotOwner`.
    Nothing is sent to a peer except in `Loop._reply`, which runs after `Journal.commit`.
    Nothing in the loop blocks on a peer: reads and writes do not block, and work per peer and turn is bounded.
    A defect while the state changes ends the manager (`StateBroken`); a defect in a decision refuses that command
    (`ManagerFault`); a defect outside costs one connection.
"""
