"""Patterns and globs that a caller gives, matched with RE2.

RE2 needs time linear in the text for every pattern, and refuses a pattern that needs too much memory. Python's `re`
would let one request stop the manager, because a pattern can take exponential time there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import re2

from stepwell import limits
from stepwell.errors import InvalidArgument

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False  # RE2 would write them to stderr; the error is raised anyway
_OPTIONS.max_mem = limits.PATTERN_MEMORY_BYTES_MAX


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that says if a whole text matches the pattern. Raises `InvalidArgument` for a bad pattern."""
    try:
        compiled = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidArgument(f"pattern {pattern[:80]!r} is not an RE2 expression, or too large: {text}") from None
    return lambda text: compiled.fullmatch(text) is not None


def glob_matcher(globs: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that says if a path matches any of the globs. Without globs, every path matches.

    `*` and `?` stay within one part of a path, `**` crosses parts. Raises `InvalidArgument` for too many wildcards,
    because every row of a page is matched against all globs.
    """
    tokens = [_tokens(glob) for glob in globs]
    if sum(token in _GLOB_MEANINGS for each in tokens for token in each) > limits.WILDCARDS_MAX:
        raise InvalidArgument(f"the globs have more than {limits.WILDCARDS_MAX} wildcards: ask in parts")
    alternatives = ["".join(_GLOB_MEANINGS.get(token) or re2.escape(token) for token in each) for each in tokens]
    return matcher("(?s)" + "|".join(alternatives)) if alternatives else lambda _: True


_GLOB_TOKENS = re2.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_GLOB_MEANINGS = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}


def _tokens(glob: str) -> list[str]:
    """Return a glob in pieces: wildcards, and the literal texts between them."""
    return [glob[match.start() : match.end()] for match in _GLOB_TOKENS.finditer(glob)]
