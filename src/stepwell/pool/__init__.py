"""Worker processes: they work for a program or a manager, and never outlive it.

There are two kinds. A strategy worker (`pool.strategy`) connects to a manager, leases tasks and runs strategies on
them; a supervisor starts and replaces such workers. A function worker (`pool.functions`) calls functions of the
program that started it, over a socket between the two, and knows no manager.

Both kinds are processes of `stepwell.process` and share two modules: `process_limits` binds a worker process to its
parent, and `pickling` turns functions and objects of the program into bytes.

Entry points: `functions.executor.FunctionExecutor`, `strategy.background_pool.BackgroundPool` and
`strategy.supervisor.Supervisor`.

May import: everything below `runtime` except `manager` and `aio`. The two kinds do not import each other.

Invariants: `pickling` is the only module of the package that unpickles, and only data that came over a descriptor
which a child inherited from the program that started it. No worker runs the program's `__main__` again.
"""
