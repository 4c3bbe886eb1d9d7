"""The domain: the rules of tiers, plans, changesets, applies, tasks, receipts, logs and pools, as a pure state machine.

It does no I/O and has no clock, no randomness and no thread. Time, ids and bytes arrive inside commands, so that the
same commands always give the same state. The manager owns the only `State` and applies one command at a time.

Entry points: `machine.apply`, `apply_all`, `apply_get_run`, `apply_store_run`, `note_packed_bytes`, `track_reads` and
`drain_reads` are the only ways to change a state. `commands` and `replies` are its inputs and outputs,
`event_builder.events_of` derives events, and `invariants.check` returns the defects of a state.

Reading order: `command_roots`, `reply_roots`, `tiers.model`, `tiers.commands`, `verdict`, `tiers.rules`, `state`,
`machine`; then `plans.lifecycle` and the other subjects. In each subject's folder `model` has the values, `commands`
the commands, `rules` the deciders, `table` or `queue` the mutable index, and further modules one algorithm each.

Imports: nothing of stepwell but `errors` and `limits`. Import contracts in pyproject.toml order the inside:

    machine, invariants, event_builder      on top; no rule imports them
    rules of the subjects                   plans import changesets, and the turns of applies; changesets import tiers;
                                            tasks, receipts and logs import tiers only, for `Tier` and `BodyRef`;
                                            pools import none
    state, verdict, leases                  the core that all rules share
    commands, replies, events, tables       values and tables; they know nothing of the state

The core imports the values of all subjects, because the state has a table of each. That is why the contracts between
subjects forbid direct imports only. Leases are in the core, because changesets are recorded under a plan's lease.

Invariants: deciding changes nothing, evolving cannot fail, and a refused command leaves no trace. Rows are immutable.
Whatever a table derives from its rows agrees with them after every command.
"""
