"""Everything that is stored of a user, as JSON lines: over REST, by the client, the library and the command line."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import voicemem
from tests.process.cli.test_calls import voicemem as command
from tests.service.rest.test_account import summarise
from tests.service.sessions.test_quarantine import poisoned
from tests.support.callers.client_sessions import client_to
from tests.support.callers.rest import LOOPBACK, RestClient, client_with_key
from tests.support.events import delta, final
from tests.support.samples.audit_lines import ADMIN_KEY, acts
from tests.support.samples.cut_call import CUT_CALL, RESULT
from tests.support.servers.webhook_receiver import webhook_receiver
from tests.support.services import Serve, node_on
from tests.support.stores.damage import Run, replace_run
from tests.support.stores.failing import database_of
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.client import RequestRefused, SyncClient, Unreachable
from voicemem.client.options import Options
from voicemem.client.transport.rest import RestClient as ClientRest
from voicemem.client.transport.rest import read_lines
from voicemem.memory.exports import SESSIONS_AT_ONCE, export_user
from voicemem.protocol.types import JsonObject
from voicemem.sessions.off_loop import PIECE_BYTES
from voicemem.store.port import Store

ENDS = ["export", "end"]
EXPORT = "/v1/users/ann/export"
CALL = [
    *CUT_CALL,
    RESULT,
]


async def export(api: RestClient, query: str = "") -> list[JsonObject]:
    answered = await api.get(f"{EXPORT}{query}")
    assert (200, "application/x-ndjson") == (answered.status, answered.headers["Content-Type"])
    assert "end" == answered.lines[-1]["type"]
    assert len(answered.lines) - 1 == answered.lines[-1]["lines"]
    return answered.lines


def of_type(lines: list[JsonObject], *types: str) -> list[JsonObject]:
    return [{name: line[name] for name in line if name != "type"} for line in lines if line["type"] in types]


async def test_it_has_all_that_is_stored(store: Store) -> None:
    """Documents with their versions, sessions with what was heard and what was not, tool calls and data."""
    async with node_on(store) as app:
        api = RestClient(app)
        await api.call("PUT", "/v1/users/ann/working-memory", json={"content": "Likes jazz."})
        await api.patch("/v1/users/ann/working-memory", {"content": "And tea."})
        made = await api.create("s1", user_id="ann", labels={"line": "shop"})
        await api.send(*CALL, session_id="s1")
        await api.call("PUT", "/v1/sessions/s1/working-memory", json={"content": {"table": 4}})
        await api.call("PUT", "/v1/sessions/s1/data", json={"basket": ["tea"]})
        await api.create("s2", user_id="ann")
        await api.create("s3", user_id="ben")
        await api.send(final(1, "I am Ben.", 1_000), session_id="s3")
        lines = await export(api)
        assert "Ben" not in json.dumps(lines)
    assert {"version": 1, "user_id": "ann", "project": "default", "sessions": 2}.items() <= lines[0].items()
    versions = [(one["session_id"], one["version"], one["content"]) for one in of_type(lines, "document")]
    of_ann = [(None, 1, "Likes jazz."), (None, 2, "Likes jazz.\n\nAnd tea.")]
    assert [*of_ann, ("s1", 1, {"table": 4})] == versions
    assert ["s2", "s1"] == [one["session_id"] for one in of_type(lines, "session")]
    assert made["config"] == of_type(lines, "session")[1]["config"]
    messages = of_type(lines, "message")
    assert [("user", "I am allergic to walnuts."), ("assistant", "Noted.")] == [
        (one["role"], one["content"]) for one in messages
    ]
    assert "Noted. By the way, we have marzipan." == messages[1]["metadata"]["original"]
    assert [{"nut": "walnut"}] == [one["arguments"] for one in of_type(lines, "tool_call")]
    assert [["none"]] == [one["result"] for one in of_type(lines, "tool_call")]
    assert [{"session_id": "s1", "content": {"basket": ["tea"]}}] == of_type(lines, "data")
    assert {"sessions": 2, "messages": 2, "unreadable": 0}.items() <= lines[-1].items()


async def test_memories_are_there(store: Store) -> None:
    """Those of the user, wherever they stand, out of date or not, and those of the user's sessions; each once."""
    async with node_on(store) as app:
        api = RestClient(app)
        await api.create("s", user_id="ann")
        await api.create("b", user_id="ben")

        async def keep(text: str, **more: Any) -> str:
            answered = await api.post("/v1/memories", {"text": text, **more})
            return str(answered.json["memories"][0]["id"])

        ids = [await keep(f"Tea {number}.", user_id="ann", topics=["tea"]) for number in range(120)]
        ids.append(await keep("Now coffee.", user_id="ann", supersedes=ids[:1]))
        ids += [await keep("Said so.", session_id="s"), await keep("Also of Ann.", session_id="b", user_id="ann")]
        await keep("Ben likes milk.", session_id="b")
        await keep("Ben was at Ann's.", session_id="s", user_id="ben")
        await keep("Of nobody.")
        lines = await export(api)
        memories = of_type(lines, "memory")
        shown = (await api.get(f"/v1/memories/{ids[0]}")).json
    assert sorted(ids) == sorted(one["id"] for one in memories)
    assert len(ids) == lines[-1]["memories"]
    assert shown == next(one for one in memories if one["id"] == ids[0])
    assert ids[120] == shown["superseded_by"]


