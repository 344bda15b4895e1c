"""The whole way: events come in, the session ends, and a signed webhook with the memory goes out."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from tests.support.callers.producer import open_over_websocket, send_over_websocket
from tests.support.callers.rest import LOOPBACK, RestClient, client_with_key
from tests.support.events import final, message
from tests.support.paths import FIXTURES
from tests.support.samples.deliveries import HELLO, WHSEC, state_in, texts
from tests.support.servers.webhook_receiver import (
    Reply,
    WebhookEvent,
    WebhookReceiver,
    comparable_body,
    webhook_receiver,
)
from tests.support.services import Serve, running_service
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject
from voicemem.runtime import Runtime
from voicemem.sessions.lifecycle import Sessions
from voicemem.store.deliveries import Delivery
from voicemem.store.sqlite.store import SqliteStore

END: JsonObject = {"type": "session.end", "reason": "left"}


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    """A receiver of webhooks."""
    async with webhook_receiver() as receiver:
        yield receiver


async def deliveries(app: App, session_id: str = "s") -> list[Delivery]:
    stream = await app.services.store.journal.find_session("default", session_id)
    assert stream is not None
    return await app.services.store.deliveries.list_deliveries(stream.key)


async def log(app: App) -> list[tuple[str, list[int | None]]]:
    """The state of each delivery of the session, and the statuses of its attempts."""
    return [(one.state, [attempt.status for attempt in one.attempts]) for one in await deliveries(app)]


# The body


async def test_the_seed_call(serve: Serve, hook: WebhookReceiver) -> None:
    """The joke-and-story call, streamed and ended, arrives as the documented webhook event."""
    app = await serve(webhook_url=hook.url())
    events = [json.loads(line) for line in (FIXTURES / "seed_call.jsonl").read_text().splitlines()]
    await send_over_websocket(app, events)
    contents = json.loads((FIXTURES / "seed_call.webhook.json").read_bytes())["contents"]
    webhook_event = await hook.one()
    assert contents == webhook_event.payload["contents"]
    assert contents == await RestClient(app).contents()


async def test_the_line_of_an_attempt(serve: Serve, hook: WebhookReceiver, caplog: pytest.LogCaptureFixture) -> None:
    """At `info` the log says which notice about which session went where, and once only."""
    caplog.set_level("INFO", "voicemem")
    app = await serve(webhook_url=hook.url())
    await send_over_websocket(app, [*HELLO, END])
    webhook_event = await hook.one()

    async def sentences() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "voicemem.webhooks"]

    await eventually(["Webhook attempt: 200"], sentences)
    (line,) = [vars(record) for record in caplog.records if record.name == "voicemem.webhooks"]
    assert ("s", 103, webhook_event.id) == (line["session_id"], line["event_type"], line["notice_id"])
    assert ("127.0.0.1", 200, "delivered") == (line["host"], line["status"], line["result"])


async def test_the_envelope(serve: Serve, hook: WebhookReceiver) -> None:
    """Around the memory stands Agora's envelope, its times by the server's clock."""
    app = await serve(webhook_url=hook.url())
    before = time.time()
    config = {"name": "Call", "channel": "room", "labels": {"line": "7"}}
    await send_over_websocket(app, [*HELLO, END], session=config)
    webhook_event = await hook.one()
    session = await RestClient(app).session()
    body, payload = webhook_event.json, webhook_event.payload
    assert ["noticeId", "productId", "eventType", "notifyMs", "sid", "payload"] == list(body)
    assert (17, 103, "s", "s") == (body["productId"], body["eventType"], body["sid"], payload["agent_id"])
    assert before - 1 <= body["notifyMs"] / 1000 <= time.time() + 1
    assert ["agent_id", "name", "channel", "start_ts", "stop_ts", "labels", "contents"] == list(payload)
    assert config == {key: payload[key] for key in config}
    assert session["started_at"] // 1000 == payload["start_ts"]
    assert session["ended_at"] // 1000 == payload["stop_ts"]
    assert "application/json" == webhook_event.headers["Content-Type"]


async def test_an_empty_call_is_delivered_too(serve: Serve, hook: WebhookReceiver) -> None:
    """A call without a word, a name or labels arrives with empty ones."""
    api = RestClient(await serve(webhook_url=hook.url()))
    await api.create()
    await api.end()
    payload = (await hook.one()).payload
    assert ("", "", {}, []) == (payload["name"], payload["channel"], payload["labels"], payload["contents"])


async def test_the_configuration_at_the_close_counts(serve: Serve, hook: WebhookReceiver) -> None:
    """Name and labels are those that the session had in the end."""
    api = RestClient(await serve(webhook_url=hook.url()))
    await api.create(name="Before", labels={"a": "1", "b": "2"})
    await api.patch("/v1/sessions/s", {"name": "After", "labels": {"b": None}})
    await api.end()
    payload = (await hook.one()).payload
    assert ("After", {"a": "1"}) == (payload["name"], payload["labels"])


async def test_every_text_arrives_as_it_was_said(serve: Serve, hook: WebhookReceiver) -> None:
    """Scripts, emoji, quotes and control characters survive the way (but for U+0000), and the signature holds."""
    said = ["你好，世界。", "e\u0301 é", "👩\u200d🚀", 'quote " and \\', "a\nb\0\u2028c", "</script>", "x" * 200_000]
    app = await serve(webhook_url=hook.url(), webhook_secret=WHSEC)
    await send_over_websocket(app, [*(final(turn, text) for turn, text in enumerate(said, 1)), END])
    webhook_event = await hook.one()
    assert [text.replace("\0", "\ufffd") for text in said] == texts(webhook_event)
    Webhook(WHSEC).verify(webhook_event.body, dict(webhook_event.headers))


async def test_a_long_call_is_delivered_whole(serve: Serve, hook: WebhookReceiver) -> None:
    """A history of megabytes, read from more than one page of the journal, is one POST."""
    api = RestClient(await serve(webhook_url=hook.url()))
    await api.create()
    for first in range(1, 1502, 500):
        await api.send(*(final(turn, f"{turn} " + "x" * 1500) for turn in range(first, first + 500)))
    await api.end()
    webhook_event = await hook.one()
    assert len(webhook_event.body) > 2_500_000
    assert [str(turn) for turn in range(1, 2001)] == [text.split()[0] for text in texts(webhook_event)]


# Every way to end


async def test_an_end_over_rest_is_delivered(serve: Serve, hook: WebhookReceiver) -> None:
    """POST …/end makes one notice, a second end none."""
    app = await serve(webhook_url=hook.url())
    api = RestClient(app)
    await api.create()
    await api.send(*HELLO)
    await api.end()
    await api.end()
    assert ["Hi.", "Good day."] == texts(await hook.one())
    assert 1 == len(await deliveries(app))


async def test_the_operators_receiver_may_be_strict(serve: Serve, hook: WebhookReceiver) -> None:
    """With `standard` contents its messages are role and content; a session's own receiver still gets all."""
    app = await serve(webhook_url=hook.url(), webhook_contents="standard", allow_addresses=LOOPBACK)
    async with webhook_receiver() as own:
        await send_over_websocket(app, [*HELLO, END], session={"webhook": {"url": own.url()}})
        strict, full = (await hook.one()).payload["contents"], (await own.one()).payload["contents"]
    assert [{"role", "content"}] * len(strict) == [set(one) for one in strict]
    assert strict == [{"role": one["role"], "content": one["content"]} for one in full]
    assert {"timestamp", "turn_id"} < set(full[0])


