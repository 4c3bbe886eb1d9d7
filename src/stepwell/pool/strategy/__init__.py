"""Strategy workers: processes that run strategies on tasks which they lease from a manager.

Entry points: `supervisor.Supervisor` keeps a number of workers alive in the calling thread (`stepwell workers`);
`background_pool.BackgroundPool` does so in a thread of its own (`Runtime`, `stepwell serve`).

    Supervisor --- StrategyWorkerProcess --- worker.main ------ tasks ------ manager
        |                                                                       |
        +------------------ reports of deaths, as a client ---------------------+

`worker` is the program of a worker process, `worker_process` the supervisor's view of one, `settings` what both agree
on, `jobs` the tasks that are no strategies.

May import: the client, `stepwell.process`, `stepwell.pool.pickling`, `stepwell.pool.process_limits`, strategies and
ingest. It does not import the manager, which runs elsewhere, or function workers.

Invariants: a worker runs one task at a time. An exception of a strategy fails its task and leaves the worker alive,
except a MemoryError, after which the worker is replaced.
Each unexpected death is reported with evidence. No worker outlives its supervisor's thread or its manager.
"""
