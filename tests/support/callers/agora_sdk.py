"""Agora's own SDK (`agora-agents`), pointed at a running service."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest

from voicemem.app import App

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it declares its models as pydantic 1 did
    from agora_agent import client as base
    from agora_agent.agentkit.agent import Agent
    from agora_agent.agentkit.vendors import llm as llms
    from agora_agent.agentkit.vendors.stt import DeepgramSTT
    from agora_agent.agentkit.vendors.tts import ElevenLabsTTS
    from agora_agent.core.api_error import ApiError as ApiError
    from agora_agent.core.domain import Area as Area
    from agora_agent.pool_client import Agora, AsyncAgora

APP_ID = "0123456789abcdef0123456789abcdef"
CERTIFICATE = "fedcba9876543210fedcba9876543210"
BASE = "/api/conversational-ai-agent"
URL = "https://llm.example/v1/chat/completions"
PROMPT = [{"role": "system", "content": "You are brief."}]


def point_at(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the SDK's regional clients call this service."""
    monkeypatch.setenv("AGORA_AGENTS_API_BASE_URL", f"http://{app.rest_address}")


@contextmanager
def client(area: Any = Area.US, app_id: str = APP_ID, **credentials: Any) -> Iterator[Any]:
    """A synchronous client of an area; without credentials it makes a token for every request."""
    with httpx.Client(timeout=20) as http:
        yield Agora(area=area, app_id=app_id, app_certificate=CERTIFICATE, httpx_client=http, **credentials)


@asynccontextmanager
async def async_client(area: Any = Area.US, app_id: str = APP_ID, **credentials: Any) -> AsyncIterator[Any]:
    """The same, for asynchronous calls."""
    async with httpx.AsyncClient(timeout=20) as http:
        yield AsyncAgora(area=area, app_id=app_id, app_certificate=CERTIFICATE, httpx_client=http, **credentials)


@asynccontextmanager
async def plain_client(app: App, authorization: str = "") -> AsyncIterator[base.AsyncAgora]:
    """A client with a base URL, and an `Authorization` as it is given."""
    url = f"http://{app.rest_address}{BASE}"
    async with httpx.AsyncClient(timeout=20) as http:
        yield base.AsyncAgora(base_url=url, authorization=authorization, username="", password="", httpx_client=http)


def llm_settings(vendor: str, **given: Any) -> dict[str, Any]:
    """What the SDK makes of an LLM of this vendor for `properties.llm`."""
    return dict(getattr(llms, vendor)(**given).to_config())


def bound_agent(of: Any) -> Any:
    """An agent with everything that a call needs, bound to a client."""
    llm = llms.CustomLLM(
        base_url=URL, api_key="secret", model="m", system_messages=PROMPT, max_history=50, vendor="custom"
    )
    speech = ElevenLabsTTS(key="k", model_id="m", voice_id="v", base_url="wss://tts.example/v1", sample_rate=24000)
    return (
        Agent(client=of)
        .with_llm(llm)
        .with_tts(speech)
        .with_stt(DeepgramSTT(api_key="k", model="nova-2"))
        .with_labels({"line": "sales"})
    )


def session_place(name: str = "front desk", channel: str = "lobby") -> dict[str, Any]:
    """Where a session of an agent takes place."""
    return {"name": name, "channel": channel, "agent_uid": "1001", "remote_uids": ["1002"], "idle_timeout": 120}
