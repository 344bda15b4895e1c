"""Endpoints of a project over REST: what they hear, how they are managed, and what became of every notice."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from callers import (
    LOOPBACK,
    Answered,
    Caller,
    JsonObject,
    Notice,
    Receiver,
    Reply,
    Serve,
    closed,
    keyed,
    opening,
    receiving,
    service,
    until,
)
from calls import delta, done, event, final, interrupt, message
from office import Clock
from services import ANY_PORT
from standardwebhooks import Webhook, WebhookVerificationError

from voicemem.app import App, running
from voicemem.config.service import Settings
from voicemem.context.policies import Policies
from voicemem.runtime import Runtime
from voicemem.services import Services
from voicemem.store.sqlite.store import MemoryStore
from voicemem.telemetry import Telemetry
from voicemem.webhooks import outbox
from voicemem.webhooks.endpoints import MAX_ENDPOINTS
from voicemem.webhooks.outbox import FAILING_MS

ALL = [101, 102, 103, 111, 112]
CALL: list[JsonObject] = [
    message(0, "Hello.", 1_000, role="assistant", source="greeting"),
    final(1, "Hi.", 2_000),
    delta(1, "Good day to you.", 3_000),
    done(1, 3_500),
    interrupt(1, 4_000, heard_text="Good day "),
    event("metric", 1, 3_100, name="llm_ttft", latency_ms=210),
    event("metric", 1, 3_200, name="tts_ttfb", latency_ms=90.5),
    event("metric", 1, 3_300, name="e2e", latency_ms=700),
]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
async def hook() -> AsyncIterator[Receiver]:
    """A receiver of webhooks."""
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def caller(serve: Serve) -> Caller:
    """A caller of a service that may call this machine."""
    return Caller(await serve(allow_addresses=LOOPBACK))


async def add(caller: Caller, url: str, *event_types: int, **more: Any) -> JsonObject:
    """A new endpoint."""
    types = {"event_types": list(event_types)} if event_types else {}
    answered = await caller.post("/v1/webhooks", {"url": url, **types, **more})
    assert 201 == answered.status, answered.body
    return dict(answered.json)


async def finish(caller: Caller, session_id: str = "s", *events: JsonObject, **config: Any) -> None:
    """A session that begins, hears these events, and ends."""
    await caller.create(session_id, **config)
    if events:
        await caller.send(*events, session_id=session_id)
    await caller.end(session_id)


async def read(caller: Caller, made: JsonObject) -> JsonObject:
    return dict((await caller.get(f"/v1/webhooks/{made['id']}")).json)


async def deliveries(caller: Caller, made: JsonObject, query: str = "") -> list[JsonObject]:
    answered = await caller.get(f"/v1/webhooks/{made['id']}/deliveries{query}")
    assert 200 == answered.status, answered.body
    return list(answered.json["deliveries"])


async def settled(caller: Caller, made: JsonObject, *states: str) -> list[JsonObject]:
    """The deliveries, the newest first, once their states are these."""

    async def now() -> list[str]:
        return [one["state"] for one in await deliveries(caller, made)]

    await until([*states], now)
    return await deliveries(caller, made)


async def attempted(caller: Caller, made: JsonObject, count: int) -> JsonObject:
    """The one delivery, once it has so many attempts."""

    async def now() -> int:
        return max((len(one["attempts"]) for one in await deliveries(caller, made)), default=0)

    await until(count, now)
    (delivery,) = await deliveries(caller, made)
    return delivery


def by_type(notices: list[Notice]) -> dict[int, Notice]:
    return {int(notice.json["eventType"]): notice for notice in notices}


# What is told


async def test_every_notice_of_a_call(caller: Caller, hook: Receiver) -> None:
    """An endpoint with all types hears of start, leaving, history, metrics and turns, with Agora's payloads."""
    await add(caller, hook.url(), *ALL)
    await finish(caller, "call-1", *CALL, name="desk", channel="c1", labels={"campaign": "x"})
    told = by_type(await hook.wait(5))
    session = await caller.session("call-1")
    about: JsonObject = {"agent_id": "call-1", "name": "desk", "channel": "c1", "labels": {"campaign": "x"}}
    about["start_ts"] = session["started_at"] // 1000
    stopped = {"stop_ts": session["ended_at"] // 1000}

    assert {*ALL} == set(told)
    assert {("call-1", 17)} == {(notice.json["sid"], notice.json["productId"]) for notice in told.values()}
    assert about == told[101].payload
    assert {**about, **stopped, "status": "STOPPED", "message": "OK"} == told[102].payload
    assert {**about, **stopped, "contents": await caller.contents("call-1")} == told[103].payload
    metrics = [{"turn_id": 1, "llm_ttfb": 210, "tts_ttfb": 90.5}]
    assert {**about, **stopped, "metrics": metrics} == told[111].payload
    turns = (await caller.get("/v1/sessions/call-1/turns")).json["turns"]
    expected = [
        {key: turn[key] for key in ("turn_id", "start", "end")} | {"metrics": {"segmented_latency_ms": {}}}
        for turn in turns
    ]
    expected[1]["metrics"] = {"e2e_latency_ms": 700, "segmented_latency_ms": {"llm_ttft": 210, "tts_ttfb": 90.5}}
    assert {**about, **stopped, "total_turn_count": 2, "is_truncated": False, "turns": expected} == told[112].payload


async def test_a_receiver_that_refuses_other_keys(caller: Caller, hook: Receiver) -> None:
    """With `standard` every notice has exactly the keys that Agora's have, at each level, and no others."""
    await add(caller, hook.url(), *ALL, contents="standard")
    more = (event("metric", 1, 3_400, name="vad", latency_ms=5), event("metric", 2, 5_000, name="vad", latency_ms=5))
    failed = event("llm.error", 2, 5_100, text="Sorry.", code=503)
    measured = event("metric", 1, 3_050, name="asr_ttlw", latency_ms=80)
    asked = final(2, "Still there?", 4_900)
    await finish(caller, "s", *CALL, measured, *more, asked, failed, labels={"campaign": "x"})
    told = {number: notice.payload for number, notice in by_type(await hook.wait(5)).items()}

    assert {number: AGORAS | more for number, more in AGORAS_MORE.items()} == {
        number: set(payload) for number, payload in told.items()
    }
    assert {"role", "content"} == {key for one in told[103]["contents"] for key in one}
    assert [{"turn_id": 1, "asr_ttlw": 80, "llm_ttfb": 210, "tts_ttfb": 90.5}] == told[111]["metrics"]
    ended = [turn["end"] for turn in told[112]["turns"]]
    assert ["ok", "interrupted", "error"] == [end["type"] for end in ended]
    assert {"caused_by": "start_of_speech"} == ended[1]["metadata"]
    assert {"reason": "LLM_REQUEST_ERR", "details": "503"} == ended[2]["metadata"]
    assert [{"turn_id", "start", "end", "metrics"}] * 3 == [set(turn) for turn in told[112]["turns"]]


AGORAS = {"agent_id", "name", "channel", "start_ts", "labels"}
AGORAS_MORE = {
    101: set(),
    102: {"stop_ts", "status", "message"},
    103: {"stop_ts", "contents"},
    111: {"stop_ts", "metrics"},
    112: {"stop_ts", "total_turn_count", "is_truncated", "turns"},
}
"""The keys of all payloads, and those that each has beside them."""


async def test_a_very_long_calls_turns_are_truncated(caller: Caller, hook: Receiver) -> None:
    """Of more than 200 turns the notice holds the first 200, and says so."""
    await add(caller, hook.url(), 112)
    await finish(caller, "s", *(final(number, "Hi.") for number in range(1, 202)))
    told = (await hook.one()).payload

    assert (201, True, [*range(1, 201)]) == (
        told["total_turn_count"],
        told["is_truncated"],
        [turn["turn_id"] for turn in told["turns"]],
    )


async def test_an_endpoint_hears_what_it_subscribed_to(caller: Caller, hook: Receiver) -> None:
    """Each endpoint gets its own types; without any it gets the history."""
    await add(caller, hook.url("/start"), 101, 101)
    await add(caller, hook.url("/metrics"), 111, 102)
    await add(caller, hook.url("/default"))
    await finish(caller)
    heard = sorted((notice.path, notice.json["eventType"]) for notice in await hook.wait(4))

    assert [("/default", 103), ("/metrics", 102), ("/metrics", 111), ("/start", 101)] == heard


async def test_notices_are_told_apart_by_their_ids(caller: Caller, hook: Receiver) -> None:
    """Two notices never share an id, two receivers of one notice do; none holds what separates in a signature."""
    await add(caller, hook.url("/a"), *ALL)
    await add(caller, hook.url("/b"), *ALL)
    await finish(caller)
    notices = await hook.wait(10)

    ids = {(notice.json["eventType"], notice.id) for notice in notices}
    assert (5, 5) == (len(ids), len({one for _, one in ids}))
    assert all(notice.headers["webhook-id"] == notice.id and "." not in notice.id for notice in notices)


async def test_the_operators_endpoint_gets_histories_only(serve: Serve, hook: Receiver) -> None:
    """Whatever a project's endpoint hears, and the operator's is not among them."""
    caller = Caller(await serve(allow_addresses=LOOPBACK, webhook_url=hook.url("/operator")))
    await add(caller, hook.url("/project"), *ALL)
    await finish(caller)

    heard = [notice.json["eventType"] for notice in await hook.wait(6) if notice.path == "/operator"]
    assert [103] == heard


async def test_what_became_of_the_operators_notices(serve: Serve, hook: Receiver) -> None:
    """Keys of the project `default` see its deliveries of all projects, and send them again; they change nothing."""
    url = hook.url("/hook?token=hush").replace("//", "//user:hush@")
    app = await serve(allow_addresses=LOOPBACK, webhook_url=url, webhook_secret="hush-hush")
    own, other = await keyed(app, "admin"), await keyed(app, "admin", project="other")
    hook.replies = [Reply(500)]
    await finish(other, "theirs")
    shown = await read(own, OPERATORS)
    assert ("operator", hook.url("").rstrip("/"), [103], True) == tuple(
        shown[name] for name in ("id", "url", "event_types", "enabled")
    )
    assert {"webhooks": [shown]} == (await own.get("/v1/webhooks")).json
    (delivery,) = await settled(own, OPERATORS, "delivered")
    assert ("theirs", [500, 200]) == (delivery["session_id"], [one["status"] for one in delivery["attempts"]])
    place = "/v1/webhooks/operator"
    assert 202 == (await own.post(f"{place}/deliveries/{delivery['id']}/resend")).status
    await settled(own, OPERATORS, "delivered")
    assert {"recovered": 0} == (await own.post(f"{place}/recover", {"since": 0})).json
    assert (await own.post(f"{place}/test")).json["passed"]
    assert 4 == len(hook.notices)
    for answered in (
        await own.patch(place, {"enabled": False}),
        await own.post(f"{place}/rotate-secret"),
        await own.delete(place),
    ):
        assert (403, "forbidden") == answered.told
        assert b"hush" not in answered.body
    assert shown == await read(own, OPERATORS)
    assert b"hush" not in (await own.get(place)).body
    assert {"webhooks": []} == (await other.get("/v1/webhooks")).json
    for answered in await everything(other, "operator", delivery["id"]):
        assert (404, "unknown_webhook") == answered.told


OPERATORS = {"id": "operator"}


async def test_without_an_operators_webhook_there_is_none(tmp_path: Path, hook: Receiver) -> None:
    """One that was taken away is not there; one that is gone is disabled, and sends again after the next start."""
    store = f"sqlite:{tmp_path / 'calls.db'}"
    hook.replies = [Reply(410)]
    async with service(store=store, webhook_url=hook.url()) as app:
        caller = Caller(app)
        await finish(caller)
        await settled(caller, OPERATORS, "failed")
        await until(False, lambda: is_enabled(caller, OPERATORS))
        recover = "/v1/webhooks/operator/recover"
        assert (409, "webhook_disabled") == (await caller.post(recover, {"since": 0})).told
    async with service(store=store) as app:
        assert (404, "unknown_webhook") == (await Caller(app).get("/v1/webhooks/operator")).told
        assert {"webhooks": []} == (await Caller(app).get("/v1/webhooks")).json
    async with service(store=store, webhook_url=hook.url()) as app:
        assert {"recovered": 1} == (await Caller(app).post(recover, {"since": 0})).json
        await settled(Caller(app), OPERATORS, "delivered")


async def test_a_sessions_own_receiver_may_hear_more(caller: Caller, hook: Receiver) -> None:
    """`webhook.event_types` says what; a change of it counts from then on."""
    await caller.create("s", webhook={"url": hook.url(), "event_types": [101, 112]})
    await hook.wait(1)
    assert 200 == (await caller.patch("/v1/sessions/s", {"webhook": {"event_types": [102]}})).status
    await caller.end()

    assert [101, 102] == [notice.json["eventType"] for notice in await hook.wait(2)]
    refused = await caller.post("/v1/sessions", {"webhook": {"url": hook.url(), "event_types": [104]}})
    assert (400, "invalid_field") == refused.told


async def test_an_idle_close_and_a_return(caller: Caller, hook: Receiver) -> None:
    """A session that was idle left for that; when it goes on it has started again, and each time with a new id."""
    await add(caller, hook.url(), 101, 102)
    await caller.create("s", idle_timeout=0.05)
    await hook.wait(2)
    await caller.patch("/v1/sessions/s", {"idle_timeout": 0})  # ended: nothing changes
    await caller.send(final(1, "Still there."))
    await caller.end()
    notices = await hook.wait(4)

    assert [101, 101, 102, 102] == sorted(notice.json["eventType"] for notice in notices)
    assert 4 == len({notice.id for notice in notices})
    left = [notice.payload for notice in notices if notice.json["eventType"] == 102]
    assert {"Idle for too long"} <= {one["message"] for one in left}
    assert {"STOPPED"} == {one["status"] for one in left}


async def test_a_start_is_told_at_once(hook: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a session comes to run, its 101 does not wait for the outbox's next look."""
    monkeypatch.setattr(outbox, "MAX_WAIT_S", 3600)
    clock, agent = Clock(), {"name": "n", "properties": {"channel": "c", "idle_timeout": 0}}
    settings = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT, allow_addresses=LOOPBACK)
    async with running(settings, clock) as app:
        caller = Caller(app)
        await add(caller, hook.url(), 101)
        await caller.create("created")
        await hook.wait(1)
        joined = (await caller.post("/api/conversational-ai-agent/v2/projects/p/join", agent)).json["agent_id"]
        await hook.wait(2)
        await opening(app, "opened")
        await hook.wait(3)
        clock.wait(61)
        await closed(app, "created")
        await closed(app, "opened")
        await opening(app, "opened")
        await hook.wait(4)
        await caller.send(final(1, "Hi."), session_id="created")

        heard = [notice.json["sid"] for notice in await hook.wait(5)]
        assert ["created", joined, "opened", "opened", "created"] == heard


async def test_projects_do_not_hear_each_other(serve: Serve, hook: Receiver) -> None:
    """An endpoint hears of its own project's sessions, and no other key knows of it."""
    app = await serve(allow_addresses=LOOPBACK)
    one, other = await keyed(app, "admin", project="one"), await keyed(app, "admin", project="other")
    made = await add(one, hook.url("/one"), *ALL)
    await add(other, hook.url("/other"), 103)
    await finish(one, "same-name")
    await finish(other, "same-name")
    await hook.wait(6)
    (delivery, *_) = await settled(one, made, *["delivered"] * 5)

    assert {"/one": 5, "/other": 1} == {
        path: [notice.path for notice in hook.notices].count(path) for path in ("/one", "/other")
    }
    assert 1 == len((await other.get("/v1/webhooks")).json["webhooks"])
    for answered in await everything(other, made["id"], delivery["id"]):
        assert (404, "unknown_webhook") == answered.told
    assert hook.url("/one") == (await read(one, made))["url"]


async def everything(caller: Caller, webhook: str, delivery: str = "1") -> list[Answered]:
    """What every call about one endpoint answers."""
    place = f"/v1/webhooks/{webhook}"
    return [
        await caller.get(place),
        await caller.patch(place, {"description": "mine"}),
        await caller.get(f"{place}/deliveries"),
        await caller.post(f"{place}/deliveries/{delivery}/resend"),
        await caller.post(f"{place}/test"),
        await caller.post(f"{place}/rotate-secret"),
        await caller.post(f"{place}/recover", {"since": 0}),
        await caller.delete(place),
    ]


# Managing


async def test_an_endpoints_life(caller: Caller, hook: Receiver) -> None:
    """It is made, shown without its secret, changed, and forgotten."""
    made = await add(caller, hook.url(), 112, 103, description="ours", contents="standard")
    secret = made.pop("secret")

    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{32}", secret)
    assert ([103, 112], "ours", "standard", True) == tuple(
        made[name] for name in ("event_types", "description", "contents", "enabled")
    )
    assert made == await read(caller, made)
    assert {"webhooks": [made]} == (await caller.get("/v1/webhooks")).json
    changed = await caller.patch(f"/v1/webhooks/{made['id']}", {"event_types": [102], "url": hook.url("/new")})
    assert {**made, "event_types": [102], "url": hook.url("/new")} == changed.json == await read(caller, made)
    await finish(caller, "first")
    assert ("/new", 102) == ((await hook.one()).path, (await hook.one()).json["eventType"])
    assert 204 == (await caller.delete(f"/v1/webhooks/{made['id']}")).status
    assert (404, "unknown_webhook") == (await caller.get(f"/v1/webhooks/{made['id']}")).told
    assert {"webhooks": []} == (await caller.get("/v1/webhooks")).json


async def test_a_forgotten_endpoint_hears_nothing(caller: Caller, hook: Receiver) -> None:
    """What waited for it is not sent any more either."""
    hook.otherwise = Reply(500)
    made, other = await add(caller, hook.url("/gone")), await add(caller, hook.url("/other"))
    await finish(caller, "first")
    await attempted(caller, made, 2)
    await caller.delete(f"/v1/webhooks/{made['id']}")
    before = len([one for one in hook.notices if one.path == "/gone"])
    await finish(caller, "second")
    await until(2, lambda: counted(caller, other))

    assert before == len([one for one in hook.notices if one.path == "/gone"])


async def counted(caller: Caller, made: JsonObject) -> int:
    return len([one for one in await deliveries(caller, made) if one["attempts"]])


async def test_an_unknown_endpoint(caller: Caller) -> None:
    """Every call about an endpoint that is not there says so."""
    for webhook in ("0" * 32, "no-such"):
        for answered in await everything(caller, webhook):
            assert (404, "unknown_webhook") == answered.told


BAD: list[Any] = [
    {},
    {"url": "ftp://example.com/"},
    {"url": "https://example.com/", "event_types": []},
    {"url": "https://example.com/", "event_types": [104]},
    {"url": "https://example.com/", "event_types": ["103"]},
    {"url": "https://example.com/", "contents": "some"},
    {"url": "https://example.com/", "secret": "short"},
    {"url": "https://example.com/", "secret": "with spaces in it"},
    {"url": "https://example.com/", "secret": "whsec_notbase64"},
    {"url": "https://example.com/", "description": "x" * 1001},
    {"url": "https://example.com/", "description": None},
    {"url": "https://example.com/", "enabled": "yes"},
    {"url": "https://example.com/", "id": "mine"},
    {"url": None},
    {"url": "https://user:pass@example.com/"},
    {"url": "https://example.com:22/"},
]


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
async def test_what_is_no_endpoint_is_refused(serve: Serve, body: JsonObject) -> None:
    """A bad field gets a clear 400, and nothing is kept; neither by a change."""
    caller = Caller(await serve())
    assert (400, "invalid_field") == (await caller.post("/v1/webhooks", body)).told
    assert {"webhooks": []} == (await caller.get("/v1/webhooks")).json
    if body:
        made = await add(caller, "https://example.com/hook")
        changes = {key: value for key, value in body.items() if key != "url" or len(body) == 1}
        assert (400, "invalid_field") == (await caller.patch(f"/v1/webhooks/{made['id']}", changes)).told
        made.pop("secret")
        assert made == await read(caller, made)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("rotate-secret", {"overlap_seconds": -1}),
        ("rotate-secret", {"overlap_seconds": 604_801}),
        ("rotate-secret", {"secret": "\u00fcmlaut-secret"}),
        ("rotate-secret", {"secret": "whsec_notbase64"}),
        ("recover", {}),
        ("recover", {"since": "yesterday"}),
        ("recover", {"since": -1}),
        ("recover", {"since": 0, "until": 1}),
    ],
)
async def test_bad_bodies_of_the_other_calls(caller: Caller, path: str, body: JsonObject) -> None:
    """They are refused, and change nothing."""
    made = await add(caller, "https://example.com/")
    assert (400, "invalid_field") == (await caller.post(f"/v1/webhooks/{made['id']}/{path}", body)).told
    assert (await read(caller, made))["old_secret_until"] is None


