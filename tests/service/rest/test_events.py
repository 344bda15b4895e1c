"""Events over HTTP: a producer without a websocket, and the journal as JSON lines."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.producer import open_over_websocket
from tests.support.callers.rest import RestClient, client_with_key, fresh_id
from tests.support.events import final, message
from tests.support.rows import every_row
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.protocol.types import JsonObject

EVENTS = "/v1/sessions/s/events"
MIB = 1024 * 1024


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller of a service with one empty session."""
    caller = RestClient(await serve())
    await caller.create()
    return caller


def numbered(first: int, last: int) -> list[JsonObject]:
    """One final a turn, with its seq."""
    return [final(seq, f"Turn {seq}.", seq=seq) for seq in range(first, last + 1)]


def lines(*events: JsonObject, end: str = "\n") -> bytes:
    return "".join(json.dumps(one) + end for one in events).encode()


async def codes(api: RestClient, *events: JsonObject, query: str = "") -> list[tuple[int | None, str]]:
    """Seq and code of what was not taken."""
    return [(error["seq"], error["code"]) for error in (await api.send(*events, query=query))["errors"]]


# What is taken


@every_row(
    "body",
    [
        json.dumps(numbered(1, 3)).encode(),
        json.dumps(numbered(1, 3), indent=2).encode(),
        b"\r\n\t " + json.dumps(numbered(1, 3)).encode() + b"\n ",
        lines(*numbered(1, 3)),
        lines(*numbered(1, 3), end="\r\n"),
        lines(*numbered(1, 3), end="\n\n  \n"),
        lines(*numbered(1, 3)).strip(),
    ],
)
async def test_an_array_and_json_lines_are_taken_alike(api: RestClient, body: bytes) -> None:
    """However the list is written, its events are stored in their order."""
    session = await api.create(fresh_id())
    answered = await api.post(f"/v1/sessions/{session['session_id']}/events", body)
    assert (200, {"next_seq": 4, "errors": []}) == (answered.status, answered.json)
    assert [(seq, seq, "main") for seq in range(1, 4)] == [
        (row["position"], row["seq"], row["producer"]) for row in await api.journal(session["session_id"])
    ]


async def test_a_caller_may_ask_before_it_sends_the_body(api: RestClient) -> None:
    """Expect: 100-continue is met."""
    answered = await api.call("POST", EVENTS, data=lines(*numbered(1, 2)), expect100=True)
    assert (200, 3) == (answered.status, answered.json["next_seq"])


async def test_one_event_is_a_list_of_one_line(api: RestClient) -> None:
    """A single object needs no brackets."""
    assert {"next_seq": 2, "errors": []} == (await api.post(EVENTS, lines(*numbered(1, 1)).strip())).json


async def test_an_empty_list_changes_nothing(api: RestClient) -> None:
    """No events give no error, and tell where to go on."""
    await api.send(*numbered(1, 2))
    assert {"next_seq": 3, "errors": []} == await api.send()
    assert 2 == (await api.session())["position"]


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "text/plain", "x", ""])
async def test_the_content_type_does_not_matter(api: RestClient, kind: str) -> None:
    """The body says what it is."""
    headers = {"Content-Type": kind}
    assert 200 == (await api.call("POST", EVENTS, headers, data=lines(*numbered(1, 1)))).status


async def test_a_compressed_body_is_taken(api: RestClient) -> None:
    """gzip is a way to send many events."""
    body = gzip.compress(json.dumps(numbered(1, 50)).encode())
    assert 51 == (await api.call("POST", EVENTS, {"Content-Encoding": "gzip"}, data=body)).json["next_seq"]


async def test_producers_count_on_their_own(api: RestClient) -> None:
    """Each producer has its own seq, `main` when it is not named."""
    assert 3 == (await api.send(*numbered(1, 2)))["next_seq"]
    assert 2 == (await api.send(final(5, "Five.", seq=1), query="?producer=asr"))["next_seq"]
    assert 4 == (await api.send(*numbered(3, 3), query="?producer=main"))["next_seq"]
    assert ["main", "main", "asr", "main"] == [row["producer"] for row in await api.journal()]


@pytest.mark.parametrize("name", ["x" * 128, "%2F", "%00", "%F0%9F%98%80", "a%20b"])
async def test_a_producer_may_have_any_name(api: RestClient, name: str) -> None:
    """Other ids than those of sessions are any text of 1 to 128 characters."""
    assert 2 == (await api.send(*numbered(1, 1), query=f"?producer={name}"))["next_seq"]


