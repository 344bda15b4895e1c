"""One URL for all calls of agents that others host: in which session a request is answered."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import hashlib
import json
import time
from typing import Any, get_type_hints

import jwt
from openai import AsyncOpenAI
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from tests.support.callers.gateway import role_and_text, user_message
from tests.support.callers.rest import RestClient, RestResponse, client_with_key, make_key
from tests.support.rows import every_row
from tests.support.servers.llm_server import Script, llm_server
from tests.support.services import Serve
from voicemem.dialects.dialect import session_id_of
from voicemem.gateway.chat_request import PASSED_ON
from voicemem.protocol.types import JsonObject

HEADER = "X-Voicemem-Session"
NUMBER = "+4915112345678"
VAPI = {
    "call": {"id": "call-1", "customer": {"number": NUMBER}, "assistantOverrides": {"x": NUMBER}},
    "customer": {"number": NUMBER, "externalId": "ann"},
    "phoneNumber": {"number": "+15551230000"},
    "metadata": {"note": NUMBER},
    "timestamp": 1763800000000,
    "assistant": {"name": NUMBER},
}
"""What Vapi adds to a request."""


EMPTY = {"call": None, "metadata": {"session_id": ""}, "user": None}


async def ask(
    api: RestClient, body: JsonObject, headers: JsonObject | None = None, text: str = "Hi.", path: str = ""
) -> RestResponse:
    """The answer to the user's words, at the URL for all calls."""
    body = {"messages": user_message(text)} | body
    return await api.call("POST", path or "/v1/chat/completions", headers, json=body)


async def sessions(api: RestClient) -> list[str]:
    return [one["session_id"] for one in (await api.get("/v1/sessions")).json["sessions"]]


@every_row(
    ("session_id", "body", "headers"),
    [
        ("h-1", {}, {HEADER: "h-1"}),
        ("m-1", {"metadata": {"session_id": "m-1"}}, None),
        ("call-1", VAPI, None),
        ("conv_1", {"elevenlabs_extra_body": {"session_id": "conv_1"}, "user_id": "ann"}, None),
        ("t-1", {"extra_metadata": {"session_id": "t-1", "telnyx_end_user_target": NUMBER}}, None),
        ("h-2", VAPI | {"metadata": {"session_id": "m-2"}}, {HEADER: "h-2"}),
        ("m-3", VAPI | {"metadata": {"session_id": "m-3"}}, None),
        ("call-1", VAPI | {"elevenlabs_extra_body": {"session_id": "conv_2"}, "user": "bob"}, None),
        ("conv_3", EMPTY | {"elevenlabs_extra_body": {"session_id": "conv_3"}}, {HEADER: ""}),
        (session_id_of("ä b/" * 2_500), {"call": {"id": "ä b/" * 2_500}}, None),
        (session_id_of("c" * 10_000), {"elevenlabs_extra_body": {"session_id": "c" * 10_000}}, None),
    ],
)  # fmt: skip
async def test_a_request_names_its_session(serve: Serve, session_id: str, body: Any, headers: Any) -> None:
    """By the first of the places that has a name; the session begins with its first request."""
    async with llm_server() as llm:
        api = RestClient(await serve(llm_url=llm.url))
        for _ in range(2):
            answered = await ask(api, body, headers)
            assert (200, session_id) == (answered.status, answered.headers[HEADER]), answered.body
        assert [session_id] == await sessions(api)
        assert ["Hi.", "Hello."] * 2 == [text for _, text in role_and_text(await api.contents(session_id))]


async def test_a_request_without_a_name_is_refused(serve: Serve) -> None:
    """The sentence lists what may name it, and no session begins."""
    async with llm_server() as llm:
        api = RestClient(await serve(llm_url=llm.url))
        for body in ({}, {"metadata": {"id": "x"}, "call": {"type": "web"}, "user_id": "ann"}):
            refused = await ask(api, body)
            assert (400, "missing_field") == refused.problem
            for name in (HEADER, "metadata.session_id", "call.id", "elevenlabs_extra_body.session_id", "user"):
                assert name in refused.json["detail"]
        assert [] == await sessions(api)
        assert [] == llm.requests


