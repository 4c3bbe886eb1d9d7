"""Values of the domain as JSON: fields by name, digests in hexadecimal."""

from msgspec import Struct

from stepwell.cli.common.json_values import to_json_value


class Inner(Struct, frozen=True, array_like=True):
    digest: bytes
    numbers: tuple[int, ...]


class Outer(Struct, frozen=True, array_like=True):
    inner: Inner | None
    by_name: dict[str, Inner]
    listed: list[Inner]


def test_every_field_has_its_name() -> None:
    """Also those of what travels without names."""
    inner = Inner(b"\x01\xff", (1, 2))
    told = {"digest": "01ff", "numbers": [1, 2]}
    assert to_json_value(Outer(inner, {"a": inner}, [inner])) == {
        "inner": told,
        "by_name": {"a": told},
        "listed": [told],
    }
    assert to_json_value(Outer(None, {}, [])) == {"inner": None, "by_name": {}, "listed": []}