@pytest.mark.parametrize("query", ["state=lost", "event_type=104", "limit=0", "before=x", "before=-1", "page=2"])
async def test_bad_queries_for_deliveries(caller: Caller, query: str) -> None:
    """Unknown parameters and values are refused."""
    made = await add(caller, "https://example.com/")
    answered = await caller.get(f"/v1/webhooks/{made['id']}/deliveries?{query}")
    assert (400, "invalid_query") == answered.told


async def test_only_admin_keys_manage_endpoints(serve: Serve) -> None:
    """Keys for ingest and reading get 403 everywhere."""
    app = await serve()
    made = await add(await keyed(app, "admin"), "https://example.com/")
    caller = await keyed(app, "ingest", "read")
    for answered in (*await everything(caller, made["id"]), await caller.get("/v1/webhooks")):
        assert (403, "forbidden") == answered.told
    assert (403, "forbidden") == (await caller.post("/v1/webhooks", {"url": "https://example.com/"})).told


async def test_a_project_has_so_many_endpoints(caller: Caller) -> None:
    """One more than there may be is refused; one that was forgotten makes room."""
    for _ in range(MAX_ENDPOINTS):
        made = await add(caller, "https://example.com/")
    answered = await caller.post("/v1/webhooks", {"url": "https://example.com/"})
    assert (409, "too_many_webhooks") == answered.told
    await caller.delete(f"/v1/webhooks/{made['id']}")
    await add(caller, "https://example.com/")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/", "http://[::1]/", "http://169.254.169.254/", "http://10.0.0.1/"]
)
async def test_an_endpoint_is_a_public_address(serve: Serve, url: str) -> None:
    """An address inside the operator's network is refused, by a change too."""
    caller = Caller(await serve())
    assert (400, "address_not_allowed") == (await caller.post("/v1/webhooks", {"url": url})).told
    made = await add(caller, "https://example.com/hook")
    assert (400, "address_not_allowed") == (await caller.patch(f"/v1/webhooks/{made['id']}", {"url": url})).told
    assert "https://example.com/hook" == (await read(caller, made))["url"]


