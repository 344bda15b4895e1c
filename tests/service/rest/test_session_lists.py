"""Sessions over REST: lists, filters, pages and cursors."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

import pytest

from tests.support.callers.rest import RestClient, client_with_key, fresh_id
from tests.support.rows import every_row
from tests.support.samples.session_configs import listed
from tests.support.services import Serve
from voicemem.server.rest.sessions import MAX_PAGE_BYTES, PAGE
from voicemem.store.records import LIST_BYTES


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller of an empty service."""
    return RestClient(await serve())


async def pages(api: RestClient, query: str, path: str = "/v1/sessions") -> list[str]:
    """The ids of the sessions on all pages, in their order."""
    ids, cursor = [], ""
    while cursor is not None:
        page = (await api.get(f"{path}?{query}{cursor}")).json
        ids += [session["session_id"] for session in page["sessions"]]
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
    return ids


async def test_sessions_are_listed_newest_first(api: RestClient) -> None:
    """The list shows whole sessions, the newest first, and ends without a cursor."""
    sessions = [await api.create(name) for name in ("a", "b", "c")]
    assert {"sessions": sessions[::-1], "next_cursor": None} == (await api.get("/v1/sessions")).json


async def test_a_long_list_comes_in_pieces(api: RestClient) -> None:
    """It reads like a short one, and a cursor in the middle of a piece goes on where it stands."""
    names = [f"s{number}" for number in range(2 * PAGE + 5)]
    sessions = [await api.create(name) for name in names][::-1]
    answered = await api.get("/v1/sessions?limit=1000")
    assert "chunked" == answered.headers["Transfer-Encoding"]
    assert {"sessions": sessions, "next_cursor": None} == answered.json
    assert names[::-1] == await pages(api, f"limit={PAGE + 3}")


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/users/ann/sessions"])
async def test_a_page_with_large_configurations_ends_early(api: RestClient, path: str) -> None:
    """Its answer has a few MiB at most, and its cursor leads to the others."""
    params = {"text": "x" * 200_000}
    names = [f"s{number}" for number in range(30)]
    for name in names:
        await api.create(name, user_id="ann", llm={"params": params})
    first = await api.get(f"{path}?limit=1000")
    assert 1024 * 1024 < len(first.body) < MAX_PAGE_BYTES + LIST_BYTES + 500_000
    assert 5 < len(first.json["sessions"]) < 30
    assert names[::-1] == await pages(api, "limit=1000", path)
    assert names[::-1] == await pages(api, "limit=7", path)


async def test_every_filter(api: RestClient) -> None:
    """Each filter takes what fits it, and filters hold together."""
    await api.create("a", user_id="ann", labels={"line": "7", "tier": "gold"})
    await api.create("b", user_id="bob", labels={"line": "7"})
    await api.create("c")
    await api.end("b")
    assert ["c", "a"] == await listed(api, "?state=running")
    assert ["b"] == await listed(api, "?state=ended")
    assert ["a"] == await listed(api, "?user_id=ann")
    assert ["b", "a"] == await listed(api, "?label=line:7") == await listed(api, "?label=line=7")
    assert ["a"] == await listed(api, "?label=tier:gold")
    assert [] == await listed(api, "?label=line:70") == await listed(api, "?label=tier:gol")
    assert ["b"] == await listed(api, "?label=line:7&state=ended&user_id=bob")
    assert [] == await listed(api, "?user_id=ann&state=ended")


async def test_times_bound_a_list(api: RestClient) -> None:
    """started_after and started_before leave out their own moment."""
    first = (await api.create("a"))["started_at"]
    assert ["a"] == await listed(api, f"?started_after={first - 1}&started_before={first + 1}")
    assert [] == await listed(api, f"?started_after={first}") == await listed(api, f"?started_before={first}")
    assert ["a"] == await listed(api, "?started_after=0") == await listed(api, "?started_after=-9")


LABELS = [("a", "b=c"), ("a", "b:c"), ("a", "Zm9v="), ("a", "="), ("key", ""), ("é", "ü"), ('q"', "'"), ("a.b", "$[0]")]


@every_row(("key", "value"), LABELS)
async def test_a_label_is_found_whatever_its_value_holds(api: RestClient, key: str, value: str) -> None:
    """The first colon ends the key; the rest is the value, as it is."""
    session = await api.create(fresh_id(), labels={key: value})
    await api.create(fresh_id(), labels={"a": "x"})
    answered = await api.call("GET", "/v1/sessions", params={"label": f"{key}:{value}"})
    assert [session["session_id"]] == [session["session_id"] for session in answered.json["sessions"]]


async def test_a_user_without_a_name_is_not_everybody(api: RestClient) -> None:
    """An empty user_id, as a program with a missing value sends it, lists no one's sessions."""
    await api.create(user_id="ann")
    answered = await api.get("/v1/sessions?user_id=")
    assert 400 == answered.status or [] == answered.json["sessions"]


