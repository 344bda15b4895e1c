"""Agora's paths over plain HTTP: what is taken and kept, bad bodies, keys, projects, and the settings of both sides."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from agora_clients import llm_settings
from callers import Answered, Caller, Serve, make_key, produce, until
from producers import down_store
from services import ANY_PORT

from voicemem.app import App, running
from voicemem.config.service import Settings

JsonObject = dict[str, Any]
BASE = "/api/conversational-ai-agent/v2/projects/any"
AGENTS = f"{BASE}/agents"
KEY = "sixteen letters and more"
LONG_AGO = 1_790_000_000_000
JOIN: JsonObject = {
    "name": "desk",
    "preset": "deepgram_nova_3,minimax_speech_2_6_turbo",
    "pipeline_id": None,
    "properties": {
        "channel": "lobby",
        "token": "007",
        "agent_rtc_uid": "1001",
        "remote_rtc_uids": ["1002"],
        "enable_string_uid": False,
        "idle_timeout": 30,
        "advanced_features": {"enable_rtm": True},
        "llm": {
            "url": "https://llm.example/chat/completions",
            "params": {"model": "m", "stop": {"words": ["a"], "most": 3}},
            "style": "openai",
            "input_modalities": ["text"],
            "api_key": "k",
            "system_messages": [{"role": "system", "content": "x"}],
            "greeting_message": "hi",
            "failure_message": "fail",
            "vendor": "custom",
            "max_history": 50,
        },
        "labels": {"k": "v"},
        "turn_detection": {"language": "en-US"},
        "tts": {"vendor": "minimax", "params": {"voice_setting": {"voice_id": "v"}}},
        "asr": None,
    },
}


def joining(**properties: Any) -> JsonObject:
    return {"name": "desk", "properties": {"channel": "lobby", **properties}}


async def joined(api: Caller, body: Any = None) -> str:
    """The id of a new agent."""
    answered = await api.post(f"{BASE}/join", joining() if body is None else body)
    assert 200 == answered.status, answered.body
    return str(answered.json["agent_id"])


def told(answered: Answered) -> tuple[int, str]:
    """Status and reason of an error, whose body is Agora's."""
    assert "application/json" == answered.headers["Content-Type"]
    assert {"detail", "reason"} == set(answered.json)
    assert answered.json["detail"].endswith((".", "`"))
    assert b"Traceback" not in answered.body
    return answered.status, answered.json["reason"]


# Agents


async def test_what_the_sdk_sends_becomes_the_configuration(serve: Serve) -> None:
    """A join's name, channel, labels, times and LLM settings are the session's; all else is passed over."""
    api = Caller(await serve())
    answered = await api.post(f"{BASE}/join", JOIN)
    assert {"agent_id", "create_ts", "status"} == set(answered.json)
    session = await api.session(answered.json["agent_id"])
    assert session["started_at"] // 1000 == answered.json["create_ts"]
    llm = {key: value for key, value in JOIN["properties"]["llm"].items() if key not in ("input_modalities", "api_key")}
    expected = {"name": "desk", "channel": "lobby", "labels": {"k": "v"}, "idle_timeout": 30, "llm": llm}
    assert expected == session["config"]


PROMPT = [{"role": "user", "parts": [{"text": "You are brief."}, {"text": "And kind."}]}]
LLM = {"url": "https://llm.example/v1/chat/completions", "api_key": "k", "params": {"model": "m"}}
SAMPLES: dict[str, JsonObject] = {
    "a quickstart": {
        "llm": {
            **LLM,
            "system_messages": PROMPT,
            "greeting_message": "Hi.",
            "failure_message": "Oh.",
            "max_history": 10,
        },
        "tts": {"vendor": "microsoft", "params": {"key": "k", "region": "eastus", "rate": 1.1}},
        "asr": {"language": "en-US"},
        "remote_rtc_uids": ["*"],
        "idle_timeout": 120,
    },
    "voice activity and data channels": {
        "advanced_features": {"enable_aivad": True, "enable_rtm": True, "enable_sal": False},
        "vad": {"interrupt_duration_ms": 160, "threshold": 0.5},
        "turn_detection": {
            "mode": "default",
            "config": {"start_of_speech": {"vad_config": {"prefix_padding_ms": 800}}},
        },
        "parameters": {"data_channel": "rtm", "enable_metrics": True, "silence_config": {"timeout_ms": 0}},
    },
    "a hosted model": {
        "llm": {
            **LLM,
            "vendor": "azure",
            "template_variables": {"name": "Ada"},
            "mcp_servers": [{"name": "tools", "endpoint": "https://mcp.example", "transport": "streamable_http"}],
            "greeting_configs": {"mode": "single_first", "delay_ms": 0},
            "headers": {"x": "y"},
        }
    },
    "no text model": {
        "advanced_features": {"enable_mllm": True},
        "mllm": {"url": "wss://llm.example/v1/realtime", "params": {"model": "m"}, "messages": [{"role": "user"}]},
        "llm": None,
    },
    "an avatar": {
        "avatar": {"enable": True, "vendor": "akool", "params": {}},
        "sal": {"sal_mode": "locking"},
        "geofence": {"area": "GLOBAL"},
        "labels": {"campaign": "x"},
        "agent_rtc_uid": 1001,
    },
}


