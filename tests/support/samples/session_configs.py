"""Configurations of sessions, good and bad."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.callers.rest import RestClient
from voicemem.protocol.types import JsonObject

URL = "https://receiver.example/hook"
SECRETS: JsonObject = {
    "llm": {"vendor": "custom", "api_key": "sk-hush", "url": "https://llm.example/v1"},
    "webhook": {"url": URL, "secret": "whsec_hush"},
}


async def listed(api: RestClient, query: str = "") -> list[str]:
    """The ids of the sessions on the first page."""
    answered = await api.get(f"/v1/sessions{query}")
    assert 200 == answered.status, answered.body
    return [session["session_id"] for session in answered.json["sessions"]]


BAD_CONFIGS: list[JsonObject] = [
    {"nmae": "typo"},
    {"name": 7},
    {"user_id": ""},
    {"user_id": "x" * 129},
    {"labels": {"a": 1}},
    {"labels": {"b": []}},
    {"labels": ["a"]},
    {"labels": {str(number): "x" for number in range(65)}},
    {"llm": "gpt"},
    {"llm": {"styel": "openai"}},
    {"llm": {"style": "smoke-signals"}},
    {"llm": {"max_history": 0}},
    {"llm": {"max_history": 1025}},
    {"llm": {"max_history": 1.5}},
    {"llm": {"params": []}},
    {"llm": {"url": "ftp://x/"}},
    {"llm": {"url": "https://user:pass@x/"}},
    {"llm": {"system_messages": [{"content": "no role"}]}},
    {"llm": {"system_messages": "Be kind."}},
    {"system_messages": [7]},
    {"interruptable": "yes"},
    {"interruptable": 1},
    {"webhook": {"url": URL, "contents": "some"}},
    {"webhook": {"url": ""}},
    {"idle_timeout": -1},
    {"idle_timeout": "60"},
    {"reopen_window": 1e11},
    {"max_duration": True},
    {"ttl_seconds": -0.1},
    {"name": 2**53 + 1},
    {"llm": {"params": {"seed": 2**64}}},
]
