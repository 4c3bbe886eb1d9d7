"""The words of generated texts: as many pronounceable ones as a text needs."""

from __future__ import annotations


def spelled(number: int) -> str:
    """Return a pronounceable word, a different one for each number."""
    word = ""
    while True:
        number, part = divmod(number, 80)
        word += "bcdfglmnprstvzkh"[part // 5] + "aeiou"[part % 5]
        if not number:
            return word + "n"