@pytest.mark.parametrize("vendor", ["OpenAI", "Gemini", "VertexAILLM", "AmazonBedrock", "Dify", "Anthropic", "Groq"])
async def test_the_settings_of_each_vendor_of_the_sdk(tmp_path: Any, vendor: str) -> None:
    """What the SDK makes of a vendor is taken, and its keys are shown to nobody, Gemini's in the URL neither."""
    given = VENDORS.get(vendor, {"api_key": "hush"}) | {"model": "m", "system_messages": PROMPT}
    llm = llm_settings(vendor, **given)
    settings = Settings(store=f"sqlite:{tmp_path / 'calls.db'}", rest=ANY_PORT, ingest=ANY_PORT)
    async with running(settings) as app:
        api = Caller(app)
        agent = await joined(api, joining(llm=llm))
        shown = (await api.session(agent))["config"]["llm"]
        assert llm["url"].replace("&key=hush", "") == shown["url"]
        assert b"hush" not in (await api.get(f"/v1/sessions/{agent}")).body
        secrets = app.services.store.database.writer.execute("select name, value from secrets").fetchall()  # type: ignore[attr-defined]
        keys = [(name, value) for name, value in secrets if name != "llm.headers"]
        assert ([] if vendor == "AmazonBedrock" else [("llm.api_key", "hush")]) == keys
        assert ("llm.headers" in dict(secrets)) == (vendor == "Anthropic")


VENDORS: dict[str, JsonObject] = {
    "OpenAI": {"api_key": "hush", "base_url": "https://llm.example/v1/chat/completions"},
    "VertexAILLM": {"api_key": "hush", "project_id": "p", "location": "eu"},
    "AmazonBedrock": {"access_key": "hush", "secret_key": "hush", "region": "eu"},
    "Dify": {"api_key": "hush", "url": "https://llm.example/v1/chat-messages"},
    "Anthropic": {
        "api_key": "hush",
        "url": "https://llm.example/v1/messages",
        "max_tokens": 9,
        "headers": {"anthropic-version": "2023-06-01"},
    },
    "Groq": {"api_key": "hush", "base_url": "https://llm.example/openai/v1/chat/completions"},
}
STYLES = {"dify": {"params": {}}, "bedrock": {"model": "m", "params": {"max_tokens": 9}}}


@pytest.mark.parametrize(("style", "kept"), STYLES.items(), ids=STYLES)
async def test_a_style_that_has_no_format_here_is_left_out(serve: Serve, style: str, kept: JsonObject) -> None:
    """Styles of Agora's alone are taken; the context then is made in the style of OpenAI."""
    api = Caller(await serve())
    agent = await joined(api, joining(llm={"style": style, "access_key": "k", **kept}))
    assert kept == (await api.session(agent))["config"]["llm"]


@pytest.mark.parametrize("properties", SAMPLES.values(), ids=SAMPLES)
async def test_bodies_as_sample_applications_send_them(serve: Serve, properties: JsonObject) -> None:
    """Whatever an engine alone needs to know is passed over, and the answer has what samples read."""
    api = Caller(await serve())
    answered = await api.post(f"{BASE}/join", {"name": "n", "properties": {"channel": "c", "token": "t", **properties}})
    assert (200, "RUNNING") == (answered.status, answered.json["status"])
    assert isinstance(answered.json["create_ts"], int)
    assert 200 == (await api.get(f"{AGENTS}/{answered.json['agent_id']}")).status


