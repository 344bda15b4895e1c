"""What OpenAI's client, and the log, are told of the gateway's errors."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import io
import logging
from typing import Any

import pytest
from openai import APIError, APIStatusError

from tests.support.callers.gateway import ask_and_collect, openai_client, service_with_llm, user_message
from tests.support.callers.rest import RestClient, RestResponse, make_key
from tests.support.processes.ports import free_ports
from tests.support.servers.llm_server import Script, llm_server
from tests.support.services import Serve

PATH = "/v1/sessions/s/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi."}]}
NOT_READ = "The LLM request failed, or its answer could not be read"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (Script(status=503), "503", "The LLM answered 503."),
        (Script(raw=b"<p>Hello"), "invalid_answer", f"{NOT_READ}: invalid_answer."),
    ],
)
async def test_the_client_says_what_was_wrong(serve: Serve, stream: bool, script: Script, code: str, said: str) -> None:
    """In its text, type and code; the problem's own fields stand beside that."""
    async with service_with_llm(serve, script) as (_, client, __):
        with pytest.raises(APIStatusError) as raised:
            await ask_and_collect(client, user_message("Hi."), stream)
        error = raised.value
        assert f"Error code: 502 - {said}" == str(error)
        assert ("llm_failed", code, None) == (error.type, error.code, error.param)
        told = error.response.json()
        assert {"message": said, "type": "llm_failed", "code": code, "param": None} == told.pop("error")
        assert {"type", "title", "status", "detail", "reason"} == set(told)
        assert ("llm_failed", said) == (told["reason"], told["detail"])


async def test_the_client_says_what_was_wrong_in_the_middle(serve: Serve) -> None:
    """The last chunk has the same object."""
    async with service_with_llm(serve, Script(["One. ", "Two."], drop_after=2)) as (_, client, __):
        with pytest.raises(APIError) as raised:
            await ask_and_collect(client, user_message("Hi."), stream=True)
        assert ("llm_failed", "dropped") == (raised.value.type, raised.value.code)
        assert f"{NOT_READ}: dropped." == str(raised.value)


async def test_errors_before_the_llm_have_the_shape_too(serve: Serve) -> None:
    """What the service itself refuses has its reason as type and code; no other route has the object."""
    async with service_with_llm(serve) as (api, client, _):
        with pytest.raises(APIStatusError) as raised:
            await client.chat.completions.create(model="m", messages=[], extra_body={"messages": 7})
        error = raised.value
        assert ("invalid_field", "invalid_field") == (error.type, error.code)
        assert str(error).startswith("Error code: 400 - Expected")
        assert "error" not in (await api.get("/v1/sessions/other")).json


async def test_no_error_asks_for_another_try(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every error of the route says so, whoever answers it; no other route does."""
    async with llm_server() as llm:
        app = await serve(llm_url=llm.url)
        api = RestClient(app)
        await api.create()
        found = [await api.post(PATH, {"messages": 7}), await api.post(PATH.replace("/s/", "/none/"), HI)]
        found += [await api.post(f"{PATH}?a=b", HI), await api.call("POST", PATH, data=io.BytesIO(b"x" * 2**21))]
        found.append(await api.call("POST", PATH, {"Host": "example.com"}, json=HI))

        async def broken(*_: Any) -> None:
            raise RuntimeError("a fault of ours")

        with monkeypatch.context() as patch:
            patch.setattr(app.services.gateway, "prepare", broken)
            found.append(await api.post(PATH, HI))
        await api.end()
        found.append(await api.post(PATH, HI))
        await make_key(app, "read")
        found.append(await api.post(PATH, HI))
        assert [400, 404, 400, 413, 403, 500, 410, 401] == [one.status for one in found]
        assert [("false", True)] * 8 == [told(one) for one in found]
        assert "x-should-retry" not in (await api.get("/v1/sessions/s")).headers


def told(answer: RestResponse) -> tuple[str | None, bool]:
    error = answer.json["error"]
    same = (error["message"], error["type"], error["code"]) == (answer.json["detail"], *[answer.problem[1]] * 2)
    return answer.headers.get("x-should-retry"), same


async def test_a_failure_is_logged_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """With the session, the LLM's host and the word for it; neither its path nor a text."""
    (port,) = free_ports(1)
    app = await serve(llm_url=f"http://127.0.0.1:{port}/secret/path?key=secret")
    await RestClient(app).create(llm={"failure_message": "Sorry."})
    async with openai_client(app) as client:
        with caplog.at_level(logging.INFO):
            assert "Sorry." == (await ask_and_collect(client, user_message("My secret."), stream=True)).text
    (record,) = [one for one in caplog.records if one.name.startswith("voicemem")]
    assert ("voicemem.llm", logging.WARNING) == (record.name, record.levelno)
    assert "The LLM failed: refused" == record.getMessage()
    assert ("s", f"127.0.0.1:{port}") == (vars(record)["session_id"], vars(record)["host"])
    assert "secret" not in str(vars(record))
