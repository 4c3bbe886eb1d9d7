"""Tiers: fragments of context in hot, warm and cold, within budgets.

A fragment enters hot. Reads promote it; idleness, or lack of room, demotes it by one tier. Hot is bounded by tokens,
warm and cold by entries, hot and warm together by the bytes of shared memory that their bodies need.

- `model`: `Tier`, `Fragment`, `FragmentRow`, `TierBudget`, `BodyRef`.
- `commands` and `rules`: the commands and their deciders. `budget` enforces the budgets.
- `fast_path`: the two simplest cases. It decides runs of stores for `machine.apply_store_run`; `machine.apply_get_run`
  decides those of reads.
- `table`: all fragments with their orders, sums and pages, built on `lru` and `serial_index`.
- `body_refs`: digests, and the counts of references to bodies from all rows of the state.
- `source_outline`: the place of a fragment in its source file, kept in its metadata.

It imports the domain's core and no other subject. Plans, changesets, tasks and receipts import it.

Invariants: a fragment is in exactly one tier; no budget is exceeded after any command; overflow demotes and never
deletes; a body is counted exactly as long as a row refers to it. `domain.invariants` has them as code.
"""