async def test_the_guard_holds_at_the_connection_too(tmp_path: Path, hook: Receiver) -> None:
    """An endpoint from when the allow-list had its network is not called any more without it."""
    store = f"sqlite:{tmp_path / 'calls.db'}"
    async with service(store=store, allow_addresses=LOOPBACK) as app:
        made = await add(Caller(app), hook.url())
    async with service(store=store) as app:
        caller = Caller(app)
        tried = (await caller.post(f"/v1/webhooks/{made['id']}/test")).json
        await finish(caller)
        delivery = await attempted(caller, made, 2)
    assert (False, "address_not_allowed") == (tried["passed"], tried["results"][0]["error"])
    assert [(None, "address_not_allowed")] * 2 == [(one["status"], one["error"]) for one in delivery["attempts"]]
    assert [] == hook.notices


# Secrets


def verified(notice: Notice, secret: str) -> bool:
    """Whether Standard Webhooks' own verifier takes a notice."""
    try:
        Webhook(secret).verify(notice.body, dict(notice.headers))
    except WebhookVerificationError:
        return False
    return True


def agoras(notice: Notice, secret: str) -> bool:
    expected = hmac.digest(secret.encode(), notice.body, hashlib.sha256).hex()
    return expected == notice.headers["Agora-Signature-V2"]


