"""A caller of Agora's paths."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

from tests.support.callers.rest import RestClient, RestResponse
from voicemem.protocol.types import JsonObject

BASE = "/api/conversational-ai-agent/v2/projects/any"
AGENTS = f"{BASE}/agents"
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


async def joined(api: RestClient, body: Any = None) -> str:
    """The id of a new agent."""
    answered = await api.post(f"{BASE}/join", joining() if body is None else body)
    assert 200 == answered.status, answered.body
    return str(answered.json["agent_id"])


def agora_problem(answered: RestResponse) -> tuple[int, str]:
    """Status and reason of an error, whose body is Agora's."""
    assert "application/json" == answered.headers["Content-Type"]
    assert {"detail", "reason"} == set(answered.json)
    assert answered.json["detail"].endswith((".", "`"))
    assert b"Traceback" not in answered.body
    return answered.status, answered.json["reason"]