async def test_system_messages_as_gemini_has_them(serve: Serve) -> None:
    """Samples for Gemini send parts in place of a content: they become the system messages, at an update too."""
    api = Caller(await serve())
    llm: JsonObject = {"style": "gemini", "ignore_empty": True, "system_messages": PROMPT, "params": {"model": "g"}}
    agent = await joined(api, joining(llm=llm))
    instruction = {"parts": [{"text": "You are brief.\nAnd kind."}]}
    assert instruction == (await api.context(session_id=agent))["systemInstruction"]
    update = {"properties": {"llm": {"system_messages": [{"role": "user", "parts": [{"text": "Be long."}]}]}}}
    assert 200 == (await api.post(f"{AGENTS}/{agent}/update", update)).status
    config = (await api.session(agent))["config"]["llm"]
    assert [{"role": "system", "content": "Be long."}] == config["system_messages"]


async def test_what_a_join_leaves_empty_is_not_given(serve: Serve) -> None:
    """A sample application whose variables are not set sends an empty address and an empty key."""
    api = Caller(await serve())
    agent = await joined(api, joining(llm={"url": "", "api_key": "", "greeting_message": "", "model": "m"}))
    assert {"greeting_message": "", "model": "m"} == (await api.session(agent))["config"]["llm"]


BAD_JOINS: dict[str, tuple[Any, str]] = {
    "no body": (b"", "MissingRequiredField"),
    "an empty object": ({}, "MissingRequiredField"),
    "no name": ({"properties": {"channel": "c"}}, "MissingRequiredField"),
    "no properties": ({"name": "n"}, "MissingRequiredField"),
    "null properties": ({"name": "n", "properties": None}, "MissingRequiredField"),
    "no channel": ({"name": "n", "properties": {}}, "MissingRequiredField"),
    "a null channel": ({"name": "n", "properties": {"channel": None}}, "MissingRequiredField"),
    "an empty name": ({"name": "", "properties": {"channel": "c"}}, "InvalidFieldValue"),
    "a name that is a number": ({"name": 1, "properties": {"channel": "c"}}, "InvalidFieldValue"),
    "properties in a list": ({"name": "n", "properties": []}, "InvalidFieldValue"),
    "a channel that is a number": (joining(channel=7), "InvalidFieldValue"),
    "labels in a list": (joining(labels=["a"]), "InvalidFieldValue"),
    "labels of numbers": (joining(labels={"a": 1}), "InvalidFieldValue"),
    "an llm that is text": (joining(llm="m"), "InvalidFieldValue"),
    "max_history of 0": (joining(llm={"max_history": 0}), "InvalidFieldValue"),
    "max_history of 1025": (joining(llm={"max_history": 1025}), "InvalidFieldValue"),
    "a style that nobody knows": (joining(llm={"style": "cubist"}), "InvalidFieldValue"),
    "an llm.url that is none": (joining(llm={"url": "llm.example"}), "InvalidFieldValue"),
    "system messages that are text": (joining(llm={"system_messages": "be brief"}), "InvalidFieldValue"),
    "a system message of other parts": (
        joining(llm={"system_messages": [{"role": "user", "parts": [{"inlineData": {}}]}]}),
        "InvalidFieldValue",
    ),
    "an idle_timeout of more than three days": (joining(idle_timeout=259_201), "InvalidFieldValue"),
    "an idle_timeout below 0": (joining(idle_timeout=-1), "InvalidFieldValue"),
    "an idle_timeout that is text": (joining(idle_timeout="30"), "InvalidFieldValue"),
    "a list": ([joining()], "InvalidRequestBody"),
    "no JSON": (b'{"name":', "InvalidRequestBody"),
    "no UTF-8": (b'{"name":"\xff"}', "InvalidRequestBody"),
    "JSON that is too deep": (b'{"name":' + b"[" * 40 + b"]" * 40 + b"}", "InvalidRequestBody"),
}


