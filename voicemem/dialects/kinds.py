"""Tables of kinds of frames: who sends them, which fields are kept, and what they mean.

Records are the allow-list of a dialect: fields that they do not name are left out.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from voicemem.dialects.dialect import MalformedFrame, RawFrame, Side, UnknownFrame
from voicemem.dialects.known import Known, Made, Translate
from voicemem.protocol.types import MAX_INTEGER, Integer, JsonObject

T = TypeVar("T")


def read(kind: type[T], value: Any) -> T:
    """A value as a record. Raises `MalformedFrame` where a field that must be there is missing, or of another type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        pass
    try:
        return msgspec.convert(fit(value, type_info(kind)), kind)  # type: ignore[arg-type]
    except msgspec.ValidationError:
        raise MalformedFrame("A field of the frame is missing, or has another type than this dialect's.") from None


@lru_cache
def type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


UNFIT = object()
"""Stands for a value that has another type than it should."""
PLAIN: dict[type[inspect.Type], type] = {
    inspect.AnyType: object,
    inspect.BoolType: bool,
    inspect.DictType: dict,
    inspect.NoneType: NoneType,
}


def fit(value: Any, kind: inspect.Type) -> Any:
    """As much of a value as has this type, so that a frame keeps its words whatever else is in it; else `UNFIT`.

    Optional fields, and elements of lists, that have another type are left out. A fraction of an integer is rounded.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER
    match kind:
        case inspect.StructType():
            return fit_struct(value, kind) if isinstance(value, dict) else UNFIT
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) if isinstance(value, list | tuple):
            return [part for one in value if (part := fit(one, item)) is not UNFIT]
        case inspect.TupleType(item_types=items) if isinstance(value, list | tuple) and len(value) == len(items):
            parts = [fit(one, item) for one, item in zip(value, items, strict=True)]
            return UNFIT if UNFIT in parts else parts
        case inspect.UnionType():
            return next((part for one in kind.types if (part := fit(value, one)) is not UNFIT), UNFIT)
        case inspect.IntType() | inspect.FloatType() if is_number:
            number = round(value) if isinstance(kind, inspect.IntType) else value
            is_within = (kind.ge is None or number >= kind.ge) and (kind.le is None or number <= kind.le)
            return number if is_within else UNFIT
        case inspect.StrType() if isinstance(value, str):
            is_within = (kind.min_length or 0) <= len(value) <= (kind.max_length or len(value))
            return value if is_within else UNFIT
        case inspect.LiteralType():
            return value if value in kind.values else UNFIT
    return value if isinstance(value, PLAIN.get(type(kind), ())) else UNFIT


def fit_struct(value: JsonObject, kind: inspect.StructType) -> Any:
    fields: JsonObject = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
    for field in kind.fields:
        name = field.encode_name
        part = fit(value[name], field.type) if name in value else UNFIT
        if part is not UNFIT:
            fields[name] = part
        elif field.required:
            return UNFIT
    return fields


def require_object(frame: RawFrame) -> JsonObject:
    """A frame of a dialect that only has JSON objects. Raises `MalformedFrame`."""
    if not isinstance(frame, dict):
        raise MalformedFrame("A frame of this dialect is a JSON object.")
    return frame


class Record(msgspec.Struct, omit_defaults=True):
    """A frame or a part of one: the fields that are kept. Fields need defaults unless every such frame has them."""


class Typed(Record):
    """A frame that names its type."""

    type: str


class Event(Typed, kw_only=True):
    """A frame of OpenAI's: all of the server's have an id, and those of the client's that want one."""

    event_id: str | None = None


ANYTHING = (Any, None)
"""Any JSON, which may be missing."""