async def test_both_secrets_sign_while_one_takes_over(caller: Caller, hook: Receiver) -> None:
    """After a rotation the old secret signs as well; Agora's headers hold the new one's; other secrets fit nothing."""
    made = await add(caller, hook.url(), secret=SECRET)
    assert SECRET == made["secret"]
    rotated = (await caller.post(f"/v1/webhooks/{made['id']}/rotate-secret")).json
    await finish(caller)
    notice = await hook.one()

    assert rotated["secret"] != SECRET
    assert rotated["old_secret_until"] >= made["created_at"] + 86_400_000
    assert (True, True, False) == tuple(verified(notice, one) for one in (SECRET, rotated["secret"], "whsec_AAAA"))
    assert (False, True) == (agoras(notice, SECRET), agoras(notice, rotated["secret"]))


async def test_without_an_overlap_only_the_new_secret_signs(caller: Caller, hook: Receiver) -> None:
    """That is for a secret that others have seen."""
    made = await add(caller, hook.url(), secret=SECRET)
    place = f"/v1/webhooks/{made['id']}/rotate-secret"
    rotated = (await caller.post(place, {"overlap_seconds": 0, "secret": "a-secret-of-ours"})).json
    await finish(caller)
    notice = await hook.one()

    assert ("a-secret-of-ours", None) == (rotated["secret"], rotated["old_secret_until"])
    assert (False, True) == (verified(notice, SECRET), agoras(notice, "a-secret-of-ours"))
    assert 1 == len(notice.headers["webhook-signature"].split())