async def test_events_without_seq_are_taken_once(api: RestClient) -> None:
    """Without a count they are stored as they come, and a producer does not mix the two."""
    assert {"next_seq": 1, "errors": []} == await api.send(final(1, "A."), final(1, "A."))
    assert [(1, "seq_required")] == await codes(api, *numbered(1, 1))
    assert 2 == len(await api.journal())


async def test_duplicates_are_acknowledged_and_stored_once(api: RestClient) -> None:
    """The same events again change nothing, however often they come and however they are written."""
    await api.send(*numbered(1, 3))
    for body in (json.dumps(numbered(1, 4)).encode(), lines(*(dict(reversed(one.items())) for one in numbered(2, 4)))):
        assert {"next_seq": 5, "errors": []} == (await api.post(EVENTS, body)).json
    assert [1, 2, 3, 4] == [row["seq"] for row in await api.journal()]


async def test_what_is_out_of_order_is_told(api: RestClient) -> None:
    """A changed event is a conflict; a gap is told once with what is expected, and nothing after it is stored."""
    await api.send(*numbered(1, 2))
    assert [(2, "seq_conflict")] == await codes(api, final(9, "Other.", seq=2))
    answered = await api.send(*numbered(4, 6))
    assert (3, [(4, "seq_gap", 3)]) == (
        answered["next_seq"],
        [(error["seq"], error["code"], error["expected"]) for error in answered["errors"]],
    )
    assert 2 == (await api.session())["position"]


async def test_good_events_are_stored_beside_bad_ones(api: RestClient) -> None:
    """Each event is taken or refused alone; a refused one with a seq takes its place without its content."""
    bad: list[JsonObject] = [
        {"type": "asr", "seq": 2, "text": 7, "turn_id": 1},
        {"type": "astrology", "seq": 3},
        {"type": "llm.delta", "seq": 4, "turn_id": 1},
        {"type": "session.open", "seq": 5},
        {"type": "auth", "token": "hush", "seq": 6},
        {"type": "asr", "text": "x", "seq": "7"},
    ]
    answered = await api.send(*numbered(1, 1), *bad, final(9, "Nine.", seq=7))
    expected: list[tuple[int | None, str]] = [
        (2, "invalid_field"),
        (3, "unknown_type"),
        (4, "missing_field"),
        (5, "unknown_type"),
    ]
    expected += [(6, "unknown_type"), (None, "invalid_field")]
    assert expected == [(error["seq"], error["code"]) for error in answered["errors"]]
    assert 8 == answered["next_seq"]
    assert ["Turn 1.", "Nine."] == [one["content"] for one in await api.contents()]


async def test_a_refused_event_is_refused_again(api: RestClient) -> None:
    """Every resend of a seq that was refused repeats its error, also when it is well now."""
    bad = {"type": "astrology", "seq": 1}
    assert [(1, "unknown_type")] == await codes(api, bad) == await codes(api, bad) == await codes(api, *numbered(1, 1))
    assert [{"type": "refused", "code": "unknown_type"}] == [row["event"] for row in await api.journal()]


async def test_the_status_says_whether_all_was_stored(api: RestClient) -> None:
    """200 if everything was stored or had been; 422 if something was refused, in whatever part of a body."""
    bad = {"type": "astrology", "seq": 2}
    answered = await api.post(EVENTS, [*numbered(1, 1), bad, *numbered(3, 700)])
    assert ((422, "events_refused"), 701) == (answered.problem, answered.json["next_seq"])
    (error,) = answered.json["errors"]
    assert (2, "unknown_type") == (error["seq"], error["code"])
    assert 699 == len(await api.contents())
    assert 200 == (await api.post(EVENTS, numbered(3, 700))).status
    for events in ([bad], numbered(702, 702), [final(9, "Other.", seq=1)], [final(9, "No seq.")]):
        assert (422, "events_refused") == (await api.post(EVENTS, events)).problem


async def test_the_end_is_a_410_only_if_nothing_is_stored(api: RestClient) -> None:
    """Without anything that is stored or had been, new events after the end are 410; with it, 422. Repeats are 200."""
    end = {"type": "session.end", "seq": 2}
    unreadable: JsonObject = {"type": "asr", "seq": "3"}
    answered = await api.post(EVENTS, [*numbered(1, 1), end, *numbered(3, 3)])
    assert ((422, "events_refused"), 3) == (answered.problem, answered.json["next_seq"])
    for events in (numbered(3, 3), [*numbered(3, 4)], [unreadable, *numbered(3, 3)]):
        answered = await api.post(EVENTS, events)
        assert ((410, "session_ended"), 3) == (answered.problem, answered.json["next_seq"])
        assert "session_ended" == answered.json["errors"][-1]["code"]
    assert (422, "events_refused") == (await api.post(EVENTS, [end, *numbered(3, 3)])).problem
    assert 200 == (await api.post(EVENTS, [*numbered(1, 1), end])).status


