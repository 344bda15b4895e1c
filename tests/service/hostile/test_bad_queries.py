"""Bad input 125 to 132: cursors, limits, filters and headers of a request that ask for what cannot be."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.support.callers.bad_input import SECRET
from tests.support.callers.raw_http import raw_answers, status_codes
from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import final
from tests.support.rows import every_row
from tests.support.services import Serve, running_service

MORE = "state=running&user_id=u"
PATHS = ["/v1/sessions", "/v1/sessions/s/history", "/v1/sessions/s/events", "/v1/sessions/s/context"]


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A service with two sessions, one of which has three events."""
    api = RestClient(await serve())
    await api.create("other")
    await api.create("s")
    await api.send(*(final(seq, f"Line {seq}.", seq=seq) for seq in (1, 2, 3)))
    return api


async def cursor(api: RestClient) -> str:
    """A cursor as it is given out."""
    return str((await api.get("/v1/sessions?limit=1")).json["next_cursor"])


def forged(good: str) -> list[str]:
    """Cursors that were not given out, made from one that was."""
    raw = base64.urlsafe_b64decode(good + "=" * (-len(good) % 4))
    made = [raw[:16] + b"[0,1]", b"[0,1]", raw[16:], raw[:-1], raw + b" ", bytes(16) + raw[16:], raw[:16], raw * 2]
    texts = [base64.urlsafe_b64encode(one).decode().rstrip("=") for one in made]
    texts += ["", "x", "null", "1", "[0,1]", "..", "%00", "%F0%9F%98%80", SECRET, "A" * 4000, good[:-2] + "%3D"]
    texts += [json.dumps({"after": 1}).encode().hex(), "'; drop table stream; --".replace(" ", "%20")]
    return texts


async def test_125_forged_cursors(api: RestClient, caplog: pytest.LogCaptureFixture) -> None:
    """Only what was given out is a cursor; whatever is made of one or made up is refused alike."""
    good = await cursor(api)
    assert 200 == (await api.get(f"/v1/sessions?cursor={good}")).status
    for text in forged(good):
        answered = await api.get(f"/v1/sessions?cursor={text}")
        assert (400, "invalid_cursor") == answered.problem, text
        assert SECRET.encode() not in answered.body
    assert "" == caplog.text


async def test_126_a_cursor_of_another_tenant(serve: Serve) -> None:
    """A cursor leads no one into the sessions of another project."""
    app = await serve()
    one, other = (
        await client_with_key(app, "admin", project="one"),
        await client_with_key(app, "admin", project="other"),
    )
    for api in (one, other):
        await api.create("a")
        await api.create("b")
    for giver, taker in ((one, other), (other, one)):
        assert (400, "invalid_cursor") == (await taker.get(f"/v1/sessions?cursor={await cursor(giver)}")).problem


async def test_127_a_cursor_of_another_incarnation(tmp_path: Path) -> None:
    """A cursor holds over a restart on the same store, and for no other store."""
    async with running_service(store=f"sqlite:{tmp_path}/one.db") as app:
        api = RestClient(app)
        await api.create("a")
        await api.create("b")
        given = await cursor(api)
    async with running_service(store=f"sqlite:{tmp_path}/one.db") as app:
        assert ["a"] == [
            one["session_id"] for one in (await RestClient(app).get(f"/v1/sessions?cursor={given}")).json["sessions"]
        ]
    async with running_service(store=f"sqlite:{tmp_path}/two.db") as app:
        await RestClient(app).create("a")
        assert (400, "invalid_cursor") == (await RestClient(app).get(f"/v1/sessions?cursor={given}")).problem


LIMITS = ["0", "-1", "1.5", "", "x", "null", "true", "0x10", "%20", "1%20", "9" * 30, str(2**53 + 1), "%D9%A3"]
LOOSE = ["1e1", "1.0"]
"""Whole numbers, but not as whole numbers are written."""


@every_row("limit", [*LIMITS, *LOOSE])
async def test_128_limits(api: RestClient, limit: str) -> None:
    """A limit is a whole number from 1 on, and nothing that only looks like one."""
    for query in ("/v1/sessions?limit=", "/v1/sessions/s/history?limit=", "/v1/sessions/s/events?limit="):
        assert (400, "invalid_query") == (await api.get(query + limit)).problem
    assert (400, "invalid_query") == (await api.get(f"/v1/sessions/s/context?max_history={limit}")).problem
    assert (400, "invalid_query") == (await api.post(f"/v1/sessions/s/events?epoch={limit}", [])).problem


