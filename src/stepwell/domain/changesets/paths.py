"""Paths inside a tree: relative and normalised, wherever they come from."""

from __future__ import annotations

from stepwell import limits


def problem_with(path: str) -> str | None:
    """Why a path is none that leads to somewhere below a root, and in one spelling only; None if it is."""
    if not path or len(path) > limits.PATH_CHARS_MAX:
        return f"has {len(path)} characters, 1 to {limits.PATH_CHARS_MAX} are allowed"
    if path.startswith("/"):
        return "is absolute"
    if "\0" in path:
        return "contains a NUL character"
    parts = path.split("/")
    if ".." in parts:
        return "leaves its root by '..'"
    return "is not normalised" if "." in parts or "" in parts else None
