"""Plans: actions as templates, plans with their phases and leases, subplans, decisions, merges and validations.

An action is a template. Using it creates a plan, which goes through three phases: strategize, execute and apply. A plan
that is worked on has a lease; the session that holds the lease may change the plan until the lease expires. A plan can
declare children (subplans) while it executes; the changes of the children are merged into the parent.

Entry points:

- `commands` has one frozen Struct for each request. The modules `actions`, `rules`, `subplans`, `decisions`, `merge`,
  `apply` and `retention` have one function for each command, registered with `@decides`.
- `model` has the values that are stored: `Action`, `Plan`, `Decision` and their parts.
- `lifecycle` has the legal transitions as tables. `transitions.transition` is the only function that reads them.
- `plan_tree` answers questions about parents and children: which child may start, which children are finished.

Imports: this package may import the core of the domain (state, verdict, replies, checks), `domain.changesets` and
`domain.tiers`. It does no I/O and never reads a clock: time and ids arrive inside commands.

Invariants:

- A plan has a lease if and only if its state is `processing`. The lease tokens of one plan only grow.
- A plan changes its position only along the tables of `lifecycle`.
- A child never outlives its parent's tree: retention removes a whole tree or nothing of its plans.
- Children that were merged are not reverted or cancelled alone, because their changes belong to the parent by then.
"""
