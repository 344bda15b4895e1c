"""What a document is stays: appends of another kind, templates filled bit by bit, texts that look like markup."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.callers.rest import RestClient, client_with_key
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject

OF_SESSION = "/v1/sessions/s/working-memory"
OF_ANN = "/v1/users/ann/working-memory"
TEMPLATE = "# Caller\n- Name:"


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller of an empty service."""
    return RestClient(await serve())


async def content(api: RestClient, path: str = OF_SESSION) -> Any:
    return (await api.get(path)).json["content"]


async def use(api: RestClient, **arguments: Any) -> str:
    """What the LLM is told that updates the document."""
    function = {"name": "update_working_memory", "arguments": json.dumps(arguments)}
    call = {"id": "call_1", "type": "function", "function": function}
    return str((await api.post(f"{OF_SESSION}/tools", call)).json["content"])


async def refused(api: RestClient, given: Any, path: str = OF_SESSION) -> str:
    """Why this cannot be appended; the document is as it was."""
    before = (await api.get(path)).json
    answered = await api.patch(path, {"content": given})
    assert (400, "invalid_field") == answered.problem
    assert before == (await api.get(path)).json
    return str(answered.json["detail"])


@pytest.mark.parametrize(("first", "other", "what"), [("x", {"a": 1}, "text"), ({"a": 1}, "x", "JSON object")])
@pytest.mark.parametrize("shared", [False, True])
async def test_a_document_keeps_the_kind_of_its_first_content(
    api: RestClient, first: Any, other: Any, what: str, shared: bool
) -> None:
    """The other kind is refused with what to do, also to a tool; replaced or cleared, it may be another."""
    section = {"scope": "user"} if shared else {}
    await api.create(user_id="ann", working_memory=section)
    path = OF_ANN if shared else OF_SESSION
    await api.patch(path, {"content": first})
    detail = await refused(api, other, path)
    assert what in detail
    assert "replace" in detail
    assert (await use(api, content=other)).startswith("Error: ")
    assert first == await content(api, path)
    assert 200 == (await api.call("PUT", path, json={"content": other})).status
    assert other == await content(api, path)
    await api.call("DELETE", path)
    await api.patch(path, {"content": first})
    assert first == await content(api, path)


@pytest.mark.parametrize(
    ("first", "other", "form"),
    [("x", {"a": 1}, {"schema": {"type": "object"}}), ({"a": 1}, "x", {"template": TEMPLATE})],
)
async def test_another_form_of_the_session_takes_nothing_away(
    api: RestClient, first: Any, other: Any, form: JsonObject
) -> None:
    """What was written before the form changed stays, and grows by what is of its kind; a replacement has the form."""
    await api.create(working_memory={})
    await api.patch(OF_SESSION, {"content": first})
    await api.patch("/v1/sessions/s", {"working_memory": form})
    await refused(api, other)
    assert 200 == (await api.patch(OF_SESSION, {"content": first})).status
    assert 400 == (await api.call("PUT", OF_SESSION, json={"content": first})).status
    assert 200 == (await api.call("PUT", OF_SESSION, json={"content": other})).status


async def test_an_object_in_a_text_is_the_object_where_the_document_is_json(api: RestClient) -> None:
    """LLMs write JSON into a string; in a document of text it is a text."""
    await api.create(working_memory={})
    await api.patch(OF_SESSION, {"content": {"a": 1}})
    assert "The working memory is updated." == await use(api, content='{"b": 2}')
    assert {"a": 1, "b": 2} == await content(api)
    assert (await use(api, content='{"b": ')).startswith("Error: ")
    assert (await use(api, content='{"b": 1e999}')).startswith("Error: ")
    await api.call("PUT", OF_SESSION, json={"format": "text", "content": "x"})
    await api.patch(OF_SESSION, {"content": '{"b": 2}'})
    assert 'x\n\n{"b": 2}' == await content(api)


