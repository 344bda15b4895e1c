"""Working memory documents: their forms, what appends make of them, and how an LLM sees them."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.documents.document import (
    MAX_DOCUMENT_BYTES,
    Form,
    WorkingMemoryConfig,
    append_content,
    apply_operation,
    check_content,
    check_form,
    equality_key,
    form_of,
    render_data,
    render_document,
    resolve_form,
)
from voicemem.errors import Refused
from voicemem.protocol.events import MemoryData, MemoryDocument
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.state import State, decode_state, encode_state

NUMBERS = st.integers(-3, 3) | st.sampled_from([0.0, 1.0, -1.0, 0.5])
PRIMITIVES = st.none() | st.booleans() | NUMBERS | st.text("ab", max_size=2)
NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    PRIMITIVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner), max_leaves=8
)
OBJECTS = st.dictionaries(NAMES, VALUES)
TEXTS = st.text("ab \n", max_size=6)
KINDS = {"names": st.lists(VALUES, max_size=4), "inner": st.dictionaries(NAMES, PRIMITIVES), "count": PRIMITIVES}
ALIKE = st.fixed_dictionaries({}, optional=KINDS)
"""Objects whose fields are of the same kind in all of them."""


@given(OBJECTS, OBJECTS)
def test_appending_the_same_again_changes_nothing(before: JsonObject, more: JsonObject) -> None:
    """What is in a document already is not added once more, however deep it lies."""
    once = append_content(before, more)
    assert json.dumps(once) == json.dumps(append_content(once, more))


@given(ALIKE, ALIKE, ALIKE)
def test_updates_may_be_joined_before_they_are_appended(one: JsonObject, two: JsonObject, three: JsonObject) -> None:
    """Where fields keep their kinds, it makes no difference how appends are grouped."""
    assert json.dumps(append_content(append_content(one, two), three)) == json.dumps(
        append_content(one, append_content(two, three))
    )


@given(OBJECTS, OBJECTS)
def test_nothing_is_lost_but_what_is_overwritten(before: JsonObject, more: JsonObject) -> None:
    """Every item of both arrays is in the merged one, those of before at their places; arguments stay as they are."""
    copies = json.dumps([before, more])
    after = append_content(before, more)
    assert {*before, *more} == {*after}
    for name, value in before.items():
        if isinstance(value, list) and isinstance(more.get(name), list):
            assert value == after[name][: len(value)]
            wanted = {equality_key(item) for item in value + more[name]}
            assert wanted == {equality_key(item) for item in after[name]}
    assert copies == json.dumps([before, more])


@given(TEXTS, TEXTS, TEXTS)
def test_texts_are_put_below_each_other(one: str, two: str, three: str) -> None:
    """A blank line stands between them; nothing is no text, and grouping makes no difference."""
    assert append_content(append_content(one, two), three) == append_content(one, append_content(two, three))
    assert one == append_content(one, "") == append_content("", one)


def test_deep_merge_as_it_is_documented() -> None:
    """Objects merge deep, arrays concatenate without duplicates, primitives overwrite."""
    before = {"profile": {"name": "Ann", "city": "Oslo"}, "goals": ["sleep"], "visits": 1}
    more = {"profile": {"city": "Rome"}, "goals": ["sleep", "run"], "visits": 2, "vip": None}
    after = {"profile": {"name": "Ann", "city": "Rome"}, "goals": ["sleep", "run"], "visits": 2, "vip": None}
    assert after == append_content(before, more)


@pytest.mark.parametrize(
    ("before", "more", "after"),
    [
        ([1], [1.0, True], [1, True]),
        ([0, "0"], [False, 0.0, "0"], [0, "0", False]),
        ([{"a": 1, "b": [2]}], [{"b": [2.0], "a": 1.0}, {"a": True}], [{"a": 1, "b": [2]}, {"a": True}]),
        ([None], [None, [], {}], [None, [], {}]),
        ([1, 1], [2, 2], [1, 1, 2]),
    ],
)  # fmt: skip
def test_items_are_equal_as_in_json(before: list[Any], more: list[Any], after: list[Any]) -> None:
    """1 is 1.0, but true is not 1, and the order of an object's fields is nothing."""
    assert json.dumps(after) == json.dumps(append_content({"l": before}, {"l": more})["l"])


# Folding


def document(position: int, operation: Any, content: Any = None, **form: Any) -> DecodedRow:
    return DecodedRow(position, 1000 * position, MemoryDocument(operation=operation, content=content, **form))


