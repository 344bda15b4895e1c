"""A caller who says something, is interrupted, calls again, and asks to be forgotten; through a service of its own."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.callers.gateway import ask, openai_client_at
from tests.support.callers.rest import RestClient
from tests.support.events import delta, final, interrupt
from tests.support.processes.service_process import running_process
from tests.support.servers.llm_server import LlmServer, Script, llm_server
from tests.support.waiting import eventually

MAY_3 = 1_777_766_400_000
HEARD, CUT, NOTED = "allergic to walnuts", "marzipan", "Ann sits by the window."
MEMORY = {"memories": {"max_tokens": 500, "kinds": ["preference", "fact", "message"]}}


async def first_call(api: RestClient) -> None:
    """She says what she must not eat, cuts the agent off, and wants something remembered."""
    await api.create("first", user_id="ann")
    await api.send(
        final(1, f"I am {HEARD}.", MAY_3),
        delta(1, f"Noted. By the way, our {CUT} has walnuts.", MAY_3 + 1_000),
        interrupt(1, MAY_3 + 2_000, heard_text="Noted."),
        session_id="first",
    )
    kept = await api.post("/v1/memories", {"text": NOTED, "kind": "preference", "session_id": "first"})
    assert 200 == kept.status, kept.body
    await api.end("first")


async def found(api: RestClient) -> list[str]:
    answered = await api.post("/v1/memories/search", {"query": "walnuts window marzipan", "user_id": "ann"})
    return [memory["text"] for memory in answered.json["memories"]]


async def told(rest: str, llm: LlmServer, session_id: str, says: str) -> str:
    """What the LLM is told before the caller's words of a call, when she says this."""
    async with openai_client_at(rest, session_id=session_id) as client:
        await ask(client, says)
    messages: list[Any] = llm.last["messages"]
    return str([message["content"] for message in messages if message["role"] == "system"])


async def test_a_caller_who_calls_again_and_is_forgotten(tmp_path: Path) -> None:
    """The second call knows what was heard and noted, and nothing that she cut off; after her erasure no one knows."""
    async with (
        llm_server(Script(["Of course."])) as llm,
        running_process(tmp_path / "calls.db", "--llm-url", llm.url) as service,
    ):
        api = service.api
        await first_call(api)
        await eventually(True, lambda: knows(api), timeout_s=60.0)
        await api.create("second", user_id="ann", memory=MEMORY)
        known = await told(service.rest, llm, "second", "May I have something with walnuts?")
        assert (True, True, False) == (HEARD in known, NOTED in known, CUT in known)
        assert NOTED in str((await api.context(session_id="second"))["messages"])

        assert 204 == (await api.delete("/v1/users/ann")).status
        assert [] == await found(api)
        for session_id in ("first", "second"):
            assert (404, "unknown_session") == (await api.get(f"/v1/sessions/{session_id}/history")).problem
        assert [] == (await api.get("/v1/users/ann/memories")).json["memories"]
        await api.create("third", user_id="ann", memory=MEMORY)
        assert "[]" == await told(service.rest, llm, "third", "May I have something with walnuts?")


async def knows(api: RestClient) -> bool:
    """Whether what was heard on the first call is found."""
    return any(HEARD in text for text in await found(api))