async def test_a_rotation_that_is_repeated_changes_nothing(caller: Caller, hook: Receiver) -> None:
    """Given the same new secret again, the one of before the first still signs."""
    made = await add(caller, hook.url(), secret=SECRET)
    for _ in range(2):
        await caller.post(f"/v1/webhooks/{made['id']}/rotate-secret", {"secret": "a-secret-of-ours"})
    await finish(caller)

    assert verified(await hook.one(), SECRET)


async def test_an_overlap_ends(hook: Receiver) -> None:
    """When its time is over only the new secret signs."""
    async with at_time() as (caller, clock):
        made = await add(caller, hook.url(), secret=SECRET)
        rotated = (await caller.post(f"/v1/webhooks/{made['id']}/rotate-secret", {"overlap_seconds": 60})).json
        clock.wait(60)
        await finish(caller)
        notice = await hook.one()
    assert 1 == len(notice.headers["webhook-signature"].split())
    assert agoras(notice, rotated["secret"])


@asynccontextmanager
async def at_time() -> AsyncIterator[tuple[Caller, Clock]]:
    """A service whose time passes as a test says."""
    clock = Clock()
    settings = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT, allow_addresses=LOOPBACK)
    async with running(settings, clock) as app:
        yield Caller(app), clock


# The health check


