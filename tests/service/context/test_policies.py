"""The context under a context policy, as the service gives it: chosen by default, per session, or per call."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, event, final
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject

WORD = "word "


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller of an empty service."""
    return RestClient(await serve())


async def talk(api: RestClient, turns: int, session_id: str = "s", each: int = 10) -> None:
    """Questions and answers of so many words each, which are as many tokens."""
    for turn in range(1, turns + 1):
        said = [final(turn, f"Q{turn} " + WORD * each), delta(turn, f"A{turn} " + WORD * each), done(turn)]
        await api.send(*said, session_id=session_id)


def shown(body: JsonObject) -> list[str]:
    """The first word of each message."""
    return [one["content"].split()[0] for one in body["messages"]]


async def test_a_session_has_its_policy(api: RestClient) -> None:
    """Its context is what the policy chooses, and its history is all of it."""
    await api.create(memory={"policy": "recent", "max_messages": 3})
    await talk(api, 4)
    assert ["A3", "Q4", "A4"] == shown(await api.context())
    assert 8 == len(await api.contents())


async def test_a_policy_replaces_max_history(api: RestClient) -> None:
    """What `llm.max_history` says counts only where no policy is chosen."""
    await api.create(llm={"max_history": 1})
    await talk(api, 2)
    assert ["A2"] == shown(await api.context())
    assert ["Q1", "A1", "Q2", "A2"] == shown(await api.context("?policy=full"))
    await api.patch("/v1/sessions/s", {"memory": {"policy": "full"}})
    assert ["Q1", "A1", "Q2", "A2"] == shown(await api.context("?max_history=1"))


async def test_a_call_has_a_policy_of_its_own(api: RestClient) -> None:
    """It is for this call alone; parameters without a policy are for that of the session."""
    await api.create(memory={"policy": "recent", "max_messages": 2})
    await talk(api, 3)
    assert ["Q3", "A3"] == shown(await api.context())
    assert ["A3"] == shown(await api.context("?max_messages=1"))
    assert ["Q2", "A2", "Q3", "A3"] == shown(await api.context("?policy=window&max_tokens=52"))
    assert ["Q3", "A3"] == shown(await api.context("?policy=window&max_tokens=51"))


async def test_a_service_has_a_default(serve: Serve) -> None:
    """It is for sessions that choose no policy."""
    api = RestClient(await serve(memory='{"policy": "recent", "max_messages": 1}'))
    await api.create()
    await api.create("other", memory={"policy": "full"})
    for session_id in ("s", "other"):
        await talk(api, 2, session_id)
    assert ["A2"] == shown(await api.context())
    assert 4 == len(shown(await api.context(session_id="other")))


async def test_a_policy_of_ones_own(serve: Serve) -> None:
    """It is named by its import path, and chosen like the others."""
    api = RestClient(await serve(policies=("newest=tests.support.samples.policy_plugins:Newest",)))
    await api.create(memory={"policy": "newest"})
    await talk(api, 3)
    body = await api.context("?usage=true")
    assert (["Q3", "A3"], "newest") == (shown(body), body["policy"])
    assert {"older"} == {one["reason"] for one in body["left_out"]}


async def test_priorities(api: RestClient) -> None:
    """What a producer gave weight stays, in the order of the call."""
    await api.create(memory={"policy": "priority", "max_messages": 2})
    await api.send(final(1, "Allergic to nuts.", metadata={"priority": 9}))
    await talk(api, 3)
    assert ["Allergic", "A3"] == shown(await api.context())


