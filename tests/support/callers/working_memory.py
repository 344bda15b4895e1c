"""Documents of working memory, over REST."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

from tests.support.callers.rest import RestClient, RestResponse
from voicemem.protocol.types import JsonObject

OF_SESSION, OF_ANN = "/v1/sessions/s/working-memory", "/v1/users/ann/working-memory"
DATA = "/v1/sessions/s/data"
PROFILE: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "likes": {"type": "array", "items": {"$ref": "#/$defs/thing"}},
    },
    "additionalProperties": False,
    "$defs": {"thing": {"type": "string"}},
}
TEMPLATE = "# Caller\n- Name:\n- Booking:\n"


async def append(api: RestClient, path: str, content: Any) -> JsonObject:
    answered = await api.patch(path, {"content": content})
    assert 200 == answered.status, answered.body
    return dict(answered.json)


async def put(api: RestClient, path: str, body: Any, **headers: str) -> RestResponse:
    return await api.call("PUT", path, {name.replace("_", "-"): text for name, text in headers.items()}, json=body)


async def content(api: RestClient, path: str = OF_SESSION, query: str = "") -> Any:
    answered = await api.get(path + query)
    assert 200 == answered.status, answered.body
    return answered.json["content"]


async def two(api: RestClient, method: str, path: str, *names: str) -> tuple[Any, ...]:
    """Some fields of the document that is answered."""
    document = (await api.call(method, path)).json
    return tuple(document[name] for name in names)


async def use(api: RestClient, name: str, path: str = OF_SESSION, **arguments: Any) -> str:
    """What the LLM is told that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    answered = await api.post(f"{path}/tools", {"id": "call_1", "type": "function", "function": function})
    assert 200 == answered.status, answered.body
    assert ("tool", "call_1") == (answered.json["role"], answered.json["tool_call_id"])
    return str(answered.json["content"])