@pytest.mark.parametrize("config", [{"idle_timeout": 0.01}, {"max_duration": 0.01}], ids=str)
async def test_a_close_by_time_is_delivered(serve: Serve, hook: WebhookReceiver, config: JsonObject) -> None:
    """A call that fell silent or went on for too long is delivered like any other."""
    api = RestClient(await serve(webhook_url=hook.url()))
    await api.create(**config)
    await api.post("/v1/sessions/s/events", [message(0, "Hello.")])  # may come too late for max_duration
    assert "s" == (await hook.one()).json["sid"]


async def test_a_call_that_went_on_is_delivered_again(serve: Serve, hook: WebhookReceiver) -> None:
    """After an idle close the producer comes back: the next close makes a new delivery with all that was said."""
    api = RestClient(await serve(webhook_url=hook.url()))
    await api.create(idle_timeout=0.01)
    await api.send(message(0, "Hello."))
    await hook.wait(1)
    await api.send(final(1, "I am back."))
    await api.end()
    first, second = await hook.wait(2)
    assert ["Hello."] == texts(first)
    assert ["Hello.", "I am back."] == texts(second)
    assert first.id != second.id


async def test_many_calls_ending_at_once_all_arrive(serve: Serve, hook: WebhookReceiver) -> None:
    """Fifty sessions that end together make fifty webhook events, each with its own words and id."""
    app = await serve(webhook_url=hook.url())
    names = [f"s{number}" for number in range(50)]
    await asyncio.gather(*(send_over_websocket(app, [final(1, name), END], name) for name in names))
    webhook_events = await hook.wait(50)
    assert sorted(names) == sorted(webhook_event.json["sid"] for webhook_event in webhook_events)
    assert all([webhook_event.json["sid"]] == texts(webhook_event) for webhook_event in webhook_events)
    assert 50 == len({webhook_event.id for webhook_event in webhook_events})


