"""Calls that a platform hosts, through its webhooks and the gateway: both meet in one session, and nothing is twice."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from tests.support.callers.gateway import role_and_text
from tests.support.callers.rest import RestClient
from tests.support.clock import ManualClock
from tests.support.dialects import RECORDINGS, Recording
from tests.support.paths import ROOT
from tests.support.servers.llm_server import LlmServer, Script, llm_server
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject

Order = Literal["webhook first", "request first", "webhooks at the end"]
ORDERS: list[Order] = ["webhook first", "request first", "webhooks at the end"]
NAMES = ("barge_in_and_hang_up", "live_messages_and_history", "hang_up_before_the_last_words")
CALLS = [one for one in RECORDINGS if one.dialect == "vapi" and one.name in NAMES]
ROLES = {"bot": "assistant", "user": "user"}


class VapiCall:
    """A recorded call, whose agent has the gateway as its LLM."""

    def __init__(self, recording: Recording, api: RestClient, llm: LlmServer, clock: ManualClock) -> None:
        self.api, self.llm, self.clock = api, llm, clock
        self.bodies = [one["frame"] for one in recording.envelopes()]
        self.contents: list[JsonObject] = recording.document("contents")["contents"]
        first = next(at for at, one in enumerate(self.contents) if one["role"] == "user")
        self.replies = [whole(one) for one in self.contents[first:] if one["role"] == "assistant"]
        """What the LLM says; a greeting is Vapi's own."""
        self.id = self.bodies[0]["message"]["call"]["id"]
        self.asked = 0

    async def run(self, order: Order) -> None:
        late = []
        for body in self.bodies:
            message = body["message"]
            self.clock.ms = max(self.clock.ms, message["timestamp"])
            if order == "webhooks at the end":
                late.append(body)
            elif order == "webhook first":
                await self.post(body)
            await self.ask(message, knows_cuts=order != "webhooks at the end")
            if order == "request first":
                await self.post(body)
        for body in late:
            await self.post(body)

    async def post(self, body: JsonObject) -> None:
        answered = await self.api.post("/v1/hooks/vapi", body)
        assert 200 == answered.status, answered.body

    async def ask(self, message: JsonObject, knows_cuts: bool) -> None:
        """The request that Vapi makes when the caller has spoken: the whole conversation."""
        said = [one for one in message.get("messages", ()) if one["role"] in ROLES]
        users = [one for one in said if one["role"] == "user"]
        if message["type"] != "conversation-update" or not said or said[-1]["role"] != "user":
            return
        if len(users) <= self.asked or not self.replies:
            return
        self.asked = len(users)
        self.llm.then(Script([self.replies.pop(0)]))
        messages = [{"role": ROLES[one["role"]], "content": one["message"]} for one in said]
        body = {"model": "gpt", "stream": True, "call": message["call"], "metadata": {}, "temperature": 0.7}
        body["messages"] = [{"role": "system", "content": "You are a joker."}, *messages]
        answered = await self.api.post("/v1/chat/completions", body)
        assert (200, self.id) == (answered.status, answered.headers["X-Voicemem-Session"]), answered.body
        shown = [one for one in self.llm.last["messages"] if one["role"] != "system"]
        assert len(messages) == len(shown)
        if knows_cuts:
            assert role_and_text(messages) == role_and_text(shown)


def whole(message: JsonObject) -> str:
    return str(message["metadata"].get("original", message["content"]))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("recording", CALLS, ids=str)
async def test_a_call_of_vapi_through_both(serve: Serve, recording: Recording, order: Order) -> None:
    """What is remembered is what the webhooks alone give: each word once, and of cut replies what was heard."""
    clock = ManualClock()
    clock.ms = recording.envelopes()[0]["frame"]["message"]["timestamp"]
    async with llm_server() as llm:
        api = RestClient(await serve(clock, llm_url=llm.url))
        call = VapiCall(recording, api, llm, clock)
        await call.run(order)
        contents = await api.contents(call.id)
        assert role_and_text(call.contents) == role_and_text(contents)
        heard = [(one["metadata"].get("interrupted"), whole(one)) for one in call.contents]
        assert heard == [(one["metadata"].get("interrupted"), whole(one)) for one in contents]


