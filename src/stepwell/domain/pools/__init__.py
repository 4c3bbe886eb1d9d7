"""Token pools: budgets of model tokens that agents share, and the leases by which they use them.

An agent leases tokens before it calls a model, reports what it used, and returns the rest. So agents in any number of
processes together never plan to use more than the pool has.

- `model`: `TokenPool`, `TokenLease`.
- `commands` and `rules`: create, resize and delete a pool; lease, use and return tokens.
- `table`: pools by name, and by the sessions that hold their leases.

It imports the domain's core and no other subject.

Invariants: no lease is granted beyond the free tokens of its pool; a lease belongs to a session that has not ended;
what was reported as used stays used, whatever becomes of its lease.
"""
