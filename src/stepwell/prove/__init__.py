"""`stepwell prove`: record what many processes see of a store, and judge it without trusting the store's own revisions.

Processes with several threads each make seeded random calls and record each call with its start, its end and its
outcome. A search then looks for one order of all calls that explains every outcome and that keeps the order of real
time. If there is none, the history is illegal, and the smallest illegal part of it is printed.

Entry points: `trial.run_trial` records a history, `verdict.judge` judges one, `report.timeline` prints its illegal
part. In order of reading: `history` (the recorded values), `models` (the sequential specifications), `search` (the
Wing-Gong-Lowe search), `partition`, `shrink`, `verdict`; then `workload`, `lane`, `performer` and `worker`, which
record, and `peers`, on which the same workload runs.

Imports: `client`, `aio`, `runtime` and what is below them. Only the command line imports this package.

Invariants:
- The judge sees values and outcomes only. A revision that the store has given is never evidence, because a store that
  numbers its writes wrongly would then vouch for itself.
- A call whose outcome is not known may have taken effect at any time after its start, or never.
- All times are those of `time.monotonic_ns`, which is one clock for all processes of a machine.
- Every part of a history that `shrink` leaves is illegal for every behaviour of the parts that it has removed.
"""
