"""Calls that are observed at a vendor: recorded from its websocket, whatever becomes of the connection."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from websockets.asyncio.server import ServerConnection

from tests.support.callers.rest import RestClient
from tests.support.clock import ManualClock
from tests.support.dialects import Recording
from tests.support.services import Serve, node_on, running_service
from tests.support.sideband import KEY, Sideband, said, send
from tests.support.sideband import sideband as sideband
from tests.support.waiting import eventually
from voicemem.app import App, running
from voicemem.config.service import Address, Settings
from voicemem.errors import StoreUnavailable
from voicemem.observer.connection import RetryPolicy
from voicemem.protocol.types import JsonObject
from voicemem.store.sqlite.store import InMemoryStore

HASTY = RetryPolicy(first_s=0.01, longest_s=0.05, attempts=4, lasting_s=60.0, unknown_attempts=3)
PLACE = "/v1/sessions/s/observe"
CALL = {"dialect": "openai-realtime", "call_id": "rtc_1"}


@pytest.fixture
def settings(sideband: Sideband) -> JsonObject:
    """Settings of a service that observes calls at this vendor."""
    urls = tuple(f"{dialect}={sideband.url}" for dialect in ("openai-realtime", "openai-live"))
    return {"observe_key": KEY, "observe_urls": urls}


def hurry(app: App, retry: RetryPolicy = HASTY) -> None:
    """Let a service try again soon."""
    app.services.observers.parts = app.services.observers.parts._replace(retry=retry)


@pytest.fixture
async def app(serve: Serve, settings: JsonObject) -> App:
    app = await serve(**settings)
    hurry(app)
    return app


@pytest.fixture
async def api(app: App) -> RestClient:
    """A caller who has created the session `s`."""
    api = RestClient(app)
    await api.create()
    return api


async def begin(api: RestClient, body: JsonObject = CALL) -> JsonObject:
    """A new observation, as it is shown."""
    answered = await api.post(PLACE, body)
    assert 201 == answered.status, answered.body
    return dict(answered.json)


async def how_it_stands(api: RestClient) -> tuple[str, str | None, int | None]:
    """State, reason and status of the observation."""
    shown = (await api.get(PLACE)).json
    return shown["state"], shown["reason"], shown["status"]


async def stands(api: RestClient, *expected: object) -> None:
    await eventually(expected, lambda: how_it_stands(api))


async def remembers(api: RestClient, *expected: str, session: str = "s") -> None:
    """What the user said in one turn, after another."""

    async def texts() -> list[str]:
        return [message["content"] for message in await api.contents(session)]

    await eventually([" ".join(expected)], texts)


async def frames_of(api: RestClient) -> list[JsonObject]:
    """The frames in the journal."""
    return [row["event"]["frame"] for row in await api.journal() if row["event"]["type"] == "frame"]


LIVE_CALL = {"dialect": "openai-live", "session_id": "sess_1"}


@pytest.mark.parametrize(
    ("call", "name", "address"),
    [
        (CALL, "webrtc", "/v1/realtime?call_id=rtc_1"),
        (LIVE_CALL, "sideband_attached_in_mid_call", "/v1/realtime/sessions/sess_1/attach"),
    ],
    ids=["openai-realtime", "openai-live"],
)
async def test_a_whole_call_is_recorded(
    sideband: Sideband, settings: JsonObject, call: JsonObject, name: str, address: str
) -> None:
    """The memory is that of the recorded call, the vendor's clean close ends the session, and nothing is sent to it."""
    clock, recording = ManualClock(), Recording(call["dialect"], name)
    free = Address("127.0.0.1", 0)
    chosen = Settings(store="memory:", rest=free, ingest=free, **settings)
    async with running(chosen, clock=clock) as app:
        api = RestClient(app)
        clock.ms = recording.envelopes()[0]["ts"]
        await api.create()
        assert ("waiting", 0) == ((begun := await begin(api, call))["state"], begun["connections"])
        connection = await sideband.accept()
        await stands(api, "observing", None, None)
        taken = 0
        for envelope in recording.envelopes():
            if envelope["from"] != "vendor":
                continue
            clock.ms = envelope["ts"]
            before = frames_counted(app)
            await send(connection, envelope["frame"])
            taken = before + 1
            await eventually(taken, lambda: as_async(frames_counted(app)))
        clock.ms = recording.hang_up()
        await connection.close(1000)

        async def reason() -> str | None:
            return (await how_it_stands(api))[1]

        await eventually("call_over", reason)
        clock.wait(5)
        await eventually("ended", api.state)
        assert recording.document("contents")["contents"] == await api.contents()
    (request,) = sideband.requests
    assert (address, f"Bearer {KEY}") == (request.path, request.headers["Authorization"])
    assert [] == sideband.received