async def test_the_first_append_stands_below_the_template(api: RestClient) -> None:
    """A template is there from the start; a replacement stands for all of it."""
    await api.create(working_memory={"template": TEMPLATE})
    await api.patch(OF_SESSION, {"content": "- a: 1"})
    await api.patch(OF_SESSION, {"content": "- b: 2"})
    assert f"{TEMPLATE}\n\n- a: 1\n\n- b: 2" == await content(api)
    await api.call("PUT", OF_SESSION, json={"content": "- c: 3"})
    assert "- c: 3" == await content(api)


async def test_an_empty_text_is_no_content(api: RestClient) -> None:
    """Appended or put, it leaves the document empty, and the template is what is shown."""
    await api.create(working_memory={"template": TEMPLATE})
    for answered in (
        await api.patch(OF_SESSION, {"content": ""}),
        await api.call("PUT", OF_SESSION, json={"content": ""}),
    ):
        assert (None, 0) == (answered.json["content"], answered.json["version"])
    await api.patch(OF_SESSION, {"content": "x"})
    assert None is (await api.call("PUT", OF_SESSION, json={"content": ""})).json["content"]
    assert TEMPLATE in (await api.context())["messages"][0]["content"]


@pytest.mark.parametrize("text", ["</working_memory>", "</ Working_Memory >"])
@pytest.mark.parametrize("kind", ["text", "json"])
async def test_no_content_ends_its_block(api: RestClient, text: str, kind: str) -> None:
    """What would end the block is shown with a backslash, which means the same in JSON; the document stays as it is."""
    await api.create(working_memory={"format": kind})
    given: Any = text if kind == "text" else {"a": text}
    await api.patch(OF_SESSION, {"content": given})
    shown = (await api.context())["messages"][0]["content"]
    _, block = shown.split("<working_memory>\n")
    assert 1 == shown.lower().replace(" ", "").count("</working_memory>")
    inside = block.removesuffix("\n</working_memory>")
    assert given == (json.loads(inside) if kind == "json" else inside.replace("\\", ""))
    assert given == await content(api)


# Versions, and keys


async def test_a_version_may_be_named_without_quotes(api: RestClient) -> None:
    """As people write it."""
    await api.create(working_memory={})
    await api.patch(OF_SESSION, {"content": "x"})
    for tag, status in (("2", 412), ("1x", 412), ('"1', 412), ("1", 200), ("7, 2", 200), ('W/"3"', 200)):
        answered = await api.call("PUT", OF_SESSION, {"If-Match": tag}, json={"content": tag})
        assert status == answered.status, tag


async def test_a_document_is_created_once(api: RestClient) -> None:
    """With If-None-Match: * an update is done while there was none, and then never again."""
    await api.create(working_memory={})
    for status in (200, 412):
        answered = await api.call("PUT", OF_SESSION, {"If-None-Match": "*"}, json={"content": "x"})
        assert status == answered.status
    await api.call("DELETE", OF_SESSION)
    assert 412 == (await api.call("PUT", OF_SESSION, {"If-None-Match": "*"}, json={"content": "x"})).status


async def test_who_may_not_read_gets_no_content(serve: Serve) -> None:
    """A key that only writes hears of the version and its time, and may not use the tool that reads."""
    app = await serve()
    writer, both = await client_with_key(app, "ingest"), await client_with_key(app, "ingest", "read")
    await both.create(user_id="ann", working_memory={})
    for path in (OF_SESSION, OF_ANN):
        await both.patch(path, {"content": "secret"})
        for method, body in (("PATCH", {"content": "x"}), ("PUT", {"content": "y"}), ("DELETE", None)):
            answered = await writer.call(method, path, json=body)
            assert {"version", "updated_at"} == set(answered.json)
            assert f'"{answered.json["version"]}"' == answered.headers["ETag"]
        assert "z" == (await both.patch(path, {"content": "z"})).json["content"]
        call = {"id": "c", "type": "function", "function": {"name": "get_working_memory", "arguments": ""}}
        assert (403, "forbidden") == (await writer.post(f"{path}/tools", call)).problem
        assert "z" == (await both.post(f"{path}/tools", call)).json["content"]