async def test_usage(api: RestClient) -> None:
    """The account of a context: tokens, of which window, and what was left out and why."""
    await api.create(
        llm={"model": "gpt-4", "system_messages": [{"role": "system", "content": "Be kind."}]},
        memory={"policy": "window", "max_tokens": 30},
    )
    await talk(api, 2)
    body = await api.context("?usage=true")
    assert ("window", "cl100k", 8192) == (body["policy"], body["counter"], body["context_window"])
    assert (26, 3, False) == (body["tokens"], body["system_tokens"], body["over_budget"])
    assert round(100 * 29 / 8192, 2) == body["context_percentage_total_used"]
    assert body["context_percentage_until_summarization"] is body["summary"] is None
    assert [(0, "user", "max_tokens"), (1, "assistant", "max_tokens")] == [
        (one["index"], one["role"], one["reason"]) for one in body["left_out"]
    ]
    assert "gpt-4" == body["model"]


async def test_usage_tells_of_blank_messages(api: RestClient) -> None:
    """What says nothing is not shown to a vendor that refuses it."""
    await api.create()
    await api.send(final(1, "Hi."), delta(1, "Hello."), event("interrupt", 1, heard_text=""))
    assert ["blank"] == [one["reason"] for one in (await api.context("?usage=true"))["left_out"]]


async def test_usage_of_a_window_smaller_than_the_newest_message(api: RestClient) -> None:
    """That one message, and a flag."""
    await api.create(memory={"policy": "window", "max_tokens": 5})
    await talk(api, 2)
    body = await api.context("?usage=true")
    assert (["A2"], True) == (shown(body), body["over_budget"])


async def test_tool_calls_stay_with_their_results(api: RestClient) -> None:
    """They count with their turn, and are shown or left out with it; in the turn under way they are always shown."""
    await api.create(memory={"policy": "window", "max_tokens": 40})
    await talk(api, 2)
    await api.send(event("tool.call", 2, call_id="c", name="find", arguments={"what": "it"}))
    await api.send(event("tool.result", 2, call_id="c", result="found " * 3))
    body = await api.context("?tools=true&usage=true")
    assert ["user", "assistant", "assistant", "tool"] == [one["role"] for one in body["messages"]]
    assert body["tokens"] > 26
    body = await api.context("?tools=true&usage=true&max_tokens=28")
    assert ("tool", True) == (body["messages"][-1]["role"], body["over_budget"])
    await api.send(final(3, "And then?"), event("llm.done", 3, text="Then it rained."))
    body = await api.context("?tools=true&max_tokens=28")
    assert "tool" not in [one["role"] for one in body["messages"]]


@every_row(
    ("query", "sentence"),
    [
        ("policy=windw", "The policy must be one of full, recent"),
        ("policy=window&max_messages=3", "The policy window has no parameter `max_messages`."),
        ("policy=window&max_tokens=0", "max_tokens"),
        ("policy=", "policy"),
        ("threshold=0.5", "threshold"),
        ("usage=maybe", "usage"),
    ],
)
async def test_bad_queries(in_session: RestClient, query: str, sentence: str) -> None:
    """A policy or parameter that there is not is refused, and says what there is."""
    answered = await in_session.get(f"/v1/sessions/s/context?{query}")
    assert 400 == answered.status
    assert sentence in answered.json["detail"]


@pytest.mark.parametrize(
    "memory",
    [{"policy": "windw"}, {"policy": "full", "max_tokens": 9}, {"policy": "summary", "prompt": "Sum up."}],
)
async def test_bad_settings(api: RestClient, memory: Any) -> None:
    """A session cannot be made or changed with them; over the websocket's update neither, and the call goes on."""
    answered = await api.post("/v1/sessions", {"session_id": "bad", "memory": memory})
    assert (400, "invalid_field") == answered.problem
    await api.create()
    assert (400, "invalid_field") == (await api.patch("/v1/sessions/s", {"memory": memory})).problem
    told = await api.send(final(1, "Hi."), event("session.update", memory=memory), final(2, "There."))
    assert ["invalid_field"] == [one["code"] for one in told["errors"]]
    assert ["Hi.", "There."] == [one["content"] for one in await api.contents()]


