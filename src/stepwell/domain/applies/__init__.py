"""The queue of applies: plans that are ready to be applied to one tree take turns, by priority and then by age.

A caller that waits joins with a ticket, which is a row. The plan of the first ticket applies; the others are told their
place by events. The manager never opens a tree: a tree is a path, as the clients name it, and the tree's own lock keeps
changes apart that know nothing of this queue.

- `model`: `ApplyTicket`.
- `commands` and `rules`: join, leave, and read a queue.
- `turns`: the order of a queue, and the end of tickets whose plan or session has moved on.
- `table`: tickets by tree, by plan, by session, and by the end of their turn.

It imports the domain's core and the values of plans; of the rules of plans, only starting an apply imports `turns`.

Invariants: a ticket belongs to a plan that is queued for apply or being applied. The places of a queue are those of its
order, without gaps. Each ticket at the first place whose plan is still queued has a time until which it has to begin.
"""
