"""Values of the domain as JSON has them: an object for each, with its fields by name, and digests in hexadecimal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct
from msgspec.structs import asdict


def to_json_value(value: object) -> object:
    """The same, as `json.dumps` takes it."""
    if isinstance(value, Struct):
        return {name: to_json_value(each) for name, each in asdict(value).items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple | list):
        return [to_json_value(each) for each in cast("Sequence[object]", value)]
    if isinstance(value, dict):
        return {name: to_json_value(each) for name, each in cast("Mapping[str, object]", value).items()}
    return value
