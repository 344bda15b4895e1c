"""One field of another type than it should have loses no words: a frame says what it says without that field."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.support.dialects import RECORDINGS, Recording, fold_rows, journal_rows
from tests.support.paths import ROOT
from tests.support.rows import every_row
from tests.unit.dialects.test_recordings import TOOLS
from voicemem.dialects.dialect import Dialect, MalformedFrame, RawFrame, UnknownFrame
from voicemem.dialects.reading import decode_json
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow
from voicemem.transcript.history import messages

WRONG: tuple[Any, ...] = (None, True, "", 7, -(10**30), 10**30, 1e300, [None], {"a": 1})
FREE = {*TOOLS, "chars", "char_start_times_ms", "char_durations_ms"}
"""Fields in which anything may stand, or of which each element counts by its place."""
OF_TWO_TYPES = ("conversation_id",)
"""Fields of which null says something else than nothing."""
WEBHOOKS = sorted(ROOT.glob("fixtures/*/webhook.json"))
Path = tuple[str | int, ...]


class Field(NamedTuple):
    """A field of a frame, and the frame without it."""

    path: Path
    value: Any
    without: JsonObject


def fields_of(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Everything in a frame, with its place."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in children:
        yield (*path, key), one
        yield from fields_of(one, (*path, key))


def changed(frame: JsonObject, path: Path, value: Any = ...) -> JsonObject:
    """The frame with another value at a place, or without any there."""
    copy = deepcopy(frame)
    holder: Any = copy
    for key in path[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return copy


def wrong_values(value: Any) -> list[Any]:
    """Values of other types than this one, and numbers that no field can hold."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [one for one in WRONG if type(one) is not type(value) or (is_number and abs(one) > 2**53)]


def kinds_of_fields(frames: Iterable[JsonObject]) -> Iterator[tuple[JsonObject, Path, Any]]:
    """Each kind of place once, where the frame names its type alike; in lists the first few elements."""
    seen = set()
    for frame in frames:
        types = (frame.get(one) for one in ("type", "object", "event", "interaction_type", "response_type"))
        kind = str([one for one in types if isinstance(one, str)])
        for path, value in fields_of(frame):
            if not FREE.isdisjoint(path[:-1]) or path[-1] in OF_TWO_TYPES:
                continue
            place = (kind, *(min(one, 2) if isinstance(one, int) else one for one in path), type(value))
            if place not in seen:
                seen.add(place)
                yield frame, path, value


def said(dialect: Dialect, frame: RawFrame) -> Counter[str]:
    """The texts that are kept of a frame. Raises `MalformedFrame`."""
    try:
        kept = dialect.reduce(frame, None)
    except UnknownFrame:
        raise MalformedFrame("It has no type.") from None
    texts = [] if kept is None else dialect.texts(json.loads(msgspec.json.encode(kept.content)))
    found = (text.holder.get(text.key) for text in texts if isinstance(text.holder, dict))
    return Counter(json.dumps(one) for one in found if one is not None)


def loses(dialect: Dialect, wrong: JsonObject, without: JsonObject) -> bool:
    """Return whether a frame with a wrong value says less than the same without it."""
    try:
        expected = said(dialect, without)
    except MalformedFrame:
        return False  # it must be there
    try:
        return not expected <= said(dialect, wrong)
    except MalformedFrame:
        return bool(expected)


def calls(name: str) -> list[Recording]:
    return [one for one in RECORDINGS if one.dialect == name]


@pytest.mark.parametrize("name", DIALECTS)
def test_a_value_of_another_type_loses_no_words(name: str) -> None:
    """Null, a text, a number, a list, an object and numbers without bounds in every place of recorded frames."""
    frames = [one["frame"] for call in calls(name) for one in call.envelopes() if isinstance(one["frame"], dict)]
    lost = [
        (path, value)
        for frame, path, before in kinds_of_fields(frames)
        for value in wrong_values(before)
        if loses(DIALECTS[name], changed(frame, path, value), changed(frame, path))
    ]
    assert lost == []


@every_row("path", WEBHOOKS, ids=lambda path: path.parent.name)
def test_a_value_of_another_type_loses_no_words_of_a_webhook(path: Any) -> None:
    """Likewise in webhooks, each of which has a whole call."""
    dialect, body = DIALECTS[path.parent.name], json.loads(path.read_text("utf-8"))
    assert dialect.hook is not None

    def all_said(body: JsonObject) -> Counter[str]:
        assert dialect.hook is not None
        return sum((said(dialect, frame) for frame in dialect.hook.frames(body)), Counter())

    for frame, place, before in kinds_of_fields([body]):
        try:
            expected = all_said(changed(frame, place))
        except MalformedFrame:
            continue
        for value in wrong_values(before):
            assert expected <= all_said(changed(frame, place, value)), (place, value)


def words(rows: list[DecodedRow]) -> tuple[list[str], Any]:
    """The words of a call, and what its fold could not take."""
    state = fold_rows(rows)
    return [str(one.metadata.get("original", one.content)) for one in messages(state)], state.ignored


@pytest.mark.long
@pytest.mark.parametrize("name", DIALECTS)
def test_the_fold_takes_whatever_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with one wrong value has the words that it has without that, and no event of it is left out."""
    call = calls(name)[0]
    envelopes = [one for one in call.envelopes() if isinstance(one["frame"], dict)]
    places = {id(one["frame"]): at for at, one in enumerate(envelopes)}
    for number, (frame, path, before) in enumerate(kinds_of_fields([one["frame"] for one in envelopes])):
        at, values = places[id(frame)], wrong_values(before)

        def rows_with(frame: JsonObject, at: int = at) -> list[DecodedRow]:
            sent = [*envelopes[:at], envelopes[at] | {"frame": frame}, *envelopes[at + 1 :]]
            monkeypatch.setattr(Recording, "envelopes", lambda _: sent)
            return journal_rows(call)

        try:
            without = words(rows_with(changed(frame, path)))
            wrong = words(rows_with(changed(frame, path, values[number % len(values)])))
        except (MalformedFrame, UnknownFrame):  # it says nothing, as the first test has found
            continue
        assert (set(without[0]) - set(wrong[0]), wrong[1]) == (set(), {}), (path, values[number % len(values)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"said": "Hi.", "latency": NaN}', {"said": "Hi.", "latency": None}),
        (b'{"said": "Hi.", "latency": -Infinity}', {"said": "Hi.", "latency": None}),
        (b'{"said": "Hi.", "latency": 1e999}', {"said": "Hi.", "latency": None}),
        (b'{"args": {"order": 123456789012345678}}', {"args": {"order": "123456789012345678"}}),
        (b'{"n": 9007199254740992, "m": [-9007199254740993]}', {"n": 2**53, "m": ["-9007199254740993"]}),
    ],
)
def test_numbers_that_cannot_be_kept(text: bytes, expected: JsonObject) -> None:
    """One bad number of a message does not lose what else it says."""
    assert decode_json(text) == expected
