"""Who calls, as frames of other stacks say it: the session's user where that is allowed, and no number anywhere."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.rest import RestClient, client_with_key
from tests.support.rows import all_rows
from tests.support.samples.callers import CALLER, SAMPLES, USER, Sample
from tests.support.services import Serve, running_service
from tests.support.waiting import all_connections_handled, eventually
from voicemem.app import App
from voicemem.dialects.dialect import session_id_of, user_id_of
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.types import JsonObject

RUN = re.compile(r"\d[\d\s().\-–_·/]{5,}\d")
SECRETS = ("5551234567", "8912345678")
"""The numbers of the samples' parties, without their countries."""
WAYS = ("hooks", "bare", "events", "envelopes")
ALLOWED = ("off", "user", "number", "user,number")


def has_number(text: str) -> list[str]:
    """The runs of digits in a text that are a party's number, in whatever spelling and script."""
    unescaped = re.sub(r"\\+u([0-9a-f]{4})", lambda escaped: chr(int(escaped[1], 16)), text)
    runs = ("".join(str(int(one)) for one in run[0] if one.isdecimal()) for run in RUN.finditer(unescaped))
    return [run for run in runs if any(number in run for number in SECRETS)]


async def send(app: App, sample: Sample, way: str, session_id: str) -> RestClient:
    """Send what a vendor sends of a call, in one of the ways."""
    api = RestClient(app)
    if way == "hooks":
        for body in sample.frames:
            answered = await api.call("POST", f"/v1/hooks/{sample.dialect}", json=body)
            assert 200 == answered.status, answered.body
        return api
    frames = [{"frame": frame, "ts": 1790000000000 + place} for place, frame in enumerate(sample.frames)]
    if way == "events":
        await api.create(session_id)
        answered = await api.call("POST", f"/v1/sessions/{session_id}/events?dialect={sample.dialect}", json=frames)
        assert 200 == answered.status, answered.body
    elif way == "bare":
        async with connect(f"ws://{app.ingest_address}/v1/ingest/{sample.dialect}?session_id={session_id}") as socket:
            for frame in sample.frames:
                await socket.send(json.dumps(frame))
    else:
        async with connect(f"ws://{app.ingest_address}/v1/ingest", subprotocols=["voicemem.v1"]) as socket:  # type: ignore[list-item]
            opening: JsonObject = {"type": "session.open", "session_id": session_id, "dialect": sample.dialect}
            for frame in (opening, *frames):
                await socket.send(json.dumps(frame))
            await socket.recv()
            await asyncio.sleep(0)
    await all_connections_handled()
    return api


async def user_of(api: RestClient, session_id: str) -> str | None:
    """The user of a session."""
    answered = await api.get(f"/v1/sessions/{session_id}")
    user: str | None = answered.json["config"].get("user_id")
    return user


def ways_of(sample: Sample) -> tuple[str, ...]:
    if not sample.hooks:
        return WAYS[1:]
    return WAYS[:1] if DIALECTS[sample.dialect].split is None else ("hooks", "events")


CASES = [
    (sample, way, sample.session_id if way == "hooks" else f"s-{place}-{way}")
    for place, sample in enumerate(SAMPLES)
    for way in ways_of(sample)
]
"""Samples, the ways in which they may come, and the sessions that they are then."""


def identify_all(allowed: str) -> tuple[str, ...]:
    """A setting for all dialects."""
    return tuple(f"{one.dialect}={allowed}" for one in SAMPLES)


@pytest.mark.parametrize("allowed", ALLOWED)
async def test_who_calls(serve: Serve, allowed: str) -> None:
    """The session's user is the vendor's, or the number's id, as far as the settings allow it."""
    app = await serve(identify=identify_all(allowed))
    with all_rows() as row:
        for sample, way, session_id in CASES:
            with row(sample.dialect, session_id):
                await check_who_calls(app, sample, way, session_id, allowed)


async def check_who_calls(app: App, sample: Sample, way: str, session_id: str, allowed: str) -> None:
    api = await send(app, sample, way, session_id)
    known = {
        "user": USER if sample.names_user else None,
        "number": await app.services.callers.find("default", CALLER) if sample.names_number else None,
    }
    expected = next((known[one] for one in allowed.split(",") if known.get(one) is not None), None)
    await eventually(expected, lambda: user_of(api, session_id))
    journal = (await api.get(f"/v1/sessions/{session_id}/events")).lines
    assert 1 >= len([one for one in journal if one["event"].get("type") == "session.update"])


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The service's log at its lowest level."""
    with caplog.at_level(logging.DEBUG, logger="voicemem"):
        yield caplog