@pytest.mark.parametrize(
    "how", ["raise", "no choice", "out of range", "no number", "no budget", "no room", "no summary"]
)
async def test_a_policy_that_fails_does_not_end_the_call(
    serve: Serve, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest messages are shown, and the log names the policy and the session."""
    api = RestClient(await serve(policies=("broken=tests.support.samples.policy_plugins:Broken",)))
    await api.create(memory={"policy": "broken", "parameters": {"how": how}})
    await talk(api, 1)
    body = await api.context("?usage=true")
    assert (["Q1", "A1"], "recent") == (shown(body), body["policy"])
    assert "The policy broken failed; session s is shown its newest messages" in caplog.text


@every_row(("words", "is_over"), [(5, False), (500, True)])
async def test_a_policy_of_ones_own_has_a_budget_for_results(serve: Serve, words: int, is_over: bool) -> None:
    """A larger one is cut in the middle, and never out of sight; what is over the budget is said."""
    api = RestClient(await serve(policies=("small=tests.support.samples.policy_plugins:Small",)))
    await api.create(memory={"policy": "small"})
    await api.send(
        final(1, "The menu?"),
        event("tool.call", 1, call_id="c", name="menu", arguments={}),
        event("tool.result", 1, call_id="c", result=f"Soup, {'fish, ' * words}and bread."),
    )
    body = await api.context("?tools=true&usage=true")
    (seen,) = [one["content"] for one in body["messages"] if one["role"] == "tool"]
    assert (True, True, is_over) == (seen.startswith("Soup"), seen.endswith("bread."), body["over_budget"])
    assert is_over == ("characters left out" in seen)


async def test_why_a_policy_does_not_take_its_parameters_is_in_the_log(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line, and the caller is not told: the words are the operator's."""
    api = RestClient(await serve(policies=("choosy=tests.support.samples.policy_plugins:Choosy",)))
    refused = await api.post("/v1/sessions", {"memory": {"policy": "choosy", "parameters": {"step": 0}}})
    assert (400, "The policy choosy does not take these parameters.") == (refused.status, refused.json["detail"])
    assert r"these parameters. ValueError('step must be\nat least 1')" in caplog.text


async def test_a_policy_that_is_gone_does_not_end_the_call(serve: Serve, tmp_path: Path) -> None:
    """After a start without it, its sessions are shown their newest messages; no one new can choose it."""
    store = f"sqlite:{tmp_path}/v.db"
    app = await serve(store=store, policies=("newest=tests.support.samples.policy_plugins:Newest",))
    await RestClient(app).create(memory={"policy": "newest"})
    await talk(RestClient(app), 2)
    await app.stop()
    await app.services.store.close_store()
    api = RestClient(await serve(store=store))
    assert ["Q1", "A1", "Q2", "A2"] == shown(await api.context())
    assert 400 == (await api.get("/v1/sessions/s/context?policy=newest")).status
    assert 400 == (await api.post("/v1/sessions", {"memory": {"policy": "newest"}})).status


async def test_the_order_stays_whatever_a_policy_says(serve: Serve) -> None:
    """Each message once, in the order of the call."""
    api = RestClient(await serve(policies=("backwards=tests.support.samples.policy_plugins:Backwards",)))
    await api.create(memory={"policy": "backwards"})
    await talk(api, 2)
    assert ["Q1", "A2"] == shown(await api.context())


async def test_the_window_of_the_services_own_llm(serve: Serve) -> None:
    """Where a session calls the service's LLM, its model's window counts."""
    settings: Any = {"llm_url": "http://127.0.0.1:9/v1", "llm_model": "small", "model_windows": ("small=600",)}
    api = RestClient(await serve(**settings, memory='{"policy": "summary"}'))
    await api.create()
    assert 600 == (await api.context("?usage=true"))["context_window"]


async def test_parameters_alone_say_what_is_meant(api: RestClient) -> None:
    """Of a session, and of a call."""
    await api.create(memory={"max_messages": 1})
    await talk(api, 2)
    assert ["A2"] == shown(await api.context())
    body = await api.context("?max_tokens=26&usage=true")
    assert (["Q2", "A2"], "window") == (shown(body), body["policy"])
