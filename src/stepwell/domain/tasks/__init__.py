"""Tasks: work of strategies on requests, done by worker processes; and the workers.

A client submits a task, the manager leases it to a worker that offers its strategy, and the task ends in one outcome:
done, failed, cancelled or quarantined. Nothing of it is stored: tasks and workers end with the manager.

- `model`: `Task`, `TaskState`, `Worker`, `StrategyOffer`, with a picture of a task's states.
- `commands` and `rules`: the commands and their deciders.
- `queue`: the tables of tasks and workers, and the order in which tasks are leased.

It imports the domain's core, and of other subjects only `tiers.model`, because a large result is a body. The manager's
task dispatch sends the internal commands and pushes tasks to workers and outcomes to clients.

Invariants: a task that was accepted has exactly one outcome; a result counts only for the current attempt; a worker has
at most one current and one prefetched task; three deaths of workers quarantine a task.
"""
