"""Tolerant reading of arguments, because programs and LLMs write null for a missing field, and 5.0 for 5."""

from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, inspect

from voicemem.errors import Refused
from voicemem.protocol.explanations import describe_error

T = TypeVar("T")
type_of = cache(inspect.type_info)
ARRAYS = (inspect.ListType, inspect.VarTupleType)
WITH_NULL = (inspect.NoneType, inspect.AnyType, inspect.RawType)


class Field(NamedTuple):
    """A field of a struct: the types of its values, and whether null means that it is missing."""

    types: tuple[inspect.Type, ...]
    may_be_null: bool


@cache
def fields_of_struct(struct: type[Struct]) -> dict[str, Field]:
    """Return the fields by their names in JSON.

    Null means missing for an optional field whose type has no null. A struct names in `NEVER_NULL` the fields that must
    not be missing by mistake, because more would be found or removed without them: null is refused for them.
    """
    kind = type_of(struct)
    assert isinstance(kind, inspect.StructType)
    never_null, fields = getattr(struct, "NEVER_NULL", ()), {}
    for field in kind.fields:
        types = alternatives(field.type)
        is_open = field.required or field.name in never_null or any(isinstance(one, WITH_NULL) for one in types)
        fields[field.encode_name] = Field(types, not is_open)
    return fields


def alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(kind, inspect.Metadata):
        return alternatives(kind.type)
    return (
        tuple(one for each in kind.types for one in alternatives(each))
        if isinstance(kind, inspect.UnionType)
        else (kind,)
    )


def fit(value: Any, kind: Any, *, nulls: bool = False) -> Any:
    """Return a decoded value, ready for conversion to `kind`: with whole numbers as integers and, unless `nulls` are
    meaningful, without nulls for optional fields.
    """
    return fit_to(value, alternatives(type_of(kind)), nulls)


def fit_to(value: Any, types: tuple[inspect.Type, ...], nulls: bool) -> Any:
    if isinstance(value, float):
        is_whole = value.is_integer() and any(isinstance(one, inspect.IntType) for one in types)
        return int(value) if is_whole and not any(isinstance(one, inspect.FloatType) for one in types) else value
    if isinstance(value, list):
        item = next((one.item_type for one in types if isinstance(one, ARRAYS)), None)
        return value if item is None else [fit_to(one, alternatives(item), nulls) for one in value]
    struct = next((one.cls for one in types if isinstance(one, inspect.StructType)), None)
    if struct is None or not isinstance(value, dict):
        return value
    fields = fields_of_struct(struct)
    return {
        name: fit_to(one, fields[name].types, nulls) if name in fields else one
        for name, one in value.items()
        if one is not None or nulls or name not in fields or not fields[name].may_be_null
    }


def converted(value: Any, kind: type[T], *, nulls: bool = False) -> T:
    """Convert a decoded value, made to fit by `fit`. Raises `Refused` (`invalid_field`)."""
    try:
        return msgspec.convert(fit(value, kind, nulls=nulls), kind)
    except msgspec.ValidationError as error:
        raise Refused("invalid_field", describe_error(error, kind)) from None
