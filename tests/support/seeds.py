"""Randomness that can be repeated."""

import random


def seeded(seed: int) -> random.Random:
    """Return a generator whose seed is printed, so that a failure can be repeated."""
    print(f"seed {seed}")
    return random.Random(seed)
