"""Patches are merged as RFC 7396 says."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.protocol.codec import merge_patch
from voicemem.protocol.types import JsonObject


@every_row(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": "b"}, {"a": {"b": "c"}}, {"a": {"b": "c"}}),
        ({"a": {"b": 1}}, {}, {"a": {"b": 1}}),
    ],
)
def test_patches_are_merged_as_rfc_7396_says(target: JsonObject, patch: JsonObject, result: JsonObject) -> None:
    """The examples of the RFC's appendix, as far as both sides are objects."""
    assert merge_patch(target, patch) == result


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@given(OBJECTS, OBJECTS)
def test_patch_applied_twice_is_applied_once(target: JsonObject, patch: JsonObject) -> None:
    """A patch says what is, not what changes, and leaves what it is merged into."""
    before = deepcopy(target)
    result = merge_patch(target, patch)
    assert merge_patch(result, patch) == result
    assert target == before


@given(OBJECTS)
def test_patching_nothing_leaves_no_null(patch: JsonObject) -> None:
    """Nulls in objects take away; they are never kept."""

    def nulls(value: Any) -> bool:
        return isinstance(value, dict) and any(one is None or nulls(one) for one in value.values())

    assert not nulls(merge_patch({}, patch))
