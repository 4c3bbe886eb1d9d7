"""Function workers: processes that call ordinary functions of the program.

Entry point: `executor.FunctionExecutor`, which `Runtime.executor()` returns and which needs no manager.

    program's threads      scheduler's thread            worker process
    executor.submit  --->  scheduler.CallScheduler  ---> worker_main.main
         future      <---  results.complete         <---

`worker_process` is the scheduler's view of one worker, `frames` the format between the two, `worker_main` the program
of the worker. Functions are pickled by `stepwell.pool.pickling` and travel over an inherited socket only.

May import: `stepwell.process`, `stepwell.pool.pickling`, `stepwell.pool.process_limits`, errors and limits. It does not
import strategy workers, clients or the manager.

Invariants: every submitted call is completed or cancelled, once. A call is run at most once if it was begun. The
death of a worker fails the call that it ran and no other. No worker outlives the program or the scheduler's thread.
"""
