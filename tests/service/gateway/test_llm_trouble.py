"""The gateway when the LLM fails, the caller hangs up, the service stops, or the address may not be called."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, APIStatusError, AsyncOpenAI
from openai.types.chat import ChatCompletionChunk
from prometheus_client.parser import text_string_to_metric_families

from tests.support.callers.gateway import (
    ask,
    ask_and_collect,
    openai_client,
    role_and_text,
    service_with_llm,
    user_message,
)
from tests.support.callers.rest import LOOPBACK, RestClient
from tests.support.processes.ports import free_ports
from tests.support.servers.llm_server import Script, llm_server
from tests.support.servers.resolver import FakeResolver
from tests.support.services import Serve, running_service
from tests.support.stores.failing import locked_database
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.llm.client import Timeouts
from voicemem.protocol.types import JsonObject
from voicemem.store.sqlite.store import SqliteStore

SORRY = "Sorry, say that again?"
FAILURES: dict[str, tuple[Script, int | str]] = {
    "bad request": (Script(status=400), 400),
    "no right": (Script(status=401, error={"error": {"message": "the key is sk-…", "code": "invalid_api_key"}}), 401),
    "no such path": (Script(status=404), 404),
    "too many": (Script(status=429), 429),
    "broken": (Script(status=500), 500),
    "busy": (Script(status=503), 503),
    "elsewhere": (Script(status=307, error="http://127.0.0.1:1/"), 307),
    "a page": (Script(raw=b"<!doctype html><p>Hello"), "invalid_answer"),
    "nothing": (Script(raw=b""), "invalid_answer"),
    "no JSON": (Script(raw=b"data: {broken\n\n"), "invalid_answer"),
    "no object": (Script(raw=b'data: [{"choices":[]}]\n\n'), "invalid_answer"),
    "other types": (Script(raw=b'data: {"choices":{"a":1}}\n\n'), "invalid_answer"),
    "no text": (Script(raw=b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'), "invalid_answer"),
    "only an end": (Script(raw=b"data: [DONE]\n\n"), "invalid_answer"),
    "an error": (Script(raw=b'data: {"error":{"message":"secret","code":"overloaded"}}\n\n'), "error"),
    "an error with status": (Script(raw=b'data: {"error":{"message":"secret","code":529}}\n\n'), 529),
    "broken off": (Script(["One."], drop_after=0), "dropped"),
}


async def failed(client: AsyncOpenAI, stream: bool = True) -> APIStatusError:
    """What the client raises."""
    with pytest.raises(APIStatusError) as raised:
        await ask_and_collect(client, user_message("Hi."), stream)
    return raised.value


async def kinds(api: RestClient) -> list[str]:
    return [row["event"]["type"] for row in await api.journal()]


async def error_of(api: RestClient) -> JsonObject:
    """The only `llm.error` of the journal."""
    (event,) = [row["event"] for row in await api.journal() if row["event"]["type"] == "llm.error"]
    return dict(event)


async def patient(app: App, **timeouts: float) -> None:
    app.services.llm.timeouts = Timeouts(**timeouts)
    await reopened(app)


async def reopened(app: App) -> None:
    await app.services.llm.close()


# Upstream errors


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failure_is_told_and_noted(serve: Serve, name: str) -> None:
    """Before any chunk it is a problem document; the journal has its code; no one tries again, and no text gets out."""
    script, code = FAILURES[name]
    async with service_with_llm(serve, script) as (api, client, llm):
        error = await failed(client)
        assert (502, "llm_failed") == (error.status_code, problem(error)["reason"])
        event = await error_of(api)
        assert (code, 1, None) == (event["code"], event["turn_id"], event.get("text"))
        assert [("user", "Hi.")] == role_and_text(await api.contents())
        assert 1 == len(llm.requests)
        assert "sk-" not in json.dumps([problem(error), await api.journal()])
        assert "secret" not in json.dumps([problem(error), await api.journal()])
        (turn,) = (await api.get("/v1/sessions/s/turns")).json["turns"]
        assert ("error", str(code)) == (turn["end"]["type"], turn["end"]["metadata"]["details"])


@pytest.mark.parametrize("name", ["broken", "nothing", "no JSON", "a page"])
async def test_a_failure_in_one_piece(serve: Serve, name: str) -> None:
    """The same without a stream."""
    script, code = FAILURES[name]
    async with service_with_llm(serve, script) as (api, client, _):
        assert 502 == (await failed(client, stream=False)).status_code
        assert code == (await error_of(api))["code"]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_without_a_word_is_a_failure(serve: Serve, stream: bool) -> None:
    """No text and no tool call: whoever is on the phone would hear nothing; streamed chunks were passed on before."""
    async with service_with_llm(serve, Script()) as (api, client, _):
        with pytest.raises(APIError) as raised:
            await ask_and_collect(client, user_message("Hi."), stream)
        assert ("llm_failed", "invalid_answer") == (raised.value.type, raised.value.code)
        assert "invalid_answer" == (await error_of(api))["code"]
        assert [("user", "Hi.")] == role_and_text(await api.contents())
        await api.create("polite", llm={"failure_message": SORRY})
        async with openai_client(api.app, session_id="polite") as other:
            assert SORRY == (await ask_and_collect(other, user_message("Hi."), stream)).text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["busy", "no JSON", "broken off"])
async def test_the_failure_message_is_said(serve: Serve, name: str, stream: bool) -> None:
    """With one, the client gets it as an ordinary answer, which the memory knows as such."""
    script, code = FAILURES[name]
    if not stream and name == "broken off":
        script = Script(raw=b'{"choices":[]}')
        code = "invalid_answer"
    async with service_with_llm(serve, script, llm={"failure_message": SORRY}) as (api, client, _):
        assert SORRY == (await ask_and_collect(client, user_message("Hi."), stream)).text
        event = await error_of(api)
        assert (code, SORRY) == (event["code"], event["text"])
        reply = (await api.contents())[-1]
        assert (SORRY, "llm_failure") == (reply["content"], reply["metadata"]["source"])


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (Script(["One. ", "Two."], drop_after=2), "dropped"),
        (Script(["One. "], done=False), "dropped"),
        (Script(raw=b'data: {"choices":[{"delta":{"content":"One. "}}]}\n\ndata: nonsense\n\n'), "invalid_answer"),
        (Script(raw=b'data: {"choices":[{"delta":{"content":"One. "}}]}\n\ndata: {"error":{}}\n\n'), "error"),
    ],
)
async def test_a_failure_in_the_middle(serve: Serve, script: Script, code: str) -> None:
    """What was said stays as generated. The client raises, or hears the failure message behind it."""
    async with service_with_llm(serve, script) as (api, client, _):
        stream = await client.chat.completions.create(model="any", messages=user_message("Hi."), stream=True)
        assert ("One. ", code) == await heard_until_error(stream)
        assert [("user", "Hi."), ("assistant", "One. ")] == role_and_text(await api.contents())
        assert code == (await error_of(api))["code"]

        await api.create("polite", llm={"failure_message": SORRY})
        async with openai_client(api.app, session_id="polite") as other:
            assert f"One. {SORRY}" == await ask(other, "Hi.")
        assert ["Hi.", "One. ", SORRY] == [text for _, text in role_and_text(await api.contents("polite"))]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_llm_that_says_nothing_times_out(serve: Serve, stream: bool) -> None:
    """Between two chunks, and before the first, it is waited for so long, and then no longer."""
    async with service_with_llm(serve, Script(["One."], hold_after=0 if stream else 1)) as (api, client, llm):
        await patient(api.app, read_s=0.2)
        error = await failed(client, stream)
        assert (504, "llm_timeout") == (error.status_code, problem(error)["reason"])
        assert "timeout" == (await error_of(api))["code"]
        await eventually(1, lambda: asyncio.sleep(0, llm.hung_up))


@pytest.mark.parametrize("stream", [True, False])
async def test_how_long_is_waited_can_be_set(serve: Serve, stream: bool) -> None:
    """By `llm-timeout`, also for a session's own LLM; an answer may take longer as long as something comes."""
    slow = Script(["One. ", "Two. ", "Three. ", "Four."], pause_s=0.3)
    async with llm_server(*[slow] * stream, Script(hold_after=0)) as llm:
        app = await serve(llm_timeout=1.0, allow_addresses=LOOPBACK)
        await RestClient(app).create(llm={"url": llm.url})
        async with openai_client(app) as client:
            if stream:
                assert "One. Two. Three. Four." == await ask(client, "Hi.")
            error = await failed(client, stream)
        assert (504, "llm_timeout") == (error.status_code, problem(error)["reason"])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_model_that_answers_for_ten_minutes(serve: Serve, stream: bool) -> None:
    """It is hung up on at `llm-total-timeout`, with what was said kept; others are answered meanwhile, and the same
    words afterwards.
    """
    endless = Script(["word "] * 12_000, pause_s=0.05 if stream else 600.0)
    async with llm_server(endless, Script(["Other."]), Script(["Hello."])) as llm:
        app = await serve(llm_url=llm.url, llm_total_timeout=3.0, llm_timeout=20.0)
        api = RestClient(app)
        await api.create()
        await api.create("other")
        async with openai_client(app) as client, openai_client(app, session_id="other") as other:
            began = time.monotonic()
            asked = asyncio.create_task(ask_and_collect(client, user_message("Hi."), stream))
            await eventually(1, lambda: asyncio.sleep(0, len(llm.requests)))
            assert "Other." == await ask(other, "Hi.")
            assert not asked.done()
            with pytest.raises(APIError):
                await asked
            assert 3.0 <= time.monotonic() - began < 20.0
            await eventually(1, lambda: asyncio.sleep(0, llm.hung_up))
            assert "timeout" == (await error_of(api))["code"]
            said = [text for role, text in role_and_text(await api.contents()) if role == "assistant"]
            assert [True] * stream == [text.startswith("word word ") for text in said]
            assert "Hello." == await ask(client, "Hi.")
        assert 1 == role_and_text(await api.contents()).count(("user", "Hi."))