WEATHER = {"id": "call_1", "name": "weather", "arguments": "{}"}
TIMES = 1_763_800_000_000


def history(*messages: JsonObject, kind: str = "conversation-update", **more: Any) -> JsonObject:
    """A webhook of Vapi's with its history; each message took a second, two after the one before."""
    timed = [{"time": TIMES + 2000 * at, "endTime": TIMES + 2000 * at + 1000, **one} for at, one in enumerate(messages)]
    end = timed[-1]["endTime"] + 100
    return {"message": {"type": kind, "call": {"id": "c"}, "timestamp": end, "messages": timed, **more}}


@pytest.mark.parametrize("order", ORDERS)
async def test_tools_of_a_call_through_both(serve: Serve, order: Order) -> None:
    """A tool call and its result, which both report, are there once, in the turn of the caller's question."""
    clock = ManualClock()
    clock.ms = TIMES
    user = {"role": "user", "message": "The weather in Oslo?"}
    moment = {"role": "bot", "message": "Let me see."}
    called = {"role": "tool_calls", "toolCalls": [{"id": "call_1", "function": {"name": "weather", "arguments": "{}"}}]}
    result = {"role": "tool_call_result", "toolCallId": "call_1", "name": "weather", "result": "rain"}
    answer = {"role": "bot", "message": "It rains."}
    webhooks = [
        history(user),
        history(user, moment, called),
        history(user, moment, called, result, answer),
        history(user, moment, called, result, answer, kind="end-of-call-report", endedReason="hang-up"),
    ]
    asked: list[Any] = [{"role": "user", "content": "The weather in Oslo?"}]
    function = {"name": "weather", "arguments": "{}"}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    spoken = {"role": "assistant", "content": "Let me see.", "tool_calls": calls}
    requests = [asked, [*asked, spoken, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]]
    steps = {
        "webhook first": [webhooks[0], requests[0], webhooks[1], requests[1], *webhooks[2:]],
        "request first": [requests[0], webhooks[0], requests[1], *webhooks[1:]],
        "webhooks at the end": [*requests, *webhooks],
    }
    async with llm_server(Script(["Let me see."], tools=[WEATHER]), Script(["It rains."])) as llm:
        api = RestClient(await serve(clock, llm_url=llm.url))
        for step in steps[order]:
            clock.wait(1)
            path = "/v1/chat/completions" if isinstance(step, list) else "/v1/hooks/vapi"
            body: Any = {"messages": step, "stream": True, "call": {"id": "c"}} if isinstance(step, list) else step
            answered = await api.post(path, body)
            assert 200 == answered.status, answered.body
        said = [("user", "The weather in Oslo?"), ("assistant", "Let me see."), ("assistant", "It rains.")]
        assert said == role_and_text(await api.contents("c"))
        (turn,) = (await api.get("/v1/sessions/c/turns?marks=true")).json["turns"]
        assert ["call_1"] == [one["call_id"] for one in turn["tools"]]
        shown = (await api.context("?style=openai&tools=true", "c"))["messages"]
        assert ["rain"] == [one["content"] for one in shown if one["role"] == "tool"]


JOKE = "Why did the scarecrow win?"
BEGIN = "conversation_initiation_metadata"
ELEVENLABS: list[JsonObject] = [
    {"type": BEGIN, f"{BEGIN}_event": {"conversation_id": "conv_1"}},
    {"type": "agent_response", "agent_response_event": {"agent_response": "Hi! How can I help?", "event_id": 1}},
    {"type": "user_transcript", "user_transcription_event": {"user_transcript": "A joke, please.", "event_id": 2}},
    {"type": "agent_response", "agent_response_event": {"agent_response": JOKE, "event_id": 2}},
    {"type": "interruption", "interruption_event": {"event_id": 3}},
    {"type": "agent_response_correction", "agent_response_correction_event": {
        "original_agent_response": JOKE, "corrected_agent_response": "Why did...", "event_id": 3}},
    {"type": "user_transcript", "user_transcription_event": {"user_transcript": "Stop.", "event_id": 4}},
    {"type": "agent_response", "agent_response_event": {"agent_response": "All right.", "event_id": 4}},
]  # fmt: skip


