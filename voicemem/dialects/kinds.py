"""Tables of frame kinds: who sends them, which fields are kept, and how they are translated.

Records are a dialect's allow-list: other fields are dropped.
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
    """Convert a value to a record. Raises `MalformedFrame` if a required field is missing or has another type."""
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
"""Stands for a value of a wrong type."""
PLAIN: dict[type[inspect.Type], type] = {
    inspect.AnyType: object,
    inspect.BoolType: bool,
    inspect.DictType: dict,
    inspect.NoneType: NoneType,
}


def fit(value: Any, kind: inspect.Type) -> Any:
    """Return as much of a value as has this type, so that a frame keeps its words whatever else is in it; else `UNFIT`.

    Optional fields and list elements of another type are dropped. A fraction is rounded if an integer is expected.
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
    """Return a frame if it is a JSON object. Raises `MalformedFrame`."""
    if not isinstance(frame, dict):
        raise MalformedFrame("A frame of this dialect is a JSON object.")
    return frame


class Record(msgspec.Struct, omit_defaults=True):
    """The kept fields of a frame, or of a part of one. Fields need defaults unless every such frame has them."""


class Typed(Record):
    """A frame that names its type."""

    type: str


class Event(Typed, kw_only=True):
    """A frame of OpenAI's: all server frames have an id; for client frames it is optional."""

    event_id: str | None = None


ANYTHING = (Any, None)
"""An optional field with any JSON."""


def record(texts: str = "", base: type[Record] = Record, /, **others: Any) -> type[Record]:
    """Return a record type with text fields (`?` marks optional ones) and other fields by type."""
    named = [(name[:-1], str | None, None) if name.endswith("?") else (name, str) for name in texts.split()]
    whole = [(name, kind if isinstance(kind, tuple) else (kind,)) for name, kind in others.items()]
    typed = [(name, Integer if kind[0] is int else kind[0], *kind[1:]) for name, kind in whole]
    kind: type[Any] = msgspec.defstruct("Kept", [*named, *typed], bases=(base,), kw_only=True)
    return kind


def typed(texts: str = "", /, **others: Any) -> type[Record]:
    """Return the record type of a frame that names its type."""
    return record(texts, Typed, **others)


def event(texts: str = "", /, **others: Any) -> type[Record]:
    return record(texts, Event, **others)


def event_id(content: JsonObject, side: Side | None) -> str | None:
    """Return the id of an `Event`; the app's ids are separate from the vendor's."""
    id: str | None = content.get("event_id")
    return id if id is None or side == "vendor" else f"app/{id}"


def optional(kind: Any) -> tuple[Any, None]:
    """Return the type of an optional field."""
    return (Integer if kind is int else kind) | None, None


def many(kind: Any) -> Any:
    """Return the type of a list of records or other values."""
    return list[kind]


def named_by(*fields: str) -> Callable[[JsonObject], str | None]:
    """Return a function that makes a frame's id from a field (or a path of fields) and the frame's type."""

    def id_of(content: JsonObject) -> str | None:
        value: Any = content
        for field in fields:
            value = value.get(field)
        return None if value is None else f"{content['type']}/{value}"

    return id_of


def no_events(frame: JsonObject, ts: int, known: Known) -> Made:
    return ()


class Kind(NamedTuple):
    """One type of frame in the table of a dialect."""

    side: Side | None
    """Who sends it; None if both do."""
    record: type[Record] | None = None
    """The kept fields; None for a type without meaning."""
    rule: Translate = no_events
    """Translates a frame of this kind."""
    id: Callable[[JsonObject], str | None] = lambda content: None
    """Returns the frame's own id, from its kept fields."""
    prepare: Callable[[JsonObject], JsonObject | None] = lambda raw: raw
    """Normalises a frame before it is read; returns None for a frame without meaning."""


def ignored(side: Side | None, names: str) -> dict[str, Kind]:
    """Return the rows of types without meaning, from their names, separated by spaces."""
    return dict.fromkeys(names.split(), Kind(side))


def kept(kind: type, frame: Any) -> JsonObject:
    """Return only the fields that a record names, at all levels. Raises `MalformedFrame`."""
    content: JsonObject = msgspec.to_builtins(read(kind, frame))
    return content


def kind_of(raw: JsonObject, kinds: Mapping[str, Kind], side: Side | None, field: str = "type") -> tuple[str, Kind]:
    """Return a frame's type, and its row in the table. Raises `MalformedFrame`, `UnknownFrame`."""
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
    """Return a frame's type, its row, and its kept fields, if any. Raises `MalformedFrame`, `UnknownFrame`."""
    raw = require_object(frame)
    name, kind = kind_of(raw, kinds, side, field)
    prepared = None if kind.record is None else kind.prepare(raw)
    return name, kind, None if kind.record is None or prepared is None else kept(kind.record, prepared)


def translation(kinds: Mapping[str, Kind], field: str = "type") -> Translate:
    """Return a function that translates frames by the rules of their types."""
    return lambda frame, ts, known: kinds[frame[field]].rule(frame, ts, known)