MALFORMED: tuple[tuple[str, Any], ...] = (
    ("hooks/vapi", {"message": {"type": CALLER, "call": {"id": 7, "customer": {"number": CALLER}}}}),
    ("hooks/vapi", {"message": {"type": 7, "customer": {"number": CALLER}}}),
    ("hooks/vapi", {"message": {"type": "transcript", "role": CALLER, "call": {"id": "x"}, "customer": CALLER}}),
    ("hooks/retell", {"event": "call_ended", "call": [CALLER]}),
    ("hooks/elevenlabs-agents", {"type": "post_call_transcription", "data": {"user_id": CALLER, "transcript": CALLER}}),
    ("hooks/ultravox", {"event": "call.ended", "call": {"metadata": {"from": CALLER}}}),
    ("sessions/s-0-events/events?dialect=conversation-relay", [{"type": "setup", "from": CALLER, "callSid": [CALLER]}]),
    ("sessions/s-0-events/events?dialect=conversation-relay", [{"type": CALLER}]),
    ("sessions/s-0-events/events?dialect=livekit-agents", [{"topic": "lk.transcription", "identity": CALLER}]),
)


async def refused(app: App, path: str, body: Any) -> str:
    """What the answer to something malformed says."""
    return (await RestClient(app).call("POST", f"/v1/{path}", json=body)).body.decode()


def files_in(folder: Path) -> dict[str, str]:
    """All bytes of the files in a folder, by name."""
    return {path.name: path.read_bytes().decode("latin-1") for path in folder.iterdir()}


@pytest.mark.parametrize("allowed", ["off", "user,number"])
async def test_no_number_is_written(tmp_path: Path, everything_logged: pytest.LogCaptureFixture, allowed: str) -> None:
    """Neither in files of the store nor in answers, logs, metrics and errors, whatever the way of the frames."""
    answers: list[str] = []
    async with running_service(store=f"sqlite:{tmp_path}/calls.db", identify=identify_all(allowed)) as app:
        for sample, way, id in CASES:
            api = await send(app, sample, way, id)
            paths = (f"/v1/sessions/{id}", f"/v1/sessions/{id}/events", f"/v1/sessions/{id}/history")
            answers += [(await api.get(path)).body.decode() for path in paths]
        answers += [await refused(app, path, body) for path, body in MALFORMED]
        answers.append((await api.get("/metrics")).body.decode())
        answers.append((await api.get("/v1/sessions")).body.decode())
    texts = files_in(tmp_path) | {"log": everything_logged.text, "answers": "\n".join(answers)}
    assert {} == {name: found for name, text in texts.items() if (found := has_number(text))}
    assert "call_back" in texts["answers"]


async def test_what_is_said_is_speech(app: App, api: RestClient) -> None:
    """A number that a caller speaks is for redaction to judge, whoever's it is."""
    frames: list[JsonObject] = [
        {"type": "setup", "callSid": "CA1", "from": CALLER},
        {"type": "prompt", "voicePrompt": f"My number is {CALLER}.", "last": True},
    ]
    await send(app, Sample("conversation-relay", "CA1", frames), "bare", "CA1")
    await eventually([f"My number is {CALLER}."], lambda: texts(api, "CA1"))


async def texts(api: RestClient, session_id: str) -> list[str]:
    return [one["content"] for one in await api.contents(session_id)]


@pytest.mark.parametrize("said", [CALLER, f"call-_{CALLER}_x9", "sip:+15551234567@pbx"])
async def test_a_session_id_with_a_number(app: App, api: RestClient, said: str) -> None:
    """The session has an id that tells nothing of the number, and the same each time."""
    frames: list[JsonObject] = [
        {"type": "setup", "callSid": said, "from": CALLER},
        {"type": "prompt", "voicePrompt": "Hello.", "last": True},
    ]
    for _ in range(2):
        async with connect(f"ws://{app.ingest_address}/v1/ingest/conversation-relay") as socket:
            for frame in frames:
                await socket.send(json.dumps(frame))
        await all_connections_handled()
    [session] = (await api.get("/v1/sessions")).json["sessions"]
    assert [] == has_number(session["session_id"])
    assert [] == has_number((await api.get(f"/v1/sessions/{session['session_id']}/events")).body.decode())


