"""Values written out with every field, for comparisons: the `repr` of a public value shows a few facts only."""

from msgspec import Struct


def spelled(value: object) -> str:
    """Return a text that differs for any two values that differ in a field."""
    match value:
        case Struct():
            fields = (f"{name}={spelled(getattr(value, name))}" for name in value.__struct_fields__)
            return f"{type(value).__name__}({', '.join(fields)})"
        case list() | tuple():
            return f"{type(value).__name__}({', '.join(map(spelled, value))})"
        case dict():
            return f"{{{', '.join(f'{spelled(key)}: {spelled(each)}' for key, each in value.items())}}}"
        case _:
            return repr(value)