async def test_errors_do_not_repeat_what_was_sent(api: RestClient) -> None:
    """No sentence holds a value or a text of the refused event."""
    bad: list[JsonObject] = [
        final(1, "hush", seq=1, segment="hush"),
        {"type": "hush", "seq": 2},
        message(1, "hush", seq=3, role="hush's 'quoted' hush"),
        final(1, "hush", seq=4, metadata={"interrupted": "hush"}),
        final(1, "hush", seq=5, producer="hush"),
        {"type": "session.update", "seq": 6, "labels": {"hush": 7}, "name": "hush"},
        {"type": "session.update", "seq": 7, "llm": {"style": "hush"}},
        {"type": "session.update", "seq": 8, "webhook": {"url": "http://127.0.0.1/hush"}},
    ]
    answered = await api.post(EVENTS, bad)
    assert 8 == len(answered.json["errors"])
    assert b"hush" not in answered.body


@pytest.mark.parametrize("more", [{"session_id": "other"}, {"producer": "other"}])
async def test_an_event_that_names_another_session_or_producer_is_refused(api: RestClient, more: JsonObject) -> None:
    """No one writes into one session through the path of another."""
    await api.create("other")
    assert [(1, "invalid_field")] == await codes(api, final(1, "Hi.", seq=1, **more))
    assert [] == await api.journal("other")
    assert [] == await codes(api, final(1, "Hi.", seq=2, session_id="s", producer="main"))


async def test_an_end_over_http_closes(api: RestClient) -> None:
    """The last producer's end closes the session with its own reason and time."""
    await api.send(*numbered(1, 1), {"type": "session.end", "seq": 2, "ts": 5, "reason": "left", "last_seq": 1})
    session = await api.session()
    assert ("ended", "left") == (session["state"], session["reason"])
    assert {"type": "session.closed", "ts": 5, "reason": "left"} == (await api.journal())[-1]["event"]


async def test_an_end_waits_for_a_connected_producer(serve: Serve) -> None:
    """While another producer is connected the session is not closed at once, so that its last words count."""
    app = await serve()
    api = RestClient(app)
    await api.create()
    async with connect(f"ws://{app.ingest_address}/v1/ingest") as socket:
        await socket.send('{"type":"session.open","session_id":"s","producer":"llm"}')
        await socket.recv()
        await api.send({"type": "session.end"})
        assert "running" == (await api.session())["state"]
        await socket.send('{"type":"session.end","seq":1}')
        await socket.recv()
        await eventually("ended", lambda: state(api))


async def state(api: RestClient) -> str:
    """State of session "s"."""
    return str((await api.session())["state"])


async def test_a_new_event_reopens_after_an_idle_close(api: RestClient) -> None:
    """A close by silence is provisional: what comes within the window brings the session back."""
    await api.create("quiet", idle_timeout=0.01)
    await api.send(*numbered(1, 1), session_id="quiet")

    async def reason() -> Any:
        return (await api.session("quiet"))["reason"]

    await eventually("idle", reason)
    assert {"next_seq": 2, "errors": []} == await api.send(*numbered(1, 1), session_id="quiet")
    assert "ended" == (await api.session("quiet"))["state"]
    assert {"next_seq": 3, "errors": []} == await api.send(*numbered(2, 2), session_id="quiet")
    kinds = [row["event"]["type"] for row in await api.journal("quiet")]
    assert ["asr", "session.closed", "session.reopened", "asr"] == kinds[:4]


# The epoch


async def test_an_epoch_is_checked_only_when_it_is_given(serve: Serve) -> None:
    """A newer opening supersedes who names the older epoch, and no one else."""
    app = await serve()
    api = RestClient(app)
    first, second = [(await open_over_websocket(app))["epoch"] for _ in range(2)]
    assert [(1, "superseded")] == await codes(api, *numbered(1, 1), query=f"?epoch={first}")
    assert (409, "superseded") == (await api.post(f"{EVENTS}?epoch={first}", numbered(1, 1))).problem
    assert [] == await codes(api, *numbered(1, 1), query=f"?epoch={second}") == await codes(api, *numbered(2, 2))
    assert [(3, "superseded")] == await codes(api, *numbered(3, 3), query=f"?epoch={second + 1}")
    assert [1, 2] == [row["seq"] for row in await api.journal()]