async def test_nobody_there(serve: Serve) -> None:
    """A port that no one listens on."""
    (port,) = free_ports(1)
    app = await serve(llm_url=f"http://127.0.0.1:{port}")
    api = RestClient(app)
    await api.create()
    async with openai_client(app) as client:
        assert 502 == (await failed(client)).status_code
    assert "refused" == (await error_of(api))["code"]


async def test_an_endless_answer_is_stopped(serve: Serve) -> None:
    """A reply has at most 256 KiB, like any text."""
    async with service_with_llm(serve, Script(["x" * 100_000] * 4)) as (api, client, _):
        with pytest.raises(APIError):
            await ask(client, "Hi.")
        assert "too_long" == (await error_of(api))["code"]
        assert 200_000 == len((await api.contents())[-1]["content"])


async def test_an_error_without_end_is_not_read(serve: Serve) -> None:
    """Only the status of an error counts."""
    async with service_with_llm(serve, Script(status=500, error={"error": {"message": "x" * 2**23}})) as (
        api,
        client,
        _,
    ):
        assert "x" * 99 not in json.dumps(problem(await failed(client)))
        assert 500 == (await error_of(api))["code"]


# Hanging up and stopping


async def test_hanging_up_stops_the_llm(serve: Serve) -> None:
    """In the middle of a stream: the LLM is hung up on, and what it said is the reply, whole and not interrupted."""
    async with service_with_llm(serve, Script(["One. ", "Two. ", "Three."], hold_after=3)) as (api, client, llm):
        stream = await client.chat.completions.create(model="any", messages=user_message("Hi."), stream=True)
        assert "One. Two. " == "".join([(await anext(stream)).choices[0].delta.content or "" for _ in range(3)])
        await stream.close()
        await eventually(1, lambda: asyncio.sleep(0, llm.hung_up))
        await eventually(["message", "llm.delta", "llm.delta", "llm.done"], lambda: kinds(api))
        reply = (await api.contents())[-1]
        assert ("One. Two. ", {"source": "llm"}) == (reply["content"], reply["metadata"])
        await eventually(1, lambda: calls(api.app, "cancelled"))