def test_every_version_is_a_fold() -> None:
    """The document at each of its events is what the events up to it have made."""
    steps = [
        document(1, "append", {"a": [1]}),
        document(4, "append", {"a": [2]}),
        document(5, "form", format="json", schema={"type": "object"}),
        document(6, "replace", {"b": 1}),
        document(9, "clear"),
        document(10, "append", {"c": 1}),
    ]
    contents: list[Any] = [{"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}, {"b": 1}, None, {"c": 1}]
    for count, content in enumerate(contents, 1):
        found = fold_all(State(), steps[:count]).document
        assert found is not None
        assert (content, count, 1000 * steps[count - 1].position) == (found.content, found.version, found.updated_ms)
        assert (None if count < 3 else Form("json", schema={"type": "object"})) == found.form
    assert [1, 4, 5, 6, 9, 10] == list(fold_all(State(), steps).document.positions)  # type: ignore[union-attr]


def test_what_does_not_fit_does_not_stop_the_fold() -> None:
    """Whatever stands in a journal can be folded."""
    found = fold_all(State(), [document(1, "append", "text"), document(2, "append", {"a": 1})]).document
    assert found is not None
    assert {"a": 1} == found.content


def test_documents_and_data_are_in_snapshots() -> None:
    """A restored state has the same document and data, and goes on from there."""
    data = DecodedRow(2, 2000, MemoryData(operation="patch", content={"a": {"b": 1, "c": None}}))
    state = fold_all(State(), [document(1, "append", "Likes tea.", format="markdown", template="# User"), data])
    kept = decode_state(encode_state(state))
    assert state == kept
    assert {"a": {"b": 1}} == kept.data
    fold_all(kept, [document(3, "append", "And milk.")])
    assert kept.document is not None
    assert ("Likes tea.\n\nAnd milk.", 2) == (kept.document.content, kept.document.version)
    assert 1 == state.document.version  # type: ignore[union-attr]


# Forms


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({}, None),
        ({"format": "text"}, Form("text")),
        ({"template": "# User"}, Form("markdown", "# User")),
        ({"schema": {}}, Form("json", schema={})),
        ({"format": "json", "template": "left over"}, Form("json")),
    ],
)
def test_the_format_follows_from_what_is_given(given: JsonObject, form: Form | None) -> None:
    """A template makes Markdown, a schema JSON."""
    assert form == form_of(msgspec.convert(given, WorkingMemoryConfig))


BAD_FORMS = [
    {"template": "# User", "schema": {}},
    {"template": "# User", "format": "text"},
    {"schema": {}, "format": "markdown"},
    {"template": "x" * (MAX_DOCUMENT_BYTES + 1)},
    {"template": "é" * (MAX_DOCUMENT_BYTES // 2 + 1)},
    {"schema": {"description": "x" * MAX_DOCUMENT_BYTES}},
    {"schema": {"type": "nothing"}},
]


@every_row("given", BAD_FORMS, ids=lambda given: ",".join(given))
def test_what_is_no_form_is_refused(given: JsonObject) -> None:
    """Two kinds at once, a part that the format does not have, what is too large, a schema that is none."""
    with pytest.raises(Refused, match="invalid_field"):
        check_form(msgspec.convert(given, WorkingMemoryConfig))


def test_contents_are_held_to_format_and_size() -> None:
    """JSON is an object, the others are texts, and all have at most 64 KiB."""
    check_content({}, Form("json"))
    check_content("x" * MAX_DOCUMENT_BYTES, Form("text"))
    misplaced: list[tuple[Any, Form]] = [("x", Form("json")), ({}, Form("text")), ({}, Form("markdown"))]
    for content, form in misplaced:
        with pytest.raises(Refused, match="invalid_field"):
            check_content(content, form)
    for large, form in (
        ("x" * (MAX_DOCUMENT_BYTES + 1), Form("text")),
        ({"a": "x" * MAX_DOCUMENT_BYTES}, Form("json")),
    ):
        with pytest.raises(Refused, match="too_big"):
            check_content(large, form)


def test_without_any_form_the_content_decides() -> None:
    """An object is JSON, anything else a text."""
    contents: list[Any] = [{}, "x", None]
    assert ["json", "text", "text"] == [resolve_form(content, None).format for content in contents]


# For an LLM


def test_an_empty_document_shows_what_it_is_to_become() -> None:
    """Of Markdown the template, of JSON the schema."""
    assert "# User\n- Name:" in render_document(None, Form("markdown", "# User\n- Name:"), "session", False)
    assert '{"required":["name"]}' in render_document(None, Form("json", schema={"required": ["name"]}), "user", False)


def test_a_document_is_shown_with_how_to_use_it() -> None:
    """The tools are named only where there are any."""
    text = render_document({"a": 1}, Form("json"), "user", True)
    assert '{"a":1}' in text
    assert "this user" in text
    assert "update_working_memory" in text
    assert "update_working_memory" not in render_document("x", Form("text"), "session", False)


def test_operations() -> None:
    """An append to nothing begins, a form leaves the content, a clear leaves nothing."""
    assert ["x", "y", None, "y"] == [
        apply_operation(None, "append", "x"),
        apply_operation("x", "replace", "y"),
        apply_operation("y", "clear", None),
        apply_operation("y", "form", None),
    ]
    assert 'Data of this session:\n{"a":1}' == render_data({"a": 1})