async def test_the_health_check_is_agoras(caller: Caller, hook: Receiver) -> None:
    """A signed test callback for each event type comes at once, and is no delivery."""
    made = await add(caller, hook.url(), 101, 103, secret=SECRET)
    answered = await caller.post(f"/v1/webhooks/{made['id']}/test")

    assert {101, 103} == set(by_type(hook.notices))
    for notice in hook.notices:
        assert {"channelName": "test_webhook", "uid": 12121212} == notice.payload
        assert verified(notice, SECRET)
    results = answered.json["results"]
    assert (True, [(101, True, 200, None, "answered"), (103, True, 200, None, "answered")]) == (
        answered.json["passed"],
        [tuple(one[key] for key in ("event_type", "passed", "status", "error", "excerpt")) for one in results],
    )
    assert [] == await deliveries(caller, made)


@pytest.mark.parametrize("status", [302, 410, 429, 500])
async def test_a_health_check_that_fails(caller: Caller, hook: Receiver, status: int) -> None:
    """It says so, tries nothing again, and has no consequences."""
    hook.otherwise = Reply(status, {"Retry-After": "1", "Location": "/elsewhere"})
    made = await add(caller, hook.url(), 101, 112)
    tried = (await caller.post(f"/v1/webhooks/{made['id']}/test")).json

    assert (False, [(False, status)] * 2) == (
        tried["passed"],
        [(one["passed"], one["status"]) for one in tried["results"]],
    )
    shown = await read(caller, made)
    assert (True, None, 2) == (shown["enabled"], shown["failing_since"], len(hook.notices))


# Deliveries


async def test_every_attempt_is_told(caller: Caller, hook: Receiver) -> None:
    """With its time, duration, status and the first bytes of the answer, first the one that failed."""
    hook.replies = [Reply(500)]
    made = await add(caller, hook.url())
    await finish(caller)
    (delivery,) = await settled(caller, made, "delivered")
    notice = hook.notices[0]

    assert ("s", 103, notice.id, None) == tuple(
        delivery[name] for name in ("session_id", "event_type", "notice_id", "next_attempt_at")
    )
    assert [500, 200] == [one["status"] for one in delivery["attempts"]]
    for one in delivery["attempts"]:
        assert (None, "answered", True) == (one["error"], one["excerpt"], 0 <= one["duration_ms"] < 60_000)
        assert delivery["created_at"] <= one["started_at"]


async def test_deliveries_are_found(caller: Caller, hook: Receiver) -> None:
    """By session, type and state, and page by page, the newest first."""
    made = await add(caller, hook.url(), 102, 103)
    for number in range(3):
        await finish(caller, f"s{number}")
    everyone = await settled(caller, made, *["delivered"] * 6)

    assert ["s2", "s2", "s1", "s1", "s0", "s0"] == [one["session_id"] for one in everyone]
    assert everyone[2:4] == await deliveries(caller, made, "?session_id=s1")
    assert [103, 103, 103] == [one["event_type"] for one in await deliveries(caller, made, "?event_type=103")]
    assert ([], everyone) == (
        await deliveries(caller, made, "?state=failed"),
        await deliveries(caller, made, "?state=delivered"),
    )
    found, before = [], ""
    while True:
        page = (await caller.get(f"/v1/webhooks/{made['id']}/deliveries?limit=4{before}")).json
        found += page["deliveries"]
        if page["next_before"] is None:
            break
        before = f"&before={page['next_before']}"
    assert everyone == found


def frozen(notice: Notice) -> bytes:
    """A body without the one thing that may differ between attempts."""
    return re.sub(rb'"notifyMs":\d+', b'"notifyMs":0', notice.body)


async def test_a_delivery_is_sent_again(caller: Caller, hook: Receiver) -> None:
    """With the same id and payload, though it was delivered; its attempts go on."""
    made = await add(caller, hook.url())
    await finish(caller, "s", *CALL)
    (delivery,) = await settled(caller, made, "delivered")
    answered = await caller.post(f"/v1/webhooks/{made['id']}/deliveries/{delivery['id']}/resend")
    assert (202, "pending") == (answered.status, answered.json["state"])
    first, second = await hook.wait(2)
    (again,) = await settled(caller, made, "delivered")

    assert frozen(first) == frozen(second)
    assert [200, 200] == [one["status"] for one in again["attempts"]]


async def test_deliveries_that_are_not_there(caller: Caller, hook: Receiver) -> None:
    """An unknown delivery, and one of another endpoint, is a 404; nothing is sent."""
    made, other = await add(caller, hook.url()), await add(caller, hook.url("/other"), 102)
    await finish(caller)
    (delivery,) = await settled(caller, made, "delivered")
    await hook.wait(2)
    for place in (f"{other['id']}/deliveries/{delivery['id']}", *(f"{made['id']}/deliveries/{n}" for n in UNKNOWN)):
        assert (404, "unknown_delivery") == (await caller.post(f"/v1/webhooks/{place}/resend")).told
    for number in ("x", "-1", "9" * 19, "%D9%A1", "1%0A"):
        place = f"{made['id']}/deliveries/{number}/resend"
        assert (400, "invalid_field") == (await caller.post(f"/v1/webhooks/{place}")).told
    assert 2 == len(hook.notices)


UNKNOWN = ("0", "999999", "9" * 18)


async def test_deliveries_of_an_erased_session_are_gone(caller: Caller, hook: Receiver) -> None:
    """They are neither shown nor sent again."""
    made = await add(caller, hook.url())
    await finish(caller)
    (delivery,) = await settled(caller, made, "delivered")
    await caller.delete("/v1/sessions/s")

    assert [] == await deliveries(caller, made)
    answered = await caller.post(f"/v1/webhooks/{made['id']}/deliveries/{delivery['id']}/resend")
    assert (404, "unknown_delivery") == answered.told
    assert {"recovered": 0} == (await caller.post(f"/v1/webhooks/{made['id']}/recover", {"since": 0})).json


