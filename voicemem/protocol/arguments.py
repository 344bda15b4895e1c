"""Arguments as programs and LLMs write them: null for what is left out, and 5.0 for 5."""

from functools import cache
from typing import Any

from msgspec import inspect

OWNERS = frozenset(("user_id", "session_id", "namespace"))
"""Without them a request reaches more: null is not taken for their absence."""
type_of = cache(inspect.type_info)
ARRAYS = (inspect.ListType, inspect.VarTupleType)


def fit(value: Any, kind: Any, *, nulls: bool) -> Any:
    """A decoded value, to be converted to this kind: with whole numbers as integers and, unless `nulls` mean something,
    without null for optional fields.
    """
    return fit_to(value, alternatives(type_of(kind)), nulls)


def fit_to(value: Any, types: tuple[inspect.Type, ...], nulls: bool) -> Any:
    if isinstance(value, float):
        is_whole = value.is_integer() and any(isinstance(one, inspect.IntType) for one in types)
        return int(value) if is_whole and not any(isinstance(one, inspect.FloatType) for one in types) else value
    if isinstance(value, list):
        item = next((one.item_type for one in types if isinstance(one, ARRAYS)), None)
        return value if item is None else [fit_to(one, alternatives(item), nulls) for one in value]
    struct = next((one for one in types if isinstance(one, inspect.StructType)), None)
    if struct is None or not isinstance(value, dict):
        return value
    fields = {field.encode_name: field for field in struct.fields}
    return {
        name: fit_to(one, alternatives(fields[name].type), nulls) if name in fields else one
        for name, one in value.items()
        if one is not None or nulls or name in OWNERS or name not in fields or fields[name].required
    }


def alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(kind, inspect.Metadata):
        return alternatives(kind.type)
    return (
        tuple(one for each in kind.types for one in alternatives(each))
        if isinstance(kind, inspect.UnionType)
        else (kind,)
    )
