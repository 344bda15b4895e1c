"""Working memory over REST: documents of sessions and users, versions, races, tools, data, and the end of a user."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient, client_with_key
from tests.support.callers.working_memory import (
    DATA,
    OF_ANN,
    OF_SESSION,
    PROFILE,
    TEMPLATE,
    append,
    content,
    put,
    two,
    use,
)
from tests.support.events import final
from tests.support.rows import every_row
from tests.support.services import Serve, running_service
from voicemem.protocol.types import JsonObject

BIG = "x" * (64 * 1024)


# Whose document


async def test_preferences_of_one_call_are_known_in_the_next(api: RestClient) -> None:
    """The sessions of a user share the user's document, in their contexts too; another user's do not see it."""
    shared = {"scope": "user", "schema": PROFILE}
    await api.create("monday", user_id="ann", working_memory=shared)
    await append(api, "/v1/sessions/monday/working-memory", {"name": "Ann", "likes": ["tea"]})
    await api.end("monday")
    await api.create("tuesday", user_id="ann", working_memory=shared)
    await append(api, "/v1/sessions/tuesday/working-memory", {"likes": ["tea", "window seats"]})
    known = {"name": "Ann", "likes": ["tea", "window seats"]}
    assert known == await content(api, OF_ANN) == await content(api, "/v1/sessions/monday/working-memory")
    shown = (await api.context(session_id="tuesday"))["messages"][0]
    assert "system" == shown["role"]
    assert json.dumps(known, separators=(",", ":")) in shown["content"]
    await api.create("bob", user_id="bob", working_memory=shared)
    assert None is await content(api, "/v1/sessions/bob/working-memory")
    assert "tea" not in (await api.context(session_id="bob"))["messages"][0]["content"]


async def test_goals_of_one_conversation_are_unknown_in_another(api: RestClient) -> None:
    """A session's own document is in no other session, of the same user either."""
    for session_id in ("s", "t"):
        await api.create(session_id, user_id="ann", working_memory={})
    await append(api, OF_SESSION, "Goal: book a table for four.")
    assert "Goal: book a table for four." == await content(api)
    assert None is await content(api, "/v1/sessions/t/working-memory")
    assert None is await content(api, OF_ANN)
    assert "table" not in json.dumps(await api.context(session_id="t"))


async def test_a_session_without_a_user_shares_nothing(api: RestClient) -> None:
    """The calls for a user's document are refused while no one knows whose it would be; the context goes without it."""
    created = await api.create(working_memory={"scope": "user"})
    assert ["`working_memory.scope` has no effect until the session has a `user_id`."] == created["warnings"]
    for answered in (
        await api.get(OF_SESSION),
        await api.patch(OF_SESSION, {"content": "x"}),
        await api.get(f"{OF_SESSION}/tools"),
    ):
        assert (409, "no_user") == answered.problem
    assert {"messages": []} == await api.context()
    changed = await api.patch("/v1/sessions/s", {"user_id": "ann"})
    assert "warnings" not in changed.json
    assert 1 == (await append(api, OF_SESSION, "x"))["version"]


async def test_the_first_session_that_writes_gives_a_user_s_document_its_form(api: RestClient) -> None:
    """Whatever other sessions say later, the document keeps its form, until someone puts another."""
    await api.create("s", user_id="ann", working_memory={"scope": "user", "schema": PROFILE})
    await api.create("t", user_id="ann", working_memory={"scope": "user", "template": TEMPLATE})
    assert TEMPLATE == (await api.get("/v1/sessions/t/working-memory")).json["template"]
    await append(api, OF_SESSION, {"name": "Ann"})
    assert PROFILE == (await api.get("/v1/sessions/t/working-memory")).json["schema"]
    assert (400, "invalid_field") == (await api.patch("/v1/sessions/t/working-memory", {"content": "text"})).problem
    assert 200 == (await put(api, OF_ANN, {"template": TEMPLATE, "content": "# Caller\n- Name: Ann"})).status
    assert ("markdown", None) == await two(api, "GET", OF_SESSION, "format", "schema")


async def test_projects_never_see_each_other_s_users(serve: Serve) -> None:
    """The same user_id in two projects is two users."""
    app = await serve()
    one, other = await client_with_key(app, "admin"), await client_with_key(app, "admin", project="other")
    await append(one, OF_ANN, "Likes tea.")
    assert None is await content(other, OF_ANN)
    await append(other, OF_ANN, "Likes milk.")
    assert 204 == (await other.delete("/v1/users/ann")).status
    assert "Likes tea." == await content(one, OF_ANN)