async def test_everything_that_failed_since_a_time_is_recovered(hook: Receiver) -> None:
    """What failed before, what was delivered and what waits is not sent."""
    async with at_time() as (caller, clock):
        hook.replies = [Reply(200), Reply(410)]
        made = await add(caller, hook.url())
        place = f"/v1/webhooks/{made['id']}"
        await finish(caller, "fine")
        await settled(caller, made, "delivered")
        await finish(caller, "early")
        await settled(caller, made, "failed", "delivered")
        await caller.patch(place, {"enabled": True})
        clock.wait(60)
        since = clock()
        hook.replies = [Reply(410)]
        await finish(caller, "late")
        await settled(caller, made, "failed", "failed", "delivered")
        assert (409, "webhook_disabled") == (await caller.post(f"{place}/recover", {"since": since})).told
        (late, *_) = await deliveries(caller, made)
        assert (409, "webhook_disabled") == (await caller.post(f"{place}/deliveries/{late['id']}/resend")).told
        await caller.patch(place, {"enabled": True})
        recovered = await caller.post(f"{place}/recover", {"since": since})
        assert (202, {"recovered": 1}) == (recovered.status, recovered.json)
        await settled(caller, made, "delivered", "failed", "delivered")
        assert {"recovered": 1} == (await caller.post(f"{place}/recover", {"since": 0})).json
        await settled(caller, made, "delivered", "delivered", "delivered")
    assert ["fine", "early", "late", "late", "early"] == [notice.json["sid"] for notice in hook.notices]


# Receivers that do not take it


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(caller: Caller, hook: Receiver, status: int) -> None:
    """It is a failed attempt like any other."""
    hook.otherwise = Reply(status, {"Location": hook.url("/elsewhere")})
    made = await add(caller, hook.url())
    await finish(caller)
    delivery = await attempted(caller, made, 2)

    assert [(status, "redirect")] * 2 == [(one["status"], one["error"]) for one in delivery["attempts"]]
    assert ("pending", {"/hook"}) == (delivery["state"], {notice.path for notice in hook.notices})
    assert (await read(caller, made))["failing_since"] == delivery["attempts"][0]["started_at"]


async def test_a_receiver_that_is_gone_is_disabled(
    caller: Caller, hook: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """410 disables an endpoint, what waits for it is failed, and it hears nothing until it is enabled."""
    hook.replies = [Reply(410)]
    made = await add(caller, hook.url("/hook?token=hush"))
    await finish(caller, "first")
    (delivery,) = await settled(caller, made, "failed")
    await until(False, lambda: is_enabled(caller, made))
    assert f"Webhook {made['id']} to 127.0.0.1 is disabled: it answered 410 to notice {delivery['notice_id']}" in (
        caplog.messages
    )
    assert "hush" not in caplog.text
    shown = await read(caller, made)
    await finish(caller, "second")
    assert (False, "gone", True) == (shown["enabled"], shown["disabled_reason"], shown["disabled_at"] > 0)
    assert 1 == len(await deliveries(caller, made))
    enabled = (await caller.patch(f"/v1/webhooks/{made['id']}", {"enabled": True})).json
    assert (True, None, None, None) == tuple(
        enabled[name] for name in ("enabled", "disabled_reason", "disabled_at", "failing_since")
    )
    await finish(caller, "third")
    assert "third" == (await hook.wait(2))[1].json["sid"]


async def test_a_receiver_that_was_gone_after_it_had_moved(caller: Caller, hook: Receiver) -> None:
    """The 410 of the old address, to an attempt that was under way, does not disable the new one."""
    gate = asyncio.Event()
    hook.replies = [Reply(410, gate=gate)]
    made = await add(caller, hook.url("/old"))
    await finish(caller, "first")
    await hook.wait(1)
    await caller.patch(f"/v1/webhooks/{made['id']}", {"url": hook.url("/new")})
    gate.set()
    await settled(caller, made, "failed")
    await finish(caller, "second")
    assert ["/old", "/new"] == [notice.path for notice in await hook.wait(2)]
    assert await is_enabled(caller, made)


async def is_enabled(caller: Caller, made: JsonObject) -> bool:
    return bool((await read(caller, made))["enabled"])


AFTER = [
    ("120", 120, 144),
    ("0", 4, 6),
    ("", 4, 6),
    ("soon", 4, 6),
    ("-5", 4, 6),
    ("1e9", 4, 6),
    ("99999999999", 86_400, 86_400),
    ("1.5", 1.5, 1.8),
    ("Mon, 11 May 2026 05:30:00 GMT", 3600, 86_400),
    ("Fri, 01 Jan 2100 00:00:00 GMT", 86_400, 86_400),
    ("Sat, 01 Jan 2000 00:00:00 GMT", 4, 6),
    ("Mon, 99 May 2026 99:99:99 GMT", 4, 6),
]


@pytest.mark.parametrize(("value", "least_s", "most_s"), AFTER, ids=[value for value, *_ in AFTER])
async def test_too_many_requests(hook: Receiver, value: str, least_s: float, most_s: float) -> None:
    """After a 429 the next attempt waits as its Retry-After says, in seconds or as a date; garbage is passed over."""
    hook.otherwise = Reply(429, {"Retry-After": value})
    async with at_time() as (caller, clock):
        made = await add(caller, hook.url())
        await finish(caller)
        delivery = await attempted(caller, made, 1)

        assert ("pending", 1, 429) == (delivery["state"], len(hook.notices), delivery["attempts"][0]["status"])
        assert least_s <= (delivery["next_attempt_at"] - clock()) / 1000 <= most_s


@pytest.mark.parametrize(
    ("said", "state", "status", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Drip: ", "pending", None, "timeout"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", "delivered", 200, None),
        (b"HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n", "pending", 500, None),
    ],
    ids=["head", "body", "body of an error"],
)
async def test_a_receiver_that_drips(said: bytes, state: str, status: int | None, error: str | None) -> None:
    """One that drips its head has not answered in time; one that drips its body has, and what came is shown."""

    over, calls = asyncio.Event(), set[asyncio.Task[None] | None]()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            while not over.is_set():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    receiver = await asyncio.start_server(drip, "127.0.0.1", 0)
    settings = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT, allow_addresses=LOOPBACK)
    app = App(settings, Services(MemoryStore(), settings, Policies(), Runtime(), Telemetry.untraced()))
    app.services.sender.timeout_s = 0.3
    try:
        await app.start()
        caller = Caller(app)
        made = await add(caller, f"http://127.0.0.1:{receiver.sockets[0].getsockname()[1]}/")
        await finish(caller)
        delivery = await attempted(caller, made, 1)
    finally:
        await app.stop()
        await app.services.store.close_store()
        over.set()
        await asyncio.gather(*(call for call in calls if call is not None))
        receiver.close()
    (attempt, *_) = delivery["attempts"]
    assert (state, status, error) == (delivery["state"], attempt["status"], attempt["error"])
    assert 250 <= attempt["duration_ms"]
    assert re.fullmatch("x*" if status is None else "x+", attempt["excerpt"])