@every_row(
    ("place", "body", "headers"),
    [
        ("`user`", {"user": 7}, None),
        ("`user`", {"user": {"id": "ann"}}, {HEADER: "s"}),
        ("`user`", {"user": "u" * 10_000}, None),
        ("`metadata.session_id`", {"metadata": {"session_id": 7}}, None),
        ("`metadata.session_id`", {"metadata": {"session_id": "m" * 10_000}}, None),
        ("`metadata.session_id`", {"metadata": {"session_id": "a/b"}}, None),
        ("`call.id`", {"call": {"id": ["x"]}}, None),
        ("`elevenlabs_extra_body.session_id`", {"elevenlabs_extra_body": {"session_id": True}}, None),
        (HEADER, {}, {HEADER: "a b"}),
        (HEADER, {}, {HEADER: "h" * 7_000}),
        ("`messages`", {"messages": "Hi.", "user": "ann"}, None),
    ],
)
async def test_names_that_cannot_be(serve: Serve, place: str, body: Any, headers: Any) -> None:
    """The sentence says where; nothing begins."""
    async with llm_server() as llm:
        api = RestClient(await serve(llm_url=llm.url))
        refused = await ask(api, body, headers)
        assert (400, "invalid_field") == refused.problem
        assert place in refused.json["detail"]
        assert [] == await sessions(api)


async def test_a_user_continues_the_newest_running_session(serve: Serve) -> None:
    """Of this user alone, also with two first requests at once; without a running one another begins."""
    async with llm_server() as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create("other", user_id="bob")
        first, second = await asyncio.gather(*(ask(api, {"user": "ann"}, text=text) for text in ("One.", "Two.")))
        session_id = first.headers[HEADER]
        assert session_id == second.headers[HEADER] not in ("ann", "other")
        assert "ann" == (await api.session(session_id))["config"]["user_id"]
        await api.create("newer", user_id="ann")
        assert "newer" == (await ask(api, {"user": "ann"})).headers[HEADER]
        await api.end("newer")
        assert session_id == (await ask(api, {"user": "ann"})).headers[HEADER]
        await api.end(session_id)
        assert (await ask(api, {"user": "ann"})).headers[HEADER] not in (session_id, "newer", "other")
        assert [] == await api.contents("other")


async def test_the_user_of_a_session_is_set_once(serve: Serve) -> None:
    """Where the session is named too, `user` is its user; another one changes nothing."""
    async with llm_server() as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await api.create("s")
        for session_id in ("s", "t"):
            await ask(api, {"user": "ann"}, {HEADER: session_id})
            assert "ann" == (await api.session(session_id))["config"]["user_id"]
        assert 200 == (await ask(api, {}, {HEADER: "s"})).status
        assert 200 == (await ask(api, {"user": "bob"}, {HEADER: "s"})).status
        assert "ann" == (await api.session("s"))["config"]["user_id"]


async def test_a_call_that_has_ended(serve: Serve) -> None:
    """A request that comes after the vendor's call was closed is refused; so is one of an erased session."""
    async with llm_server() as llm:
        api = RestClient(await serve(llm_url=llm.url))
        await ask(api, VAPI)
        await api.end("call-1")
        assert (410, "session_ended") == (await ask(api, VAPI)).problem
        assert (410, "session_ended") == (await ask(api, VAPI | {"user": "ann"})).problem
        await api.delete("/v1/sessions/call-1")
        assert (410, "session_erased") == (await ask(api, VAPI)).problem


async def test_keys_and_tokens(serve: Serve) -> None:
    """A key needs `ingest`; a token reaches its own session alone, which it names, and creates none."""
    async with llm_server() as llm:
        app = await serve(llm_url=llm.url)
        api, reader = await client_with_key(app, "admin"), await client_with_key(app, "read")
        assert (403, "forbidden") == (await ask(reader, VAPI)).problem
        assert (401, "unauthorized") == (await ask(RestClient(app), VAPI)).problem
        await api.create("call-1")
        token = (await api.post("/v1/sessions/call-1/tokens")).json["token"]
        caller = RestClient(app, token)
        for body in (VAPI, {}, {"user": "ann"}):
            answered = await ask(caller, body)
            assert (200, "call-1") == (answered.status, answered.headers[HEADER]), answered.body
        refused = await ask(caller, {}, {HEADER: "call-2"})
        assert (403, "forbidden") == refused.problem
        assert "another session" in refused.json["detail"]
        assert (await api.session("call-1"))["config"].get("user_id") is None
        await api.delete("/v1/sessions/call-1")
        assert (404, "unknown_session") == (await ask(caller, VAPI)).problem
        assert [] == await sessions(api)


