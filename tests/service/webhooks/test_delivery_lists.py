"""Deliveries over all endpoints, over REST; and how endpoints do."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import time

import pytest

from tests.support.callers.rest import RestClient
from tests.support.callers.webhooks import CALL, SECRET, add, finish, read, settled
from tests.support.events import delta, done, final
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver
from tests.support.waiting import eventually
from voicemem.webhooks.requests import verify


async def test_of_a_session_with_its_own_receiver(caller: RestClient, hook: WebhookReceiver) -> None:
    """What goes to its own receiver is there, and has no endpoint that one could ask for it again."""
    made = await add(caller, hook.url("/shared?token=hidden"), 102, description="shared")
    await finish(caller, "s", *CALL, webhook={"url": hook.url("/own")})
    await finish(caller, "other")

    async def states() -> list[str]:
        page = (await caller.get("/v1/sessions/s/deliveries")).json
        return [one["state"] for one in page["deliveries"]]

    await eventually(["delivered"] * 2, states)
    page = (await caller.get("/v1/sessions/s/deliveries")).json
    receivers = {one["event_type"]: one["webhook"] for one in page["deliveries"]}
    assert {102: made["id"], 103: None} == {number: one["id"] for number, one in receivers.items()}
    assert {"shared", ""} == {one["description"] for one in receivers.values()}
    assert {hook.url("").rstrip("/")} == {one["origin"] for one in receivers.values()}
    assert page["next_before"] is None
    assert 3 == len((await caller.get("/v1/deliveries")).json["deliveries"])
    assert (404, "unknown_session") == (await caller.get("/v1/sessions/nobody/deliveries")).problem


async def test_what_was_sent(caller: RestClient, hook: WebhookReceiver) -> None:
    """The payload is the one that the receiver got, and is there only when asked for."""
    made = await add(caller, hook.url(), 103)
    await finish(caller, "s", *CALL)
    (sent,) = await settled(caller, made, "delivered")
    found = (await caller.get(f"/v1/deliveries/{sent['id']}?payload=true")).json
    assert hook.webhook_events[0].payload == found["payload"]
    without = (await caller.get(f"/v1/deliveries/{sent['id']}")).json
    assert {**without, "payload": found["payload"]} == found
    assert sent == {name: value for name, value in without.items() if name != "webhook"}
    assert (404, "unknown_delivery") == (await caller.get("/v1/deliveries/999")).problem
    assert (400, "invalid_field") == (await caller.get("/v1/deliveries/none")).problem


@pytest.mark.parametrize("contents", ["full", "vcon"])
async def test_what_is_large_is_sent_and_shown_whole(caller: RestClient, hook: WebhookReceiver, contents: str) -> None:
    """Made, kept, sent and shown in parts, and sent again, it is one body under one signature."""
    made = await add(caller, hook.url(), 103, secret=SECRET, contents=contents)
    texts = [f"{turn} " + "é🦩 " * 12_000 + "." for turn in range(1, 41)]
    await caller.create()
    for turn, text in enumerate(texts, 1):
        await caller.send(final(turn, text))
    await caller.end()
    (sent,) = await settled(caller, made, "delivered")
    again = await caller.post(f"/v1/webhooks/{made['id']}/deliveries/{sent['id']}/resend")
    assert 202 == again.status
    first, second = await hook.wait(2)
    shown = first.payload["vcon"]["dialog"] if contents == "vcon" else first.payload["contents"]
    assert texts == [one["body" if contents == "vcon" else "content"] for one in shown]
    assert (await caller.get(f"/v1/deliveries/{sent['id']}?payload=true")).json["payload"] == first.payload
    for one in (first, second):
        assert first.payload == one.payload
        assert all(verify(one.headers, one.body, SECRET, time.time()).values())


async def test_complete_turns_that_are_large_are_sent_whole(caller: RestClient, hook: WebhookReceiver) -> None:
    """However many messages and bytes they have: each message comes once, and a text that is longer than a part too."""
    await add(caller, hook.url(), 1001)
    texts = [f"{turn} " + "é🦩 " * 12_000 + "." for turn in range(1, 41)]
    await caller.create()
    for turn, text in enumerate(texts, 1):
        await caller.send(final(turn, text))
    for text in texts:
        await caller.send(delta(41, text))
    await caller.send(done(41))
    await caller.end()

    async def sent() -> list[str]:
        turns = (turn for one in hook.webhook_events for turn in one.payload["turns"])
        return [message["content"] for turn in turns for message in turn["contents"]]

    await eventually([*texts, "".join(texts)], sent)


async def test_pages(caller: RestClient, hook: WebhookReceiver) -> None:
    """A list goes on where the page before ended, and can be of one state."""
    made = await add(caller, hook.url(), 101, 102, 103)
    await finish(caller)
    await settled(caller, made, *["delivered"] * 3)
    first = (await caller.get("/v1/deliveries?limit=2&state=delivered")).json
    second = (await caller.get(f"/v1/deliveries?limit=2&before={first['next_before']}")).json
    assert [2, 1] == [len(page["deliveries"]) for page in (first, second)]
    assert [] == (await caller.get("/v1/deliveries?state=failed")).json["deliveries"]


@pytest.mark.parametrize(("status", "counts"), [(200, (1, 0, 0)), (410, (0, 1, 0)), (500, (0, 0, 1))])
async def test_how_an_endpoint_does(
    caller: RestClient, hook: WebhookReceiver, status: int, counts: tuple[int, int, int]
) -> None:
    """What was delivered and failed in the last day is counted, and what waits; in the list too."""
    hook.otherwise = Reply(status)
    made = await add(caller, hook.url(), 103)
    assert (0, 0, 0) == tuple(made[name] for name in ("delivered_24h", "failed_24h", "pending"))
    await finish(caller)

    async def counted() -> tuple[int, int, int]:
        shown = await read(caller, made)
        return shown["delivered_24h"], shown["failed_24h"], shown["pending"]

    await eventually(counts, counted)
    (listed,) = (await caller.get("/v1/webhooks")).json["webhooks"]
    assert counts == (listed["delivered_24h"], listed["failed_24h"], listed["pending"])
