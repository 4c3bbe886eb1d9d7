"""The demonstration: `python -m examples.demo`, from the root of the repository.

Several processes of several threads each store fragments, create actions and record changes at the same moment. The
same job then runs on plain dicts without any synchronisation. The report shows what each of the two has lost.
"""
