"""The bounds of teams of agents: what agents can do, and how they take turns."""

from typing import Final

PLAN_LABELS_MAX: Final = 32  # labels of one plan, which every agent that asks for a child is compared with
AGENT_LABELS_MAX: Final = 64  # labels that an agent can do: a plan remembers them with the agent
AGENT_ACTORS_MAX: Final = 16  # actors as which one agent works
LIMITED_AGENTS_MAX: Final = 16  # agents with abilities that a plan remembers, each with all of its labels
