"""Workflows of the client: operations that take several requests, files or threads, built on `client.api`.

Each workflow is one public method of a facade. Three groups:

    apply, rollback, merge, capture, plan_diff    change or read a tree for a plan (`PlanExecutionContext`)
    agent                                         work on the children of a plan (`PlanLifecycleService.work_on`)
    ingest, assemble, strategy_executor           fill a project, and answer questions about it (`Client`)

Their parts: `plan_delta` (net changes as tree deltas), `tree_recovery` (unfinished transactions at a root), `report`
(an outcome that must reach the manager), `wait` and `heartbeat` (leases and locks over time), `validations` (commands
in a tree), `merge_tree` (children's changes merged in memory), `ancestry` (decisions above a plan), `split_files` (jobs
for the workers), `circuit_breaker`.

Workflows take `PlanApi`, `ChangesetApi` or a protocol, and never import a facade; `aio` runs the same workflows in
threads. They may import `client.api`, `client.session`, `trees`, `ingest`, `assembly` and below.

Invariants: the manager never touches a user's files, so all work in trees is here, in the caller's process. A workflow
that is killed at any moment leaves a state that the next call recovers from. Each object belongs to one call and one
thread, except for `ContextAssembly`, `ProjectIngest` and `DefaultStrategyExecutor`, which any thread may use.
"""