async def test_with_events_it_has_the_journals(app: App) -> None:
    """Each entry as it was taken, on one line."""
    api = RestClient(app)
    await api.create("s", user_id="ann")
    await api.post("/v1/sessions/s/events", b'[{"type":"asr",\n"turn_id":1,\r\n"text":"Hi.","final":true,"seq":1}]')
    assert [] == of_type(await export(api), "event")
    (line,) = of_type(await export(api, "?events=true"), "event")
    assert ("s", 1, "main", "Hi.") == (line["session_id"], line["position"], line["producer"], line["event"]["text"])


async def test_what_was_forgotten_and_what_is_in_progress_is_there(app: App) -> None:
    """Contexts leave it out; it is stored all the same."""
    api = RestClient(app)
    await api.create("s", user_id="ann")
    await api.send(*CALL)
    await api.post("/v1/sessions/s/forget", {})
    await api.send(delta(2, "As I was", 3_000))
    lines = await export(api)
    assert ["I am allergic to walnuts.", "Noted.", "As I was"] == [one["content"] for one in of_type(lines, "message")]
    assert ["find"] == [one["name"] for one in of_type(lines, "tool_call")]


async def test_what_was_made_of_calls_is_there(app: App) -> None:
    """Every summary, also one that was replaced or forgotten, and what was carried over from a call that is erased."""
    api = RestClient(app)
    await api.create("before", user_id="ann")
    await api.send(final(1, "I like tea.", 1_000), session_id="before")
    await api.end("before")
    await api.create("s", user_id="ann", memory_from={"sessions": 1})
    await api.send(*CALL)
    await api.get("/v1/sessions/s/context")
    await api.delete("/v1/sessions/before")
    await summarise(app, 1, "One.")
    await summarise(app, 1, "Two.")
    await api.post("/v1/sessions/s/forget", {"everything": True})
    lines = await export(api)
    assert ["One.", "Two."] == [one["text"] for one in of_type(lines, "summary")]
    (carried,) = of_type(lines, "carried")
    assert ("s", "before") == (carried["session_id"], carried["from"])
    assert "I like tea." in carried["text"]


async def test_it_says_who_was_told(serve: Serve) -> None:
    """The host of each receiver, and what became of the webhook, without the secrets that its address may have."""
    async with webhook_receiver() as hook:
        api = RestClient(await serve(allow_addresses=LOOPBACK))
        await api.create("s", user_id="ann", webhook={"url": hook.url("/secret?token=hush")})
        await api.send(*CALL)
        await api.end()

        async def delivered() -> set[str]:
            return {one["state"] for one in of_type(await export(api), "delivery")}

        await eventually({"delivered"}, delivered)
        lines = await export(api)
    assert {"127.0.0.1"} == {one["receiver"] for one in of_type(lines, "delivery")}
    assert not [line for line in of_type(lines, "delivery") if "hush" in json.dumps(line)]


async def test_of_a_stranger_it_says_that_there_is_nothing(app: App) -> None:
    """Which is an answer too; an id that cannot be one is refused."""
    api = RestClient(app)
    lines = await export(api)
    assert (["export", "end"], 0) == ([line["type"] for line in lines], lines[0]["sessions"])
    assert (400, "invalid_field") == (await api.get(f"/v1/users/{'a' * 129}/export")).problem
    assert (400, "invalid_query") == (await api.get(f"{EXPORT}?events=perhaps")).problem