def record(texts: str = "", base: type[Record] = Record, /, **others: Any) -> type[Record]:
    """A record of these texts, with `?` behind those that may be missing, and of other fields by type."""
    named = [(name[:-1], str | None, None) if name.endswith("?") else (name, str) for name in texts.split()]
    whole = [(name, kind if isinstance(kind, tuple) else (kind,)) for name, kind in others.items()]
    typed = [(name, Integer if kind[0] is int else kind[0], *kind[1:]) for name, kind in whole]
    kind: type[Any] = msgspec.defstruct("Kept", [*named, *typed], bases=(base,), kw_only=True)
    return kind


def typed(texts: str = "", /, **others: Any) -> type[Record]:
    """The record of a frame that names its type."""
    return record(texts, Typed, **others)


def event(texts: str = "", /, **others: Any) -> type[Record]:
    return record(texts, Event, **others)


def event_id(content: JsonObject, side: Side | None) -> str | None:
    """The id of an `Event`: those of the app's are its own."""
    id: str | None = content.get("event_id")
    return id if id is None or side == "vendor" else f"app/{id}"


def optional(kind: Any) -> tuple[Any, None]:
    """A field that may be missing."""
    return (Integer if kind is int else kind) | None, None


def many(kind: Any) -> Any:
    """A list of records, or of values of another type."""
    return list[kind]


def named_by(*fields: str) -> Callable[[JsonObject], str | None]:
    """The id of a frame by a field, perhaps in an object in it, and by the frame's type."""

    def id_of(content: JsonObject) -> str | None:
        value: Any = content
        for field in fields:
            value = value.get(field)
        return None if value is None else f"{content['type']}/{value}"

    return id_of


def says_nothing(frame: JsonObject, ts: int, known: Known) -> Made:
    return ()


class Kind(NamedTuple):
    """One type of frame in the table of a dialect."""

    side: Side | None
    """Who sends it; None where both do."""
    record: type[Record] | None = None
    """The fields that are kept; None for a type that says nothing."""
    rule: Translate = says_nothing
    """Translates a frame of this kind."""
    id: Callable[[JsonObject], str | None] = lambda content: None
    """Says the frame's own id, from what is kept of it."""
    prepare: Callable[[JsonObject], JsonObject | None] = lambda raw: raw
    """Puts a frame into one form before it is read; None for a frame that says nothing."""


def silent(side: Side | None, names: str) -> dict[str, Kind]:
    """Rows for types that say nothing, from their names with white space between them."""
    return dict.fromkeys(names.split(), Kind(side))


def kept(kind: type, frame: Any) -> JsonObject:
    """Only the fields that a record names, at all levels. Raises `MalformedFrame`."""
    content: JsonObject = msgspec.to_builtins(read(kind, frame))
    return content


def kind_of(raw: JsonObject, kinds: Mapping[str, Kind], side: Side | None, field: str = "type") -> tuple[str, Kind]:
    """The type that a frame names, and its row in a table. Raises `MalformedFrame`, `UnknownFrame`."""
    name = raw.get(field)
    if not isinstance(name, str):
        raise MalformedFrame(f"A frame of this dialect has the field {field}.")
    if name not in kinds:
        raise UnknownFrame(name)
    kind = kinds[name]
    if side is not None and kind.side not in (None, side):
        raise MalformedFrame("The other side sends frames of this type.")
    return name, kind


def keep(
    frame: RawFrame, kinds: Mapping[str, Kind], side: Side | None = None, field: str = "type"
) -> tuple[str, Kind, JsonObject | None]:
    """The type of a frame, its row in a table, and what is kept, if any. Raises `MalformedFrame`, `UnknownFrame`."""
    raw = require_object(frame)
    name, kind = kind_of(raw, kinds, side, field)
    prepared = None if kind.record is None else kind.prepare(raw)
    return name, kind, None if kind.record is None or prepared is None else kept(kind.record, prepared)


def translation(kinds: Mapping[str, Kind], field: str = "type") -> Translate:
    """Translate frames by the rules of their types, which a field names."""
    return lambda frame, ts, known: kinds[frame[field]].rule(frame, ts, known)