# Signatures


async def signed(serve: Serve, hook: WebhookReceiver, secret: str) -> WebhookEvent:
    """A webhook event of a service with this secret."""
    app = await serve(webhook_url=hook.url(), webhook_secret=secret)
    await send_over_websocket(app, [*HELLO, END])
    return await hook.one()


@pytest.mark.parametrize("secret", [WHSEC, "plain secret", "ключ", "whsec"])
async def test_agoras_signatures_are_hmacs_of_the_bytes(serve: Serve, hook: WebhookReceiver, secret: str) -> None:
    """Both are keyed with the secret as it is written, and cover the body exactly as it was sent."""
    webhook_event = await signed(serve, hook, secret)
    for name, kind in (("Agora-Signature", hashlib.sha1), ("Agora-Signature-V2", hashlib.sha256)):
        assert hmac.new(secret.encode(), webhook_event.body, kind).hexdigest() == webhook_event.headers[name]


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        (WHSEC, base64.b64decode(WHSEC.removeprefix("whsec_"))),
        ("plain secret", b"plain secret"),
        ("ключ", "ключ".encode()),
        ("whsec", b"whsec"),
    ],
)
async def test_the_standard_signature(serve: Serve, hook: WebhookReceiver, secret: str, key: bytes) -> None:
    """Standard Webhooks' own verifier, and a hand-made HMAC, agree on the third; a changed body is found out."""
    webhook_event = await signed(serve, hook, secret)
    headers = {name.lower(): value for name, value in webhook_event.headers.items()}
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + webhook_event.body
    by_hand = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    assert f"v1,{by_hand}" == headers["webhook-signature"]
    assert webhook_event.id == headers["webhook-id"]
    assert webhook_event.json == Webhook(key).verify(webhook_event.body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(key).verify(webhook_event.body + b" ", headers)


async def test_a_notice_id_holds_no_dot(serve: Serve, hook: WebhookReceiver) -> None:
    """What is signed is separated by dots, so an id has none, whatever the session is called."""
    app = await serve(webhook_url=hook.url())
    await send_over_websocket(app, [*HELLO, END], "a.b.c")
    webhook_event = await hook.one()
    assert ("a.b.c", False) == (webhook_event.json["sid"], "." in webhook_event.id)


async def test_without_a_secret_a_webhook_event_is_not_signed(serve: Serve, hook: WebhookReceiver) -> None:
    """No signature is made up with an empty key."""
    app = await serve(webhook_url=hook.url())
    await send_over_websocket(app, [*HELLO, END])
    webhook_event = await hook.one()
    assert webhook_event.id == webhook_event.headers["webhook-id"]
    assert not [name for name in webhook_event.headers if "signature" in name.lower()]


# Whose receiver


@pytest.mark.parametrize("contents", ["full", "standard", None])
async def test_a_sessions_own_receiver(serve: Serve, hook: WebhookReceiver, contents: str | None) -> None:
    """A session may name a receiver of its own, with its own secret, and full or standard contents."""
    own = {"url": hook.url("/own"), "secret": WHSEC} | ({} if contents is None else {"contents": contents})
    app = await serve(allow_addresses=LOOPBACK)
    await send_over_websocket(app, [*HELLO, END], session={"webhook": own})
    webhook_event = await hook.one()
    Webhook(WHSEC).verify(webhook_event.body, dict(webhook_event.headers))
    full = await RestClient(app).contents()
    standard = [{"role": one["role"], "content": one["content"]} for one in full]
    assert (standard if contents == "standard" else full) == webhook_event.payload["contents"]


async def test_both_receivers_hear_of_a_close(serve: Serve, hook: WebhookReceiver) -> None:
    """The operator's and the session's own get one POST each, with one noticeId."""
    app = await serve(webhook_url=hook.url(), allow_addresses=LOOPBACK)
    await send_over_websocket(app, [*HELLO, END], session={"webhook": {"url": hook.url("/own")}})
    one, other = await hook.wait(2)
    assert {"/hook", "/own"} == {one.path, other.path}
    assert one.id == other.id


async def test_sessions_of_every_project_reach_the_operator_only(serve: Serve, hook: WebhookReceiver) -> None:
    """The operator hears of all sessions; a session's own receiver of no other session, also of the same name."""
    app = await serve(webhook_url=hook.url(), allow_addresses=LOOPBACK)
    one, other = (
        await client_with_key(app, "admin", project="one"),
        await client_with_key(app, "admin", project="other"),
    )
    await one.create(webhook={"url": hook.url("/own")})
    await one.send(final(1, "One."))
    await other.create()
    await other.send(final(1, "Other."))
    await one.end()
    await other.end()
    webhook_events = await hook.wait(3)
    assert [("/hook", ["One."]), ("/hook", ["Other."]), ("/own", ["One."])] == sorted(
        (webhook_event.path, texts(webhook_event)) for webhook_event in webhook_events
    )


async def test_a_receiver_can_be_set_and_moved_during_the_call(serve: Serve, hook: WebhookReceiver) -> None:
    """The receiver that the session has at its close is the one that hears of it."""
    api = RestClient(await serve(allow_addresses=LOOPBACK))
    await api.create()
    await api.patch("/v1/sessions/s", {"webhook": {"url": hook.url("/first")}})
    await api.send({"type": "session.update", "webhook": {"url": hook.url("/second")}})
    await api.end()
    assert "/second" == (await hook.one()).path


async def test_a_receiver_that_was_taken_away_hears_nothing(serve: Serve, hook: WebhookReceiver) -> None:
    """After a null for the webhook only the operator is told."""
    app = await serve(webhook_url=hook.url(), allow_addresses=LOOPBACK)
    api = RestClient(app)
    await api.create(webhook={"url": hook.url("/own")})
    await api.patch("/v1/sessions/s", {"webhook": None})
    await api.end()
    assert "/hook" == (await hook.one()).path
    assert 1 == len(await deliveries(app))


async def test_a_secret_that_was_taken_away_signs_nothing(serve: Serve, hook: WebhookReceiver) -> None:
    """A webhook that is removed and set again does not come back with the old secret."""
    api = RestClient(await serve(allow_addresses=LOOPBACK))
    await api.create(webhook={"url": hook.url(), "secret": WHSEC})
    await api.patch("/v1/sessions/s", {"webhook": None})
    await api.patch("/v1/sessions/s", {"webhook": {"url": hook.url()}})
    await api.end()
    assert "webhook-signature" not in (await hook.one()).headers


async def test_without_the_allow_list_a_session_cannot_name_this_machine(serve: Serve, hook: WebhookReceiver) -> None:
    """A private address given over the websocket is refused, and nothing is called."""
    app = await serve()
    answer = await open_over_websocket(app, session={"webhook": {"url": hook.url()}})
    assert ("error", "address_not_allowed") == (answer["type"], answer["code"])
    assert 404 == (await RestClient(app).get("/v1/sessions/s")).status
    assert [] == hook.webhook_events


# When it does not work at once


@pytest.mark.fault(52)
async def test_a_500_is_tried_again_at_once(serve: Serve, hook: WebhookReceiver) -> None:
    """The second attempt carries the same id and bytes, and the log has both."""
    hook.replies = [Reply(500)]
    app = await serve(webhook_url=hook.url(), webhook_secret=WHSEC)
    await send_over_websocket(app, [*HELLO, END])
    first, second = await hook.wait(2)
    assert comparable_body(first) == comparable_body(second)
    assert first.id == first.headers["webhook-id"] == second.headers["webhook-id"]
    for webhook_event in (first, second):
        Webhook(WHSEC).verify(webhook_event.body, dict(webhook_event.headers))

    await eventually([("delivered", [500, 200])], lambda: log(app))


async def test_a_receiver_that_hangs_holds_up_neither_calls_nor_other_receivers(
    serve: Serve, hook: WebhookReceiver
) -> None:
    """While one receiver answers nothing, calls are recorded, read and delivered elsewhere."""
    hook.otherwise = Reply(gate=asyncio.Event())
    app = await serve(webhook_url=hook.url(), allow_addresses=LOOPBACK)
    for number in range(10):
        await send_over_websocket(app, [*HELLO, END], f"slow{number}")
    await hook.wait(8)
    async with webhook_receiver() as fast:
        await send_over_websocket(app, [*HELLO, END], session={"webhook": {"url": fast.url()}})
        assert ["Hi.", "Good day."] == texts(await fast.one())
    assert ["Hi.", "Good day."] == [one["content"] for one in await RestClient(app).contents()]


async def test_stopping_does_not_wait_for_a_receiver_that_hangs(tmp_path: Path, hook: WebhookReceiver) -> None:
    """The service stops within seconds, and the next one tries again at once with the same webhook event."""
    hook.replies = [Reply(gate=asyncio.Event())]
    settings = {"store": f"sqlite:{tmp_path}/v.db", "webhook_url": hook.url()}
    async with running_service(**settings) as app:
        await send_over_websocket(app, [*HELLO, END])
        await hook.one()
        began = time.monotonic()
    assert time.monotonic() - began < 5
    async with running_service(**settings):
        first, second = await hook.wait(2)
    assert comparable_body(first) == comparable_body(second)
    assert "delivered" == await state_in(tmp_path / "v.db")


# Over the end of a process


@pytest.mark.fault(19)
async def test_what_a_dead_process_did_not_send_is_sent_by_the_next(tmp_path: Path, hook: WebhookReceiver) -> None:
    """A close that was committed just before its process died is delivered by the next, once."""
    store = SqliteStore(str(tmp_path / "v.db"))
    await store.directory.set_operator_endpoint(hook.url(), None)
    sessions = Sessions(store, Runtime(lambda: 1_778_390_400_000, lambda: "n1"), lambda settled: None)
    stream, _ = await sessions.create("default", "s", {"name": "Call"})
    await sessions.end(stream, "left")
    await store.close_store()
    async with running_service(store=f"sqlite:{tmp_path}/v.db", webhook_url=hook.url()):
        webhook_event = await hook.one()
    async with running_service(store=f"sqlite:{tmp_path}/v.db", webhook_url=hook.url()) as app:
        assert ["delivered"] == [one.state for one in await deliveries(app)]
    assert ("n1", "Call", 1) == (webhook_event.id, webhook_event.payload["name"], len(hook.webhook_events))
