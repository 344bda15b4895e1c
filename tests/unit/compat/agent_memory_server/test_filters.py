"""agent-memory-server's filters as conditions of the store."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.rows import every_row
from voicemem.compat.agent_memory_server.finding import Filters, TextFilter, branches, values_of
from voicemem.compat.agent_memory_server.records import MESSAGE_TOPIC
from voicemem.errors import Refused
from voicemem.store.memory_filters import AnyOf, Between, MemoryFilter, NoneOf, StartsWith, Tags

MAY_1 = 1_777_593_600_000
"""2026-05-01T00:00:00Z"""


def filters(**given: Any) -> list[MemoryFilter]:
    """The conditions for these filters, as they come in a body."""
    return [branch.filter for branch in branches("p", msgspec.convert(given, Filters))]


@every_row(
    ("text", "expected"),
    [
        ({"eq": "a"}, AnyOf(("a",))),
        ({"any": ["a", "b"]}, AnyOf(("a", "b"))),
        ({"in_": ["a", "b", "a"]}, AnyOf(("a", "b"))),
        ({"all": ["a", "a"]}, AnyOf(("a",))),
        ({"any": ["a", "b"], "in_": ["b", "c"]}, AnyOf(("b",))),
        ({"any": ["a", "b"], "ne": "a"}, AnyOf(("b",))),
        ({"any": ["ab", "b"], "startswith": "a"}, AnyOf(("ab",))),
        ({"ne": "a"}, NoneOf(("a",))),
        ({"not_eq": "a", "not_in": ["b"]}, NoneOf(("a", "b"))),
        ({"startswith": "a"}, StartsWith("a")),
    ],
)
def test_texts(text: dict[str, Any], expected: Any) -> None:
    """All that is said of one field is one condition of it."""
    for field, name in (("namespace", "namespaces"), ("user_id", "user_ids"), ("session_id", "session_ids")):
        assert [MemoryFilter(project="p", **{name: expected})] == filters(**{field: text})


@pytest.mark.parametrize("text", [{"eq": "a", "ne": "a"}, {"all": ["a", "b"]}, {"any": []}, {"eq": "a", "in_": ["b"]}])
def test_what_nothing_can_be(text: dict[str, Any]) -> None:
    """Nothing is asked of the store then, and so nothing is found."""
    assert [] == filters(user_id=text)
    assert [] == filters(memory_type={"eq": "semantic"}, session_id=text)


@every_row(
    ("types", "expected"),
    [
        ({"eq": "semantic"}, [(("fact", "preference", "summary"), None, (MESSAGE_TOPIC,))]),
        ({"eq": "episodic"}, [(("episode",), None, None)]),
        ({"eq": "message"}, [(None, (MESSAGE_TOPIC,), None)]),
        ({"ne": "message"}, [(None, None, (MESSAGE_TOPIC,))]),
        ({"startswith": "e"}, [(("episode",), None, None)]),
        ({"any": ["episodic", "message"]}, [(("episode",), None, None), (None, (MESSAGE_TOPIC,), None)]),
        ({"any": ["semantic", "message"]}, [(("fact", "preference", "summary"), None, None)]),
        ({"any": ["semantic", "episodic", "message"]}, [(None, None, None)]),
    ],
)
def test_types(types: dict[str, Any], expected: list[Any]) -> None:
    """Types are kinds; the one that there is no kind for has a topic of its own."""
    found = [
        (
            one.kinds.values if isinstance(one.kinds, AnyOf) else None,
            (one.topics.all or None) if one.topics else None,
            (one.topics.none or None) if one.topics else None,
        )
        for one in filters(memory_type=types)
    ]
    assert expected == found


def test_tags() -> None:
    """Topics keep what is asked of them beside the type."""
    [found] = filters(topics={"any": ["a"], "all": ["b"], "none": ["c"], "eq": "d", "ne": "e"})
    assert Tags(any=("a",), all=("b", "d"), none=("c", "e")) == found.topics
    [found] = filters(topics={"any": ["a"]}, memory_type={"eq": "message"})
    assert Tags(any=("a",), all=(MESSAGE_TOPIC,)) == found.topics
    assert [] == filters(entities={"any": []})


@every_row(
    ("times", "expected"),
    [
        ({"gte": "2026-05-01T00:00:00Z"}, Between(MAY_1, None)),
        ({"gt": "2026-05-01"}, Between(MAY_1 + 1, None)),
        ({"lte": "2026-05-01T02:00:00+02:00"}, Between(None, MAY_1 + 1)),
        ({"lt": MAY_1 / 1000}, Between(None, MAY_1)),
        ({"eq": "2026-05-01T00:00:00.000999Z"}, Between(MAY_1, MAY_1 + 1)),
        ({"between": ["2026-05-01", "2026-05-02"]}, Between(MAY_1, MAY_1 + 86_400_001)),
        ({"gte": "2026-05-01", "gt": "2026-05-02"}, Between(MAY_1 + 86_400_001, None)),
    ],
)
def test_times(times: dict[str, Any], expected: Any) -> None:
    """In whole ms, as memories have them."""
    for field, name in (("created_at", "created"), ("last_accessed", "accessed"), ("event_date", "event")):
        assert [MemoryFilter(project="p", **{name: expected})] == filters(**{field: times})


def test_a_span_without_a_moment_finds_nothing() -> None:
    """The end stands before the beginning."""
    assert [] == filters(created_at={"gt": "2026-05-02", "lt": "2026-05-01"})


@every_row(
    "given",
    [
        {"created_at": {"gte": "2026-02-30"}},
        {"event_date": {"eq": "yesterday"}},
        {"user_id": {"startswith": "a", "ne": "ab"}},
        {"user_id": {"any": [str(n) for n in range(1001)]}},
        {"user_id": {}},
        {"memory_type": {"eq": "nonsense"}},
        {"topics": {"any": None}},
        {"created_at": {}},
    ],
)
def test_what_cannot_be_met_is_refused(given: dict[str, Any]) -> None:
    """With the name of the filter; it is never left out."""
    with pytest.raises(Refused, match=next(iter(given))):
        filters(**given)


VALUES = st.lists(st.sampled_from("abc"), max_size=3).map(tuple)
TEXTS = st.builds(
    TextFilter,
    eq=st.none() | st.sampled_from("abc"),
    ne=st.none() | st.sampled_from("abc"),
    any=st.none() | VALUES,
    in_=st.none() | VALUES,
    not_in=st.none() | VALUES,
    startswith=st.none() | st.sampled_from(["", "a"]),
).filter(lambda one: one != TextFilter())


@examples(1)
@given(TEXTS, st.sampled_from("abcd"))
def test_all_that_is_said_holds(text: TextFilter, value: str) -> None:
    """A value is taken if every part of the filter takes it."""
    taken = (
        text.eq in (None, value)
        and text.ne != value
        and (text.any is None or value in text.any)
        and (text.in_ is None or value in text.in_)
        and value not in (text.not_in or ())
        and value.startswith(text.startswith or "")
    )
    assert taken == values_of("user_id", text).takes(value)
