"""Agora's paths over plain HTTP: what is taken and kept, bad bodies, keys, projects, and the settings of both sides."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest

from tests.support.callers.agora_rest import AGENTS, BASE, JOIN, agora_problem, joined, joining
from tests.support.callers.rest import RestClient, fresh_id
from tests.support.rows import every_row
from tests.support.services import ANY_PORT, Serve
from tests.support.waiting import eventually
from voicemem.app import running
from voicemem.config.service import Settings
from voicemem.protocol.types import JsonObject

LONG_AGO = 1_790_000_000_000


async def test_what_the_sdk_sends_becomes_the_configuration(serve: Serve) -> None:
    """A join's name, channel, labels, times and LLM settings are the session's; all else is passed over."""
    api = RestClient(await serve())
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
    """What the SDK makes of a vendor is taken, and its keys are shown to no one, Gemini's in the URL neither."""
    from tests.support.callers.agora_sdk import llm_settings  # takes seconds

    given = VENDORS.get(vendor, {"api_key": "hush"}) | {"model": "m", "system_messages": PROMPT}
    llm = llm_settings(vendor, **given)
    settings = Settings(store=f"sqlite:{tmp_path / 'calls.db'}", rest=ANY_PORT, ingest=ANY_PORT)
    async with running(settings) as app:
        api = RestClient(app)
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
    api = RestClient(await serve())
    agent = await joined(api, joining(llm={"style": style, "access_key": "k", **kept}))
    assert kept == (await api.session(agent))["config"]["llm"]


@pytest.mark.parametrize("properties", SAMPLES.values(), ids=SAMPLES)
async def test_bodies_as_sample_applications_send_them(serve: Serve, properties: JsonObject) -> None:
    """Whatever an engine alone needs to know is passed over, and the answer has what samples read."""
    api = RestClient(await serve())
    answered = await api.post(f"{BASE}/join", {"name": "n", "properties": {"channel": "c", "token": "t", **properties}})
    assert (200, "RUNNING") == (answered.status, answered.json["status"])
    assert isinstance(answered.json["create_ts"], int)
    assert 200 == (await api.get(f"{AGENTS}/{answered.json['agent_id']}")).status


async def test_system_messages_as_gemini_has_them(serve: Serve) -> None:
    """Samples for Gemini send parts in place of a content: they become the system messages, at an update too."""
    api = RestClient(await serve())
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
    api = RestClient(await serve())
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


@every_row(("body", "reason"), BAD_JOINS.values(), ids=BAD_JOINS)
async def test_a_bad_join_makes_no_agent(api: RestClient, body: Any, reason: str) -> None:
    """Missing and wrong fields are 400 with Agora's reasons, and nothing is there afterwards."""
    assert (400, reason) == agora_problem(await api.post(f"{BASE}/join", body))
    assert [] == (await api.get("/v1/sessions")).json["sessions"]


async def test_a_body_that_is_too_big(serve: Serve) -> None:
    """More than 1 MiB is 413, with Agora's reason."""
    api = RestClient(await serve())
    assert (413, "InvalidRequestBody") == agora_problem(await api.post(f"{BASE}/join", b" " * (2**20 + 1)))


async def test_an_update_replaces_what_it_names_whole(serve: Serve) -> None:
    """Parameters that the new ones do not have are gone, nested ones too; system messages are the new ones alone."""
    api = RestClient(await serve())
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
    api = RestClient(await serve())
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


@every_row(("call", "body", "reason"), BAD.values(), ids=BAD)
async def test_a_bad_body_stores_nothing(api: RestClient, call: str, body: Any, reason: str) -> None:
    """Missing and wrong fields are 400 with Agora's reasons, and the journal stays as it was."""
    agent = await joined(api, joining() | {"name": fresh_id()})
    assert (400, reason) == agora_problem(await api.post(f"{AGENTS}/{agent}/{call}", body))
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


@every_row("query", QUERIES)
async def test_a_bad_query(api: RestClient, query: str) -> None:
    """Parameters that are unknown or out of range are 400."""
    agent = await joined(api, joining() | {"name": fresh_id()})
    assert (400, "InvalidFieldValue") == agora_problem(await api.get(f"{BASE}/{query.replace('{id}', agent)}"))


@pytest.mark.parametrize("data", [b"", b"{}", b"no JSON"])
@pytest.mark.parametrize("call", ["interrupt", "leave"])
async def test_calls_without_content_take_any_body(serve: Serve, call: str, data: bytes) -> None:
    """A JSON content type without a body is fine, and so is whatever else clients send along."""
    api = RestClient(await serve())
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
        api = RestClient(app)
        idle = await joined(api, joining(idle_timeout=30))
        lasting = await joined(api, {"name": "lasting", "properties": {"channel": "c", "idle_timeout": 0}})

        async def known() -> tuple[str, str]:
            answered = (await api.get(f"{AGENTS}/{idle}")).json
            return answered["status"], answered["message"]

        assert ("RUNNING", "") == await known()
        now[0] += 31_000
        await eventually(("STOPPED", "Idle for too long"), known)
        found = (await api.get(f"{AGENTS}/{idle}")).json
        assert (LONG_AGO // 1000, LONG_AGO // 1000 + 31, "desk") == (found["start_ts"], found["stop_ts"], found["name"])
        assert [lasting] == [one["agent_id"] for one in (await api.get(AGENTS)).json["data"]["list"]]
        now[0] += 72 * 3_600_000
        idle = lasting
        await eventually(("STOPPED", "Task lifetime limit exceeded"), known)
        assert 0 == (await api.get(f"{AGENTS}?state=4")).json["meta"]["total"]
        since = LONG_AGO // 1000
        assert 2 == (await api.get(f"{AGENTS}?state=4&from_time={since}&to_time={since}")).json["meta"]["total"]