async def test_a_token_of_a_session_that_is_not_there(serve: Serve) -> None:
    """It is signed with the key's secret alone, so it may be of any session: 404, and none begins."""
    async with llm_server() as llm:
        app = await serve(llm_url=llm.url)
        key = await make_key(app, "ingest")
        _, key_id, secret = key.split("_")
        claims = {"sub": "never-begun", "exp": time.time() + 600}
        token = jwt.encode(claims, hashlib.sha256(secret.encode()).digest(), "HS256", headers={"kid": key_id})
        assert (404, "unknown_session") == (await ask(RestClient(app, token), {})).problem
        assert [] == await sessions(await client_with_key(app, "read"))


async def test_a_session_of_another_project_is_not_reached(serve: Serve) -> None:
    """Ids are a project's own: the request begins a session of that name in the key's project."""
    async with llm_server() as llm:
        app = await serve(llm_url=llm.url)
        mine = await client_with_key(app, "ingest", "read", project="mine")
        other = await client_with_key(app, "ingest", "read", project="other")
        await ask(mine, VAPI | {"user": "ann"}, text="My secret.")
        await ask(other, VAPI | {"user": "ann"}, text="Hello?")
        assert ["My secret.", "Hello."] == [text for _, text in role_and_text(await mine.contents("call-1"))]
        assert ["Hello?", "Hello."] == [text for _, text in role_and_text(await other.contents("call-1"))]
        assert "secret" not in str(llm.last)


async def test_what_a_vendor_adds_goes_nowhere(serve: Serve) -> None:
    """Neither to the LLM nor into the journal; what LLMs know goes on."""
    known = {"temperature": 0.5, "seed": 7, "top_k": 5, "reasoning_effort": "low", "stop": ["x"]}
    async with llm_server() as llm:
        api = RestClient(await serve(llm_url=llm.url, llm_model="m"))
        more = {"user_id": NUMBER, "user": "ann", "elevenlabs_extra_body": {"x": NUMBER}, "telnyx_from": NUMBER}
        answered = await ask(api, VAPI | more | known | {"model": "gpt"})
        assert 200 == answered.status
        assert {"messages", "model", "stream", *known} == set(llm.last)
        assert known == {name: llm.last[name] for name in known}
        journal = (await api.get("/v1/sessions/call-1/events")).body
        for number in (NUMBER, "15551230000"):
            assert number not in str(llm.last)
            assert number.encode() not in journal
        assert "call-1" not in str(llm.last)


TELNYX = {"extra_metadata": {"session_id": "call-1", "telnyx_end_user_target": NUMBER}}
ELEVENLABS = {"elevenlabs_extra_body": {"session_id": "call-1"}, "user_id": "ann"}


@every_row(
    ("identify", "body", "expected"),
    [
        ("vapi=user,number", VAPI, "ann"),
        ("vapi=number", VAPI, NUMBER),
        ("elevenlabs-agents=user", ELEVENLABS, "ann"),
        ("telnyx=number", TELNYX, NUMBER),
        ("vapi=number", TELNYX, None),
        ("vapi=user", VAPI | {"user": "bob"}, "bob"),
        (None, VAPI, None),
    ],
)
async def test_a_vendor_says_who_calls(serve: Serve, identify: str | None, body: JsonObject, expected: Any) -> None:
    """Where the operator allows it; the first answer knows then what they said on earlier calls."""
    async with llm_server() as llm:
        more: Any = {} if identify is None else {"identify": (identify,)}
        app = await serve(llm_url=llm.url, llm_model="m", memory='{"memories": {}}', **more)
        user_id = await app.services.callers.find("default", NUMBER) if expected == NUMBER else expected
        api = RestClient(app)
        await api.create("before", user_id=user_id or "someone")
        await ask(api, {}, {HEADER: "before"}, text="I am allergic to walnuts.")
        await api.end("before")
        assert 200 == (await ask(api, body, text="Has the cake walnuts?")).status
        assert user_id == (await api.session("call-1"))["config"].get("user_id")
        assert (user_id is not None) == ("I am allergic" in str(llm.last["messages"]))


async def test_a_token_names_no_one(serve: Serve) -> None:
    """Its holder could otherwise read what is remembered of anyone."""
    async with llm_server() as llm:
        app = await serve(llm_url=llm.url, llm_model="m", identify=("vapi=user,number",))
        admin = await client_with_key(app, "admin")
        await admin.create("call-1")
        token = (await admin.post("/v1/sessions/call-1/tokens", {})).json["token"]
        assert 200 == (await ask(RestClient(app, token), VAPI)).status
        assert {} == (await admin.session("call-1"))["config"]


