"""Texts of a certain form: every pattern has a sentence for texts that do not match it."""

from __future__ import annotations

from typing import Any

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient
from tests.support.rows import every_row
from tests.support.services import Serve


@every_row(
    ("path", "body", "said"),
    [
        ("/v1/webhooks", {"url": "https://x.example/", "secret": "a b"}, "A secret must be 8 to 256"),
        ("/v1/webhooks", {"url": "x"}, "An address is http"),
        (
            "/v1/webhooks",
            {"url": "https://x.example/", "event_types": [1]},
            "must be one of 101, 102, 103, 111, 112, 1001, 1002: `event_types[0]`",
        ),
        ("/v1/keys", {"scopes": ["all"]}, "must be one of ingest, read, admin: `scopes[0]`"),
        ("/v1/sessions", {"session_id": "a b"}, "A session id is 1 to 128"),
        ("/v1/sessions?label=sales", None, "A label to filter by must be KEY:VALUE"),
        ("/v1/sessions/s/context?enrich=all", None, "Enrichers must be names separated by commas, of timestamps"),
        ("/v1/webhooks/w/deliveries?before=x", None, "The id of a delivery is"),
        ("/v1/sessions/s/context?policy=WINDOW", None, "The name of a policy is a small letter"),
        ("/v1/sessions/s/context?usage=yes", None, "Expected true or false: `usage`"),
        ("/v1/sessions/s/context?max_tokens=1.5", None, "Expected a whole number: `max_tokens`"),
        ("/v1/sessions/s/context?max_tokens=0", None, "Expected a whole number >= 1: `max_tokens`"),
        ("/v1/sessions", {"memory": {"max_tokens": "1"}}, "Expected a whole number: `memory.max_tokens`"),
        ("/v1/sessions", {"memory": {"policy": "WINDOW"}}, "The name of a policy is a small letter"),
        ("/v1/sessions", {"idle_timeout": "1"}, "Expected a number: `idle_timeout`"),
        ("/v1/sessions", {"interruptable": "yes"}, "Expected true or false: `interruptable`"),
        ("/v1/sessions", {"llm": {"headers": {"a b": "c"}}}, "signs such as - and _: `llm.headers`"),
        ("/v1/sessions", {"system_messages": [{"role": 1}]}, "`llm.system_messages[0].role`"),
        (
            "/v1/sessions",
            {"llm": {"system_messages": [{"role": "system"}]}},
            "missing: `llm.system_messages[0].content`",
        ),
        (
            "/v1/sessions",
            {"llm": {"modell": "m"}},
            "no field `modell` in `llm` (did you mean `model`?); known: `alternate`, `api_key`,",
        ),
        ("/v1/sessions", {"llm": 7}, "Expected an object: `llm`"),
        ("/v1/sessions", [], "The body must be one JSON object."),
        ("/v1/sessions/s/history?limt=1", None, "no field `limt` (did you mean `limit`?); known: `after_turn`,"),
        (
            "/v1/keys",
            {"scopes": ["read"], "nam": "x"},
            "no field `nam` (did you mean `name`?); known: `bytes_per_second`,",
        ),
        (
            "/v1/sessions/s/context?s3cret-%C3%BC=1",
            None,
            "There is an unknown field; known: `alternate`,",
        ),
        ("/api/conversational-ai-agent/v2/projects/p/agents?state=on", None, "States must be numbers"),
    ],
)
async def test_who_sends_another_text_reads_what_it_should_be(api: RestClient, path: str, body: Any, said: str) -> None:
    """Bodies and queries get the sentence, and choices their values, also inside of arrays."""
    answered = await (api.get(path) if body is None else api.post(path, body))
    assert (answered.status, said in answered.json["detail"], "regex" in answered.json["detail"]) == (400, True, False)


async def test_a_different_configuration_is_refused_with_the_names_of_its_settings(serve: Serve) -> None:
    """A session that exists with another configuration: the settings that differ are named, their values are not."""
    api = RestClient(await serve())
    first = {"session_id": "s", "name": "desk", "llm": {"model": "m-one", "style": "openai"}, "labels": {"a": "b"}}
    await api.post("/v1/sessions", first)
    changed = {**first, "name": "door", "llm": {"model": "m-two", "style": "openai"}, "idle_timeout": 5}
    answered = await api.post("/v1/sessions", changed)
    assert (answered.status, answered.json["detail"]) == (
        409,
        "The session already exists, with a different configuration; what differs: idle_timeout, llm.model, name.",
    )
    secret = {**first, "webhook": {"url": "https://x.example/", "secret": "whsec_QUJD"}}
    assert "webhook.url" in (await api.post("/v1/sessions", secret)).json["detail"]


async def test_a_websocket_that_comes_to_rest_is_sent_to_its_own_port(serve: Serve) -> None:
    """The path of the ingest on the REST port says that websockets have a port of their own."""
    answered = await RestClient(await serve()).get("/v1/ingest")
    assert (answered.status, "websockets have a port of their own (--ingest)" in answered.json["detail"]) == (404, True)


async def test_a_caller_without_a_key_reads_how_to_send_one(serve: Serve) -> None:
    """A missing key and an unknown one get different sentences, each with the way to send a key."""
    app = await serve(admin_key="an operator's own key")
    none = await RestClient(app).get("/v1/sessions")
    unknown = await RestClient(app, key="vm_" + "a" * 12 + "_" + "b" * 40).get("/v1/sessions")
    assert (none.status, unknown.status) == (401, 401)
    assert none.json["detail"].startswith("No key was sent; send one as Authorization: Bearer KEY")
    assert unknown.json["detail"].startswith("The key is unknown or was revoked; send another one")


async def test_an_open_with_another_id_reads_what_it_should_be(serve: Serve) -> None:
    """The same holds for frames of a websocket."""
    async with connected_producer(await serve()) as producer:
        await producer.send({"type": "session.open", "session_id": "a b"})
        error = await producer.expect_error("invalid_field")
    assert error["detail"].startswith("A session id is 1 to 128 characters")