# What is no list of events

NO_EVENTS = [
    (b"", "invalid_json"),
    (b"  \n ", "invalid_json"),
    (b"[", "invalid_json"),
    (b'[{"type":"asr"},]', "invalid_json"),
    (b"[{}] []", "invalid_json"),
    (b"[{}]\n[{}]", "invalid_json"),
    (b"{} garbage", "invalid_json"),
    (b"{'type':'asr'}", "invalid_json"),
    (b"// no\n{}", "invalid_json"),
    (b"NaN", "invalid_json"),
    (b"\xef\xbb\xbf[]", "invalid_json"),
    ("[]".encode("utf-16"), "invalid_json"),
    (b'[{"text":"\xff"}]', "invalid_json"),
    (b'[{"text":"\xed\xa0\x80"}]', "invalid_json"),
    (b'[{"text":"\\ud800"}]', "invalid_json"),
    (b'[{"text":"\x01"}]', "invalid_json"),
    (b"[" * 100_000, "too_deep"),
    (b'{"x":' * 33 + b"1" + b"}" * 33, "too_deep"),
    (b'[{"type":"asr","x":' + b"[" * 40 + b"]" * 40 + b"}]", "too_deep"),
    (b"7", "not_events"),
    (b'"x"', "not_events"),
    (b"null", "not_events"),
    (b"[1]", "not_events"),
    (b"[[]]", "not_events"),
    (b"[null]", "not_events"),
    (b'[{"type":"asr"}, 7]', "not_events"),
    (b'{"type":"asr"}\n7', "not_events"),
]


@every_row(("body", "code"), NO_EVENTS, ids=[str(body[:20]) for body, _ in NO_EVENTS])
async def test_what_is_no_list_of_events_is_a_400(api: RestClient, body: bytes, code: str) -> None:
    """Nothing of such a body is stored, not even what looks well in it."""
    assert (400, code) == (await api.post(EVENTS, body)).problem
    assert 0 == (await api.session())["position"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"asr","turn_id":1,"final":true,"text":"Yes\nno"}',
        b'{"type":"asr","turn_id":1,"final":true\n"text":"Yes"}',
        b'{"type":"asr","turn_id":1,"final":true,"text":"Yes"},{"type":"asr","turn_id":2,"final":true,"text":"no"}',
    ],
)
async def test_a_line_is_json_by_itself(api: RestClient, body: bytes) -> None:
    """Lines are never joined to something that no one sent."""
    assert 400 == (await api.post(EVENTS, body)).status
    assert [] == await api.contents()


@pytest.mark.parametrize("size", [MIB + 1, 3 * MIB])
async def test_a_body_over_1_mib_is_refused(api: RestClient, size: int) -> None:
    """What is too big is a 413, and nothing of it is stored."""
    event = final(1, "x", metadata={"pad": ""})
    body = json.dumps([event]).encode()
    body = body.replace(b'"pad": ""', b'"pad": "' + b"x" * (size - len(body)) + b'"')
    assert size == len(body)
    assert (413, "too_big") == (await api.post(EVENTS, body)).problem
    assert 0 == (await api.session())["position"]


async def test_a_body_just_below_1_mib_is_taken(api: RestClient) -> None:
    """The limit does not bite early: ten events that fill a body are stored."""
    pad = {"pad": "x" * 104_000}
    body = lines(*(final(seq, "x", seq=seq, metadata=pad) for seq in range(1, 11)))
    assert MIB - 10_000 < len(body) < MIB
    assert {"next_seq": 11, "errors": []} == (await api.post(EVENTS, body)).json


async def test_a_bomb_is_refused(api: RestClient) -> None:
    """A small body that grows beyond the limit when it is unpacked is too big."""
    body = gzip.compress(b"[" + b" " * 50_000_000 + b"]")
    assert len(body) < MIB
    assert (413, "too_big") == (await api.call("POST", EVENTS, {"Content-Encoding": "gzip"}, data=body)).problem


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_that_cannot_be_unpacked_is_a_400(api: RestClient, encoding: str) -> None:
    """Broken compression is the sender's mistake, no fault of the service."""
    answered = await api.call("POST", EVENTS, {"Content-Encoding": encoding}, data=b"no such thing")
    assert 400 == answered.problem[0]


