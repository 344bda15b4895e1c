"""Agora's own SDK works against the service: a session's whole life, its lists, and what it is refused."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.callers.agora_sdk import (
    APP_ID,
    CERTIFICATE,
    ApiError,
    Area,
    async_client,
    bound_agent,
    client,
    plain_client,
    point_at,
    session_place,
)
from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, bearer_header, make_key
from tests.support.services import Serve
from voicemem.compat.agora.apps import AppRegistry

KEY = "sixteen letters and more"
UPDATED = [{"role": "system", "content": "You are very brief."}]
CALL: list[dict[str, Any]] = [
    {"type": "message", "turn_id": 0, "role": "assistant", "text": "Welcome.", "source": "greeting", "ts": 1000},
    {
        "type": "asr",
        "turn_id": 1,
        "text": "Tell me a joke.",
        "final": True,
        "ts": 2000,
        "start_ms": 1500,
        "end_ms": 1900,
    },
    {"type": "metric", "turn_id": 1, "name": "llm_ttft", "latency_ms": 150, "ts": 2200},
    {"type": "metric", "turn_id": 1, "name": "e2e", "latency_ms": 337, "ts": 2300},
    {"type": "llm.delta", "turn_id": 1, "text": "Why did the scarecrow ", "ts": 2300},
]
HEARD = {"type": "tts", "turn_id": 1, "heard_text": "Why did the ", "audio_ms": 700, "ts": 3000}
REPLY = {"type": "llm.done", "turn_id": 2, "text": "Here is a story.", "ts": 4000}


def numbered(events: list[dict[str, Any]], first: int = 1) -> list[dict[str, Any]]:
    return [{**event, "seq": seq} for seq, event in enumerate(events, first)]


def spoken(history: Any) -> list[tuple[str, str]]:
    return [(one.role, one.content) for one in history.contents]


async def refused(call: Callable[[], Any]) -> tuple[int, str]:
    """Status and reason of the error that the SDK raises; its body has nothing else but a sentence."""
    with pytest.raises(ApiError) as raised:
        await call()
    body: Any = raised.value.body
    assert {"detail", "reason"} == set(body)
    assert body["detail"].endswith(".")
    assert raised.value.status_code is not None
    return raised.value.status_code, body["reason"]


Do = Callable[..., Coroutine[Any, Any, Any]]


async def live(session: Any, do: Do, app: Any, key: str | None = None) -> str:
    """A session's whole life: its agent joins, a call streams in meanwhile, and its agent leaves.

    Where keys are needed, `key` is that of the engine, which is not the SDK.
    """
    agent_id: str = await do(session.start)
    assert "running" == session.status
    assert [] == (await do(session.get_history)).contents
    async with connected_producer(app, bearer_header(key) if key else None) as engine:
        await engine.open(agent_id)
        await engine.store(*numbered(CALL))
        history = await do(session.get_history)
        assert (agent_id, "RUNNING") == (history.agent_id, history.status)
        assert [("assistant", "Welcome."), ("user", "Tell me a joke.")] == spoken(history)
        user = history.contents[1]
        assert (1500, 1900, 1, 2000) == (user.speech_start_ms, user.speech_end_ms, user.turn_id, user.timestamp)
        assert {"source": "asr"} == user.metadata

        await engine.store(*numbered([HEARD], 6))
        await do(session.interrupt)
        cut = (await do(session.get_history)).contents[2]
        assert ("assistant", "Why did the ") == (cut.role, cut.content)
        assert ("Why did the scarecrow ", True) == (cut.metadata["original"], cut.metadata["interrupted"])

        await do(session.update, {"llm": {"system_messages": UPDATED}})
        context = await RestClient(app, key).context(session_id=agent_id)
        assert UPDATED == context["messages"][:1]

        await do(session.say, "Are you still there?", "APPEND", False)
        told = await do(session.think, "The caller is a VIP.", metadata={"from": "crm"})
        assert (agent_id, "lobby") == (told.agent_id, told.channel)
        await engine.store(*numbered([REPLY], 7))
        assert [
            ("assistant", "Are you still there?"),
            ("user", "The caller is a VIP."),
            ("assistant", "Here is a story."),
        ] == spoken(await do(session.get_history))[3:]
        said, thought = (await do(session.get_history)).contents[3:5]
        assert (1, {"source": "command"}) == (said.turn_id, said.metadata)
        assert (2, {"source": "command", "from": "crm"}) == (thought.turn_id, thought.metadata)
        info = await do(session.get_info)
        assert ("RUNNING", agent_id, 0) == (info.status, info.agent_id, info.stop_ts)
    await do(session.stop)
    assert "stopped" == session.status
    return agent_id


async def after(session: Any, do: Do, app: Any, agent_id: str, key: str | None = None) -> None:
    """What can be asked when the call is over."""
    assert (404, "TaskNotFound") == await refused(lambda: do(session.get_history))
    contents = await RestClient(app, key).contents(agent_id)
    assert 6 == len(contents)
    info = await do(session.get_info)
    assert ("STOPPED", "OK") == (info.status, info.message)
    assert info.stop_ts >= info.start_ts > 0
    turns = await do(session.get_turns)
    assert (agent_id, "front desk", "lobby", 3) == (
        turns.agent_id,
        turns.name,
        turns.channel,
        turns.total_turn_count,
    )
    assert (1, 1, True) == (
        turns.pagination.page_index,
        turns.pagination.total_pages,
        turns.pagination.is_last_page,
    )
    greeting, joke, thought = turns.turns
    assert ("greeting", "ok") == (greeting.start.type, greeting.end.type)
    assert ("voice_input", "interrupted", "api_interrupt") == (
        joke.start.type,
        joke.end.type,
        joke.end.metadata.caused_by,
    )
    assert (337, [("llm_ttft", 150)]) == (
        joke.metrics.e_2_e_latency_ms,
        [(one.name, one.latency) for one in joke.metrics.segmented_latency_ms],
    )
    assert "api_think" == thought.start.type
    paged = await do(session.get_all_turns, page_size=1)
    assert [0, 1, 2] == [turn.turn_id for turn in paged.turns]


async def awaited(call: Any, *given: Any, **named: Any) -> Any:
    return await call(*given, **named)


async def test_the_asynchronous_session_object(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """`AsyncAgentSession` lives its whole life here, and what is over can be asked for but for its history."""
    app = await serve()
    point_at(app, monkeypatch)
    async with async_client() as agora:
        session = bound_agent(agora).create_async_session(**session_place())
        agent_id = await live(session, awaited, app)
        await after(session, awaited, app, agent_id)


async def test_the_synchronous_session_object(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """`AgentSession` does too, from another thread."""
    app = await serve()
    point_at(app, monkeypatch)
    with client() as agora:
        session = bound_agent(agora).create_session(**session_place())
        agent_id = await live(session, asyncio.to_thread, app)
        await after(session, asyncio.to_thread, app, agent_id)


@pytest.mark.parametrize("area", [Area.US, Area.CN])
async def test_a_registered_certificate_is_enough(serve: Serve, monkeypatch: pytest.MonkeyPatch, area: Any) -> None:
    """Where keys are needed, App ID and certificate are all that the SDK is given: it lives its whole life."""
    app = await serve(admin_key=KEY)
    point_at(app, monkeypatch)
    await AppRegistry(app.services.access).add("shop", APP_ID, CERTIFICATE)
    key = await make_key(app, "ingest", "read", project="shop")
    async with async_client(area) as agora:
        session = bound_agent(agora).create_async_session(**session_place())
        agent_id = await live(session, awaited, app, key)
        await after(session, awaited, app, agent_id, key)


async def test_a_registered_certificate_is_enough_without_asyncio(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The synchronous objects sign in so too, also where the old certificate signs during a rotation."""
    app = await serve(admin_key=KEY)
    point_at(app, monkeypatch)
    await AppRegistry(app.services.access).add("shop", APP_ID, CERTIFICATE)
    await AppRegistry(app.services.access).rotate("shop", APP_ID, "0" * 32)
    key = await make_key(app, "ingest", "read", project="shop")
    with client() as agora:
        session = bound_agent(agora).create_session(**session_place())
        agent_id = await live(session, asyncio.to_thread, app, key)
        await after(session, asyncio.to_thread, app, agent_id, key)


