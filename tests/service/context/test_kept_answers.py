"""Answers that are kept: the same bytes while nothing has changed, and never longer."""

from __future__ import annotations

from typing import Any

from tests.support.callers.rest import RestClient
from tests.support.events import final
from tests.support.services import Serve

QUESTIONS = (
    *(
        "history",
        "history?limit=1",
        "history?fields=standard",
        "context",
        "context?fields=true",
        "context?max_history=1",
    ),
    "context?usage=true",
)


async def answers(api: RestClient) -> list[Any]:
    """All answers, each asked for twice, so that the second one may be what was kept."""
    for question in QUESTIONS:
        assert (await api.get(f"/v1/sessions/call/{question}")).status == 200
    return [(await api.get(f"/v1/sessions/call/{question}")).json for question in QUESTIONS]


async def test_an_answer_is_kept_until_anything_changes(serve: Serve) -> None:
    """Words, forgetting, the configuration and the end of the session all show at once."""
    api = RestClient(await serve())
    await api.create("call")
    await api.send(final(1, "Where is my order?", 1), session_id="call")
    first = await answers(api)
    assert first == await answers(api)
    await api.send(final(2, "It is order seven.", 2), session_id="call")
    second = await answers(api)
    assert all(one != other for one, other in zip(first, second, strict=True))
    assert "It is order seven." == second[0]["contents"][-1]["content"] == second[3]["messages"][-1]["content"]
    changed = {"llm": {"system_messages": [{"role": "system", "content": "Be brief."}], "max_history": 1}}
    assert (await api.patch("/v1/sessions/call", changed)).status == 200
    third = await answers(api)
    assert [one["content"] for one in third[3]["messages"]] == ["Be brief.", "It is order seven."]
    assert (await api.post("/v1/sessions/call/forget", {"everything": True})).status == 200
    fourth = await answers(api)
    assert [one["content"] for one in fourth[3]["messages"]] == ["Be brief."]
    await api.end("call")
    assert [one[0]["state"] for one in (fourth, await answers(api))] == ["running", "ended"]


async def test_what_is_of_a_user_is_never_kept(serve: Serve) -> None:
    """A document and memories of the user may change beside the call."""
    api = RestClient(await serve())
    sections = {"working_memory": {"scope": "user"}, "memory": {"memories": {}}}
    await api.create("call", user_id="ann", **sections)
    await api.send(final(1, "Where is my order?", 1), session_id="call")
    before = await answers(api)
    document = {"content": {"likes": ["tea"]}}
    assert (await api.patch("/v1/users/ann/working-memory", document)).status == 200
    after = await answers(api)
    assert "tea" not in str(before[3])
    assert "tea" in str(after[3])
