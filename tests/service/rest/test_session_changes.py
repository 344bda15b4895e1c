"""Sessions over REST: change, end, erase."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.producer import open_over_websocket, send_over_websocket
from tests.support.callers.rest import RestClient
from tests.support.events import final
from tests.support.rows import every_row
from tests.support.samples.session_configs import BAD_CONFIGS, SECRETS, listed
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject
from voicemem.store.session_filters import SessionFilter


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller of an empty service."""
    return RestClient(await serve())


# Change


async def test_a_patch_is_merged(api: RestClient) -> None:
    """What a merge patch names is replaced or added, what it does not name stays, null takes away."""
    await api.create(name="Call", labels={"a": "1", "b": "2"}, llm={"model": "m", "params": {"top_p": 1, "seed": 2}})
    patch = {"name": None, "labels": {"b": None, "c": "3"}, "llm": {"params": {"seed": None, "n": 1}}, "channel": "x"}
    answered = await api.patch("/v1/sessions/s", patch)
    config = {"labels": {"a": "1", "c": "3"}, "llm": {"model": "m", "params": {"top_p": 1, "n": 1}}, "channel": "x"}
    assert (200, config) == (answered.status, answered.json["config"])
    assert answered.json == await api.session()


@pytest.mark.parametrize("section", ["labels", "llm", "webhook", "interruptable", "idle_timeout"])
async def test_a_whole_section_can_be_taken_away(api: RestClient, section: str) -> None:
    """Null removes a section, after which its defaults hold, and the session goes on."""
    config = {"labels": {"a": "1"}, "interruptable": False, "idle_timeout": 9, **SECRETS}
    await api.create(**config)
    assert 200 == (await api.patch("/v1/sessions/s", {section: None})).status
    assert section not in (await api.session())["config"]
    assert [] == (await api.send(final(1, "Hi.")))["errors"]


@pytest.mark.parametrize("section", ["llm", "webhook"])
async def test_a_section_goes_with_its_secret(api: RestClient, section: str) -> None:
    """What null takes away takes its secret along, so that no later patch brings it back to use."""
    await api.create(**{section: SECRETS[section]})
    await api.patch("/v1/sessions/s", {section: None})
    assert 200 == (await api.post("/v1/sessions", {"session_id": "s"})).status


async def test_system_messages_are_short_for_those_of_the_llm(api: RestClient) -> None:
    """At the top they mean `llm.system_messages`, in a new session, a patch and an update, and null removes them."""
    kind, short = [{"role": "system", "content": "Be kind."}], [{"role": "system", "content": "Be short."}]
    session = await api.create(system_messages=kind, llm={"model": "m"})
    assert {"llm": {"model": "m", "system_messages": kind}} == session["config"]
    await api.patch("/v1/sessions/s", {"system_messages": short})
    assert short == (await api.session())["config"]["llm"]["system_messages"]
    await api.send({"type": "session.update", "system_messages": kind})
    assert [*kind] == (await api.context())["messages"]
    await api.patch("/v1/sessions/s", {"system_messages": None})
    assert {"llm": {"model": "m"}} == (await api.session())["config"]


async def test_a_patch_is_in_the_journal(api: RestClient) -> None:
    """A change is an event of the server's own, and an update the producer's."""
    await api.create()
    await api.patch("/v1/sessions/s", {"labels": {"a": "1"}})
    await api.send({"type": "session.update", "labels": {"b": "2"}})
    own, produced = await api.journal()
    assert (None, None, {"type": "session.update", "labels": {"a": "1"}}) == (
        own["producer"],
        own["seq"],
        own["event"],
    )
    assert ("main", {"type": "session.update", "labels": {"b": "2"}}) == (produced["producer"], produced["event"])
    assert {"labels": {"a": "1", "b": "2"}} == (await api.session())["config"]


@every_row("config", BAD_CONFIGS, ids=str)
async def test_a_bad_patch_changes_nothing(in_session: RestClient, config: JsonObject) -> None:
    """A patch is taken whole or not at all."""
    before = await in_session.session()
    assert (400, "invalid_field") == (await in_session.patch("/v1/sessions/s", {"channel": "x", **config})).problem
    assert before == await in_session.session()


async def test_patches_cannot_add_up_to_too_many_labels(api: RestClient) -> None:
    """The limit of 64 labels holds for the merged configuration, in patches and updates."""
    await api.create(labels={str(number): "x" for number in range(64)})
    more = {"labels": {"64": "x"}}
    assert (400, "invalid_field") == (await api.patch("/v1/sessions/s", more)).problem
    assert ["invalid_field"] == [
        error["code"] for error in (await api.send({"type": "session.update", "seq": 1, **more}))["errors"]
    ]
    assert 200 == (await api.patch("/v1/sessions/s", {"labels": {"0": None, "64": "x"}})).status
    assert 64 == len((await api.session())["config"]["labels"])