@pytest.mark.parametrize("stream", [True, False])
async def test_hanging_up_before_anything_was_said(serve: Serve, stream: bool) -> None:
    """Nothing is left but the user's words, and the same words again get their reply in the same turn."""
    async with service_with_llm(serve, Script(["One."], hold_after=0)) as (api, client, llm):
        asked = asyncio.create_task(ask_and_collect(client, user_message("Hi."), stream))
        await eventually(1, lambda: asyncio.sleep(0, len(llm.requests)))
        asked.cancel()
        await eventually(1, lambda: asyncio.sleep(0, llm.hung_up))
        await eventually(1, lambda: calls(api.app, "cancelled"))
        assert ["message"] == await kinds(api)
        llm.then(Script(["Two."]))
        await ask(client, "Hi.")
        assert [("user", "Hi."), ("assistant", "Two.")] == role_and_text(await api.contents())


@pytest.mark.parametrize("begun", [True, False])
async def test_a_stop_of_the_service_stops_the_llm(tmp_path: Path, begun: bool) -> None:
    """The client is told, the LLM is hung up on, and the reply is on disk as it was generated."""
    store = f"sqlite:{tmp_path}/calls.db"
    async with llm_server(Script(["One. ", "Two."], hold_after=2 if begun else 0)) as llm:
        async with running_service(store=store, llm_url=llm.url) as app:
            await RestClient(app).create()
            asked = asyncio.create_task(asked_until_error(app))
            await eventually(1, lambda: asyncio.sleep(0, len(llm.requests)))
            await eventually("One. " if begun else "", lambda: generated(app))
        assert ("One. " if begun else "", "draining") == await asked
        await eventually(1, lambda: asyncio.sleep(0, llm.hung_up))
    async with running_service(store=store) as app:
        expected = [("user", "Hi."), ("assistant", "One. ")] if begun else [("user", "Hi.")]
        assert expected == role_and_text(await RestClient(app).contents())
        assert begun == ("llm.done" in await kinds(RestClient(app)))