async def test_128_large_limits(api: RestClient) -> None:
    """A large limit is no promise to hold so much at once: lists and contexts have a most, the rest is streamed."""
    assert (400, "invalid_query") == (await api.get("/v1/sessions?limit=1000000000")).problem
    assert (400, "invalid_query") == (await api.get("/v1/sessions/s/context?max_history=1000000000")).problem
    assert 3 == len(await api.contents(query="?limit=1000000000"))
    assert 3 == len(await api.journal(query="?limit=1000000000"))


FILTERS = ["nonsense=geheim", "user=u", "offset=1", "page=2", "state=open", "state=", "state=running&state=ended"]
FILTERS += [
    "limit=1&limit=2",
    "label=x",
    "label=",
    "label=:x",
    "sort=geheim",
    "state[]=running",
    "%00=1",
    "STATE=running",
]
FILTERS += ["STATE=running", "fields=geheim", "cursor=x&cursor=y"]


@every_row("query", FILTERS)
async def test_129_unknown_filters(api: RestClient, caplog: pytest.LogCaptureFixture, query: str) -> None:
    """A filter that is not known, stands twice or cannot be is never passed over: the answer would be a lie."""
    for path in PATHS:
        answered = await api.get(f"{path}?{query}")
        assert (400, "invalid_query") == answered.problem
        assert SECRET.encode() not in answered.body
    assert "" == caplog.text


DATES = ["yesterday", "2026-01-01", "2026-01-01T00:00:00Z", "1.5", "99999999999999999999", "-9007199254740993"]
DATES += ["", "null", "NaN", "Infinity", "0x0", "1_000", "%2B1", "1%00"]


@every_row("date", [*DATES, "1e12"])
async def test_130_invalid_dates(api: RestClient, date: str) -> None:
    """Times are Unix ms in whole numbers; other spellings are refused, not guessed."""
    for name in ("started_after", "started_before"):
        assert (400, "invalid_query") == (await api.get(f"/v1/sessions?{name}={date}")).problem


TAGS = [
    "",
    "*",
    "x",
    '"',
    '""',
    'W/""',
    "W/",
    ",",
    ",,,",
    '"geheim"',
    "'",
    "\\",
    '"a" "b"',
    "a" * 8000,
    ",".join("abc" * 900),
]


@every_row("tag", TAGS, ids=lambda tag: tag[:10])
async def test_131_garbage_in_if_none_match(api: RestClient, tag: str) -> None:
    """What is no tag of ours matches nothing, and the whole answer comes; only `*` matches whatever there is."""
    answered = await api.get("/v1/sessions/s/history", {"If-None-Match": tag})
    assert (304 if tag == "*" else 200) == answered.status
    assert answered.headers["ETag"]


@pytest.mark.parametrize("tag", [b"\xff\xfe", "„geheim“".encode(), b'"\x80"'])
async def test_131_bytes_in_if_none_match(serve: Serve, tag: bytes) -> None:
    """Bytes that are no text are no tag either."""
    app = await serve()
    await RestClient(app).create()
    head = b"GET /v1/sessions/s/history HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nIf-None-Match: "
    assert [200] == status_codes(await raw_answers(app.rest_address, head + tag + b"\r\n\r\n"))


async def test_132_an_idempotency_key_is_passed_over(api: RestClient) -> None:
    """The service knows no such header: a session's id and an event's seq are what makes a request repeatable."""
    key = {"Idempotency-Key": "one"}
    body = {"session_id": "new", "name": "First"}
    assert 201 == (await api.call("POST", "/v1/sessions", key, json=body)).status
    assert 200 == (await api.call("POST", "/v1/sessions", key, json=body)).status
    answered = await api.call("POST", "/v1/sessions", key, json=body | {"name": SECRET})
    assert (409, "session_exists") == answered.problem
    events = "/v1/sessions/new/events"
    assert [] == (await api.call("POST", events, key, json=[final(1, "One.", seq=1)])).json["errors"]
    (error,) = (await api.call("POST", events, key, json=[final(1, SECRET, seq=1)])).appended["errors"]
    assert "seq_conflict" == error["code"]
    assert ["First", ["One."]] == [
        (await api.session("new"))["config"]["name"],
        [message["content"] for message in await api.contents("new")],
    ]