@pytest.mark.parametrize("body", [b"[]", b"7", b'"x"', b"null"])
async def test_a_patch_is_an_object(api: RestClient, body: bytes) -> None:
    """Whatever else a body holds, it is refused."""
    await api.create()
    assert 400 == (await api.call("PATCH", "/v1/sessions/s", data=body)).problem[0]


async def test_a_session_that_has_ended_is_not_changed(api: RestClient) -> None:
    """After the close the configuration stays as it was."""
    await api.create(name="Call")
    ended = await api.end()
    assert (410, "session_ended") == (await api.patch("/v1/sessions/s", {"name": "x"})).problem
    assert ended == await api.session()


# Secrets


async def test_secrets_are_shown_nowhere(api: RestClient) -> None:
    """No answer holds a secret, whether it was given at the start, in a patch, or in an update."""
    created = await api.post("/v1/sessions", {"session_id": "s", **SECRETS})
    patched = await api.patch("/v1/sessions/s", {"llm": {"api_key": "sk-hush2"}, "webhook": {"secret": "hush3"}})
    sent = await api.post(
        "/v1/sessions/s/events", [{"type": "session.update", "seq": 1, "llm": {"api_key": "sk-hush4"}}]
    )
    paths = ["", "/events", "/history", "/context", "/turns"]
    read = [await api.get(f"/v1/sessions/s{path}") for path in paths] + [await api.get("/v1/sessions")]
    assert not any(b"hush" in one.body for one in [created, patched, sent, *read])
    assert {"vendor": "custom", "url": "https://llm.example/v1"} == (await api.session())["config"]["llm"]


@pytest.mark.parametrize(
    "update",
    [
        b'{"type":"session.update","llm":{"api_key":"hush"},"llm":{}}',
        b'{"type":"session.update","webhook":{"secret":"hush","contents":"full"},"webhook":{"contents":"full"}}',
        b'{"type":"session.update","llm":{"api_key":"hush","api_key":"hush"}}',
        b'{"type":"session.update","llm":{"\\u0061pi_key":"hush"}}',
        b'{"type":"session.update","seq":1,"llm":{"api_key":"hush","model":7}}',
    ],
)
async def test_no_spelling_brings_a_secret_into_the_journal(api: RestClient, update: bytes) -> None:
    """Doubled keys, escapes and refused updates leave no secret behind."""
    await api.create()
    await api.post("/v1/sessions/s/events", update)
    assert b"hush" not in (await api.get("/v1/sessions/s/events")).body


async def test_secrets_are_not_in_the_journal_on_disk(serve: Serve, tmp_path: Path) -> None:
    """The rows of the journal hold no secret, nor does the configuration beside them."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db")
    api = RestClient(app)
    await api.create(**SECRETS)
    await api.patch("/v1/sessions/s", {"llm": {"api_key": "hush2"}})
    await api.send({"type": "session.update", "webhook": {"secret": "hush3"}})
    (stream,) = await app.services.store.journal.list_sessions(SessionFilter(project="default"))
    rows = await app.services.store.journal.read_rows(stream.key, 0, 100)
    assert [1, 2] == [row.position for row in rows]
    assert b"hush" not in b"".join(row.payload for row in rows) + repr(stream.config).encode()


# End


@pytest.mark.parametrize(("body", "reason"), [(None, "api"), ({}, "api"), ({"reason": "left"}, "left")])
async def test_end_closes_at_once(api: RestClient, body: Any, reason: str) -> None:
    """The answer shows the closed session, with the reason that was given."""
    await api.create()
    answered = await api.post("/v1/sessions/s/end", body)
    assert (200, "ended", reason) == (answered.status, answered.json["state"], answered.json["reason"])
    assert answered.json["ended_at"] >= answered.json["started_at"]
    assert answered.json == await api.session()


async def test_a_second_end_changes_nothing(api: RestClient) -> None:
    """The first end counts; the close is journaled once."""
    await api.create()
    ended = await api.end(reason="left")
    assert ended == await api.end(reason="again")
    assert ["session.closed"] == [row["event"]["type"] for row in await api.journal()]


async def test_of_many_ends_at_once_one_counts(api: RestClient) -> None:
    """A session is closed once, however many callers end it at one time."""
    await api.create()
    answers = await asyncio.gather(*(api.end(reason=str(number)) for number in range(8)))
    assert 1 == len({one["reason"] for one in answers}) == (await api.session())["position"]


async def test_after_the_end_new_events_are_refused_and_old_ones_acknowledged(api: RestClient) -> None:
    """What was stored before is acknowledged again, what is new is not taken."""
    await api.create()
    first = final(1, "Hi.", seq=1)
    await api.send(first)
    await api.end()
    answered = await api.send(first, final(2, "Late.", seq=2))
    assert [(2, "session_ended")] == [(error["seq"], error["code"]) for error in answered["errors"]]
    assert 2 == (await api.session())["position"]


@pytest.mark.parametrize("reason", ["left", "ended", "api", "max_duration", "idle"])
async def test_an_end_by_request_is_final_whatever_its_reason(api: RestClient, reason: str) -> None:
    """Only a close by silence is provisional; a caller's reason does not make a close one."""
    await api.create()
    await api.end(reason=reason)
    answered = await api.send(final(1, "Late.", seq=1))
    assert ["session_ended"] == [error["code"] for error in answered["errors"]]
    assert "ended" == (await api.session())["state"]


