"""The demonstration: `python -m examples.demo`, from the root of the repository.

Several processes, each with several threads, store fragments, create actions and record changes at the same time. The
same job then runs on plain dicts without any synchronisation. The report shows what each of the two has lost.

Entry point: `command.main`. `job` has the work of one caller, `processes` runs the callers on the runtime, `dicts` runs
them on the unsynchronised double of `tests.doubles`, `proof` reads everything back, `report` prints both proofs.

Nothing is inferred from the absence of errors: every fragment, action and change is read back and compared.
"""