@pytest.mark.parametrize(("body", "reason"), BAD_JOINS.values(), ids=BAD_JOINS)
async def test_a_bad_join_makes_no_agent(serve: Serve, body: Any, reason: str) -> None:
    """Missing and wrong fields are 400 with Agora's reasons, and nothing is there afterwards."""
    api = Caller(await serve())
    assert (400, reason) == told(await api.post(f"{BASE}/join", body))
    assert [] == (await api.get("/v1/sessions")).json["sessions"]


async def test_a_body_that_is_too_big(serve: Serve) -> None:
    """More than 1 MiB is 413, with Agora's reason."""
    api = Caller(await serve())
    assert (413, "InvalidRequestBody") == told(await api.post(f"{BASE}/join", b" " * (2**20 + 1)))


async def test_an_update_replaces_what_it_names_whole(serve: Serve) -> None:
    """Parameters that the new ones do not have are gone, nested ones too; system messages are the new ones alone."""
    api = Caller(await serve())
    agent = await joined(api, JOIN)
    llm = {"params": {"stop": {"most": 1}, "top_p": 0.5}, "system_messages": [{"role": "system", "content": "y"}]}
    answered = await api.post(f"{AGENTS}/{agent}/update", {"properties": {"token": "t", "llm": llm, "mllm": {}}})
    assert (200, agent, "RUNNING") == (answered.status, answered.json["agent_id"], answered.json["status"])
    config = (await api.session(agent))["config"]["llm"]
    assert (llm["params"], llm["system_messages"]) == (config["params"], config["system_messages"])
    assert ("custom", 50) == (config["vendor"], config["max_history"])
    assert 200 == (await api.post(f"{AGENTS}/{agent}/update", {"properties": {"llm": {"params": {}}}})).status
    assert {} == (await api.session(agent))["config"]["llm"]["params"]


async def test_an_update_of_nothing_changes_nothing(serve: Serve) -> None:
    """What is not about the LLM is passed over, and not journaled."""
    api = Caller(await serve())
    agent = await joined(api)
    assert 200 == (await api.post(f"{AGENTS}/{agent}/update", {"properties": {"token": "t", "llm": None}})).status
    assert [] == await api.journal(agent)


BAD_UPDATES: dict[str, tuple[Any, str]] = {
    "no body": (b"", "MissingRequiredField"),
    "no properties": ({"llm": {}}, "MissingRequiredField"),
    "an llm that is text": ({"properties": {"llm": "m"}}, "InvalidFieldValue"),
    "params in a list": ({"properties": {"llm": {"params": []}}}, "InvalidFieldValue"),
    "messages without a role": ({"properties": {"llm": {"system_messages": [{}]}}}, "InvalidFieldValue"),
    "no JSON": (b"]", "InvalidRequestBody"),
}
BAD_SPEECHES: dict[str, tuple[Any, str]] = {
    "no body": (b"", "MissingRequiredField"),
    "no text": ({"priority": "APPEND"}, "MissingRequiredField"),
    "an empty text": ({"text": ""}, "InvalidFieldValue"),
    "a text that is a number": ({"text": 1}, "InvalidFieldValue"),
    "513 bytes": ({"text": "é" * 256 + "e"}, "InvalidFieldValue"),
    "a priority that nobody knows": ({"text": "t", "priority": "SOON"}, "InvalidFieldValue"),
    "interruptable as text": ({"text": "t", "interruptable": "yes"}, "InvalidFieldValue"),
}
BAD_THOUGHTS: dict[str, tuple[Any, str]] = {
    "no text": ({}, "MissingRequiredField"),
    "an action that nobody knows": ({"text": "t", "on_speaking_action": "shout"}, "InvalidFieldValue"),
    "metadata of numbers": ({"text": "t", "metadata": {"a": 1}}, "InvalidFieldValue"),
    "metadata that is reserved": ({"text": "t", "metadata": {"original": "o"}}, "InvalidFieldValue"),
    "no JSON": (b"text", "InvalidRequestBody"),
}
BAD = {
    f"{call}, {name}": (call, *bad)
    for call, every in {"update": BAD_UPDATES, "speak": BAD_SPEECHES, "think": BAD_THOUGHTS}.items()
    for name, bad in every.items()
}