async def test_an_endpoint_that_is_turned_off(caller: Caller, hook: Receiver) -> None:
    """What waits for it is failed, sessions that end meanwhile make nothing for it, and it can be turned on again."""
    hook.otherwise = Reply(500)
    made = await add(caller, hook.url(), 103)
    place = f"/v1/webhooks/{made['id']}"
    await finish(caller, "first")
    await attempted(caller, made, 2)
    off = (await caller.patch(place, {"enabled": False})).json
    (delivery,) = await deliveries(caller, made)
    await finish(caller, "second")
    assert (False, "request", "failed", None) == (
        off["enabled"],
        off["disabled_reason"],
        delivery["state"],
        delivery["next_attempt_at"],
    )
    hook.otherwise = Reply()
    await caller.patch(place, {"enabled": True})
    await caller.post(f"{place}/recover", {"since": 0})
    await settled(caller, made, "delivered")
    assert {"first"} == {notice.json["sid"] for notice in hook.notices}
    made = await add(caller, hook.url("/never"), enabled=False)
    assert (False, "request") == (made["enabled"], made["disabled_reason"])


async def test_an_endpoint_that_fails_for_days_is_disabled(hook: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """Five days of failures only; a success begins them anew."""
    hook.otherwise = Reply(500)
    async with at_time() as (caller, clock):
        made = await add(caller, hook.url())
        await finish(caller, "first")
        await attempted(caller, made, 2)
        first = await read(caller, made)
        hook.otherwise = Reply()
        clock.wait(FAILING_MS // 1000)
        await settled(caller, made, "delivered")
        well = await read(caller, made)
        hook.otherwise = Reply(500)
        await finish(caller, "second")
        await until(2, lambda: attempts_of_newest(caller, made))
        clock.wait(FAILING_MS // 1000 - 1)
        await until(3, lambda: attempts_of_newest(caller, made))
        nearly = await read(caller, made)
        clock.wait(2 * 86_400)
        await settled(caller, made, "failed", "delivered")
        over = await read(caller, made)
    assert (True, True) == (first["enabled"], first["failing_since"] is not None)
    assert (True, None) == (well["enabled"], well["failing_since"])
    assert (True, None) == (nearly["enabled"], nearly["disabled_reason"])
    assert f"Webhook {made['id']} to 127.0.0.1 is disabled: it failed for days" in caplog.text
    assert (False, "failing", nearly["failing_since"]) == (
        over["enabled"],
        over["disabled_reason"],
        over["failing_since"],
    )


async def attempts_of_newest(caller: Caller, made: JsonObject) -> int:
    return len((await deliveries(caller, made))[0]["attempts"])


async def test_notices_outlive_the_process(tmp_path: Path, hook: Receiver) -> None:
    """A start and a close that could not be told are told by the next process, as they were."""
    store = f"sqlite:{tmp_path / 'calls.db'}"
    hook.otherwise = Reply(500)
    async with service(store=store, allow_addresses=LOOPBACK) as app:
        caller = Caller(app)
        made = await add(caller, hook.url(), *ALL)
        await finish(caller, "s", *CALL, name="before")
        await until(5, lambda: counted(caller, made))
    before = {notice.json["eventType"]: frozen(notice) for notice in hook.notices}
    hook.notices.clear()
    hook.otherwise = Reply()
    async with service(store=store, allow_addresses=LOOPBACK) as app:
        caller = Caller(app)
        await caller.patch(f"/v1/webhooks/{made['id']}", {"description": "later"})
        for delivery in await deliveries(caller, made):
            await caller.post(f"/v1/webhooks/{made['id']}/deliveries/{delivery['id']}/resend")
        await settled(caller, made, *["delivered"] * 5)
    assert before == {notice.json["eventType"]: frozen(notice) for notice in hook.notices}