async def test_an_aborted_body_stores_nothing_and_is_no_fault(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """A caller that hangs up in the middle of its body leaves neither events nor an error in the log."""
    app = await serve()
    api = RestClient(app)
    await api.create()
    _, writer = await asyncio.open_connection(*app.rest_address)
    body = lines(*numbered(1, 2))
    writer.write(b"POST /v1/sessions/s/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n" + body)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert {"next_seq": 1, "errors": []} == await api.send()
    assert [] == [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@every_row("query", ["producer=", "producer=" + "x" * 129, "epoch=0", "epoch=-1", "epoch=x", "epoch=1.5"])
async def test_bad_parameters_of_a_post_are_refused(api: RestClient, query: str) -> None:
    """A producer is a name and an epoch a number from 1; nothing is stored under anything else."""
    assert (400, "invalid_query") == (await api.post(f"{EVENTS}?{query}", numbered(1, 1))).problem
    assert 0 == (await api.session())["position"]


@pytest.mark.parametrize("query", ["session=s", "producer=a&producer=b", "epoch=1&epoch=1", "Producer=a", "after=1"])
async def test_unknown_and_doubled_parameters_of_a_post_are_refused(api: RestClient, query: str) -> None:
    """A misspelt parameter never means another producer."""
    assert (400, "invalid_query") == (await api.post(f"{EVENTS}?{query}", numbered(1, 1))).problem
    assert 0 == (await api.session())["position"]


async def test_a_session_that_is_not_there_is_404(api: RestClient) -> None:
    """Events do not make a session."""
    assert (404, "unknown_session") == (await api.post("/v1/sessions/nobody/events", numbered(1, 1))).problem
    assert 404 == (await api.get("/v1/sessions/nobody")).status


async def test_what_calls_out_needs_admin(serve: Serve) -> None:
    """An update that makes the server call someone is refused from a key that may only send events."""
    app = await serve()
    admin, ingest = await client_with_key(app, "admin"), await client_with_key(app, "ingest")
    await admin.create()
    hooks: list[JsonObject] = [
        {"webhook": {"url": "https://receiver.example/"}},
        {"webhook": {"secret": "x"}},
        {"llm": {"url": "https://llm.example/"}},
        {"llm": {"api_key": "x"}},
    ]
    updates = [{"type": "session.update", "seq": seq, **hook} for seq, hook in enumerate(hooks, 1)]
    assert [(seq, "forbidden") for seq in range(1, 5)] == await codes(ingest, *updates)
    assert {} == (await admin.session())["config"]
    assert [] == await codes(admin, {"type": "session.update", "seq": 5, **hooks[0]})


async def test_a_hole_is_declared(api: RestClient) -> None:
    """With `from_seq` what is missing becomes a gap in the journal; the memory and the next request go on behind it."""
    await api.send(*numbered(1, 2))
    assert {"next_seq": 6, "errors": []} == await api.send(*numbered(5, 5), query="?from_seq=5")
    assert {"next_seq": 6, "errors": []} == await api.send(*numbered(5, 5), query="?from_seq=5")
    gap = {"type": "session.gap", "producer": "main", "from_seq": 3, "to_seq": 4}
    assert gap == (await api.journal())[2]["event"]
    assert ["Turn 1.", "Turn 2.", "Turn 5."] == [one["content"] for one in await api.contents()]
    assert {"next_seq": 9, "errors": []} == await api.send(query="?from_seq=9")
    assert [(7, "seq_conflict")] == await codes(api, *numbered(7, 7))
    many = numbered(1_001, 2_200)
    assert {"next_seq": 2_201, "errors": []} == await api.send(*many, query="?from_seq=1001")
    assert ["session.gap"] * 3 == [
        row["event"]["type"] for row in await api.journal() if row["event"]["type"] == "session.gap"
    ]


async def test_a_hole_is_declared_as_by_an_open(api: RestClient) -> None:
    """What is no seq is refused, and so is a hole that another epoch declares."""
    await api.send(*numbered(1, 1))
    for query in ("?from_seq=0", "?from_seq=x", "?from_seq=-1", f"?from_seq={2**63}"):
        assert (400, "invalid_query") == (await api.post(EVENTS + query, numbered(2, 2))).problem, query
    assert [(5, "superseded")] == await codes(api, *numbered(5, 5), query="?from_seq=5&epoch=7")
    assert [(None, "seq_required")] == await codes(api, final(9, "Unnumbered."), query="?from_seq=5")
    assert 5 == (await api.send())["next_seq"]