def frames_counted(app: App) -> int:
    """How many frames the service has looked at."""
    samples = next(iter(app.services.telemetry.metrics.frames.collect())).samples
    return int(sum(sample.value for sample in samples if sample.name.endswith("_total")))


async def as_async(value: int) -> int:
    return value


async def test_the_vendor_says_that_the_call_is_over(sideband: Sideband, api: RestClient) -> None:
    """The session ends with the vendor's reason, though the connection is still open."""
    await begin(api, LIVE_CALL)
    connection = await sideband.accept()
    await send(connection, {"type": "session.closed", "event_id": "e1", "reason": "client_requested"})
    await stands(api, "ended", "call_over", None)
    await eventually("ended", api.state)
    assert "closed" != (await api.session())["reason"]
    await connection.wait_closed()


@pytest.mark.parametrize("code", [1001, 1011, 1012, 4000, None])
async def test_a_dropped_connection_is_made_again(
    sideband: Sideband, api: RestClient, code: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """In mid-call, whatever it was closed with; what the vendor repeats then is stored once."""
    await begin(api)
    connection = await sideband.accept()
    await send(connection, said("u1", "One.", "e1"))
    await remembers(api, "One.")
    if code is None:
        connection.transport.abort()
    else:
        await connection.close(code)
    connection = await sideband.accept()
    await send(connection, said("u1", "One.", "e1"), said("u2", "Two.", "e2"))
    await remembers(api, "One.", "Two.")
    assert ["e1", "e2"] == [frame["event_id"] for frame in await frames_of(api)]
    assert ("observing", 2) == ((shown := (await api.get(PLACE)).json)["state"], shown["connections"])
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("status", "reason", "attempts"),
    [
        (401, "refused", 1),
        (403, "refused", 1),
        (400, "refused", 1),
        (404, "unknown_call", HASTY.unknown_attempts),
        (410, "unknown_call", HASTY.unknown_attempts),
    ],
)
async def test_a_refusal_is_final(
    sideband: Sideband, api: RestClient, status: int, reason: str, attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The state says so, only a call that is not known yet is tried again, and nothing of the answer is repeated."""
    sideband.refuse_with = status
    await begin(api)
    await stands(api, "failed", reason, status)
    assert attempts == len(sideband.requests)
    assert KEY not in caplog.text + (await api.get(PLACE)).body.decode()
    assert "running" == await api.state()
    sideband.refuse_with = None
    await begin(api)
    await sideband.accept()
    await stands(api, "observing", None, None)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_vendor_in_trouble_is_asked_a_few_times(sideband: Sideband, api: RestClient, status: int) -> None:
    """Then the observation has failed."""
    sideband.refuse_with = status
    await begin(api)
    await stands(api, "failed", "unreachable", status)
    assert HASTY.attempts == len(sideband.requests)


async def test_a_vendor_that_drops_every_connection(sideband: Sideband, api: RestClient) -> None:
    """There is no endless loop, also where each connection brings something."""
    await begin(api)
    for number in range(HASTY.attempts):
        connection = await sideband.accept()
        await send(connection, said(f"u{number}", f"{number}.", f"e{number}"))
        await connection.close(1011)
    await stands(api, "failed", "dropped", 1011)
    assert HASTY.attempts == len(sideband.requests)
    await remembers(api, "0.", "1.", "2.", "3.")


async def test_a_call_that_has_just_been_made(sideband: Sideband, api: RestClient) -> None:
    """The vendor may not know it yet."""
    sideband.refuse_with = 404

    async def know_it() -> None:
        if len(sideband.requests) == 2:
            sideband.refuse_with = None

    sideband.hook = know_it
    await begin(api)
    await sideband.accept()
    await stands(api, "observing", None, None)


async def test_a_call_that_is_gone_when_it_is_dialled_again_is_over(sideband: Sideband, api: RestClient) -> None:
    """The vendor knew it before."""
    await begin(api)
    connection = await sideband.accept()
    sideband.refuse_with = 404
    await connection.close(1001)
    await stands(api, "ended", "call_over", 404)


async def test_no_redirect_is_followed(sideband: Sideband, api: RestClient) -> None:
    """The key goes to the operator's address and nowhere else."""
    sideband.refuse_with, sideband.location = 302, sideband.url.replace("127.0.0.1", "localhost")
    await begin(api)
    await stands(api, "failed", "refused", 302)
    assert 1 == len(sideband.requests)


async def test_a_vendor_that_does_not_answer(app: App, sideband: Sideband, api: RestClient) -> None:
    """It is given up on, call by call, while the service goes on."""
    hurry(app, HASTY._replace(handshake_s=0.05))

    async def hang() -> None:
        await eventually(True, lambda: as_async(0), 0.5)

    sideband.hook = hang
    await begin(api)
    await stands(api, "failed", "unreachable", None)
    assert "running" == await api.state()


async def test_a_connection_that_hangs_is_noticed(app: App, sideband: Sideband, api: RestClient) -> None:
    """A vendor that answers no ping any more is dialled again."""
    hurry(app, HASTY._replace(ping_s=0.1))
    await begin(api)
    connection = await sideband.accept()
    connection.transport.pause_reading()
    again = await sideband.accept()
    await send(again, said("u1", "Still here.", "e1"))
    await remembers(api, "Still here.")
    connection.transport.abort()


async def test_large_messages_are_taken_and_audio_is_only_counted(sideband: Sideband, api: RestClient) -> None:
    """Up to 16 MiB; of audio the journal has the number of its bytes."""
    await begin(api)
    connection = await sideband.accept()
    audio = {"type": "response.output_audio.delta", "event_id": "a", "response_id": "r", "item_id": "i"}
    await send(connection, {**audio, "delta": "A" * (16 * 1024 * 1024 - 200)}, said("u1", "After it.", "e1"))
    await remembers(api, "After it.")
    rows = json.dumps(await api.journal())
    assert "audio_bytes" in rows
    assert len(rows) < 10_000


async def test_what_is_too_large_costs_the_connection_alone(sideband: Sideband, api: RestClient) -> None:
    """It is dialled again, and the call goes on being recorded."""
    await begin(api)
    connection = await sideband.accept()
    await connection.send("A" * (16 * 1024 * 1024 + 1))
    again = await sideband.accept()
    await send(again, said("u1", "After it.", "e1"))
    await remembers(api, "After it.")


async def test_messages_that_say_nothing_are_passed_over(sideband: Sideband, api: RestClient) -> None:
    """No message of the vendor's ends the observation, and none is taken for an envelope of ours."""
    await begin(api)
    connection = await sideband.accept()
    for message in ("", "no JSON", "[]", "{}", "null", '{"type":5}', '{"frame":{"type":"x"},"seq":1}', b"\x00\x01"):
        await connection.send(message)
    await send(connection, {"type": "something.new"}, said("u1", "Hello.", "e1"))
    await remembers(api, "Hello.")
    assert 1 == len(await frames_of(api))


async def test_stopping(sideband: Sideband, api: RestClient) -> None:
    """`DELETE` closes the connection; the session goes on, and another call can be observed then."""
    await begin(api)
    connection = await sideband.accept()
    await stands(api, "observing", None, None)
    assert "stopped" == (await api.delete(PLACE)).json["state"]
    await connection.wait_closed()
    await stands(api, "stopped", None, None)
    assert "stopped" == (await api.delete(PLACE)).json["state"]
    assert "running" == await api.state()
    await begin(api, {**CALL, "call_id": "rtc_2"})
    await sideband.accept()


@pytest.mark.parametrize("how", ["end", "erase"])
async def test_a_session_that_is_over_is_not_observed(sideband: Sideband, api: RestClient, how: str) -> None:
    """The connection is closed, in mid-call."""
    await begin(api)
    connection = await sideband.accept()
    await send(connection, said("u1", "Hello.", "e1"))
    await remembers(api, "Hello.")
    if how == "end":
        await api.end()
    else:
        assert 204 == (await api.delete("/v1/sessions/s")).status
    await connection.wait_closed()
    if how == "end":
        await stands(api, "ended", "session_over", None)
        assert (410, "session_ended") == (await api.post(PLACE, CALL)).problem
    else:
        assert (404, "unknown_session") == (await api.post(PLACE, CALL)).problem


async def test_a_restarted_service_goes_on(sideband: Sideband, settings: JsonObject, tmp_path: Path) -> None:
    """In the middle of a call; what it had stored is there once."""
    store = f"sqlite:{tmp_path}/calls.db"
    async with running_service(store=store, **settings) as app:
        api = RestClient(app)
        await api.create()
        await begin(api)
        connection = await sideband.accept()
        await send(connection, said("u1", "One.", "e1"))
        await remembers(api, "One.")
    await connection.wait_closed()
    async with running_service(store=store, **settings) as app:
        connection = await sideband.accept()
        await send(connection, said("u1", "One.", "e1"), said("u2", "Two.", "e2"))
        await remembers(RestClient(app), "One.", "Two.")
        await stands(RestClient(app), "observing", None, None)


async def test_one_of_several_nodes_observes(sideband: Sideband, settings: JsonObject) -> None:
    """Each shows how it stands, each can stop it, and when that one goes another goes on."""
    store = InMemoryStore(exclusive=False)
    async with node_on(store, **settings) as other:
        async with node_on(store, **settings) as one:
            api, elsewhere = RestClient(one), RestClient(other)
            await api.create()
            await begin(api)
            connection = await sideband.accept()
            await send(connection, said("u1", "One.", "e1"))
            await remembers(api, "One.")
            await stands(elsewhere, "observing", None, None)
            await one.services.observers.poll()
            await other.services.observers.poll()
            assert 1 == len(one.services.observers.running) + len(other.services.observers.running)
            assert 1 == len(sideband.requests)
            busy = one if one.services.observers.running else other
        if busy is one:
            connection = await sideband.accept()
        await send(connection, said("u2", "Two.", "e2"))
        await remembers(elsewhere, "One.", "Two.")
        await elsewhere.delete(PLACE)
        await connection.wait_closed()


async def test_many_calls_at_once(serve: Serve, sideband: Sideband, settings: JsonObject) -> None:
    """Each has its connection and its session; beyond the limit none is begun."""
    api = RestClient(await serve(**settings, observe_limit=20))
    for number in range(21):
        await api.create(f"s{number}")
    answers = [
        await api.post(f"/v1/sessions/s{number}/observe", {**CALL, "call_id": f"rtc_{number}"}) for number in range(21)
    ]
    assert [201] * 20 == [answered.status for answered in answers[:20]]
    assert (409, "too_many_observations") == answers[20].problem
    for _ in range(20):
        connection: ServerConnection = await sideband.accept()
        request: Any = connection.request
        await send(connection, said("u1", request.path.rpartition("_")[2], "e1"))
    for number in range(20):
        await remembers(api, str(number), session=f"s{number}")


async def test_the_vendor_is_asked_as_its_own_client_asks(sideband: Sideband, serve: Serve) -> None:
    """Path, query and key are those of OpenAI's package: `realtime.connect(call_id=…)`, `live.sideband.connect(…)`."""
    root = sideband.url.removesuffix("/realtime")
    urls = (f"openai-realtime={root}/realtime", f"openai-live={root}/live")
    api = RestClient(await serve(observe_key=KEY, observe_urls=urls))
    client = AsyncOpenAI(api_key=KEY, websocket_base_url=root)
    for number, call in enumerate((CALL, LIVE_CALL)):
        if "call_id" in call:
            theirs: Any = client.realtime.connect(call_id=call["call_id"])
        else:
            theirs = client.live.sideband.connect(session_id=call["session_id"])
        async with theirs:
            await sideband.accept()
        await api.create(f"s{number}")
        assert 201 == (await api.post(f"/v1/sessions/s{number}/observe", call)).status
        await sideband.accept()
        first, second = sideband.requests[-2:]
        assert (first.path, first.headers["Authorization"]) == (second.path, second.headers["Authorization"])


async def test_a_store_that_is_away_costs_nothing(
    app: App, sideband: Sideband, api: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came meanwhile waits for it, and is stored once, also where a commit was made whose outcome was unknown."""
    hurry(app, HASTY._replace(store_again_s=0.01))
    await begin(api)
    connection = await sideband.accept()
    await send(connection, said("u1", "One.", "e1"))
    await remembers(api, "One.")
    record, failures = app.services.recorder.record, [False, True]

    async def failing(*arguments: Any, **more: Any) -> Any:
        """Twice it cannot be told; the second time it is stored all the same."""
        if not failures:
            return await record(*arguments, **more)
        if failures.pop(0):
            await record(*arguments, **more)
        raise StoreUnavailable

    monkeypatch.setattr(app.services.recorder, "record", failing)
    await send(connection, said("u2", "Two.", "e2"))
    await eventually(0, lambda: as_async(len(failures)))
    await send(connection, said("u3", "Three.", "e3"))
    await remembers(api, "One.", "Two.", "Three.")
    assert ["e1", "e2", "e3"] == [frame["event_id"] for frame in await frames_of(api)]