@every_row("path", ["/v1/chat/completions", "/v1/responses"])
async def test_no_number_of_a_party_is_kept_of_tools(serve: Serve, path: str) -> None:
    """Neither in calls and results that a request brings, nor in those of the LLM, whose client gets them whole."""
    arguments = json.dumps({"to": NUMBER, "or": ["0151 / 123 456 78", 4915112345678], "table": 7})
    made = {"id": "c1", "type": "function", "function": {"name": "ring", "arguments": arguments}}
    messages: list[JsonObject] = [
        {"role": "user", "content": "Call me."},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": f"rang {NUMBER} and +1 (555) 123-0000"},
    ]
    items: list[JsonObject] = [
        {"role": "user", "content": "Call me."},
        {"type": "function_call", "call_id": "c1", "name": "ring", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c1", "output": f"rang {NUMBER} and +1 (555) 123-0000"},
    ]
    own = {"id": "c2", "name": "ring", "arguments": [arguments]}
    async with llm_server(Script(["Again."], tools=[own])) as llm:
        api = RestClient(await serve(llm_url=llm.url, llm_model="m"))
        said = {"messages": messages} if path.endswith("completions") else {"input": items}
        answered = await api.call("POST", path, json=VAPI | said)
        assert 200 == answered.status
        assert NUMBER in answered.body.decode()
        journal = (await api.get("/v1/sessions/call-1/events")).lines
        found = [one["event"] for one in journal if one["event"]["type"].startswith("tool.")]
        hidden = {"to": "████", "or": ["████", "████"], "table": 7}
        assert [hidden, hidden] == [json.loads(one["arguments"]) for one in found if one["type"] == "tool.call"]
        assert ["rang ████ and ████"] == [one["result"] for one in found if one["type"] == "tool.result"]


def test_all_of_openais_fields_are_passed_on() -> None:
    """But for those that say which session a request is of."""
    fields = set(get_type_hints(CompletionCreateParamsStreaming))
    assert set() == fields - PASSED_ON - {"messages", "model", "stream", "metadata", "user"}


async def test_without_an_llm_no_session_begins(serve: Serve) -> None:
    """A session of its own LLM is answered all the same."""
    app = await serve()
    api = RestClient(app)
    assert (409, "llm_not_configured") == (await ask(api, VAPI)).problem
    assert (409, "llm_not_configured") == (await ask(api, {"user": "ann"})).problem
    assert [] == await sessions(api)
    assert [] == (await api.get("/v1/models")).json["data"]


MODELS = {"object": "list", "data": [{"id": "qwen", "object": "model", "created": 1, "owned_by": "vllm", "max": 1}]}


@every_row(
    ("listed", "expected"),
    [
        (MODELS, ["qwen"]),
        (None, ["gpt-mini"]),
        ({"data": []}, ["gpt-mini"]),
        ({"data": "x"}, ["gpt-mini"]),
        (["x"], ["gpt-mini"]),
    ],
)
async def test_models(serve: Serve, listed: Any, expected: list[str]) -> None:
    """What the operator's LLM says, or the configured model, as OpenAI's client reads them."""
    async with llm_server() as llm:
        llm.models = listed
        app = await serve(llm_url=f"{llm.url}/chat/completions", llm_model="gpt-mini")
        async with AsyncOpenAI(base_url=f"http://{app.rest_address}/v1", api_key="none") as client:
            assert expected == [model.id async for model in client.models.list()]


async def test_openais_client_at_one_url(serve: Serve) -> None:
    """A stream and a whole answer, with what OpenAI's client calls `metadata`, `user` and `extra_body`."""
    async with llm_server(Script(["Hello ", "there."])) as llm:
        app = await serve(llm_url=llm.url)
        async with AsyncOpenAI(base_url=f"http://{app.rest_address}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(
                model="any", messages=user_message("Hi."), stream=True, metadata={"session_id": "m"}, user="ann"
            )
            assert "Hello there." == "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            whole = await client.chat.completions.create(
                model="any", messages=user_message("And now?"), extra_body={"call": {"id": "m"}}
            )
            assert "Hello there." == whole.choices[0].message.content
        said = [text for _, text in role_and_text(await RestClient(app).contents("m"))]
        assert ["Hi.", "Hello there.", "And now?", "Hello there."] == said


async def test_a_failure_is_openais_error(serve: Serve) -> None:
    """As on the path of a session."""
    async with llm_server(Script(status=401)) as llm:
        answered = await ask(RestClient(await serve(llm_url=llm.url)), VAPI)
        assert (502, "llm_failed") == answered.problem
        assert "401" == answered.json["error"]["code"]
