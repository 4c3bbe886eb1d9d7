"""A slice of the benchmark, so that it cannot rot. It times nothing that a test could fail on."""

from benchmarks.__main__ import WANTED, measure, ratios
from benchmarks.contenders import contenders


def test_everybody_takes_part() -> None:
    """Each contender puts and gets in each round, and has a ratio to the standard library's."""
    with contenders() as peers:
        rates = measure(peers, rounds=2, operations=10)
        base = peers[0].name
    assert all(len(values) == 2 and min(values) > 0 for works in rates.values() for values in works.values())
    assert ratios(rates, base)[base, "put"] == 1.0
    assert ratios(rates, base).keys() >= WANTED.keys()