async def test_an_agent_is_stopped_by_its_id_alone(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stop_agent` does not know the channel, and stops agents of all channels of its app."""
    app = await serve(admin_key=KEY)
    point_at(app, monkeypatch)
    await AppRegistry(app.services.access).add("shop", APP_ID, CERTIFICATE)
    async with async_client() as agora:
        session = bound_agent(agora).create_async_session(**session_place())
        agent_id = await session.start()
        await agora.stop_agent(agent_id)
        await agora.stop_agent(agent_id)
        assert "STOPPED" == (await session.get_info()).status


async def test_a_session_that_ended_elsewhere_stops(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK takes the 404 of an agent that has left for a stop that succeeded."""
    app = await serve()
    point_at(app, monkeypatch)
    async with async_client() as agora:
        session = bound_agent(agora).create_async_session(**session_place())
        agent_id = await session.start()
        assert "ended" == (await RestClient(app).end(agent_id))["state"]
        await session.stop()
        assert "stopped" == session.status
        assert (404, "TaskNotFound") == await refused(lambda: agora.agents.stop(APP_ID, agent_id))


async def test_the_area_of_china_has_its_own_path(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of that area is answered below /cn/api."""
    app = await serve()
    point_at(app, monkeypatch)
    async with async_client(Area.CN) as agora:
        assert agora.get_current_url().endswith("/cn/api/conversational-ai-agent")
        started = await agora.agents.start(APP_ID, name="n", properties={"channel": "c"})
        assert "RUNNING" == (await agora.agents.get(APP_ID, started.agent_id)).status


async def test_a_name_is_taken_while_its_agent_runs(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second join under the name is 409, also when both come at once; after the end the name is free."""
    app = await serve()
    point_at(app, monkeypatch)
    async with async_client() as agora:

        async def join() -> Any:
            return await agora.agents.start(APP_ID, name="desk", properties={"channel": "c"})

        both = await asyncio.gather(join(), join(), return_exceptions=True)
        started: Any = next(one for one in both if not isinstance(one, ApiError))
        conflict: Any = next(one for one in both if isinstance(one, ApiError))
        assert (409, "TaskConflict") == (conflict.status_code, conflict.body["reason"])
        assert (409, "TaskConflict") == await refused(join)
        await agora.agents.stop(APP_ID, started.agent_id)
        assert started.agent_id != (await join()).agent_id


async def test_agents_are_listed_page_by_page(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's pager walks over all pages; channel, state and time choose what is listed."""
    app = await serve()
    point_at(app, monkeypatch)
    async with async_client() as agora:
        ids = []
        for number in range(5):
            properties = {"channel": "odd" if number % 2 else "even"}
            ids.append((await agora.agents.start(APP_ID, name=f"n{number}", properties=properties)).agent_id)
        await agora.agents.stop(APP_ID, ids[0])

        async def listed(**wanted: Any) -> list[tuple[str, str]]:
            return [(one.agent_id, one.status) async for one in await agora.agents.list(APP_ID, **wanted)]

        running = [(one, "RUNNING") for one in reversed(ids[1:])]
        stopped = (ids[0], "STOPPED")
        assert running == await listed()
        assert running == await listed(limit=3) == await listed(limit=1, state="1,2")
        assert [*running, stopped] == await listed(state="2,4", limit=2)
        assert [stopped] == await listed(state="4")
        assert [] == await listed(state="0,1,6")
        assert [running[0], running[2]] == await listed(channel="even")
        now = (await agora.agents.get(APP_ID, ids[4])).start_ts
        assert running == await listed(from_time=now - 60, to_time=now)
        assert [] == await listed(from_time=now + 60)
        assert [] == await listed(to_time=now - 60)
        page = (await agora.agents.list(APP_ID, limit=3)).response
        assert (3, 4, "ok") == (page.data.count, page.meta.total, page.status)
        assert (400, "InvalidFieldValue") == await refused(lambda: agora.agents.list(APP_ID, cursor="made-up"))


BASIC = {"customer_id": "any", "customer_secret": KEY}
TOKEN = {"auth_token": KEY}
WRONG: list[dict[str, str]] = [
    {},
    {"auth_token": "007eJxSYA"},
    {"customer_id": KEY, "customer_secret": "wrong"},
]


@pytest.mark.parametrize("credentials", [BASIC, TOKEN], ids=["basic", "token"])
async def test_a_key_is_the_password_or_the_token(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, credentials: dict[str, str]
) -> None:
    """Where keys are needed, the SDK gives one as customer secret or as token, for the key's own project."""
    app = await serve(admin_key=KEY)
    point_at(app, monkeypatch)
    async with async_client(app_id="default", **credentials) as agora:
        agent_id = await bound_agent(agora).create_async_session(**session_place(), token="t").start()
        assert "RUNNING" == (await agora.agents.get("default", agent_id)).status
        assert (403, "InvalidPermission") == await refused(lambda: agora.agents.get(APP_ID, agent_id))


async def test_an_unknown_certificate_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that the SDK makes with another certificate, or for an app that is not registered, is 401."""
    app = await serve(admin_key=KEY)
    point_at(app, monkeypatch)
    for registered in (False, True):
        async with async_client() as agora:
            session = bound_agent(agora).create_async_session(**session_place())
            assert (401, "InvalidPermission") == await refused(session.start)
        if not registered:
            await AppRegistry(app.services.access).add("shop", APP_ID, "0" * 32)


@pytest.mark.parametrize("credentials", WRONG, ids=["certificate", "token", "basic"])
async def test_whoever_has_no_key_is_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, credentials: dict[str, str]
) -> None:
    """A token that the SDK made itself, a wrong one, and a wrong password are 401."""
    app = await serve(admin_key=KEY)
    point_at(app, monkeypatch)
    async with async_client(app_id="default", **credentials) as agora:
        call = agora.agents.start("default", name="n", properties={"channel": "c"})
        assert (401, "InvalidPermission") == await refused(lambda: call)
        assert (401, "InvalidPermission") == await refused(lambda: agora.agents.get_history("default", "x"))


async def test_projects_do_not_see_each_other(serve: Serve) -> None:
    """Each key works below its own project only, and an agent of another one is not there."""
    app = await serve()
    mine, theirs = [await make_key(app, "admin", project=name) for name in ("mine", "theirs")]
    async with (
        plain_client(app, f"agora token={mine}") as one,
        plain_client(app, f"agora token={theirs}") as other,
    ):
        agent_id = (await one.agents.start("mine", name="n", properties={"channel": "c"})).agent_id
        assert agent_id is not None
        assert (404, "TaskNotFound") == await refused(lambda: other.agents.get("theirs", agent_id))
        assert (403, "InvalidPermission") == await refused(lambda: other.agents.get("mine", agent_id))
        started = await other.agents.start("theirs", name="n", properties={"channel": "c"})
        assert started.agent_id != agent_id


@pytest.mark.parametrize("agent_id", ["nobody", "no body"])
async def test_an_agent_that_is_not_there(serve: Serve, monkeypatch: pytest.MonkeyPatch, agent_id: str) -> None:
    """Every call about an unknown agent is Agora's 404, also when no agent could have that id."""
    app = await serve()
    point_at(app, monkeypatch)
    async with async_client() as agora:
        for call in (
            lambda: agora.agents.get(APP_ID, agent_id),
            lambda: agora.agents.get_history(APP_ID, agent_id),
            lambda: agora.agents.get_turns(APP_ID, agent_id),
            lambda: agora.agents.update(APP_ID, agent_id, properties={}),
            lambda: agora.agents.speak(APP_ID, agent_id, text="t"),
            lambda: agora.agent_management.agent_think(APP_ID, agent_id, text="t"),
            lambda: agora.agents.interrupt(APP_ID, agent_id),
            lambda: agora.agents.stop(APP_ID, agent_id),
        ):
            assert (404, "TaskNotFound") == await refused(call)
