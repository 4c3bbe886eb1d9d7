"""The simulator: the real manager and real clients in one thread, on a simulated machine that one seed decides.

The manager's loop, state, journal and store, and the `stepwell.aio` clients with their session rules, are the real
code. Below them there is no kernel: sockets, the poller, processes, the clock, randomness and the disk are objects of
this package. The seed decides the order in which bytes arrive, how many of them, which process dies at which call, and
what a power failure leaves of each write that was not flushed. A run with the same seed is the same run.

`python -m tests.simulator --seeds 200` runs seeds, `--seed N` replays one, `--bugs` puts known bugs back and counts the
seeds until each is found.

Read in this order:
- `machine`: the clock, the scheduler and the faults.
- `network`, `disk`, `event_loop`: the ports, in place of the kernel.
- `manager_process`, `client_process`, `worker_process`: the processes that run on the machine.
- `workloads`: what the clients do, and what each of them may conclude.
- `oracle`: the checks after each turn, and the sequential model that a run is compared with at its end.
- `bugs`: bugs that the simulator has to find.
"""
