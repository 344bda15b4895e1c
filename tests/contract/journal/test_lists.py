"""Sessions are listed, filtered and counted."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from tests.support.stores.contract import (
    END,
    NOW,
    ODD_NAMES,
    append_offers,
    example_numbers,
    listed_ids,
    on_one_store,
    open_key,
    update_offer,
)
from voicemem.config.session import validate_config
from voicemem.errors import Refused
from voicemem.store.port import Store
from voicemem.store.records import CLIENT_ID_LABEL
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import NAME_TAKEN, SessionEnding


async def test_sessions_are_listed_newest_first(store: Store) -> None:
    """The sessions of a project come newest first, the later made first among those of one time."""
    for name, started in [("a", 1), ("b", 3), ("c", 2), ("d", 2)]:
        await open_key(store, name, now_ms=NOW + started)
    await store.journal.create_session("q", "other", validate_config({}), NOW)

    assert ["b", "d", "c", "a"] == await listed_ids(store)
    assert ["b", "d"] == await listed_ids(store, limit=2)
    assert ["other"] == await listed_ids(store, project="q")
    assert [] == await listed_ids(store, project="r")


@pytest.fixture
async def four(store: Store) -> Store:
    """A store with four sessions, the first of which is over."""
    vip = {"labels": {"tier": "vip"}}
    given: list[dict[str, Any]] = [{"user_id": "u1"}, vip | {"user_id": "u2"}, vip | {"user_id": "u1"}, {}]
    keys = [
        await open_key(store, name, each, now_ms=NOW + number)
        for number, (name, each) in enumerate(zip("abcd", given, strict=True))
    ]
    await store.journal.close_session(keys[0], END, "n", NOW)
    return store


@every_row(
    ("conditions", "found"),
    [
        ({"state": "running"}, ["d", "c", "b"]),
        ({"state": "ended"}, ["a"]),
        ({"state": "erased"}, []),
        ({"user_id": "u1"}, ["c", "a"]),
        ({"user_id": "U1"}, []),
        ({"label": ("tier", "vip")}, ["c", "b"]),
        ({"label": ("tier", "none")}, []),
        ({"label": ("other", "vip")}, []),
        ({"started_after": NOW + 1}, ["d", "c"]),
        ({"started_before": NOW + 1}, ["a"]),
        ({"started_after": NOW, "started_before": NOW + 3}, ["c", "b"]),
        ({"user_id": "u1", "label": ("tier", "vip"), "state": "running"}, ["c"]),
        ({"user_id": "u1", "label": ("tier", "vip"), "state": "ended"}, []),
        ({"after": (NOW + 2, 2**53), "user_id": "u1"}, ["c", "a"]),
        ({"after": (NOW + 2, 0), "user_id": "u1"}, ["a"]),
    ],
)
async def test_lists_are_filtered(four: Store, conditions: dict[str, Any], found: list[str]) -> None:
    """A list holds the sessions for which all of its conditions hold."""
    assert found == await listed_ids(four, **conditions)


async def test_a_running_name_is_known_until_its_session_ends(store: Store) -> None:
    """A name is taken in its own project only, after a change too, and no longer than its session runs."""
    key = await open_key(store, "one", {"name": "desk"})
    assert not await takes_name(store, "p", "desk")
    assert await takes_name(store, "q", "desk")
    assert await takes_name(store, "p", "Desk")
    await append_offers(store, key, update_offer(1, {"name": "door"}))
    assert [True, False] == [await takes_name(store, "p", name) for name in ("desk", "door")]
    await store.journal.close_session(key, SessionEnding(NOW, "over"), "n1", NOW)
    await store.retention.erase(await open_key(store, "two", {"name": "door"}), NOW)
    assert [True, False] == [await takes_name(store, "p", "door") for _ in range(2)]


async def takes_name(store: Store, project: str, name: str) -> bool:
    """Whether a new session gets a name."""
    session_id = f"{name} {next(example_numbers)}"
    try:
        await store.journal.create_session(project, session_id, validate_config({"name": name}), NOW, takes_name=True)
    except Refused as refused:
        return refused.detail != NAME_TAKEN or await store.journal.find_session(project, session_id) is not None
    return True


async def test_lists_are_counted_over_all_pages(store: Store) -> None:
    """The count is that of the conditions, wherever the page begins and ends; a channel is one of them."""
    for number in range(5):
        await open_key(store, f"s{number}", {"channel": "odd" if number % 2 else "even"})
    assert ["s3", "s1"] == await listed_ids(store, channel="odd")
    everything = SessionFilter(project="p", limit=1, after=(NOW, 2))
    asked: list[dict[str, Any]] = [{}, {"channel": "even"}, {"channel": "none"}, {"state": "ended"}]
    counts = [
        await store.journal.count_sessions(msgspec.structs.replace(everything, **conditions)) for conditions in asked
    ]
    assert [5, 3, 0, 0] == counts
    assert [4, 3] == [
        await store.journal.count_sessions(msgspec.structs.replace(everything, **one), 4) for one in asked[:2]
    ]


async def test_an_empty_condition_is_one(store: Store) -> None:
    """A condition that nothing meets lists nothing, also when it is empty."""
    await open_key(store, given={"user_id": "u", "labels": {"a": ""}})
    conditions: tuple[dict[str, Any], ...] = ({"user_id": ""}, {"state": ""}, {"label": ("", "")})
    assert [[]] * 3 == [await listed_ids(store, **each) for each in conditions]


async def test_lists_follow_updates(store: Store) -> None:
    """A session is listed by the labels that it has now."""
    key = await open_key(store, given={"labels": {"a": "1"}})
    await append_offers(store, key, update_offer(1, {"labels": {"a": None, "b": "2"}}))

    assert ([], ["s"]) == (await listed_ids(store, label=("a", "1")), await listed_ids(store, label=("b", "2")))


async def test_ids_of_clients_find_sessions(store: Store) -> None:
    """The label that has an index is one like others: of one project, with other conditions, until it changes."""
    labels: dict[str, Any] = {"labels": {CLIENT_ID_LABEL: 'x"y'}}
    given = {"a": labels | {"user_id": "u"}, "b": labels}
    keys = [await open_key(store, name, one, now_ms=NOW + n) for n, (name, one) in enumerate(given.items())]
    await store.journal.create_session("q", "c", validate_config(labels), NOW)
    label = (CLIENT_ID_LABEL, 'x"y')
    assert ["b", "a"] == await listed_ids(store, label=label)
    assert ["a"] == await listed_ids(store, label=label, user_id="u")
    assert [] == await listed_ids(store, label=(CLIENT_ID_LABEL, "x"))
    assert ["c"] == await listed_ids(store, project="q", label=label)
    await append_offers(store, keys[1], update_offer(1, {"labels": {CLIENT_ID_LABEL: "z"}}))
    assert (["a"], ["b"]) == (
        await listed_ids(store, label=label), await listed_ids(store, label=(CLIENT_ID_LABEL, "z"))
    )  # fmt: skip
    await store.retention.erase(keys[0], NOW)
    assert [] == await listed_ids(store, label=label)


async def test_paging_while_sessions_come(store: Store) -> None:
    """Going on after the last one seen gives every session once, also while new ones come."""
    for number in range(11):
        await open_key(store, f"s{number}", now_ms=NOW + number // 3)
    wanted = await listed_ids(store)
    seen: list[str] = []
    after: tuple[int, int] | None = None
    while page := await store.journal.list_sessions(SessionFilter(project="p", limit=2, after=after)):
        seen += [stream.id for stream in page]
        after = (page[-1].started_ms, page[-1].key)
        await open_key(store, f"new{len(seen)}", now_ms=NOW + 100)

    assert wanted == seen


@every_row("key", ODD_NAMES)
async def test_labels_may_have_any_name(store: Store, key: str) -> None:
    """A label is found by exactly its name, whatever characters that is made of."""
    project = f"p{next(example_numbers)}"
    labels = {"with": {key: "v", "other": "w"}, "without": {f"{key}x": "v", "a": "v", "other": key}}
    for name, each in labels.items():
        await store.journal.create_session(project, name, validate_config({"labels": each}), NOW)

    found = [
        await listed_ids(store, project=project, label=label) for label in ((key, "v"), (key, "w"), ("other", key))
    ]
    assert [["with"], [], ["without"]] == found


@on_one_store
@given(st.text(max_size=8), st.text(max_size=8))
async def test_any_label_is_found(store: Store, key: str, value: str) -> None:
    """Any name and value of a label find the session that has it, and not one that differs."""
    project = f"p{next(example_numbers)}"
    await store.journal.create_session(project, "with", validate_config({"labels": {key: value}}), NOW)
    await store.journal.create_session(
        project, "without", validate_config({"labels": {key: value + "x", key + "x": value}}), NOW
    )

    assert ["with"] == await listed_ids(store, project=project, label=(key, value))


async def test_a_page_ends_where_configurations_are_large(store: Store) -> None:
    """It ends with the session that reaches the bound, says that there are more, and goes on from there."""
    for number in range(7):
        await open_key(store, f"s{number}", given={"labels": {"a": "x" * 1_000}}, now_ms=NOW + number)
    wanted, seen, after = await listed_ids(store), [], None
    while True:
        page, has_more = await store.journal.list_page(SessionFilter(project="p", limit=100, after=after), 2_500)
        seen.append([stream.id for stream in page])
        if not has_more:
            break
        after = (page[-1].started_ms, page[-1].key)
    assert [wanted[:3], wanted[3:6], wanted[6:]] == seen


async def test_a_page_says_whether_there_are_more(store: Store) -> None:
    """Also when it is just full."""
    for number in range(3):
        await open_key(store, f"s{number}")
    pages = [await store.journal.list_page(SessionFilter(project="p", limit=limit), 2**20) for limit in (1, 2, 3, 4)]
    assert [(1, True), (2, True), (3, False), (3, False)] == [(len(page), has_more) for page, has_more in pages]


async def test_a_page_has_at_least_one_session(store: Store) -> None:
    """However large its configuration is."""
    await open_key(store, given={"labels": {"a": "x" * 1_000}})
    page, has_more = await store.journal.list_page(SessionFilter(project="p"), 1)
    assert (1, False) == (len(page), has_more)


async def test_keys_are_listed_in_order(store: Store) -> None:
    """Keys of a project's sessions in both orders, whenever the sessions began, erased ones included, users' not."""
    keys = [await open_key(store, name, now_ms=NOW - place) for place, name in enumerate("abcd")]
    await store.journal.create_session("q", "other", validate_config({}), NOW)
    await store.journal.ensure_user("p", "u", NOW)
    await store.retention.erase(keys[1], NOW)

    assert sorted(keys) == keys
    assert keys[::-1] == await store.journal.list_newest_keys("p", 10)
    assert keys[:1:-1] == await store.journal.list_newest_keys("p", 2)
    assert keys == await store.journal.list_keys_after("p", 0, 10)
    assert keys[1:3] == await store.journal.list_keys_after("p", keys[0], 2)
    assert [] == await store.journal.list_keys_after("p", keys[-1], 2)
    assert [] == await store.journal.list_newest_keys("r", 2)