@pytest.mark.parametrize(("call", "body", "reason"), BAD.values(), ids=BAD)
async def test_a_bad_body_stores_nothing(serve: Serve, call: str, body: Any, reason: str) -> None:
    """Missing and wrong fields are 400 with Agora's reasons, and the journal stays as it was."""
    api = Caller(await serve())
    agent = await joined(api)
    assert (400, reason) == told(await api.post(f"{AGENTS}/{agent}/{call}", body))
    assert [] == await api.journal(agent)


QUERIES = (
    "agents?state=running",
    "agents?state=7",
    "agents?limit=0",
    "agents?from_time=nan",
    "agents?from_time=soon",
    "agents?to_time=1790000000000000",
    "agents?cursor=x",
    "agents?chanel=c",
    "agents/{id}/turns?page_index=0",
    "agents/{id}/turns?page_size=201",
)


@pytest.mark.parametrize("query", QUERIES)
async def test_a_bad_query(serve: Serve, query: str) -> None:
    """Parameters that are unknown or out of range are 400."""
    api = Caller(await serve())
    agent = await joined(api)
    assert (400, "InvalidFieldValue") == told(await api.get(f"{BASE}/{query.replace('{id}', agent)}"))


@pytest.mark.parametrize("data", [b"", b"{}", b"no JSON"])
@pytest.mark.parametrize("call", ["interrupt", "leave"])
async def test_calls_without_content_take_any_body(serve: Serve, call: str, data: bytes) -> None:
    """A JSON content type without a body is fine, and so is whatever else clients send along."""
    api = Caller(await serve())
    agent = await joined(api)
    headers = {"Content-Type": "application/json"}
    answered = await api.call("POST", f"{AGENTS}/{agent}/{call}", headers, data=data)
    assert 200 == answered.status
    assert (b"" == answered.body) == (call == "leave")


