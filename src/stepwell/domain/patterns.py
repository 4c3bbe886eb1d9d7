"""Patterns and globs that come from a caller: RE2, bounded in time and memory, whatever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import re2

from stepwell import limits
from stepwell.errors import InvalidArgument

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False  # it would write to stderr by itself
_OPTIONS.max_mem = limits.PATTERN_MEMORY_BYTES_MAX


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a whole text matches a pattern; or a refusal of the pattern."""
    try:
        compiled = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidArgument(f"pattern {pattern[:80]!r} is not an RE2 expression, or too large: {text}") from None
    return lambda text: compiled.fullmatch(text) is not None


def glob_matcher(globs: Iterable[str]) -> Callable[[str], bool]:
    """Whether a path matches any of the globs: '*' and '?' stay within a part, '**' crosses parts."""
    tokens = [_tokens(glob) for glob in globs]
    if sum(token in _GLOB_MEANINGS for each in tokens for token in each) > limits.WILDCARDS_MAX:
        raise InvalidArgument(f"the globs have more than {limits.WILDCARDS_MAX} wildcards: ask in parts")
    alternatives = ["".join(_GLOB_MEANINGS.get(token) or re2.escape(token) for token in each) for each in tokens]
    return matcher("(?s)" + "|".join(alternatives)) if alternatives else lambda _: True


_GLOB_TOKENS = re2.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_GLOB_MEANINGS = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}


def _tokens(glob: str) -> list[str]:
    return [glob[match.start() : match.end()] for match in _GLOB_TOKENS.finditer(glob)]