async def test_user_ids_are_any_text(api: RestClient) -> None:
    """A user_id may be a phone number or an address, in any script, with a slash in it."""
    for user_id in ("%2B49%20151%2F7", "ann%40example.org", "%F0%9F%A6%A9", "x" * 128):
        await append(api, f"/v1/users/{user_id}/working-memory", user_id)
        assert user_id == await content(api, f"/v1/users/{user_id}/working-memory")
    assert (400, "invalid_field") == (await api.get(f"/v1/users/{'x' * 129}/working-memory")).problem


# Updates


async def test_appends_merge_deep(api: RestClient) -> None:
    """Objects merge deep, arrays take what is new, other values are overwritten; a text is put below."""
    await api.create()
    await append(api, OF_SESSION, {"profile": {"name": "Ann", "city": "Oslo"}, "goals": ["sleep"]})
    after = await append(api, OF_SESSION, {"profile": {"city": "Rome"}, "goals": ["sleep", "run"]})
    assert {"profile": {"name": "Ann", "city": "Rome"}, "goals": ["sleep", "run"]} == after["content"]
    assert ("json", 2) == (after["format"], after["version"])
    await append(api, OF_ANN, "Likes tea.")
    assert "Likes tea.\n\nNo sugar." == (await append(api, OF_ANN, "No sugar."))["content"]


async def test_every_version_can_be_read(api: RestClient) -> None:
    """Each update makes a version, with what made it; none is lost by what comes later, a call among them."""
    await api.create()
    for number in range(1, 4):
        await append(api, OF_SESSION, f"{number}")
        await api.send(final(number, f"Turn {number}."))
    await put(api, OF_SESSION, {"content": "all new"})
    assert (None, 5) == await two(api, "DELETE", OF_SESSION, "content", "version")
    contents = ["1", "1\n\n2", "1\n\n2\n\n3", "all new", None]
    for version, expected in enumerate(contents, 1):
        answered = await api.get(f"{OF_SESSION}?version={version}")
        assert (expected, f'"{version}"') == (answered.json["content"], answered.headers["ETag"])
    assert (404, "unknown_version") == (await api.get(f"{OF_SESSION}?version=6")).problem
    listed = (await api.get(f"{OF_SESSION}/versions")).json["versions"]
    operations = ["clear", "replace", "append", "append", "append"]
    assert list(zip(range(5, 0, -1), operations, strict=True)) == [(v["version"], v["operation"]) for v in listed]
    page = (await api.get(f"{OF_SESSION}/versions?before=4&limit=2")).json["versions"]
    assert listed[2:4] == page
    assert [] == (await api.get(f"{OF_ANN}/versions")).json["versions"]


async def test_a_document_of_which_nothing_was_written(api: RestClient) -> None:
    """It is version 0, without content; reading it, or clearing it, makes nothing."""
    await api.create(working_memory={"template": TEMPLATE})
    nothing = {"content": None, "version": 0, "updated_at": None, "schema": None}
    assert (
        nothing | {"scope": "session", "format": "markdown", "template": TEMPLATE} == (await api.get(OF_SESSION)).json
    )
    assert nothing | {"scope": "user", "format": "text", "template": None} == (await api.delete(OF_ANN)).json
    assert 0 == (await api.delete(OF_SESSION)).json["version"]
    assert [] == await api.journal()


async def test_writers_that_race_say_which_version_they_know(api: RestClient) -> None:
    """With If-Match an update is done on this version alone; what came too late is told so, and nothing is stored."""
    await api.create()
    first = await put(api, OF_SESSION, {"content": "one"}, If_Match='"0"')
    assert (200, '"1"') == (first.status, first.headers["ETag"])
    stale = {"If-Match": '"0"'}
    for method, body in (("PUT", {"content": "two"}), ("PATCH", {"content": "two"}), ("DELETE", None)):
        assert (412, "precondition_failed") == (await api.call(method, OF_SESSION, stale, json=body)).problem
    for tags in ('"1x"', '"01"', "", 'W/"x"', "one"):
        assert (412, "precondition_failed") == (await put(api, OF_SESSION, {"content": "two"}, If_Match=tags)).problem
    assert ("one", 1) == await two(api, "GET", OF_SESSION, "content", "version")
    assert 200 == (await put(api, OF_SESSION, {"content": "two"}, If_Match='"7", "1"')).status
    assert 200 == (await put(api, OF_SESSION, {"content": "three"}, If_Match="*")).status


async def test_of_racing_writers_with_one_version_one_wins(api: RestClient) -> None:
    """However many try it at once."""
    await api.create()
    racing = (put(api, OF_SESSION, {"content": f"{number}"}, If_Match='"0"') for number in range(8))
    answers = await asyncio.gather(*racing)
    assert [200] + [412] * 7 == sorted(answered.status for answered in answers)
    assert 1 == (await api.get(OF_SESSION)).json["version"]


