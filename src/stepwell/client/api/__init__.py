"""The services of a client: a method for each command, which checks its arguments and decodes its reply.

Entry points:
- `service`: `Service`, its three kinds, and `method`, which turns a function that builds a `Call` into a method.
- `tiers`, `plans` (with `subplans` and `plan_leases`), `changesets`, `receipts`, `logs`: the calls on each subject.
- `batch`: many calls in one frame, or in one transaction.
- `strategies`: tasks for worker processes. `watch`: committed events. `log_watch`: new entries of a log. `views`:
  fragments of one revision.
- `fragments`, `log_entries`, `entry_diff`: values that the services return.

A `…Calls` class defines the calls of a subject. The blocking service (`PlanApi`, `ChangesetApi`, …), the buffered one
for batches and the asynchronous one in `stepwell.aio` derive from it.

Imports: `client.session` and the packages below the client; never `client.workflows` or a facade. An import contract
enforces that. Operations that need several calls with decisions between them belong to `workflows`.

Invariants:
- A method sends exactly one command. Bulk methods (`store_many`, `scoped`, …) say in their docstring that they send
  more.
- Arguments of a wrong type are refused here, before anything is sent. All other rules are the manager's.
- Returned values are immutable snapshots; no service caches what the manager owns, except leases.
"""
