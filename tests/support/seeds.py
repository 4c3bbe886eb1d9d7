"""Randomness that can be repeated."""

import random


def seeded(seed: int) -> random.Random:
    """A generator whose seed is printed, for whoever has to repeat a failure."""
    print(f"seed {seed}")
    return random.Random(seed)