@pytest.mark.parametrize("path", [OF_ANN, OF_SESSION])
async def test_forty_writers_on_one_document_lose_nothing(serve: Serve, tmp_path: Path, path: str) -> None:
    """Every append is in the document, also while the call goes on in the same journal."""
    api = RestClient(await serve(store=f"sqlite:{tmp_path / 'calls.db'}"))
    await api.create()
    writers = [append(api, path, {"notes": [number], "seen": {f"w{number}": True}}) for number in range(40)]
    turns = [api.send(final(turn, "Hm."), query=f"?producer=p{turn}") for turn in range(1, 11)]
    versions = {done["version"] for done in (await asyncio.gather(*writers, *turns))[:40]}
    found = (await api.get(path)).json
    assert {*range(40)} == set(found["content"]["notes"])
    assert {f"w{number}" for number in range(40)} == set(found["content"]["seen"])
    assert {*range(1, 41)} == versions
    assert 40 == len(found["content"]["notes"]) == found["version"]


async def test_another_process_reads_the_same_versions(tmp_path: Path) -> None:
    """Documents, their forms and data are as they were after a restart, and go on."""
    store = f"sqlite:{tmp_path / 'calls.db'}"

    async def everything(api: RestClient) -> list[Any]:
        paths = [f"{path}?version={number}" for path in (OF_SESSION, OF_ANN) for number in (1, 2, 3)]
        return [(await api.get(path)).json for path in [*paths, f"{OF_ANN}/versions", DATA]]

    async with running_service(store=store) as first:
        api = RestClient(first)
        await api.create(user_id="ann")
        for path in (OF_SESSION, OF_ANN):
            await put(api, path, {"schema": PROFILE, "content": {"likes": ["tea"]}})
            await append(api, path, {"likes": ["milk"]})
            await api.delete(path)
        await api.patch(DATA, {"a": 1})
        before = await everything(api)
    async with running_service(store=store) as second:
        api = RestClient(second)
        assert before == await everything(api)
        assert (400, "invalid_field") == (await api.patch(OF_ANN, {"content": {"likes": [7]}})).problem
        assert 4 == (await append(api, OF_ANN, {"likes": ["rain"]}))["version"]


async def test_an_ended_session_still_takes_updates(api: RestClient) -> None:
    """What an agent writes down after the call belongs to it."""
    await api.create()
    await api.end()
    assert "x" == (await append(api, OF_SESSION, "x"))["content"]
    assert {"a": 1} == (await api.patch(DATA, {"a": 1})).json
    assert "ended" == (await api.session())["state"]


# Forms


async def test_a_document_is_held_to_its_schema(api: RestClient) -> None:
    """What breaks it after the merge is refused with the path to the fault, and stores nothing."""
    await api.create(working_memory={"schema": PROFILE})
    await append(api, OF_SESSION, {"likes": ["tea"]})
    broken = await api.patch(OF_SESSION, {"content": {"likes": ["tea", 7]}})
    assert (400, "invalid_field") == broken.problem
    assert "`$.likes[1]`" in broken.json["detail"]
    assert (400, "invalid_field") == (await put(api, OF_SESSION, {"content": {"hush": 1}})).problem
    assert (400, "invalid_field") == (await api.patch(OF_SESSION, {"content": "text"})).problem
    assert ({"likes": ["tea"]}, 1) == await two(api, "GET", OF_SESSION, "content", "version")


async def test_a_form_can_be_put_alone(api: RestClient) -> None:
    """Then the content stays, if it fits."""
    await append(api, OF_ANN, {"likes": ["tea"], "extra": 1})
    assert (400, "invalid_field") == (await put(api, OF_ANN, {"schema": PROFILE})).problem
    assert (400, "invalid_field") == (await put(api, OF_ANN, {"format": "text"})).problem
    changed = await put(api, OF_ANN, {"schema": {"required": ["likes"]}})
    assert ({"likes": ["tea"], "extra": 1}, 2) == (changed.json["content"], changed.json["version"])
    await api.delete(OF_ANN)
    assert {"required": ["likes"]} == (await api.get(OF_ANN)).json["schema"]


BAD_FORMS: list[JsonObject] = [
    {"schema": {"type": "text"}},
    {"schema": {"$ref": "https://a.example/s.json"}},
    {"schema": {"properties": {"a": {"pattern": "((a{1000}){1000}){1000}"}}}},
    {"schema": {"description": BIG}},
    {"template": BIG + "x"},
    {"template": "x", "schema": {}},
    {"format": "yaml"},
    {"template": 7},
    {"schema": []},
]