async def test_only_an_administrator_of_the_project_gets_it(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Other keys and session tokens are refused; another project has another Ann; the audit log has a line."""
    app = await serve(admin_key=ADMIN_KEY)
    admin = RestClient(app, ADMIN_KEY)
    await admin.create("s", user_id="ann")
    await admin.send(*CALL)
    for scopes in (["read"], ["ingest"], ["read", "ingest"]):
        assert (403, "forbidden") == (await (await client_with_key(app, *scopes)).get(EXPORT)).problem
    token = (await admin.post("/v1/sessions/s/tokens")).json["token"]
    assert (403, "forbidden") == (await RestClient(app, token).get(EXPORT)).problem
    other = await client_with_key(app, "admin", project="other")
    assert ["export", "end"] == [line["type"] for line in await export(other)]
    caplog.clear()
    await export(admin)
    assert [{"act": "user_exported", "by": "environment", "project": "default"}] == acts(caplog)


async def test_erased_sessions_are_not_in_it(app: App) -> None:
    """Nor is an erased user."""
    api = RestClient(app)
    for name in ("s1", "s2"):
        await api.create(name, user_id="ann")
        await api.send(*CALL, session_id=name)
    await api.delete("/v1/sessions/s1")
    assert ["s2"] == [one["session_id"] for one in of_type(await export(api), "session")]
    await api.delete("/v1/users/ann")
    assert ["export", "end"] == [line["type"] for line in await export(api)]


async def test_a_session_that_is_quarantined_comes_with_what_can_be_read(app: App) -> None:
    """The export goes on, and says of which session something is missing."""
    await poisoned(app, user_id="ann")
    api = RestClient(app)
    await api.create("good", user_id="ann")
    await api.send(*CALL, session_id="good")
    lines = await export(api)
    assert ["good", "bad"] == [one["session_id"] for one in of_type(lines, "session")]
    missing = of_type(lines, "unreadable")
    assert [{"session_id": "bad", "part": "memory"}, {"session_id": "bad", "part": "events"}] == missing
    assert 2 == lines[-1]["unreadable"]


async def test_a_session_that_is_damaged_behind_its_snapshot_is_there_once(app: App) -> None:
    """With what the snapshot has of it, and a line that says that something is missing."""
    api = RestClient(app)
    await api.create("bad", user_id="ann")
    await api.send(*CALL, session_id="bad")
    for change in ("forget", "refold"):
        await api.post(f"/v1/sessions/bad/{change}", {})
    stream = await app.services.store.journal.get_session("default", "bad")
    await replace_run(database_of(app), stream.key, Run(b"{", 1), stream.position)
    lines = await export(api)
    assert ["bad"] == [one["session_id"] for one in of_type(lines, "session")]
    assert ["memory", "events"] == [one["part"] for one in of_type(lines, "unreadable")]
    assert {"sessions": 1, "messages": len(of_type(lines, "message")), "unreadable": 2}.items() <= lines[-1].items()
    assert of_type(lines, "message")


async def test_it_is_made_while_it_is_read(app: App) -> None:
    """Of many sessions a few are looked at ahead of the reader, of a long one a few turns; none is kept in memory."""
    api = RestClient(app)
    turns, said = 201, "x" * 1_000
    for number in range(2 * SESSIONS_AT_ONCE + 1):
        await api.create(f"s{number}", user_id="ann")
    await api.send(*[final(turn, f"Turn {turn}: {said}", turn) for turn in range(1, turns + 1)], session_id="s0")
    services = app.services
    services.read_models.discard_all()
    pieces = export_user(services.store, services.read_models, "default", "ann", services.runtime.clock)
    made = [piece async for piece in pieces]
    assert max(map(len, made)) < PIECE_BYTES + 2 * len(said)
    assert 2 * SESSIONS_AT_ONCE + 1 + turns + 2 == sum(piece.count(b"\n") for piece in made)
    assert {} == dict(services.read_models.cached)


async def test_the_client_reads_it(app: App) -> None:
    """Line by line, also from synchronous code; an export that is cut short is an error."""
    api = RestClient(app)
    await api.create("s", user_id="ann/b")
    await api.send(*CALL)
    async with client_to(app) as client:
        lines = [line async for line in client.export_user("ann/b", events=True)]
        assert ["export", "session", "end"] == [
            one["type"] for one in lines if one["type"] in ("export", "session", "end")
        ]
        assert len(CALL) == len(of_type(lines, "event"))
        with pytest.raises(RequestRefused, match="invalid_field"):
            [line async for line in client.export_user("a" * 129)]


@pytest.mark.parametrize("user_id", [".", ".."])
async def test_ids_that_a_path_would_lose(app: App, user_id: str) -> None:
    """They are users like others for the client: their memories, their export, and their erasure by the command."""
    api = RestClient(app)
    await api.create("s", user_id=user_id)
    async with client_to(app) as client:
        await client.memories.add("Likes tea.", user_id=user_id)
        assert 1 == len((await client.memories.of_user(user_id))["memories"])
        assert {"session", "memory"} <= {line["type"] async for line in client.export_user(user_id)}
    code, said, errors = await command("erase-user", user_id, "--yes", "--url", api.base)
    assert (0, "") == (code, errors), said
    assert 404 == (await api.get("/v1/sessions/s")).status


async def test_an_export_that_is_cut_short_is_an_error() -> None:
    """Whoever keeps it would take a part for the whole."""

    class Cut(ClientRest):
        async def lines(self, path: str, query: Any) -> Any:
            yield {"type": "export", "sessions": 1}

    with pytest.raises(Unreachable, match="cut short"):
        [line async for line in read_lines(Cut("http://127.0.0.1:1", None, Options()), "/v1/users/ann/export", {})]


async def test_synchronous_code_reads_it(app: App) -> None:
    """As it comes, and may stop before its end."""
    api = RestClient(app)
    await api.create("s", user_id="ann")
    await api.send(*CALL)

    def read() -> tuple[list[str], str]:
        with SyncClient(f"ws://{app.ingest_address}", f"http://{app.rest_address}") as client:
            types = [line["type"] for line in client.export_user("ann")]
            return types, next(client.export_user("ann"))["type"]

    types, first = await asyncio.to_thread(read)
    assert ("export", "end", "export") == (types[0], types[-1], first)


async def test_the_library_gives_it(tmp_path: Path) -> None:
    """Without a server, and without `await`."""
    async with voicemem.open(f"sqlite:{tmp_path}/calls.db") as library:
        call = await library.create("s", user_id="ann")
        await call.add({"role": "user", "content": "Hi"})
        lines = [line async for line in library.export_user("ann", events=True)]
    assert ["export", "session", "message", "event", "end"] == [line["type"] for line in lines]


def test_the_library_gives_it_to_synchronous_code(tmp_path: Path) -> None:
    """As an iterator."""
    with voicemem.open_sync(f"sqlite:{tmp_path}/calls.db") as library:
        library.create("s", user_id="ann").add({"role": "user", "content": "Hi"})
        assert ["Hi"] == [line["content"] for line in library.export_user("ann") if line["type"] == "message"]


@pytest.mark.long
async def test_the_command_writes_it_down(app: App, tmp_path: Path) -> None:
    """Into a file that only its owner may read and that is whole; or it prints it."""
    api = RestClient(app)
    await api.create("s", user_id="ann")
    await api.send(*CALL)
    path = tmp_path / "ann.jsonl"
    code, output, _ = await command("export-user", "ann", "--output", str(path), "--url", api.base)
    assert (0, f"{path} has 1 session and 2 messages of ann\n") == (code, output)
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert of_type(await export(api), "message") == of_type(written, "message")
    assert "end" == written[-1]["type"]
    code, _, errors = await command("export-user", "ann", "--output", str(path), "--url", api.base)
    assert (1, True) == (code, "--force" in errors)
    code, output, errors = await command("export-user", "nobody", "--url", api.base)
    assert "nothing is stored of nobody" in errors
    assert (0, ["export", "end"]) == (code, [json.loads(line)["type"] for line in output.splitlines()])
    code, _, errors = await command("erase-user", "ann", "--url", api.base)
    assert (1, True) == (code, "--yes" in errors)
    code, output, errors = await command("erase-user", "ann", "--yes", "--url", api.base)
    assert (0, "ann is erased, with 1 call and 0 memories\n") == (code, output)
    code, output, errors = await command("erase-user", "ann", "--yes", "--url", api.base)
    assert (1, "", "voicemem: Nothing is stored of ann.\n") == (code, output, errors)
    code, _, errors = await command("export-user", "ann", "--output", f"{path}2", "--url", "http://127.0.0.1:1")
    assert (1, True, ["ann.jsonl"]) == (code, "127.0.0.1:1" in errors, sorted(os.listdir(tmp_path)))