async def test_a_changed_session_is_found_by_what_it_is_now(api: RestClient) -> None:
    """Filters see the configuration after its patches."""
    await api.create(user_id="ann")
    await api.patch("/v1/sessions/s", {"user_id": "bob", "labels": {"a": "1"}})
    assert [] == await listed(api, "?user_id=ann")
    assert ["s"] == await listed(api, "?user_id=bob&label=a:1")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_have_no_gaps_and_no_doubles(api: RestClient, limit: int) -> None:
    """Whatever the length of a page, all pages together are the list, and the last has no cursor."""
    for number in range(7):
        await api.create(f"s{number}")
    assert [f"s{number}" for number in range(6, -1, -1)] == await pages(api, f"limit={limit}")


async def test_pages_hold_while_sessions_are_added_and_erased(api: RestClient) -> None:
    """New sessions do not push old ones onto two pages, erased ones do not open a gap."""
    for number in range(6):
        await api.create(f"s{number}")
    page = (await api.get("/v1/sessions?limit=2")).json
    await api.create("new")
    await api.delete("/v1/sessions/s4")
    rest = await listed(api, f"?limit=100&cursor={page['next_cursor']}")
    assert ["s5", "s4"] == [session["session_id"] for session in page["sessions"]]
    assert ["s3", "s2", "s1", "s0"] == rest


async def test_pages_under_load(api: RestClient) -> None:
    """While others create sessions, every session that was there before is met once."""
    before = [f"s{number}" for number in range(20)]
    await asyncio.gather(*(api.create(name) for name in before))
    adding = asyncio.gather(*(api.create(f"n{number}") for number in range(30)))
    met = await pages(api, "limit=3")
    await adding
    assert sorted(before) == sorted(name for name in met if name.startswith("s"))
    assert len(met) == len(set(met))


async def test_a_cursor_keeps_to_its_filters(api: RestClient) -> None:
    """Pages of a filtered list hold what fits the filter only."""
    for number in range(6):
        await api.create(f"s{number}", labels={"even": str(number % 2 == 0)})
    assert ["s4", "s2", "s0"] == await pages(api, "limit=1&label=even:True")


async def test_pages_by_state_hold_while_sessions_end(api: RestClient) -> None:
    """Sessions that end between two pages leave those of the running ones, and no other is missed or met twice."""
    for number in range(7):
        await api.create(f"s{number}")
    page = (await api.get("/v1/sessions?state=running&limit=2")).json
    for session_id in ("s6", "s3"):
        await api.end(session_id)
    assert ["s6", "s5"] == [session["session_id"] for session in page["sessions"]]
    assert ["s4", "s2", "s1", "s0"] == await listed(api, f"?state=running&cursor={page['next_cursor']}")
    assert ["s6", "s3"] == await pages(api, "state=ended&limit=1")


async def cursor_of(api: RestClient) -> str:
    """A cursor as the service gives it out."""
    for name in ("a", "b"):
        await api.create(name)
    return str((await api.get("/v1/sessions?limit=1")).json["next_cursor"])


@every_row("cursor", ["", "x", "AAAA", "WzEsMV0", "%00", "%F0%9F%98%80", "-" * 4000, "..", "null", "1"])
async def test_made_up_cursors_are_refused(api: RestClient, cursor: str) -> None:
    """What was not given out is no cursor."""
    assert (400, "invalid_cursor") == (await api.get(f"/v1/sessions?cursor={cursor}")).problem


async def test_a_forged_cursor_is_refused(api: RestClient) -> None:
    """One changed character anywhere makes a cursor worthless."""
    cursor = await cursor_of(api)
    for index in range(0, len(cursor) - 1, 5):
        forged = cursor[:index] + ("A" if cursor[index] != "A" else "B") + cursor[index + 1 :]
        assert (400, "invalid_cursor") == (await api.get(f"/v1/sessions?cursor={forged}")).problem


async def test_a_cursor_of_another_project_is_refused(serve: Serve) -> None:
    """A cursor says where one project's list goes on, and nothing about another's."""
    app = await serve()
    one, other = (
        await client_with_key(app, "admin", project="one"),
        await client_with_key(app, "admin", project="other"),
    )
    cursor = await cursor_of(one)
    assert 200 == (await one.get(f"/v1/sessions?cursor={cursor}")).status
    assert (400, "invalid_cursor") == (await other.get(f"/v1/sessions?cursor={cursor}")).problem


async def test_a_cursor_of_another_store_is_refused(serve: Serve) -> None:
    """A cursor does not outlive the store that gave it out."""
    one, other = RestClient(await serve()), RestClient(await serve())
    assert (400, "invalid_cursor") == (await other.get(f"/v1/sessions?cursor={await cursor_of(one)}")).problem


BAD_QUERIES = ["limit=0", "limit=-1", "limit=1001", "limit=1000000000", "limit=x", "limit=", "state=open", "state="]
BAD_QUERIES += ["started_after=yesterday", "started_before=2026-01-01", "started_after=99999999999999999999"]
BAD_QUERIES += [
    "label=",
    "label=x",
    "label=:x",
    "label==x",
    "user=ann",
    "offset=3",
    "page=2",
    "state=ended&state=ended",
]
BAD_QUERIES += ["state=null", "started_after=null", "limit=null"]


@every_row("query", BAD_QUERIES)
async def test_bad_filters_are_refused(api: RestClient, query: str) -> None:
    """A filter that is unknown, doubled or has a value that it cannot have is never passed over."""
    assert (400, "invalid_query") == (await api.get(f"/v1/sessions?{query}")).problem
