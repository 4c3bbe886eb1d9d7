"""The bounds of teams of agents: what agents can do, and how they take turns."""

from typing import Final

PLAN_LABELS_MAX: Final = 32  # labels of one plan, which every agent that asks for a child is compared with
AGENT_LABELS_MAX: Final = 64  # labels that an agent can do: a plan remembers them with the agent
AGENT_ACTORS_MAX: Final = 16  # actors as which one agent works
APPLY_PRIORITY_MAX: Final = 100  # of a caller in the queue of a tree, and the same below zero
APPLY_QUEUE_MAX: Final = 64  # tickets of one tree: each one that ends writes the places of all behind it
APPLY_TICKETS_MAX: Final = 4_096  # tickets of all trees
APPLY_TICKETS_PER_SESSION_MAX: Final = 64  # all of them end in one step when the session ends
APPLY_TURN_MS: Final = 30_000  # a caller whose turn has come begins, or asks again, within this time
APPLY_QUEUE_CHECK_SECONDS: Final = 10.0  # a caller that waits asks so often: events may be lost with a connection
LIMITED_AGENTS_MAX: Final = 16  # agents with abilities that a plan remembers, each with all of its labels

assert APPLY_QUEUE_CHECK_SECONDS * 2 < APPLY_TURN_MS / 1000, (
    "a caller that has missed an event asks before its turn ends"
)
