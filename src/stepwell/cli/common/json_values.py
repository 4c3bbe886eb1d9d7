"""Conversion of domain values to plain JSON values: a Struct is an object with its field names, a digest is
hexadecimal.

msgspec would write Structs with `array_like=True` as arrays. Scripts need names, so the conversion is done here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct
from msgspec.structs import asdict


def to_json_value(value: object) -> object:
    """Return the value in a form that `json.dumps` accepts. Enumerations of strings are strings already."""
    if isinstance(value, Struct):
        return {name: to_json_value(each) for name, each in asdict(value).items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple | list):
        return [to_json_value(each) for each in cast("Sequence[object]", value)]
    if isinstance(value, dict):
        return {name: to_json_value(each) for name, each in cast("Mapping[str, object]", value).items()}
    return value