async def test_one_number_of_two_people(serve: Serve) -> None:
    """They are one user, unless the vendor names them."""
    app = await serve(identify=("conversation-relay=user,number",))
    users = []
    callers: tuple[JsonObject, ...] = ({}, {"from": "001 (555) 123-4567"}, {"customParameters": {"user_id": "bob"}})
    for place, more in enumerate(callers):
        frames = [
            {"type": "setup", "callSid": f"CA{place}", "from": CALLER} | more,
            {"type": "prompt", "voicePrompt": "Hi."},
        ]
        api = await send(app, Sample("conversation-relay", "", frames), "bare", f"CA{place}")
        await eventually(True, partial(is_named, api, f"CA{place}"))
        users.append(await user_of(api, f"CA{place}"))
    assert [users[0], users[0], "bob"] == users


async def is_named(api: RestClient, session_id: str) -> bool:
    return await user_of(api, session_id) is not None


@pytest.mark.parametrize(
    "given", ["anonymous", "+266696687", "Restricted", "", 0, None, [], {"number": CALLER}, "x" * 10_000]
)
async def test_a_caller_without_a_number(serve: Serve, given: Any) -> None:
    """The call has no user, and is remembered."""
    app = await serve(identify=("vapi=user,number",))
    call = {"id": "call-1", "customer": {"number": given, "externalId": None}}
    body = {"message": {"type": "transcript", "role": "user", "transcript": "Hello.", "call": call}}
    api = RestClient(app)
    assert 1 == (await api.call("POST", "/v1/hooks/vapi", json=body)).json["stored"]
    assert None is await user_of(api, "call-1")


@pytest.mark.parametrize("given", ["x" * 10_000, "a\nb\u0085", 12345, "ünï", "a" * 128, "ann..", " ann "])
async def test_ids_of_users_that_are_odd(serve: Serve, given: Any) -> None:
    """Each gives a user that sessions can be listed by, and the call is remembered."""
    app = await serve(identify=("vapi=user",))
    call = {"id": "call-1", "customer": {"externalId": given}}
    body = {"message": {"type": "transcript", "role": "user", "transcript": "Hello.", "call": call}}
    api = RestClient(app)
    assert 1 == (await api.call("POST", "/v1/hooks/vapi", json=body)).json["stored"]
    user = await user_of(api, "call-1")
    assert user_id_of(str(given).strip()) == user
    listed = await api.get(f"/v1/sessions?{urlencode({'user_id': user})}")
    assert ["call-1"] == [one["session_id"] for one in listed.json["sessions"]]


async def test_a_user_id_that_is_a_number(serve: Serve) -> None:
    """It is one, and becomes its id, or nothing."""
    bodies = [
        {
            "message": {
                "type": "transcript",
                "role": "user",
                "transcript": "Hi.",
                "call": {"id": id, "customer": customer},
            }
        }
        for id, customer in (
            ("a", {"externalId": CALLER}),
            ("b", {"externalId": "cust-15551234567", "number": CALLER}),
            ("c", {"externalId": "1 555 123 4567"}),
        )
    ]
    for allowed, expected in (("user", [None, None, None]), ("user,number", [True, True, None])):
        app = await serve(identify=(f"vapi={allowed}",))
        api = RestClient(app)
        for body in bodies:
            assert 1 == (await api.call("POST", "/v1/hooks/vapi", json=body)).json["stored"]
        users = [await user_of(api, id) for id in ("a", "b", "c")]
        assert expected == [None if user is None else user.startswith("tel_") for user in users]


async def test_a_user_is_set_where_none_was(serve: Serve) -> None:
    """What an explicit user_id says stays, whatever a frame says later."""
    app = await serve(identify=("vapi=user",))
    api = RestClient(app)
    await api.create("call-1", user_id="explicit")
    await api.create("call-2")
    for id in ("call-1", "call-2"):
        for user in ("ann", "bob"):
            call = {"id": id, "customer": {"externalId": user}}
            body = {"message": {"type": "transcript", "role": "user", "transcript": user, "call": call}}
            await api.call("POST", "/v1/hooks/vapi", json=body)
    assert ["explicit", "ann"] == [await user_of(api, id) for id in ("call-1", "call-2")]


async def test_two_frames_name_the_user_at_once(app: App, api: RestClient) -> None:
    """The first counts, whatever the other knew of the session."""
    await api.create("call-1")
    stream = await app.services.store.journal.get_session("default", "call-1")
    await asyncio.gather(*(app.services.sessions.set_first_user(stream, user) for user in ("ann", "bob", "eve")))
    journal = (await api.get("/v1/sessions/call-1/events")).lines
    [change] = [one["event"] for one in journal if one["event"]["type"] == "session.update"]
    assert change["user_id"] == await user_of(api, "call-1")


