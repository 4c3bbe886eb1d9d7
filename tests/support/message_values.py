"""Values of every message, command and reply, made from their types: a new one is among them by itself."""

import functools

from hypothesis import reject
from hypothesis import strategies as st
from msgspec import Struct, inspect

from stepwell.errors import InvalidArgument

LENGTH_MAX = 20
"""Of what is drawn; the bounds themselves are tried in the tests of the commands."""


@functools.cache
def values(kind: object) -> st.SearchStrategy[object]:
    """Anything that a type allows."""
    return _values(inspect.type_info(kind))


def _values(kind: inspect.Type) -> st.SearchStrategy[object]:
    match kind:
        case inspect.Metadata(type=inner):
            return _values(inner)
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(kind.ge if kind.ge is not None else -(2**63), kind.le or 2**63 - 1)
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.StrType():
            return _texts(kind)
        case inspect.BytesType():
            return st.binary(min_size=kind.min_length or 0, max_size=kind.max_length or LENGTH_MAX)
        case inspect.EnumType():
            return st.sampled_from([*kind.cls])
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.VarTupleType():
            size = kind.min_length or 0
            return st.lists(_values(kind.item_type), min_size=size, max_size=size + 2).map(tuple)
        case inspect.TupleType():
            return st.tuples(*map(_values, kind.item_types))
        case inspect.ListType():
            return st.lists(_values(kind.item_type), max_size=2)
        case inspect.DictType():
            return st.dictionaries(_values(kind.key_type), _values(kind.value_type), max_size=2)
        case inspect.UnionType():
            return st.one_of([_values(each) for each in kind.types])
        case inspect.StructType():
            return _structs(kind)
        case _:
            raise NotImplementedError(kind)


def _texts(kind: inspect.StrType) -> st.SearchStrategy[object]:
    longest = min(kind.max_length or LENGTH_MAX, LENGTH_MAX)
    if kind.pattern is not None:
        return st.from_regex(kind.pattern, fullmatch=True).filter(
            lambda text: len(text) <= (kind.max_length or longest)
        )
    return st.text(min_size=kind.min_length or 0, max_size=longest)


def _structs(kind: inspect.StructType) -> st.SearchStrategy[object]:
    fields = {each.name: _values(each.type) for each in kind.fields}
    return st.fixed_dictionaries(fields).map(functools.partial(_built, kind.cls))


def _built(cls: type[Struct], fields: dict[str, object]) -> Struct:
    """What the types allow may still not fit together: a minimum above its maximum, say."""
    try:
        return cls(**fields)
    except InvalidArgument:
        return reject()
