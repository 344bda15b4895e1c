"""Slim rows of sessions."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import sys
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.stores.contract import (
    END,
    NOW,
    add_endpoint,
    attempt_of,
    claim_deliveries,
    close,
    closed_session,
    endpoint_of,
    open_key,
)
from voicemem.config.session import validate_config
from voicemem.store import overviews
from voicemem.store.port import Store
from voicemem.store.records import SavedFigures
from voicemem.store.session_filters import SessionFilter

OUTCOMES = ("sold", None, "lost")
EVERYTHING = SessionFilter(project="p")


async def webhooks(store: Store) -> dict[str, object]:
    rows, _ = await store.overviews.list_overviews(EVERYTHING)
    return {row.session_id: (row.webhooks, row.next_attempt_ms) for row in rows}


async def test_a_row_tells_what_became_of_its_webhooks(store: Store) -> None:
    """The worst of all deliveries of a session, and when the next attempt is due."""
    await add_endpoint(store, endpoint_of("e1"))
    await add_endpoint(store, endpoint_of("e2"))
    await open_key(store, "none")
    await closed_session(store, "s", hook=None, notice_id="n")
    assert {"none": (None, None), "s": ("pending", NOW)} == await webhooks(store)
    first, second = await claim_deliveries(store, NOW)
    await store.outbox.finish_delivery(first, attempt_of(), "delivered", None)
    await store.outbox.finish_delivery(second, attempt_of(), "pending", NOW + 7)
    assert ("pending", NOW + 7) == (await webhooks(store))["s"]
    (again,) = await claim_deliveries(store, NOW + 7)
    await store.outbox.finish_delivery(again, attempt_of(), "failed", None)
    assert ("failed", None) == (await webhooks(store))["s"]


async def found(store: Store, most_looks: int = 100, **conditions: Any) -> list[str]:
    """What all pages of two sessions show, of which each ends after so many looks."""
    met: list[str] = []
    after = None
    while True:
        wanted = SessionFilter(project="p", limit=2, after=after, **conditions)
        rows, after = await store.overviews.list_overviews(wanted, most_looks=most_looks)
        met += [row.session_id for row in rows]
        if after is None:
            return met


async def many_calls(store: Store) -> list[int]:
    """Ten calls `s0` to `s9`: which were interrupted, how slow they were, and what became of their webhooks."""
    await add_endpoint(store, endpoint_of("e1"))
    keys = []
    for number in range(10):
        given = {"user_id": f"u{number % 2}", "labels": {"third": str(number % 3)}}
        keys.append(await open_key(store, f"s{number}", given, now_ms=NOW + number))
        figures = SavedFigures(
            keys[-1], 1, b"{}", number % 4, None if number == 1 else 500 * number, OUTCOMES[number % 3]
        )
        await store.overviews.save_figures([figures])
    for number in (2, 3, 4):
        await close(store, keys[number], END, f"n{number}", NOW + number)
    for delivery in await claim_deliveries(store, NOW + 3):
        state: Any = "delivered" if delivery.notice_id == "n2" else "failed"
        await store.outbox.finish_delivery(delivery, attempt_of(), state, None)
    return keys


@pytest.mark.parametrize("most_looks", [1, 3, 100])
async def test_slim_rows_are_filtered(store: Store, most_looks: int) -> None:
    """By all conditions together, however few sessions are looked at for a page."""
    keys = await many_calls(store)
    asked: list[tuple[dict[str, Any], str]] = [
        ({}, "9876543210"),
        ({"interrupted": True}, "9765321"),
        ({"interrupted": False}, "840"),
        ({"slow_ms": 4000}, "98"),
        ({"slow_ms": 1}, "98765432"),
        ({"slow_ms": 2500, "interrupted": True}, "9765"),
        ({"outcome": "sold"}, "9630"),
        ({"outcome": "sold", "interrupted": True, "user_id": "u1"}, "93"),
        ({"outcome": "none"}, ""),
        ({"webhook": "failed"}, "3"),
        ({"webhook": "pending"}, "4"),
        ({"webhook": "failed", "user_id": "u0"}, ""),
        ({"state": "running", "interrupted": True, "user_id": "u1"}, "9751"),
        ({"label": ("third", "0"), "interrupted": True}, "963"),
        ({"keys": (keys[1], keys[8], keys[3])}, "831"),
        ({"keys": (keys[1], keys[8]), "user_id": "u0"}, "8"),
        ({"keys": ()}, ""),
    ]
    for conditions, expected in asked:
        assert [f"s{digit}" for digit in expected] == await found(store, most_looks, **conditions), conditions
        count = await store.overviews.count_overviews(SessionFilter(project="p", **conditions), 5)
        assert min(5, len(expected)) == count, conditions


async def test_the_last_of_many_sessions_is_found(store: Store) -> None:
    """In a page that takes several looks, also where the caller sets no bound."""
    for number in range(50):
        labels = {"rare": str(number < 2)}
        await open_key(store, f"s{number}", {"labels": labels}, now_ms=NOW + number)
    wanted = SessionFilter(project="p", label=("rare", "True"), limit=1)
    rows, after = await store.overviews.list_overviews(wanted, most_looks=sys.maxsize)
    assert (["s1"], True) == ([row.session_id for row in rows], after is not None)
    rows, after = await store.overviews.list_overviews(replace(wanted, after=after), most_looks=sys.maxsize)
    assert (["s0"], None) == ([row.session_id for row in rows], after)


async def test_many_sessions_with_failed_deliveries_are_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are too many to be looked at all together."""
    monkeypatch.setattr(overviews, "MAX_CANDIDATES", 0)
    await many_calls(store)
    assert (["s3"], ["s4"]) == (await found(store, webhook="failed"), await found(store, 2, webhook="pending"))


async def test_a_count_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too many sessions would have to be looked at, no one is told a number."""
    monkeypatch.setattr(overviews, "MAX_COUNT_LOOKS", 4)
    await many_calls(store)
    wanted = SessionFilter(project="p", label=("third", "0"))
    assert [None, 1] == [await store.overviews.count_overviews(wanted, most) for most in (5, 1)]
    assert 10 == await store.overviews.count_overviews(EVERYTHING, 20)


async def test_an_erased_session_is_found_by_nothing(store: Store) -> None:
    """Neither by what was saved of its memory, nor by its webhooks; and nothing more is saved."""
    keys = await many_calls(store)
    await store.retention.erase(keys[3], NOW)
    await store.overviews.save_figures([SavedFigures(keys[3], 2, b"{}", 7, 9000)])
    assert ["s9", "s7", "s6", "s5", "s2", "s1"] == await found(store, interrupted=True)
    assert ["s9", "s8"] == await found(store, slow_ms=4000)
    assert ["s9", "s6", "s0"] == await found(store, outcome="sold")
    assert [] == await found(store, webhook="failed")
    assert [] == await found(store, keys=(keys[3],))


async def test_sessions_are_found_by_the_beginnings_of_names(store: Store) -> None:
    """Of ids and of users, in the project; no one is found by nothing, nor is a user's own stream."""
    await store.journal.create_session("q", "call-9", validate_config({"user_id": "ann"}), NOW)
    keys = [await open_key(store, name, {"user_id": user}) for name, user in [("call-1", "ann"), ("x", "annette")]]
    await store.journal.ensure_user("p", "ann", NOW)
    assert [keys[:1], keys, []] == [
        sorted(await store.overviews.find_named("p", name, 9)) for name in ("call-", "ann", "b")
    ]
    assert [1, []] == [
        len(await store.overviews.find_named("p", "an", 1)),
        await store.overviews.find_named("p", "", 9),
    ]