async def test_a_user_after_the_end(serve: Serve) -> None:
    """A webhook that says who called may come when the call is over."""
    app = await serve(identify=("retell=user,number",))
    api = RestClient(app)
    call: JsonObject = {"call_id": "call-1", "transcript_object": [{"role": "user", "content": "Hello."}]}
    for event, more in (("call_ended", {}), ("call_analyzed", {"metadata": {"user_id": "ann"}})):
        answered = await api.call("POST", "/v1/hooks/retell", json={"event": event, "call": call | more})
        assert 200 == answered.status
    await eventually("ann", lambda: user_of(api, "call-1"))


async def test_a_session_token_names_no_user(serve: Serve) -> None:
    """Its holder could otherwise read what is remembered of anyone."""
    app = await serve(identify=("conversation-relay=user",))
    admin = await client_with_key(app, "admin")
    await admin.create("call-1")
    token = (await admin.call("POST", "/v1/sessions/call-1/tokens", json={})).json["token"]
    url = f"ws://{app.ingest_address}/v1/ingest/conversation-relay?user_id=bob&token={token}"
    async with connect(url) as socket:
        await socket.send(json.dumps({"type": "setup", "callSid": "x", "customParameters": {"user_id": "ann"}}))
        await socket.send(json.dumps({"type": "prompt", "voicePrompt": "Hello.", "last": True}))
    await all_connections_handled()
    await eventually(["Hello."], lambda: texts(admin, "call-1"))
    assert None is await user_of(admin, "call-1")


async def test_a_user_in_the_query(app: App, api: RestClient) -> None:
    """It is the user of a session that the connection begins, or that has none."""
    await api.create("there")
    await api.create("of-bob", user_id="bob")
    for id in ("new", "there", "of-bob"):
        url = f"ws://{app.ingest_address}/v1/ingest/conversation-relay?session_id={id}&user_id=ann%20b"
        async with connect(url) as socket:
            await socket.send(json.dumps({"type": "prompt", "voicePrompt": "Hello.", "last": True}))
            await eventually(["Hello."], partial(said, api, id))
    assert ["ann b", "ann b", "bob"] == [await user_of(api, id) for id in ("new", "there", "of-bob")]


async def said(api: RestClient, session_id: str) -> list[str]:
    answered = await api.get(f"/v1/sessions/{session_id}/history")
    return [one["content"] for one in answered.json["contents"]] if answered.status == 200 else []


async def test_a_project_decides_for_itself(serve: Serve) -> None:
    """What is set with the secret of its webhooks counts before the settings, also that nothing is allowed."""
    app = await serve(identify=("vapi=user",))
    admin = await client_with_key(app, "admin")
    body: JsonObject = {"message": {"type": "transcript", "role": "user", "transcript": "Hi."}}
    users = []
    for place, identify in enumerate((None, [], ["number"], ["user", "number"])):
        given: JsonObject = {"secret": "the-secret"} | ({} if identify is None else {"identify": identify})
        shown = (await admin.call("PUT", "/v1/hooks/vapi/secret", json=given)).json
        assert identify == shown["identify"]
        call = {"id": f"c{place}", "customer": {"externalId": "ann", "number": CALLER}}
        body["message"]["call"] = call
        headers = {"X-Vapi-Secret": "the-secret"}
        answered = await RestClient(app).call("POST", "/v1/hooks/vapi", json=body, headers=headers)
        assert 200 == answered.status
        users.append(await user_of(admin, f"c{place}"))
    assert ["ann", None, await app.services.callers.find("default", CALLER), "ann"] == users
    assert (400, "invalid_field") == (
        await admin.call("PUT", "/v1/hooks/vapi/secret", json={"identify": ["name"]})
    ).problem


async def test_a_number_in_clear_is_warned_of(app: App, api: RestClient) -> None:
    """An id of a user that looks like one is taken, with a sentence that says what would be right."""
    for place, (user, warned) in enumerate(
        {CALLER: True, "0049 171 1234567": True, "ann": False, "4711": False}.items()
    ):
        made = (await api.call("POST", "/v1/sessions", json={"session_id": f"s{place}", "user_id": user})).json
        assert warned is any("users id --number" in one for one in made.get("warnings", ()))


async def test_ids_that_look_the_same_stay_apart() -> None:
    """A number in a session's id takes nothing away that tells two calls apart."""
    assert session_id_of("a/b") != session_id_of("a-b")


def test_ids_that_cannot_stand_in_a_path_become_others() -> None:
    """Clients take the segments . and .. out of paths, and three dots are no such segment."""
    assert not {".", ".."} & {session_id_of("."), session_id_of("..")}
    assert session_id_of(".") != session_id_of("..")
    assert "..." == session_id_of("...")