async def asked_until_error(app: App) -> tuple[str, Any]:
    """The same of a client that asks first."""
    async with openai_client(app) as client:
        try:
            stream = await client.chat.completions.create(model="m", messages=user_message("Hi."), stream=True)
        except APIStatusError as error:
            return "", problem(error)["reason"]
        return await heard_until_error(stream)


async def heard_until_error(stream: AsyncIterable[ChatCompletionChunk]) -> tuple[str, Any]:
    """What a client hears until it raises, and the code of that."""
    heard = ""
    try:
        async for chunk in stream:
            heard += chunk.choices[0].delta.content or ""
    except APIError as error:
        return heard, error.code
    return heard, None


async def generated(app: App) -> str:
    rows = await RestClient(app).journal()
    return "".join(row["event"]["text"] for row in rows if row["event"]["type"] == "llm.delta")


async def test_the_end_of_the_call_stops_the_llm(serve: Serve) -> None:
    """A session that is closed in the middle takes no more; the client is told, and the close has cut the reply."""
    async with service_with_llm(serve, Script(["One. ", "Two. ", "Three."], hold_after=2)) as (api, client, llm):
        stream = await client.chat.completions.create(model="any", messages=user_message("Hi."), stream=True)
        assert "One. " == "".join([(await anext(stream)).choices[0].delta.content or "" for _ in range(2)])
        await eventually("One. ", lambda: generated(api.app))
        await api.end()
        llm.go_on.set()
        with pytest.raises(APIError) as raised:
            assert [chunk async for chunk in stream]
        assert "session_ended" == raised.value.code
        contents = await api.contents()
        assert [("user", "Hi."), ("assistant", "")] == role_and_text(contents)  # nothing can have been spoken yet
        assert "One. " == contents[1]["metadata"]["original"]


async def test_a_store_that_fails_meanwhile_loses_nothing(tmp_path: Path, serve: Serve) -> None:
    """Deltas that could not be written hold no one up; the end then says the whole text."""
    store = f"{tmp_path}/calls.db"
    async with llm_server(Script(["One. ", "Two. ", "Three."], hold_after=3)) as llm:
        app = await serve(store=f"sqlite:{store}", llm_url=llm.url)
        api = RestClient(app)
        await api.create()
        assert isinstance(app.services.store, SqliteStore)
        await app.services.store.database.write(lambda connection: connection.raw.set_busy_timeout(0))
        async with openai_client(app) as client:
            llm.go_on.clear()
            with locked_database(store):
                with pytest.raises(APIStatusError) as raised:
                    await ask(client, "Hi.")
                assert (503, "store_unavailable") == (raised.value.status_code, problem(raised.value)["reason"])
            assert [] == llm.requests
            stream = await client.chat.completions.create(model="any", messages=user_message("Hi."), stream=True)
            await anext(stream)
            with locked_database(store):
                assert "One. Two. " == "".join([(await anext(stream)).choices[0].delta.content or "" for _ in range(2)])
                await asyncio.sleep(0.1)
            llm.go_on.set()
            assert "Three." == "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert [("user", "Hi."), ("assistant", "One. Two. Three.")] == role_and_text(await api.contents())
        assert "One. Two. " != await generated(app)


# Whom it may call