@pytest.mark.parametrize("order", ["frame first", "request first", "frames at the end"])
async def test_a_call_of_elevenlabs_through_both(serve: Serve, order: str) -> None:
    """Its frames and the requests for its LLM, which send the whole conversation, give each word once."""
    conversation: list[Any] = [{"role": "assistant", "content": "Hi! How can I help?"}]
    replies = iter([JOKE, "All right."])
    async with llm_server() as llm:
        clock = ManualClock()
        api = RestClient(await serve(clock, llm_url=llm.url))
        late: list[JsonObject] = []

        async def send(frame: JsonObject) -> None:
            await api.post("/v1/sessions/conv_1/events?dialect=elevenlabs-agents", [{"frame": frame, "ts": clock.ms}])

        async def ask(text: str) -> None:
            conversation.append({"role": "user", "content": text})
            reply = next(replies)
            llm.then(Script([reply]))
            extra = {"elevenlabs_extra_body": {"session_id": "conv_1"}, "user_id": "+4915112345678", "stream": True}
            assert 200 == (await api.post("/v1/chat/completions", {"messages": conversation, **extra})).status
            conversation.append({"role": "assistant", "content": "Why did" if reply == JOKE else reply})

        if order != "request first":
            await api.create("conv_1")
        for frame in ELEVENLABS:
            clock.wait(1)
            said = frame.get("user_transcription_event", {}).get("user_transcript")
            if order == "frame first" or (said is None and order == "request first" and len(conversation) > 1):
                await send(frame)
            elif order == "frames at the end" or said is None:
                late.append(frame)
            if said is not None:
                await ask(said)
                if order == "request first":
                    for one in [*late, frame]:
                        await send(one)
                    late.clear()
        for frame in late:
            await send(frame)
        assert [
            ("assistant", "Hi! How can I help?"), ("user", "A joke, please."), ("assistant", "Why did"),
            ("user", "Stop."), ("assistant", "All right."),
        ] == role_and_text(await api.contents("conv_1"))  # fmt: skip
        assert b"4915112345678" not in (await api.get("/v1/sessions/conv_1/events")).body
        assert "4915112345678" not in json.dumps([one.body for one in llm.requests])


async def test_the_webhook_after_a_call_of_elevenlabs(serve: Serve) -> None:
    """It says all of a call again that the gateway has, and what was heard: each word is there once."""
    body = json.loads((ROOT / "fixtures/elevenlabs-agents/webhook.json").read_text("utf-8"))
    told = json.loads((ROOT / "fixtures/elevenlabs-agents/webhook_alone.contents.json").read_text("utf-8"))["contents"]
    conversation: list[JsonObject] = []
    clock = ManualClock()
    clock.ms = told[0]["timestamp"]
    async with llm_server() as llm:
        api = RestClient(await serve(clock, llm_url=llm.url))
        headers = {"X-Voicemem-Session": body["data"]["conversation_id"]}
        for message, reply in zip(told, [*told[1:], None], strict=True):
            clock.ms = max(clock.ms, message["timestamp"])
            conversation.append({"role": message["role"], "content": message["content"]})
            if message["role"] == "user" and reply is not None:
                llm.then(Script([whole(reply)]))
                asked = {"messages": conversation, "stream": True}
                assert 200 == (await api.call("POST", "/v1/chat/completions", headers, json=asked)).status
        answered = await api.post("/v1/hooks/elevenlabs-agents", body)
        assert 200 == answered.status, answered.body
        contents = await api.contents(body["data"]["conversation_id"])
        assert role_and_text(told) == role_and_text(contents)
        assert [whole(one) for one in told] == [whole(one) for one in contents]
