"""Two ids of one person, a number and an account, through everything that names a user."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import voicemem
from tests.service.context.test_recall import lines_in
from tests.service.redaction.test_postgresql import values_in
from tests.support import postgresql
from tests.support.callers.mcp_client import answer_of, in_one_task, mcp_at, mcp_client
from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import final
from tests.support.services import Serve, running_service
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.errors import Refused

SAME_AS = "/v1/users/tel/same-as"
IDS = ("tel", "ann")
TEA, OSLO, BERLIN = "Ann likes tea.", "Ann flew to Oslo.", "Ben lives in Berlin."
RECALL = {"memory": {"memories": {"kinds": ["fact", "message"]}}}


@pytest.fixture
async def api(app: App) -> RestClient:
    """A service with a call and a memory of each id, and of ben, where the two ids are linked."""
    api = RestClient(app)
    for user_id, said, noted in (("tel", "walnuts", TEA), ("ann", "marzipan", OSLO), ("ben", "walnuts", BERLIN)):
        await api.create(f"{user_id}-call", user_id=user_id)
        await api.send(final(1, f"I am allergic to {said}, says {user_id}.", 1_000), session_id=f"{user_id}-call")
        await api.end(f"{user_id}-call")
        await api.post("/v1/memories", {"text": noted, "user_id": user_id})
    await link(api)
    return api


async def link(api: RestClient, user_id: str = "tel", other_id: str = "ann") -> None:
    answered = await api.call("PUT", f"/v1/users/{user_id}/same-as", json={"user_id": other_id})
    assert (200, {"user_id": user_id, "same_as": other_id}) == (answered.status, answered.json)


async def refusal(api: RestClient, user_id: str, other_id: Any) -> tuple[int, str]:
    return (await api.call("PUT", f"/v1/users/{user_id}/same-as", json={"user_id": other_id})).problem


async def test_a_link_is_made_by_admins_and_undone(serve: Serve) -> None:
    """Again by the same request; another one for either id is refused."""
    app = await serve()
    admin = await client_with_key(app, "admin")
    for scope in ("read", "ingest"):
        other = await client_with_key(app, scope)
        assert (403, "forbidden") == await refusal(other, "tel", "ann")
        assert (403, "forbidden") == (await other.delete(SAME_AS)).problem
    await link(admin)
    await link(admin)
    for user_id, other_id in (("ann", "tel"), ("tel", "ben"), ("ben", "ann"), ("tel", "tel"), ("x", "x")):
        assert (409, "user_conflict") == await refusal(admin, user_id, other_id)
    for wrong in (None, "", "x" * 129, 5, ["ann"]):
        assert (400, "invalid_field") == await refusal(admin, "ben", wrong)
    assert 204 == (await admin.delete("/v1/users/ann/same-as")).status
    assert 204 == (await admin.delete(SAME_AS)).status
    await link(admin, "ann", "tel")


@pytest.mark.parametrize("user_id", IDS)
async def test_searches_and_lists_of_either_mean_both(api: RestClient, user_id: str) -> None:
    """What was heard, memories, and sessions in every form."""
    found = await api.post("/v1/memories/search", {"query": "allergic tea Oslo Berlin", "user_id": user_id})
    texts = {memory["text"] for memory in found.json["memories"]}
    heard = {f"I am allergic to {said}, says {one}." for one, said in (("tel", "walnuts"), ("ann", "marzipan"))}
    assert {TEA, OSLO, *heard} == texts
    listed = (await api.get(f"/v1/users/{user_id}/memories")).json["memories"]
    assert [OSLO, TEA] == [memory["text"] for memory in listed]
    calls = ["ann-call", "tel-call"]
    for path in (
        f"/v1/users/{user_id}/sessions",
        f"/v1/sessions?user_id={user_id}",
        f"/v1/sessions?user_id={user_id}&fields=overview&count=true",
    ):
        assert calls == [one["session_id"] for one in (await api.get(path)).json["sessions"]]
    assert 2 == (await api.get(f"/v1/sessions?user_id={user_id}&fields=overview&count=true")).json["total"]
    assert ["tel-call"] == [
        one["session_id"] for one in (await api.get(f"/v1/sessions?user_id={user_id}&q=walnuts")).json["sessions"]
    ]
    exported = (await api.get(f"/v1/exports?user_id={user_id}")).lines
    assert calls == [line["session_id"] for line in exported if line["type"] == "call"]
    await api.delete(SAME_AS)
    assert [f"{user_id}-call"] == [
        one["session_id"] for one in (await api.get(f"/v1/users/{user_id}/sessions")).json["sessions"]
    ]


@pytest.mark.parametrize("user_id", IDS)
async def test_a_context_knows_what_both_ids_said(api: RestClient, user_id: str) -> None:
    """Memories, words of earlier calls, what is carried over, and the documents of both."""
    other_id = IDS[1 - IDS.index(user_id)]
    shared = {"working_memory": {"scope": "user"}, "memory_from": {"sessions": 2, "what": "messages"}}
    await api.call("PUT", f"/v1/users/{other_id}/working-memory", json={"content": "Sits by the window."})
    await api.post("/v1/memories/search", {"query": "walnuts", "user_id": user_id})  # which has the calls indexed
    await api.create("now", user_id=user_id, **RECALL, **shared)
    await api.send(final(1, "Is there anything with walnuts or marzipan?", 2_000), session_id="now")
    context = await api.context(session_id="now")
    lines = " ".join(lines_in(context))
    assert all(known in lines for known in (TEA, OSLO))
    text = str(context["messages"])
    assert [1, 1] == [text.count(f"says {one}") for one in IDS]  # carried over, so they are not recalled too
    await api.create("plain", user_id=user_id, **RECALL)
    await api.send(final(1, "Is there anything with walnuts or marzipan?", 2_000), session_id="plain")
    recalled = " ".join(lines_in(await api.context(session_id="plain")))
    assert all(f"says {one}" in recalled for one in IDS)
    assert "ben" not in text
    assert BERLIN not in text
    assert 2 == text.count("From an earlier call with this user")
    assert "Sits by the window." in text
    await api.call("PUT", "/v1/sessions/now/working-memory", json={"content": "Sits in the back."})
    assert "Sits in the back." == (await api.get(f"/v1/users/{other_id}/working-memory")).json["content"]


async def test_each_id_keeps_a_document_that_it_had_before(app: App) -> None:
    """A context shows both; what is written goes where it is read."""
    api = RestClient(app)
    for user_id, content in (("tel", "Likes tea."), ("ann", "Hates noise.")):
        await api.call("PUT", f"/v1/users/{user_id}/working-memory", json={"content": content})
    await link(api)
    for user_id, content in (("tel", "Likes tea."), ("ann", "Hates noise.")):
        assert content == (await api.get(f"/v1/users/{user_id}/working-memory")).json["content"]
        await api.create(f"{user_id}-call", user_id=user_id, working_memory={"scope": "user"})
        context = str(await api.context(session_id=f"{user_id}-call"))
        assert "Likes tea." in context
        assert "Hates noise." in context
    lines = (await api.get("/v1/users/tel/export")).lines
    assert ["Likes tea.", "Hates noise."] == [line["content"] for line in lines if line["type"] == "document"]


@pytest.mark.parametrize("user_id", IDS)
async def test_an_export_has_both(api: RestClient, user_id: str) -> None:
    """And says of whom it is."""
    lines = (await api.get(f"/v1/users/{user_id}/export?events=true")).lines
    assert (user_id, IDS[1 - IDS.index(user_id)], 2) == tuple(
        lines[0][name] for name in ("user_id", "same_as", "sessions")
    )
    assert {"ann-call", "tel-call"} == {line["session_id"] for line in lines if line["type"] == "session"}
    assert {TEA, OSLO} == {line["text"] for line in lines if line["type"] == "memory"}
    assert "same_as" not in (await api.get("/v1/users/ben/export")).lines[0]


async def test_a_session_token_of_one_id_reaches_the_memories_of_both(serve: Serve) -> None:
    """It lists, finds and removes them; those of others stay out of its reach."""
    app = await serve()
    admin = await client_with_key(app, "admin")
    await admin.create("tel-call", user_id="tel")
    ids = {}
    for user_id, text in (("ann", OSLO), ("ben", BERLIN)):
        kept = await admin.post("/v1/memories", {"text": text, "user_id": user_id})
        ids[user_id] = kept.json["memories"][0]["id"]
    token = (await admin.post("/v1/sessions/tel-call/tokens", {"memories": "user"})).json["token"]
    holder = RestClient(app, token)
    assert (403, "forbidden") == (await holder.get("/v1/users/ann/memories")).problem
    await link(admin)
    for user_id in IDS:
        listed = (await holder.get(f"/v1/users/{user_id}/memories")).json["memories"]
        assert [OSLO] == [memory["text"] for memory in listed]
    assert (403, "forbidden") == (await holder.get("/v1/users/ben/memories")).problem
    assert (404, "unknown_memory") == (await holder.delete(f"/v1/memories/{ids['ben']}")).problem
    assert 204 == (await holder.delete(f"/v1/memories/{ids['ann']}")).status


async def test_tools_of_one_id_find_what_both_said(api: RestClient, app: App) -> None:
    """The tools that name a user, by the official client."""
    async with mcp_at(f"http://{app.rest_address}") as url, in_one_task(mcp_client(url)) as client:
        found = await answer_of(client, "search_memories", query="allergic", user_id="ann")
        assert {"says tel.", "says ann."} == {one["text"].partition(", ")[2] for one in found["memories"]}
        calls = await answer_of(client, "recent_calls", user_id="ann")
        assert ["ann-call", "tel-call"] == [one["session_id"] for one in calls["calls"]]


@pytest.mark.parametrize("user_id", IDS)
async def test_the_paths_of_agent_memory_server_mean_both(app: App, user_id: str) -> None:
    """Working memories, long-term memories and lists, by filters of every form; what is deleted is of the one id."""
    api, other_id = RestClient(app), IDS[1 - IDS.index(user_id)]
    for one in (*IDS, "ben"):
        body = {"session_id": f"{one}-s", "user_id": one, "messages": [{"role": "user", "content": f"I am {one}."}]}
        assert 200 == (await api.call("PUT", f"/v1/working-memory/{one}-s", json=body)).status
        kept = {"memories": [{"id": f"m-{one}", "text": f"{one} likes tea.", "user_id": one}]}
        assert 200 == (await api.post("/v1/long-term-memory/", kept)).status
    await link(api)
    for text in ("tea", ""):
        for condition in ({"eq": user_id}, {"any": [user_id]}, {"in_": [user_id, "x"]}):
            found = await api.post("/v1/long-term-memory/search", {"text": text, "user_id": condition})
            assert {"m-ann", "m-tel"} == {one["id"] for one in found.json["memories"]}, condition
    without = await api.post("/v1/long-term-memory/search", {"text": "tea", "user_id": {"ne": user_id}})
    assert ["m-ben"] == [one["id"] for one in without.json["memories"]]
    listed = (await api.get(f"/v1/working-memory/?user_id={user_id}")).json
    assert (2, {"ann-s", "tel-s"}) == (listed["total"], {*listed["sessions"]})
    of_other = await api.get(f"/v1/working-memory/{other_id}-s?user_id={user_id}")
    assert f"I am {other_id}." in str(of_other.json["messages"])
    assert 404 == (await api.get(f"/v1/working-memory/ben-s?user_id={user_id}")).status
    same = {"memories": [{"id": "m-same", "text": f"{other_id} likes tea.", "user_id": user_id}]}
    assert 200 == (await api.post("/v1/long-term-memory/", same)).status
    assert "m-same" in str((await api.get(f"/v1/users/{user_id}/memories")).json), "it is kept for each id by itself"
    forgotten = await api.post(
        "/v1/long-term-memory/forget", {"policy": {"budget": 0}, "user_id": user_id, "dry_run": False}
    )
    assert {f"m-{user_id}", "m-same"} == {*forgotten.json["deleted_ids"]}


async def test_what_is_forgotten_of_one_id_stays_of_the_other(api: RestClient) -> None:
    """Unless it is asked for."""
    forget = "/v1/users/ann/memories/forget"
    assert 1 == len((await api.post(forget, {"everything": True, "dry_run": True})).json["ids"])
    assert 2 == len((await api.post(forget, {"everything": True, "linked": True, "dry_run": True})).json["ids"])
    assert (400, "invalid_field") == (await api.post(forget, {"everything": True, "linked": None})).problem
    await api.post(forget, {"everything": True})
    assert [TEA] == [one["text"] for one in (await api.get("/v1/users/ann/memories")).json["memories"]]


# Erasure


@pytest.mark.parametrize("user_id", IDS)
async def test_an_erasure_names_the_other_id_and_leaves_it(api: RestClient, user_id: str) -> None:
    """Its sessions, memories and document stay; the link goes."""
    other_id = IDS[1 - IDS.index(user_id)]
    await api.call("PUT", f"/v1/users/{other_id}/working-memory", json={"content": "Left alone."})
    answered = await api.delete(f"/v1/users/{user_id}")
    assert (200, {"linked": other_id}) == (answered.status, answered.json)
    for path in (f"/v1/users/{user_id}/sessions", f"/v1/users/{user_id}/memories"):
        assert [] == next(iter((await api.get(path)).json.values()))
    assert f"{other_id}-call" == (await api.get(f"/v1/users/{other_id}/sessions")).json["sessions"][0]["session_id"]
    assert 1 == len((await api.get(f"/v1/users/{other_id}/memories")).json["memories"])
    assert "Left alone." == (await api.get(f"/v1/users/{other_id}/working-memory")).json["content"]
    assert None is (await api.get(f"/v1/users/{user_id}/working-memory")).json["content"]
    assert 204 == (await api.delete(f"/v1/users/{user_id}")).status
    assert 204 == (await api.delete(f"/v1/users/{other_id}?linked=true")).status


@pytest.mark.parametrize("user_id", IDS)
async def test_an_erasure_follows_a_link_on_request(api: RestClient, user_id: str) -> None:
    """Then both are gone, and no one else."""
    assert 204 == (await api.delete(f"/v1/users/{user_id}?linked=true")).status
    for one in IDS:
        assert [] == (await api.get(f"/v1/users/{one}/sessions")).json["sessions"]
        assert [] == (await api.get(f"/v1/users/{one}/memories")).json["memories"]
    assert 1 == len((await api.get("/v1/users/ben/sessions")).json["sessions"])
    await link(api, "ann", "tel")


async def erase_one_of_two(api: RestClient) -> None:
    """Two users with documents and calls, who are linked; one is erased."""
    for user_id in ("flamingo-77", "tel_4711"):
        await api.create(f"of-{user_id[:3]}", user_id=user_id)
        await api.call("PUT", f"/v1/users/{user_id}/working-memory", json={"content": "Likes tea."})
    await link(api, "tel_4711", "flamingo-77")
    assert {"linked": "tel_4711"} == (await api.delete("/v1/users/flamingo-77")).json


async def test_no_file_names_an_id_that_was_erased(tmp_path: Path) -> None:
    """Neither what is left of the user, nor what is left of the link at the other id."""
    async with running_service(store=f"sqlite:{tmp_path / 'calls.db'}") as app:
        api = RestClient(app)
        await erase_one_of_two(api)

        def count_now(name: bytes) -> int:
            return sum(path.read_bytes().count(name) for path in tmp_path.iterdir() if path.is_file())

        async def count(name: bytes) -> int:
            return await asyncio.to_thread(count_now, name)

        await eventually(0, lambda: count(b"flamingo"), timeout_s=60)
        assert await count(b"tel_4711") > 0
        await api.delete("/v1/users/tel_4711")
        await eventually(0, lambda: count(b"tel_4711"), timeout_s=60)


@pytest.mark.postgresql
async def test_no_row_of_postgresql_names_an_id_that_was_erased(tmp_path: Path) -> None:
    """The same in all tables."""
    with postgresql.database_of(tmp_path) as name:
        async with running_service(store=postgresql.server().url(name)) as app:
            api = RestClient(app)
            await erase_one_of_two(api)

            async def count(text: bytes) -> int:
                return sum(text in value for value in await asyncio.to_thread(lambda: list(values_in(name))))

            await eventually(0, lambda: count(b"flamingo"), timeout_s=60)
            assert await count(b"tel_4711") > 0


async def test_the_library_links_and_erases() -> None:
    """As the service does."""
    async with voicemem.open("memory:") as library:
        for user_id in IDS:
            await library.create(user_id=user_id)
        await library.link_users("tel", "ann")
        await library.link_users("tel", "ann")
        with pytest.raises(Refused, match="linked already"):
            await library.link_users("ann", "tel")
        assert 2 == len(await library.list(user_id="ann"))
        await library.unlink_user("ann")
        assert 1 == len(await library.list(user_id="ann"))
        await library.link_users("ann", "tel")
        assert 2 == await library.erase_user("tel", linked=True)