async def test_how_an_agent_ended_is_told() -> None:
    """Idleness and the longest life have Agora's words; times are seconds, and lists look back two hours."""
    now = [LONG_AGO]
    settings = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT)
    async with running(settings, lambda: now[0]) as app:
        api = Caller(app)
        idle = await joined(api, joining(idle_timeout=30))
        lasting = await joined(api, {"name": "lasting", "properties": {"channel": "c", "idle_timeout": 0}})

        async def known() -> tuple[str, str]:
            answered = (await api.get(f"{AGENTS}/{idle}")).json
            return answered["status"], answered["message"]

        assert ("RUNNING", "") == await known()
        now[0] += 31_000
        await until(("STOPPED", "Idle for too long"), known)
        found = (await api.get(f"{AGENTS}/{idle}")).json
        assert (LONG_AGO // 1000, LONG_AGO // 1000 + 31, "desk") == (found["start_ts"], found["stop_ts"], found["name"])
        assert [lasting] == [one["agent_id"] for one in (await api.get(AGENTS)).json["data"]["list"]]
        now[0] += 72 * 3_600_000
        idle = lasting
        await until(("STOPPED", "Task lifetime limit exceeded"), known)
        assert 0 == (await api.get(f"{AGENTS}?state=4")).json["meta"]["total"]
        since = LONG_AGO // 1000
        assert 2 == (await api.get(f"{AGENTS}?state=4&from_time={since}&to_time={since}")).json["meta"]["total"]


# What was said


async def test_what_is_said_in_the_newest_turn_interrupts_nothing(serve: Serve) -> None:
    """A spoken command stands in the newest turn, whatever its priority, and the reply before it stays whole."""
    app = await serve()
    api = Caller(app)
    agent = await joined(api)
    events = [
        {"type": "message", "turn_id": 3, "role": "assistant", "text": "Welcome.", "source": "greeting"},
        {"type": "llm.delta", "turn_id": 3, "text": "Once upon a time "},
    ]
    await produce(app, events, agent)
    spoken = await api.post(f"{AGENTS}/{agent}/speak", {"text": "Hold on.", "priority": "INTERRUPT"})
    assert {"agent_id", "channel", "start_ts"} == set(spoken.json)
    assert (agent, "lobby") == (spoken.json["agent_id"], spoken.json["channel"])
    await api.post(f"{AGENTS}/{agent}/think", {"text": "Go on."})
    contents = (await api.get(f"{AGENTS}/{agent}/history")).json["contents"]
    assert [("Welcome.", 3), ("Hold on.", 3), ("Go on.", 4)] == [(one["content"], one["turn_id"]) for one in contents]
    assert not any("interrupted" in one["metadata"] for one in contents)
    assert {"agora.rest", "main"} == {row["producer"] for row in await api.journal(agent)}


async def test_whom_an_engines_interrupt_marks_after_speak(serve: Serve) -> None:
    """With a turn alone it is about what was spoken, the turn's newest reply; an item leads to the reply before it."""
    app = await serve()
    api = Caller(app)
    for number, named in enumerate(({}, {"item": "r1"})):
        agent = await joined(api, {"name": f"n{number}", "properties": {"channel": "c"}})
        reply = {"turn_id": 1, "item": "r1", "text": "Once upon a time."}
        await api.send({"type": "llm.delta", **reply, "ts": 1000}, session_id=agent)
        await api.post(f"{AGENTS}/{agent}/speak", {"text": "Hold on."})
        cut = {"type": "interrupt", "turn_id": 1, "heard_text": "", **named}
        await api.send(cut, {"type": "llm.done", **reply, "ts": 2000}, session_id=agent)
        contents = (await api.get(f"{AGENTS}/{agent}/history")).json["contents"]
        marked = [one["metadata"]["original"] for one in contents if "interrupted" in one["metadata"]]
        assert [["Hold on."], ["Once upon a time."]][number] == marked


async def test_an_interrupt_of_nothing_marks_nothing(serve: Serve) -> None:
    """Where no reply plays, the interruption only stands in the journal."""
    api = Caller(await serve())
    agent = await joined(api)
    await api.post(f"{AGENTS}/{agent}/speak", {"text": "Welcome."})
    assert 200 == (await api.post(f"{AGENTS}/{agent}/interrupt")).status
    (said,) = (await api.get(f"{AGENTS}/{agent}/history")).json["contents"]
    assert {"source": "command"} == said["metadata"]
    assert "api_interrupt" == (await api.journal(agent))[-1]["event"]["cause"]


async def test_what_leaving_cuts_short_is_told_in_the_turns(serve: Serve) -> None:
    """A reply that plays when the agent leaves is interrupted by that, and the history stays readable under /v1."""
    app = await serve()
    api = Caller(app)
    agent = await joined(api)
    await produce(app, [{"type": "llm.delta", "turn_id": 1, "text": "Once upon a time"}], agent)
    assert 200 == (await api.post(f"{AGENTS}/{agent}/leave")).status
    for call in ("leave", "interrupt", "speak", "think", "update"):
        assert (404, "TaskNotFound") == told(await api.post(f"{AGENTS}/{agent}/{call}", {}))
    answered = await api.get(f"{AGENTS}/{agent}/history")
    assert (404, "TaskNotFound") == told(answered)
    assert "The session was not found, has already ended, or failed to start." == answered.json["detail"]
    (turn,) = (await api.get(f"{AGENTS}/{agent}/turns")).json["turns"]
    assert ("interrupted", "api_leave") == (turn["end"]["type"], turn["end"]["metadata"]["caused_by"])
    assert ["agent_id", "channel", "turn_id", "start", "end", "metrics"] == list(turn)
    assert "Once upon a time" == (await api.contents(agent))[0]["metadata"]["original"]


TIMED = [
    {"type": "asr", "turn_id": 1, "text": "Hello", "segment": 0, "start_ms": 1_715_000_005_200, "ts": 1},
    {"type": "asr", "turn_id": 1, "text": "Hello.", "segment": 0, "final": True, "end_ms": 1_715_000_006_000, "ts": 2},
    {
        "type": "asr",
        "turn_id": 1,
        "text": "My package?",
        "segment": 1,
        "final": True,
        "start_ms": 1_715_000_006_500,
        "end_ms": 1_715_000_007_600,
        "metadata": {"speech_algorithmic_delay": 120},
        "ts": 3,
    },
    {"type": "llm.done", "turn_id": 1, "text": "It is on its way.", "ts": 1_715_000_009_000},
    {"type": "tts", "turn_id": 1, "audio_ms": 100, "ts": 1_715_000_009_600},
    {"type": "tts", "turn_id": 1, "audio_ms": 3600, "done": True, "ts": 1_715_000_013_200},
    {"type": "message", "turn_id": 2, "role": "user", "text": "Thanks.", "source": "message", "ts": 4},
]


async def test_times_of_speech_stand_where_events_gave_them(serve: Serve) -> None:
    """A user's are the recogniser's, a reply's those of its playback; what was typed has none."""
    app = await serve()
    api = Caller(app)
    agent = await joined(api)
    await produce(app, TIMED, agent)
    user, reply, typed = (await api.get(f"{AGENTS}/{agent}/history")).json["contents"]
    assert (1_715_000_005_200, 1_715_000_007_600, 120) == (
        user["speech_start_ms"],
        user["speech_end_ms"],
        user["speech_algorithmic_delay"],
    )
    assert (1_715_000_009_500, 1_715_000_013_200) == (reply["speech_start_ms"], reply["speech_end_ms"])
    assert ["role", "content", "turn_id", "timestamp", "metadata"] == list(typed)


async def test_a_setting_strips_the_contents(serve: Serve) -> None:
    """With `standard` a message is role and content alone, for readers that refuse other keys."""
    app = await serve(agora_contents="standard")
    api = Caller(app)
    agent = await joined(api)
    await produce(app, TIMED, agent)
    assert [
        {"role": "user", "content": "Hello. My package?"},
        {"role": "assistant", "content": "It is on its way."},
        {"role": "user", "content": "Thanks."},
    ] == (await api.get(f"{AGENTS}/{agent}/history")).json["contents"]
    assert "turn_id" in (await api.contents(agent))[0]


async def test_history_shows_the_times_after_a_restart(tmp_path: Any) -> None:
    """Times of speech come from the journal, like everything else."""
    settings = Settings(store=f"sqlite:{tmp_path / 'calls.db'}", rest=ANY_PORT, ingest=ANY_PORT)
    shown = []
    agent = ""
    for _ in range(2):
        async with running(settings) as app:
            api = Caller(app)
            if not agent:
                agent = await joined(api)
                await produce(app, TIMED, agent)
            shown.append((await api.get(f"{AGENTS}/{agent}/history")).json)
    assert shown[0] == shown[1]


# Keys


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


GOOD_HEADERS = [
    f"agora token={KEY}",
    f'agora token="{KEY}"',
    f'Agora  Token = "{KEY}"',
    f"Bearer {KEY}",
    basic("customer", KEY),
    basic("", KEY),
]
BAD_HEADERS = [
    None,
    "",
    "Basic",
    "Basic %%%",
    "Basic " + base64.b64encode(KEY.encode()).decode(),
    basic(KEY, ""),
    basic("customer", KEY.upper()),
    "Basic " + base64.b64encode(b"\xff:\xff").decode(),
    "agora",
    "agora token=",
    'agora token=""',
    f"agora key={KEY}",
    f"token={KEY}",
    KEY,
]


@pytest.mark.parametrize("header", GOOD_HEADERS)
async def test_keys_are_taken_as_agoras_clients_send_them(serve: Serve, header: str) -> None:
    """As the password of Basic, as a token in quotes or without, and as Bearer."""
    app = await serve(admin_key=KEY)
    path = f"{AGENTS.replace('any', 'default')}"
    answered = await Caller(app).get(path, {"Authorization": header})
    assert 200 == answered.status


@pytest.mark.parametrize("header", BAD_HEADERS)
async def test_what_is_no_key_is_refused(serve: Serve, header: str | None) -> None:
    """Everything else is 401, for agents that are there and for those that are not."""
    app = await serve(admin_key=KEY)
    path = f"{AGENTS.replace('any', 'default')}"
    headers = {} if header is None else {"Authorization": header}
    assert (401, "InvalidPermission") == told(await Caller(app).get(path, headers))
    assert (401, "InvalidPermission") == told(await Caller(app).call("POST", f"{path}/x/leave", headers))


async def test_a_header_with_agoras_schemes_opens_nothing_else(serve: Serve) -> None:
    """Below /v1 a key is a Bearer token."""
    app = await serve(admin_key=KEY)
    assert 401 == (await Caller(app).get("/v1/sessions", {"Authorization": f"agora token={KEY}"})).status


async def test_scopes_hold_here_too(serve: Serve) -> None:
    """A key that may only read joins nothing, and what makes the server call out needs admin."""
    app = await serve()
    path = BASE.replace("any", "default")
    readers = Caller(app, await make_key(app, "read"))
    writers = Caller(app, await make_key(app, "ingest"))
    assert (403, "InvalidPermission") == told(await readers.post(f"{path}/join", joining()))
    assert (403, "InvalidPermission") == told(await writers.post(f"{path}/join", JOIN))
    assert 200 == (await writers.post(f"{path}/join", joining())).status
    assert (403, "InvalidPermission") == told(await writers.get(f"{path}/agents"))
    assert 1 == (await readers.get(f"{path}/agents")).json["data"]["count"]


async def test_without_keys_every_path_means_the_one_project(serve: Serve) -> None:
    """Whatever the App ID, whichever the base, and whatever stands in the header."""
    app = await serve()
    agent = await joined(Caller(app))
    for base in ("/api", "/cn/api"):
        path = f"{base}/conversational-ai-agent/v2/projects/other/agents/{agent}"
        assert 200 == (await Caller(app).get(path, {"Authorization": "Basic none"})).status


async def test_pages_from_elsewhere_are_refused(serve: Serve) -> None:
    """Without keys a browser's page from another host reaches nothing here either."""
    answered = await Caller(await serve()).get(AGENTS, {"Origin": "https://elsewhere.example"})
    assert (403, "InvalidPermission") == told(answered)


async def test_paths_that_are_not_here(serve: Serve) -> None:
    """Other paths and methods get REST's own errors, which have detail and reason too."""
    api = Caller(await serve())
    assert (404, "not_found") == (await api.get(f"{BASE}/agent")).told
    assert (405, "method_not_allowed") == (await api.get(f"{BASE}/join")).told


async def test_a_store_that_cannot_be_written(serve: Serve, tmp_path: Any) -> None:
    """While nothing can be committed, nothing is acknowledged: 503, with Agora's reason."""
    app: App = await serve(store=f"sqlite:{tmp_path / 'calls.db'}")
    api = Caller(app)
    agent = await joined(api)
    async with down_store(app):
        assert (503, "ServiceUnavailable") == told(await api.post(f"{AGENTS}/{agent}/speak", {"text": "t"}))
    assert [] == await api.journal(agent)


JUNK: list[Any] = [None, True, -1, 1.5, 2**53 + 1, 2**70, "", "\ud800", "\x00", "x" * 300_000, [], {}, [{}], {"": None}]
CALLS: dict[str, JsonObject] = {
    "join": JOIN,
    "update": {"properties": {"llm": {"system_messages": [{"role": "system", "content": "x"}], "params": {"a": {}}}}},
    "speak": {"text": "t", "priority": "APPEND", "interruptable": True},
    "think": {"text": "t", "on_listening_action": "inject", "metadata": {"source": "b"}, "interruptable": False},
}


def spoiled(value: Any, chance: random.Random) -> Any:
    """A value in which something may be missing, too much, or of another kind."""
    if chance.random() < 0.15:
        return chance.choice(JUNK)
    if isinstance(value, dict):
        kept = {key: spoiled(item, chance) for key, item in value.items() if chance.random() > 0.1}
        return kept | ({chance.choice(["original", "user", ""]): chance.choice(JUNK)} if chance.random() < 0.2 else {})
    return [spoiled(item, chance) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("call", CALLS)
async def test_no_body_is_a_fault_of_the_server(serve: Serve, call: str) -> None:
    """Whatever is missing or wrong in a body is told as such, and the agent can be read afterwards."""
    api = Caller(await serve())
    chance = random.Random(call)
    agent = await joined(api, {"name": "another", "properties": {"channel": "c"}})
    path = f"{BASE}/join" if call == "join" else f"{AGENTS}/{agent}/{call}"
    statuses = set()
    for _ in range(120):
        answered = await api.post(path, json.dumps(spoiled(CALLS[call], chance)).encode())
        statuses.add(answered.status if answered.status == 200 else told(answered)[0])
    assert {200, 400} <= statuses <= {200, 400, 409}
    for read in ("", "/history", "/turns"):
        assert 200 == (await api.get(f"{AGENTS}/{agent}{read}")).status