@pytest.mark.parametrize("body", [{"reason": 7}, {"why": "x"}, {"reason": "x", "last_seq": 3}, [], "left"])
async def test_a_bad_end_ends_nothing(api: RestClient, body: Any) -> None:
    """The body of an end holds a reason, which is text, and nothing else."""
    await api.create()
    assert 400 == (await api.post("/v1/sessions/s/end", body)).problem[0]
    assert "running" == (await api.session())["state"]


async def test_a_reason_is_bounded(api: RestClient) -> None:
    """A reason is a text, and texts are at most 256 KiB."""
    await api.create()
    assert (400, "text_too_long") == (await api.post("/v1/sessions/s/end", {"reason": "x" * (256 * 1024 + 1)})).problem


# Erase


async def test_after_an_erase_nothing_is_left(api: RestClient) -> None:
    """DELETE answers 204 without a body; then every path of the session is 404, and it is in no list."""
    await api.create(user_id="ann", labels={"a": "1"})
    await api.send(final(1, "Hi.", seq=1))
    erased = await api.delete("/v1/sessions/s")
    assert (204, b"") == (erased.status, erased.body)
    for path in ("", "/history", "/context", "/turns", "/events"):
        assert (404, "unknown_session") == (await api.get(f"/v1/sessions/s{path}")).problem
    assert [] == await listed(api) == await listed(api, "?user_id=ann") == await listed(api, "?label=a:1")


async def test_an_erased_session_cannot_be_changed_ended_or_erased_again(api: RestClient) -> None:
    """What is gone is gone for writers too."""
    await api.create()
    await api.delete("/v1/sessions/s")
    assert (404, "unknown_session") == (await api.patch("/v1/sessions/s", {})).problem
    assert (404, "unknown_session") == (await api.post("/v1/sessions/s/end")).problem
    assert (404, "unknown_session") == (await api.delete("/v1/sessions/s")).problem
    assert (404, "unknown_session") == (await api.post("/v1/sessions/s/events", [final(1, "Hi.")])).problem


async def test_an_erased_id_is_not_used_again(api: RestClient) -> None:
    """Creating it once more is 410, so that no one takes one caller's session for another's."""
    await api.create(name="Call")
    await api.delete("/v1/sessions/s")
    assert (410, "session_erased") == (await api.post("/v1/sessions", {"session_id": "s", "name": "Call"})).problem


async def test_a_buffered_producer_does_not_bring_a_session_back(serve: Serve) -> None:
    """A producer that opens an erased session is told so, and there is none again."""
    app = await serve()
    api = RestClient(app)
    await send_over_websocket(app, [final(1, "Hi.")])
    await api.delete("/v1/sessions/s")
    answer = await open_over_websocket(app, from_seq=2)
    assert ("error", "session_erased") == (answer["type"], answer["code"])
    assert 404 == (await api.get("/v1/sessions/s/history")).status
    assert [] == await listed(api)


async def test_an_ended_session_can_be_erased(api: RestClient) -> None:
    """Erasing does not ask for the state."""
    await api.create()
    await api.end()
    assert 204 == (await api.delete("/v1/sessions/s")).status
    assert 404 == (await api.get("/v1/sessions/s")).status


async def test_erasing_one_session_leaves_the_others(api: RestClient) -> None:
    """Only the named session goes."""
    for name in ("a", "b"):
        await api.create(name)
        await api.send(final(1, f"From {name}."), session_id=name)
    await api.delete("/v1/sessions/a")
    assert ["From b."] == [one["content"] for one in await api.contents("b")]