@every_row("form", BAD_FORMS, ids=lambda form: str(form)[:40])
async def test_what_is_no_form_is_refused_wherever_it_is_given(in_session: RestClient, form: JsonObject) -> None:
    """In a new session, in a change of one, in an event, and in a document itself; nothing of it is stored."""
    assert (400, "invalid_field") == (await in_session.post("/v1/sessions", {"working_memory": form})).problem
    assert (400, "invalid_field") == (await in_session.patch("/v1/sessions/s", {"working_memory": form})).problem
    (error,) = (await in_session.send({"type": "session.update", "working_memory": form}))["errors"]
    assert "invalid_field" == error["code"]
    assert (400, "invalid_field") == (await put(in_session, OF_SESSION, {"content": "x", **form})).problem
    assert 0 == (await in_session.get(OF_SESSION)).json["version"]
    assert {} == (await in_session.session())["config"]


async def test_unknown_settings_are_refused(api: RestClient) -> None:
    """A misspelt setting is never passed over."""
    sections: list[Any] = [{"scop": "user"}, {"scope": "project"}, {"tools": "yes"}, []]
    for section in sections:
        assert (400, "invalid_field") == (await api.post("/v1/sessions", {"working_memory": section})).problem


async def test_a_configuration_that_was_patched_into_nonsense_does_no_harm(api: RestClient) -> None:
    """Merge patches can make a schema that is none; then updates are refused, and everything can be read."""
    await api.create(working_memory={"schema": {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}})
    for change in ({"schema": {"$defs": None}}, {"template": "x"}):
        assert 200 == (await api.patch("/v1/sessions/s", {"working_memory": change})).status
    assert (400, "invalid_field") == (await api.patch(OF_SESSION, {"content": {"a": 1}})).problem
    assert None is await content(api)
    assert 200 == (await api.get(f"{OF_SESSION}/tools")).status
    assert 1 == len((await api.context())["messages"])


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_what_is_too_big_is_refused(api: RestClient, method: str) -> None:
    """A document has at most 64 KiB, after the merge too; so have data."""
    await api.create()
    assert 200 == (await api.call(method, OF_SESSION, json={"content": BIG})).status
    for path, body in ((OF_SESSION, {"content": BIG + "x"}), (OF_ANN, {"content": {"a": BIG}}), (DATA, {"a": BIG})):
        assert (413, "too_big") == (await api.call(method, path, json=body)).problem
    assert (413, "too_big") == (await api.patch(OF_SESSION, {"content": "x"})).problem
    assert (1, {}) == ((await api.get(OF_SESSION)).json["version"], (await api.get(DATA)).json)


BAD_BODIES: list[Any] = [{}, {"content": None}, {"content": 7}, {"content": ["x"]}, {"content": "x", "mode": "append"}]


@every_row("body", BAD_BODIES, ids=str)
@every_row("method", ["PUT", "PATCH"])
async def test_bad_bodies_are_refused(api: RestClient, method: str, body: Any) -> None:
    """A body without content, with content that is none, or with something that is not known."""
    answered = await api.call(method, OF_ANN, json=body)
    assert 400 == answered.problem[0]
    assert 0 == (await api.get(OF_ANN)).json["version"]


async def test_numbers_and_nesting_have_their_limits(api: RestClient) -> None:
    """As in every body."""
    deep: Any = 1
    for _ in range(32):
        deep = {"a": deep}
    assert (400, "too_deep") == (await api.patch(OF_ANN, {"content": deep})).problem
    assert (400, "invalid_field") == (await api.patch(OF_ANN, {"content": {"a": 2**53 + 1}})).problem
    assert "Error" in await use(api, "update_working_memory", OF_ANN, content={"a": 2**53 + 1})
    assert "nested deeper" in await use(api, "update_working_memory", OF_ANN, content=deep)
    assert 0 == (await api.get(OF_ANN)).json["version"]


async def test_a_version_says_through_which_session_it_was_made(api: RestClient) -> None:
    """Of a user's document too, which several sessions share; a change without a session is no one's."""
    for name in ("one", "two"):
        await api.create(name, user_id="eve", working_memory={"scope": "user"})
        await api.patch(f"/v1/sessions/{name}/working-memory", {"content": f"By {name}."})
    await api.patch("/v1/users/eve/working-memory", {"content": "By nobody."})
    of_user = (await api.get("/v1/users/eve/working-memory/versions")).json["versions"]
    assert [None, "two", "one"] == [one["by"] and one["by"]["session_id"] for one in of_user]
    await api.create("own")
    await api.patch("/v1/sessions/own/working-memory", {"content": "Tea."})
    (own,) = (await api.get("/v1/sessions/own/working-memory/versions")).json["versions"]
    assert {"session_id": "own", "producer": None} == own["by"]