async def test_an_llm_of_a_session_must_be_public(serve: Serve) -> None:
    """By its text where that shows it; by the address that its name leads to when it is called."""
    async with llm_server() as llm:
        app = await serve()
        api = RestClient(app)
        for url in (llm.url, "http://169.254.169.254/latest", "http://[::1]:8080/v1", "http://localhost:9000"):
            assert (400, "address_not_allowed") == (await api.post("/v1/sessions", {"llm": {"url": url}})).problem
        assert (400, "invalid_field") == (
            await api.post("/v1/sessions", {"llm": {"url": "http://a.example:25"}})
        ).problem
        await api.create(llm={"url": llm.url.replace("127.0.0.1", "llm.example"), "failure_message": ""})
        assert (400, "address_not_allowed") == (await api.patch("/v1/sessions/s", {"llm": {"url": llm.url}})).problem
        app.services.llm.resolver = FakeResolver(["127.0.0.1"])
        await reopened(app)
        async with openai_client(app) as client:
            error = await failed(client)
        assert (400, "address_not_allowed") == (error.status_code, problem(error)["reason"])
        assert "address_not_allowed" == (await error_of(api))["code"]
        assert [] == llm.requests
        await app.services.llm.close()
        app.services.llm.allowed = ()


async def test_allowed_networks_are_open(serve: Serve) -> None:
    """What the operator allows for webhooks, sessions' LLMs may be in as well."""
    async with llm_server() as llm:
        app = await serve(allow_addresses=LOOPBACK)
        await RestClient(app).create(llm={"url": llm.url})
        async with openai_client(app) as client:
            assert "Hello." == await ask(client, "Hi.")


async def test_nothing_of_the_environment_goes_out(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither proxies nor the variables of the package have a say, and their secrets stay here."""
    (port,) = free_ports(1)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    for name in ("API_KEY", "ORG_ID", "PROJECT_ID", "ADMIN_KEY", "WEBHOOK_SECRET"):
        monkeypatch.setenv(f"OPENAI_{name}", "hush")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Hush: hush\nAuthorization: hush")
    async with llm_server() as llm:
        app = await serve(llm_url=llm.url)
        api = RestClient(app)
        await api.create()
        answer = await api.post("/v1/sessions/s/chat/completions", {"messages": user_message("Hi.")})
        assert 200 == answer.status
        assert "hush" not in str(llm.requests[0].headers)
        expected = {"host", "accept", "accept-encoding", "connection", "content-length", "content-type", "user-agent"}
        assert expected >= {name.lower() for name in llm.requests[0].headers}


# What the operator sees


async def calls(app: App, result: str) -> float:
    """How many calls ended so."""
    text = (await RestClient(app).get("/metrics")).body.decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    labels = {"use": "gateway", "result": result}
    return next(one.value for one in samples if one.name == "voicemem_llm_calls_total" and one.labels == labels)


async def test_calls_are_counted(serve: Serve) -> None:
    """By result, and by the time until the first of an answer."""
    scripts = [Script(["One."]), Script(["Two."]), Script(status=500)]
    async with service_with_llm(serve, *scripts) as (api, client, _):
        await ask(client, "a")
        await ask_and_collect(client, user_message("b"), stream=False)
        await failed(client)
        assert (2, 1, 0) == tuple([await calls(api.app, name) for name in ("answered", "failed", "cancelled")])
        text = (await api.get("/metrics")).body.decode()
        assert 'voicemem_llm_first_token_seconds_count{use="gateway"} 2.0' in text


async def test_many_at_once_are_kept_apart(serve: Serve) -> None:
    """Twenty sessions, and five callers of one, stream together: every reply is whole and in its own place."""
    async with service_with_llm(serve, Script([f"{number} " for number in range(20)], pause_s=0.001)) as (
        api,
        client,
        _,
    ):
        names = [f"s-{number}" for number in range(20)]
        for name in names:
            await api.create(name)

        async def one(name: str) -> None:
            async with openai_client(api.app, session_id=name) as other:
                await ask(other, name)

        await asyncio.gather(*map(one, names), *(ask(client, f"Question {number}") for number in range(5)))
        text = "".join(f"{number} " for number in range(20))
        for name in names:
            assert [("user", name), ("assistant", text)] == role_and_text(await api.contents(name))
        contents = await api.contents()
        assert [text] * 5 == [one["content"] for one in contents if one["role"] == "assistant"]
        assert {f"Question {number}" for number in range(5)} == {
            one["content"] for one in contents if one["role"] == "user"
        }
        assert [1, 1, 2, 2, 3, 3, 4, 4, 5, 5] == [one["turn_id"] for one in contents]


def problem(error: APIStatusError) -> JsonObject:
    return dict(error.response.json())


async def test_the_client_is_told_not_to_try_again(serve: Serve) -> None:
    """OpenAI's client repeats what failed by itself, unless the answer says otherwise."""
    async with service_with_llm(serve, Script(status=500)) as (api, client, llm):
        assert "false" == (await failed(client)).response.headers["x-should-retry"]
        assert (1, ["message", "llm.error"]) == (len(llm.requests), await kinds(api))
