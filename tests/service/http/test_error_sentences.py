"""Texts of a certain form: every pattern has a sentence for texts that do not match it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient
from tests.support.services import Serve


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/webhooks", {"url": "https://x.example/", "secret": "a b"}, "A secret must be 8 to 256"),
        ("/v1/webhooks", {"url": "x"}, "An address is http"),
        (
            "/v1/webhooks",
            {"url": "https://x.example/", "event_types": [1]},
            "must be one of 101, 102, 103, 111, 112: `event_types[0]`",
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
        ("/v1/sessions", {"llm": {"system_messages": [{"role": "system"}]}}, "`content`: `llm.system_messages[0]`"),
        ("/api/conversational-ai-agent/v2/projects/p/agents?state=on", None, "States must be numbers"),
    ],
)
async def test_who_sends_another_text_reads_what_it_should_be(serve: Serve, path: str, body: Any, said: str) -> None:
    """Bodies and queries get the sentence, and choices their values, also inside of arrays."""
    api = RestClient(await serve())
    answered = await (api.get(path) if body is None else api.post(path, body))
    assert (answered.status, said in answered.json["detail"], "regex" in answered.json["detail"]) == (400, True, False)


async def test_an_open_with_another_id_reads_what_it_should_be(serve: Serve) -> None:
    """The same holds for frames of a websocket."""
    async with connected_producer(await serve()) as producer:
        await producer.send({"type": "session.open", "session_id": "a b"})
        error = await producer.expect_error("invalid_field")
    assert error["detail"].startswith("A session id is 1 to 128 characters")
