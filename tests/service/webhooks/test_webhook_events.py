"""Every webhook event that an endpoint can subscribe to."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.callers.producer import open_over_websocket
from tests.support.callers.rest import LOOPBACK, RestClient, client_with_key, wait_until_closed
from tests.support.callers.webhooks import (
    ALL,
    CALL,
    add,
    by_type,
    deliveries,
    everything,
    finish,
    is_enabled,
    read,
    settled,
)
from tests.support.checks.vcon import check_vcon
from tests.support.clock import ManualClock
from tests.support.events import delta, dialogue, event, final
from tests.support.servers.webhook_receiver import Reply, WebhookEvent, WebhookReceiver
from tests.support.services import ANY_PORT, Serve, running_service
from tests.support.waiting import all_connections_handled, eventually
from voicemem.app import running
from voicemem.config.service import Settings
from voicemem.protocol.types import JsonObject
from voicemem.webhooks import outbox

ON_BOTH = pytest.mark.parametrize(
    "caller", ["memory:", pytest.param("postgresql:", marks=pytest.mark.postgresql)], indirect=True
)
"""On both engines of stores."""


async def test_every_webhook_event_of_a_call(caller: RestClient, hook: WebhookReceiver) -> None:
    """An endpoint with all types hears of start, leaving, history, metrics and turns, with Agora's payloads."""
    await add(caller, hook.url(), *ALL)
    await finish(caller, "call-1", *CALL, name="desk", channel="c1", labels={"campaign": "x"})
    told = by_type(await hook.wait(5))
    session = await caller.session("call-1")
    about: JsonObject = {"agent_id": "call-1", "name": "desk", "channel": "c1", "labels": {"campaign": "x"}}
    about["start_ts"] = session["started_at"] // 1000
    stopped = {"stop_ts": session["ended_at"] // 1000}

    assert {*ALL} == set(told)
    assert {("call-1", 17)} == {
        (webhook_event.json["sid"], webhook_event.json["productId"]) for webhook_event in told.values()
    }
    assert about == told[101].payload
    assert {**about, **stopped, "status": "STOPPED", "message": "OK"} == told[102].payload
    assert {**about, **stopped, "contents": await caller.contents("call-1")} == told[103].payload
    metrics = [{"turn_id": 1, "llm_ttfb": 210, "tts_ttfb": 90.5, "reply_after_ms": 700}]
    assert {**about, **stopped, "metrics": metrics} == told[111].payload
    turns = (await caller.get("/v1/sessions/call-1/turns")).json["turns"]
    expected = [
        {key: value for key, value in turn.items() if key not in ("agent_id", "channel", "metrics", "false_alarms")}
        | {"metrics": {"segmented_latency_ms": {}}}
        for turn in turns
    ]
    expected[1]["metrics"] = {"e2e_latency_ms": 700, "segmented_latency_ms": {"llm_ttft": 210, "tts_ttfb": 90.5}}
    assert {**about, **stopped, "total_turn_count": 2, "is_truncated": False, "turns": expected} == told[112].payload


async def test_a_call_comes_as_a_vcon(caller: RestClient, hook: WebhookReceiver) -> None:
    """By choice: the same as that of the export, in place of the messages; the other notices stay as they are."""
    await add(caller, hook.url(), 102, 103, 111, contents="vcon")
    await finish(caller, "call-1", *CALL, name="desk", user_id="ann", labels={"campaign": "x"})
    told = {number: webhook_event.payload for number, webhook_event in by_type(await hook.wait(3)).items()}
    check_vcon(told[103]["vcon"])
    assert (await caller.get("/v1/sessions/call-1/export")).json == told[103]["vcon"]
    assert {*told[111]} - {"metrics"} | {"vcon"} == {*told[103]}
    assert [{"turn_id": 1, "llm_ttfb": 210, "tts_ttfb": 90.5, "reply_after_ms": 700}] == told[111]["metrics"]


async def test_user_and_tools_come_by_choice(caller: RestClient, hook: WebhookReceiver) -> None:
    """Whose call it was in every webhook event, and its tool calls in the history, also beside standard messages."""
    webhook = {"url": hook.url(), "event_types": [101, 103], "include": ["user_id", "tools"], "contents": "standard"}
    called = event("tool.call", 1, 1500, call_id="a", name="find", arguments={"nut": 17})
    answered = event("tool.result", 1, 1900, call_id="a", result=["none"])
    await finish(caller, "call-1", *CALL, called, answered, user_id="ann", webhook=webhook)
    told = by_type(await hook.wait(2))
    assert ("ann", "ann") == (told[101].payload["user_id"], told[103].payload["user_id"])
    assert [
        {
            "turn_id": 1, "call_id": "a", "name": "find", "arguments": {"nut": 17}, "result": ["none"],
            "started": 1500, "ended": 1900,
        }
    ] == told[103].payload["tools"]  # fmt: skip
    made = await add(caller, hook.url(), 103, include=["tools", "tools"])
    assert ["tools"] == made["include"]
    refused = await caller.patch(f"/v1/webhooks/{made['id']}", {"include": ["secrets"]})
    assert (400, "invalid_field") == refused.problem


async def test_a_receiver_that_refuses_other_keys(caller: RestClient, hook: WebhookReceiver) -> None:
    """With `standard` every webhook event has exactly the keys that Agora's have, at each level, and no others."""
    await add(caller, hook.url(), *ALL, contents="standard")
    more = (event("metric", 1, 3_400, name="vad", latency_ms=5), event("metric", 2, 5_000, name="vad", latency_ms=5))
    failed = event("llm.error", 2, 5_100, text="Sorry.", code=503)
    measured = event("metric", 1, 3_050, name="asr_ttlw", latency_ms=80)
    asked = final(2, "Still there?", 4_900)
    await finish(caller, "s", *CALL, measured, *more, asked, failed, labels={"campaign": "x"})
    told = {number: webhook_event.payload for number, webhook_event in by_type(await hook.wait(5)).items()}

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


async def test_a_very_long_calls_turns_are_truncated(caller: RestClient, hook: WebhookReceiver) -> None:
    """Of more than 200 turns the webhook event holds the first 200, and says so."""
    await add(caller, hook.url(), 112)
    await finish(caller, "s", *(final(number, "Hi.") for number in range(1, 202)))
    told = (await hook.one()).payload

    assert (201, True, [*range(1, 201)]) == (
        told["total_turn_count"],
        told["is_truncated"],
        [turn["turn_id"] for turn in told["turns"]],
    )


async def test_an_endpoint_hears_what_it_subscribed_to(caller: RestClient, hook: WebhookReceiver) -> None:
    """Each endpoint gets its own types; without any it gets the history."""
    await add(caller, hook.url("/start"), 101, 101)
    await add(caller, hook.url("/metrics"), 111, 102)
    await add(caller, hook.url("/default"))
    await finish(caller)
    heard = sorted((webhook_event.path, webhook_event.json["eventType"]) for webhook_event in await hook.wait(4))

    assert [("/default", 103), ("/metrics", 102), ("/metrics", 111), ("/start", 101)] == heard


async def test_webhook_events_are_told_apart_by_their_ids(caller: RestClient, hook: WebhookReceiver) -> None:
    """Two webhooks never share an id, two receivers of one notice do; none holds what separates in a signature."""
    await add(caller, hook.url("/a"), *ALL)
    await add(caller, hook.url("/b"), *ALL)
    await finish(caller)
    webhook_events = await hook.wait(10)

    ids = {(webhook_event.json["eventType"], webhook_event.id) for webhook_event in webhook_events}
    assert (5, 5) == (len(ids), len({one for _, one in ids}))
    assert all(
        webhook_event.headers["webhook-id"] == webhook_event.id and "." not in webhook_event.id
        for webhook_event in webhook_events
    )


async def test_the_operators_endpoint_gets_histories_only(serve: Serve, hook: WebhookReceiver) -> None:
    """Whatever a project's endpoint hears, and the operator's is not among them."""
    caller = RestClient(await serve(allow_addresses=LOOPBACK, webhook_url=hook.url("/operator")))
    await add(caller, hook.url("/project"), *ALL)
    await finish(caller)

    heard = [
        webhook_event.json["eventType"] for webhook_event in await hook.wait(6) if webhook_event.path == "/operator"
    ]
    assert [103] == heard


async def test_what_became_of_the_operators_webhook_events(serve: Serve, hook: WebhookReceiver) -> None:
    """Keys of the project `default` see its deliveries of all projects, and send them again; they change nothing."""
    url = hook.url("/hook?token=hush").replace("//", "//user:hush@")
    app = await serve(allow_addresses=LOOPBACK, webhook_url=url, webhook_secret="hush-hush")
    own, other = await client_with_key(app, "admin"), await client_with_key(app, "admin", project="other")
    hook.replies = [Reply(500)]
    await finish(other, "theirs")
    shown = await read(own, OPERATORS)
    assert ("operator", hook.url("").rstrip("/"), [103], True) == tuple(
        shown[name] for name in ("id", "url", "event_types", "enabled")
    )
    (delivery,) = await settled(own, OPERATORS, "delivered")
    shown = await read(own, OPERATORS)
    assert (None, 1, 0, 0) == tuple(shown[name] for name in ("failing_since", "delivered_24h", "failed_24h", "pending"))
    assert {"webhooks": [shown]} == (await own.get("/v1/webhooks")).json
    assert ("theirs", [500, 200]) == (delivery["session_id"], [one["status"] for one in delivery["attempts"]])
    place = "/v1/webhooks/operator"
    assert 202 == (await own.post(f"{place}/deliveries/{delivery['id']}/resend")).status
    await settled(own, OPERATORS, "delivered")
    assert {"recovered": 0} == (await own.post(f"{place}/recover", {"since": 0})).json
    assert (await own.post(f"{place}/test")).json["passed"]
    assert 4 == len(hook.webhook_events)
    for answered in (
        await own.patch(place, {"enabled": False}),
        await own.post(f"{place}/rotate-secret"),
        await own.delete(place),
    ):
        assert (403, "forbidden") == answered.problem
        assert b"hush" not in answered.body
    assert shown == await read(own, OPERATORS)
    assert b"hush" not in (await own.get(place)).body
    assert {"webhooks": []} == (await other.get("/v1/webhooks")).json
    for answered in await everything(other, "operator", delivery["id"]):
        assert (404, "unknown_webhook") == answered.problem


OPERATORS = {"id": "operator"}


async def test_without_an_operators_webhook_there_is_none(tmp_path: Path, hook: WebhookReceiver) -> None:
    """One that was turned off is not there; one that is gone is disabled, and sends again after a start with it."""
    store = f"sqlite:{tmp_path / 'calls.db'}"
    hook.replies = [Reply(410)]
    async with running_service(store=store, webhook_url=hook.url()) as app:
        caller = RestClient(app)
        await finish(caller)
        await settled(caller, OPERATORS, "failed")
        await eventually(False, lambda: is_enabled(caller, OPERATORS))
        recover = "/v1/webhooks/operator/recover"
        assert (409, "webhook_disabled") == (await caller.post(recover, {"since": 0})).problem
    async with running_service(store=store) as app:
        assert not await is_enabled(RestClient(app), OPERATORS)
    async with running_service(store=store, webhook_url="none") as app:
        assert (404, "unknown_webhook") == (await RestClient(app).get("/v1/webhooks/operator")).problem
        assert {"webhooks": []} == (await RestClient(app).get("/v1/webhooks")).json
    async with running_service(store=store, webhook_url=hook.url()) as app:
        assert {"recovered": 1} == (await RestClient(app).post(recover, {"since": 0})).json
        await settled(RestClient(app), OPERATORS, "delivered")


async def test_a_sessions_own_receiver_may_hear_more(caller: RestClient, hook: WebhookReceiver) -> None:
    """`webhook.event_types` says what; a change of it counts from then on."""
    await caller.create("s", webhook={"url": hook.url(), "event_types": [101, 112]})
    await hook.wait(1)
    assert 200 == (await caller.patch("/v1/sessions/s", {"webhook": {"event_types": [102]}})).status
    await caller.end()

    assert [101, 102] == [webhook_event.json["eventType"] for webhook_event in await hook.wait(2)]
    refused = await caller.post("/v1/sessions", {"webhook": {"url": hook.url(), "event_types": [104]}})
    assert (400, "invalid_field") == refused.problem


async def test_an_idle_close_and_a_return(caller: RestClient, hook: WebhookReceiver) -> None:
    """A session that was idle left for that; when it goes on it has started again, and each time with a new id."""
    await add(caller, hook.url(), 101, 102)
    await caller.create("s", idle_timeout=0.05)
    await hook.wait(2)
    await caller.patch("/v1/sessions/s", {"idle_timeout": 0})  # ended: nothing changes
    await caller.send(final(1, "Still there."))
    await caller.end()
    webhook_events = await hook.wait(4)

    assert [101, 101, 102, 102] == sorted(webhook_event.json["eventType"] for webhook_event in webhook_events)
    assert 4 == len({webhook_event.id for webhook_event in webhook_events})
    left = [webhook_event.payload for webhook_event in webhook_events if webhook_event.json["eventType"] == 102]
    assert {"Idle for too long"} <= {one["message"] for one in left}
    assert {"STOPPED"} == {one["status"] for one in left}


async def test_a_start_is_told_at_once(hook: WebhookReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a session comes to run, its 101 does not wait for the outbox's next look."""
    monkeypatch.setattr(outbox, "MAX_WAIT_S", 3600)
    clock, agent = ManualClock(), {"name": "n", "properties": {"channel": "c", "idle_timeout": 0}}
    settings = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT, allow_addresses=LOOPBACK)
    async with running(settings, clock) as app:
        caller = RestClient(app)
        await add(caller, hook.url(), 101)
        await caller.create("created")
        await hook.wait(1)
        joined = (await caller.post("/api/conversational-ai-agent/v2/projects/p/join", agent)).json["agent_id"]
        await hook.wait(2)
        await open_over_websocket(app, "opened")
        await hook.wait(3)
        await all_connections_handled()
        clock.wait(61)
        await wait_until_closed(app, "created")
        await wait_until_closed(app, "opened")
        await open_over_websocket(app, "opened")
        await hook.wait(4)
        await caller.send(final(1, "Hi."), session_id="created")

        heard = [webhook_event.json["sid"] for webhook_event in await hook.wait(5)]
        assert ["created", joined, "opened", "opened", "created"] == heard


async def test_projects_do_not_hear_each_other(serve: Serve, hook: WebhookReceiver) -> None:
    """An endpoint hears of its own project's sessions, and no other key knows of it."""
    app = await serve(allow_addresses=LOOPBACK)
    one, other = (
        await client_with_key(app, "admin", project="one"),
        await client_with_key(app, "admin", project="other"),
    )
    made = await add(one, hook.url("/one"), *ALL)
    await add(other, hook.url("/other"), 103)
    await finish(one, "same-name")
    await finish(other, "same-name")
    await hook.wait(6)
    (delivery, *_) = await settled(one, made, *["delivered"] * 5)

    assert {"/one": 5, "/other": 1} == {
        path: [webhook_event.path for webhook_event in hook.webhook_events].count(path) for path in ("/one", "/other")
    }
    assert 1 == len((await other.get("/v1/webhooks")).json["webhooks"])
    for answered in await everything(other, made["id"], delivery["id"]):
        assert (404, "unknown_webhook") == answered.problem
    assert hook.url("/one") == (await read(one, made))["url"]


@ON_BOTH
async def test_complete_turns_come_while_the_call_runs(caller: RestClient, hook: WebhookReceiver) -> None:
    """Each once and in order, with its messages, as soon as the next has begun; the last one comes with the end."""
    await add(caller, hook.url(), 1001)
    await caller.create("s", user_id="ann")
    await caller.send(*dialogue(1), final(2, "Go on.", 3000))
    (first,) = await hook.wait(1)
    assert (1001, "ann", 1, False) == (
        first.json["eventType"],
        *(first.payload[name] for name in ("user_id", "through_turn", "is_truncated")),
    )
    assert [1] == [turn["turn_id"] for turn in first.payload["turns"]]
    assert (await caller.contents("s"))[:2] == first.payload["turns"][0]["contents"]
    await caller.send(delta(2, "Well.", 3500), final(3, "And?", 4000), final(4, "Bye.", 5000))
    await caller.end("s")
    seen = [
        turn["turn_id"]
        for webhook_event in await eventually_through(hook, 4)
        for turn in webhook_event.payload["turns"]
    ]
    assert [1, 2, 3, 4] == seen


async def eventually_through(hook: WebhookReceiver, turn: int) -> list[WebhookEvent]:
    """All webhook events, once one has told of the turns through this one."""

    async def told() -> bool:
        return any(webhook_event.payload["through_turn"] == turn for webhook_event in hook.webhook_events)

    await eventually(True, told)
    return list(hook.webhook_events)


@ON_BOTH
async def test_complete_turns_wait_for_those_before(caller: RestClient, hook: WebhookReceiver) -> None:
    """While a receiver fails there is one attempt under way a session, and what comes meanwhile is in the next."""
    hook.replies += [Reply(500), Reply(500)]
    made = await add(caller, hook.url(), 1001)
    await caller.create("s")
    await caller.send(*dialogue(1), final(2, "Go on.", 3000))
    await hook.wait(1)
    for turn in range(3, 8):
        await caller.send(final(turn, "And?", 1000 * turn))
    await caller.end("s")
    assert 2 >= len(await deliveries(caller, made))


@ON_BOTH
async def test_changes_of_memories_are_told(caller: RestClient, hook: WebhookReceiver) -> None:
    """What was kept, what it is after a change, and what is not there any more; nothing to those who did not ask."""
    await add(caller, hook.url("/others"), 103)
    await add(caller, hook.url("/memories"), 1002)
    kept = (await caller.post("/v1/memories", {"text": "Ann likes walnuts.", "user_id": "ann"})).json["memories"][0]
    (first,) = await hook.wait(1)
    assert ("/memories", 1002, "ann") == (first.path, first.json["eventType"], first.payload["user_id"])
    ((memory,), removed) = first.payload["memories"], first.payload["removed"]
    assert (kept["id"], "Ann likes walnuts.", []) == (memory["id"], memory["text"], removed)
    assert 204 == (await caller.delete(f"/v1/memories/{kept['id']}")).status
    second = (await hook.wait(2))[1]
    assert ([], [kept["id"]]) == (second.payload["memories"], second.payload["removed"])
