"""Sessions over REST: create, list, read, change, end, erase."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from callers import Caller, JsonObject, Serve, keyed, opening, produce, talk
from calls import final

from voicemem.store.records import SessionFilter

URL = "https://receiver.example/hook"
SECRETS: JsonObject = {
    "llm": {"vendor": "custom", "api_key": "sk-hush", "url": "https://llm.example/v1"},
    "webhook": {"url": URL, "secret": "whsec_hush"},
}


@pytest.fixture
async def api(serve: Serve) -> Caller:
    """A caller of an empty service."""
    return Caller(await serve())


async def listed(api: Caller, query: str = "") -> list[str]:
    """The ids of the sessions on the first page."""
    answered = await api.get(f"/v1/sessions{query}")
    assert 200 == answered.status, answered.body
    return [session["session_id"] for session in answered.json["sessions"]]


async def pages(api: Caller, query: str) -> list[str]:
    """The ids of the sessions on all pages, in their order."""
    ids, cursor = [], ""
    while cursor is not None:
        page = (await api.get(f"/v1/sessions?{query}{cursor}")).json
        ids += [session["session_id"] for session in page["sessions"]]
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
    return ids


# Create


async def test_create_answers_201_with_the_session(api: Caller) -> None:
    """A new session is shown as it is: running, empty, with its configuration."""
    answered = await api.post("/v1/sessions", {"session_id": "s", "name": "Call", "labels": {"line": "7"}})
    session = answered.json
    assert 201 == answered.status
    assert session.pop("started_at") > 1_700_000_000_000
    config = {"name": "Call", "labels": {"line": "7"}}
    assert {
        "session_id": "s",
        "state": "running",
        "reason": None,
        "ended_at": None,
        "position": 0,
        "config": config,
    } == session


@pytest.mark.parametrize("body", [b"", b"{}", b' {"session_id": null} '])
async def test_without_an_id_the_service_makes_one(api: Caller, body: bytes) -> None:
    """An id of its own is given to every session that brings none."""
    ids = {(await api.post("/v1/sessions", body)).json["session_id"] for _ in range(3)}
    assert 3 == len(ids)
    assert all(re.fullmatch("[A-Za-z0-9._:-]{16,128}", one) for one in ids)


async def test_the_same_again_answers_200(api: Caller) -> None:
    """Creating is safe to repeat, also when the keys come in another order and the call has ended."""
    config = {"name": "Call", "labels": {"a": "1", "b": "2"}, **SECRETS}
    created = await api.create(**config)
    again = await api.post("/v1/sessions", {**dict(reversed(config.items())), "session_id": "s"})
    assert (200, created) == (again.status, again.json)
    ended = await api.end()
    again = await api.post("/v1/sessions", {"session_id": "s", **config})
    assert (200, ended) == (again.status, again.json)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"name": "other"},
        {"name": "Call", "channel": "c"},
        {"name": "Call", "llm": {"api_key": "sk-other"}},
        {"name": "Call", "llm": {}, "webhook": {"secret": "x"}},
    ],
)
async def test_another_configuration_answers_409(api: Caller, other: JsonObject) -> None:
    """An id that is taken by a different session is a conflict, also when only a secret differs."""
    before = await api.create(name="Call", llm={"api_key": "sk-one"})
    assert (409, "session_exists") == (await api.post("/v1/sessions", {"session_id": "s", **other})).told
    assert before == await api.session()


async def test_true_is_not_one(api: Caller) -> None:
    """Configurations are compared as JSON, where a boolean is no number."""
    await api.create(llm={"params": {"stream": 1}})
    again = await api.post("/v1/sessions", {"session_id": "s", "llm": {"params": {"stream": True}}})
    assert 409 == again.status


@pytest.mark.parametrize("field", ["name", "llm", "webhook", "labels", "interruptable", "idle_timeout"])
async def test_a_null_in_a_new_configuration_is_a_field_left_out(api: Caller, field: str) -> None:
    """Nothing can be taken away from a session that is not there yet."""
    answered = await api.post("/v1/sessions", {"session_id": "s", field: None})
    assert 201 == answered.status
    assert {} == answered.json["config"]


async def test_a_null_secret_can_be_repeated(api: Caller) -> None:
    """The same body twice is the same session, whatever is null in it."""
    body = {"session_id": "s", "webhook": {"url": URL, "secret": None}}
    assert [201, 200] == [(await api.post("/v1/sessions", body)).status for _ in range(2)]


async def test_of_many_creates_at_once_one_is_first(api: Caller) -> None:
    """However many callers create the same session at one time, there is one."""
    answers = await asyncio.gather(*(api.post("/v1/sessions", {"session_id": "s"}) for _ in range(10)))
    assert [200] * 9 + [201] == sorted(one.status for one in answers)


async def test_a_session_made_over_the_websocket_is_there(serve: Serve) -> None:
    """Both ways in make the same sessions."""
    app = await serve()
    await produce(app, [final(1, "Hi.")], session={"name": "Call"})
    assert {"name": "Call"} == (await Caller(app).session())["config"]
    assert 200 == (await Caller(app).post("/v1/sessions", {"session_id": "s", "name": "Call"})).status


BAD_IDS = ["", "a b", "a/b", "ä", "a\n", "a\0", "x" * 129, "a%2Fb", "😀", 7, True, [], {}]


@pytest.mark.parametrize("session_id", BAD_IDS)
async def test_ids_that_cannot_be_are_refused(api: Caller, session_id: Any) -> None:
    """A session id is 1 to 128 safe characters."""
    assert (400, "invalid_field") == (await api.post("/v1/sessions", {"session_id": session_id})).told
    assert [] == await listed(api)


@pytest.mark.parametrize("session_id", ["x" * 128, "..", ".", "-", "a:b", "call.2026-11-21:07"])
async def test_every_allowed_id_can_be_read_again(serve: Serve, session_id: str) -> None:
    """What may be an id works in a path, dots included."""
    app = await serve()
    await Caller(app).create(session_id)
    raw = f"GET /v1/sessions/{session_id} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await talk(app, raw.encode())
    assert answer.startswith(b"HTTP/1.1 200")
    assert f'"session_id":"{session_id}"'.encode() in answer


BAD_CONFIGS: list[JsonObject] = [
    {"nmae": "typo"},
    {"name": 7},
    {"user_id": ""},
    {"user_id": "x" * 129},
    {"labels": {"a": 1}},
    {"labels": {"b": []}},
    {"labels": ["a"]},
    {"labels": {str(number): "x" for number in range(65)}},
    {"llm": "gpt"},
    {"llm": {"styel": "openai"}},
    {"llm": {"style": "smoke-signals"}},
    {"llm": {"max_history": 0}},
    {"llm": {"max_history": 1025}},
    {"llm": {"max_history": 1.5}},
    {"llm": {"params": []}},
    {"llm": {"url": "ftp://x/"}},
    {"llm": {"url": "https://user:pass@x/"}},
    {"llm": {"system_messages": [{"content": "no role"}]}},
    {"llm": {"system_messages": "Be kind."}},
    {"system_messages": [7]},
    {"interruptable": "yes"},
    {"interruptable": 1},
    {"webhook": {"url": URL, "contents": "some"}},
    {"webhook": {"url": ""}},
    {"idle_timeout": -1},
    {"idle_timeout": "60"},
    {"reopen_window": 1e11},
    {"max_duration": True},
    {"ttl_seconds": -0.1},
    {"name": 2**53 + 1},
    {"llm": {"params": {"seed": 2**64}}},
]


@pytest.mark.parametrize("config", BAD_CONFIGS, ids=str)
async def test_bad_configurations_are_refused(api: Caller, config: JsonObject) -> None:
    """What a session cannot be configured with is a 400, and makes no session."""
    assert (400, "invalid_field") == (await api.post("/v1/sessions", {"session_id": "s", **config})).told
    assert [] == await listed(api)


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://[::1]/", "http://169.254.169.254/", "http://localhost/"])
async def test_private_receivers_are_refused(api: Caller, url: str) -> None:
    """An address inside the operator's network cannot be a session's receiver, at creation or later."""
    hook = {"webhook": {"url": url}}
    assert (400, "address_not_allowed") == (await api.post("/v1/sessions", {"session_id": "no", **hook})).told
    await api.create()
    assert (400, "address_not_allowed") == (await api.patch("/v1/sessions/s", hook)).told
    (error,) = (await api.send({"type": "session.update", "seq": 1, **hook}))["errors"]
    assert "address_not_allowed" == error["code"]
    assert {} == (await api.session())["config"]


# Read


@pytest.mark.parametrize("path", ["", "/history", "/context", "/turns", "/events"])
async def test_a_session_that_is_not_there_is_404(api: Caller, path: str) -> None:
    """Nothing can be read of a session that was never made."""
    assert (404, "unknown_session") == (await api.get(f"/v1/sessions/nobody{path}")).told


async def test_a_session_shows_what_was_acknowledged(api: Caller) -> None:
    """Position and state are those after the last acknowledged event."""
    await api.create()
    for seq in range(1, 4):
        await api.send(final(seq, "Hi.", seq=seq))
        assert seq == (await api.session())["position"]


# Change


async def test_a_patch_is_merged(api: Caller) -> None:
    """What a merge patch names is replaced or added, what it does not name stays, null takes away."""
    await api.create(name="Call", labels={"a": "1", "b": "2"}, llm={"model": "m", "params": {"top_p": 1, "seed": 2}})
    patch = {"name": None, "labels": {"b": None, "c": "3"}, "llm": {"params": {"seed": None, "n": 1}}, "channel": "x"}
    answered = await api.patch("/v1/sessions/s", patch)
    config = {"labels": {"a": "1", "c": "3"}, "llm": {"model": "m", "params": {"top_p": 1, "n": 1}}, "channel": "x"}
    assert (200, config) == (answered.status, answered.json["config"])
    assert answered.json == await api.session()


@pytest.mark.parametrize("section", ["labels", "llm", "webhook", "interruptable", "idle_timeout"])
async def test_a_whole_section_can_be_taken_away(api: Caller, section: str) -> None:
    """Null removes a section, after which its defaults hold, and the session goes on."""
    config = {"labels": {"a": "1"}, "interruptable": False, "idle_timeout": 9, **SECRETS}
    await api.create(**config)
    assert 200 == (await api.patch("/v1/sessions/s", {section: None})).status
    assert section not in (await api.session())["config"]
    assert [] == (await api.send(final(1, "Hi.")))["errors"]


@pytest.mark.parametrize("section", ["llm", "webhook"])
async def test_a_section_goes_with_its_secret(api: Caller, section: str) -> None:
    """What null takes away takes its secret along, so that no later patch brings it back to use."""
    await api.create(**{section: SECRETS[section]})
    await api.patch("/v1/sessions/s", {section: None})
    assert 200 == (await api.post("/v1/sessions", {"session_id": "s"})).status


async def test_system_messages_are_short_for_those_of_the_llm(api: Caller) -> None:
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


async def test_a_patch_is_in_the_journal(api: Caller) -> None:
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


@pytest.mark.parametrize("config", BAD_CONFIGS, ids=str)
async def test_a_bad_patch_changes_nothing(api: Caller, config: JsonObject) -> None:
    """A patch is taken whole or not at all."""
    before = await api.create(name="Call")
    assert (400, "invalid_field") == (await api.patch("/v1/sessions/s", {"channel": "x", **config})).told
    assert before == await api.session()


async def test_patches_cannot_add_up_to_too_many_labels(api: Caller) -> None:
    """The limit of 64 labels holds for the merged configuration, in patches and updates."""
    await api.create(labels={str(number): "x" for number in range(64)})
    more = {"labels": {"64": "x"}}
    assert (400, "invalid_field") == (await api.patch("/v1/sessions/s", more)).told
    assert ["invalid_field"] == [
        error["code"] for error in (await api.send({"type": "session.update", "seq": 1, **more}))["errors"]
    ]
    assert 200 == (await api.patch("/v1/sessions/s", {"labels": {"0": None, "64": "x"}})).status
    assert 64 == len((await api.session())["config"]["labels"])


@pytest.mark.parametrize("body", [b"[]", b"7", b'"x"', b"null"])
async def test_a_patch_is_an_object(api: Caller, body: bytes) -> None:
    """Whatever else a body holds, it is refused."""
    await api.create()
    assert 400 == (await api.call("PATCH", "/v1/sessions/s", data=body)).told[0]


async def test_a_session_that_has_ended_is_not_changed(api: Caller) -> None:
    """After the close the configuration stays as it was."""
    await api.create(name="Call")
    ended = await api.end()
    assert (409, "session_ended") == (await api.patch("/v1/sessions/s", {"name": "x"})).told
    assert ended == await api.session()


# Secrets


async def test_secrets_are_shown_nowhere(api: Caller) -> None:
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
async def test_no_spelling_brings_a_secret_into_the_journal(api: Caller, update: bytes) -> None:
    """Doubled keys, escapes and refused updates leave no secret behind."""
    await api.create()
    await api.post("/v1/sessions/s/events", update)
    assert b"hush" not in (await api.get("/v1/sessions/s/events")).body


async def test_secrets_are_not_in_the_journal_on_disk(serve: Serve, tmp_path: Path) -> None:
    """The rows of the journal hold no secret, nor does the configuration beside them."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db")
    api = Caller(app)
    await api.create(**SECRETS)
    await api.patch("/v1/sessions/s", {"llm": {"api_key": "hush2"}})
    await api.send({"type": "session.update", "webhook": {"secret": "hush3"}})
    (stream,) = await app.services.store.streams(SessionFilter(project="default"))
    rows = await app.services.store.rows(stream.key, 0, 100)
    assert [1, 2] == [row.position for row in rows]
    assert b"hush" not in b"".join(row.payload for row in rows) + repr(stream.config).encode()


# End


@pytest.mark.parametrize(("body", "reason"), [(None, "api"), ({}, "api"), ({"reason": "left"}, "left")])
async def test_end_closes_at_once(api: Caller, body: Any, reason: str) -> None:
    """The answer shows the closed session, with the reason that was given."""
    await api.create()
    answered = await api.post("/v1/sessions/s/end", body)
    assert (200, "ended", reason) == (answered.status, answered.json["state"], answered.json["reason"])
    assert answered.json["ended_at"] >= answered.json["started_at"]
    assert answered.json == await api.session()


async def test_a_second_end_changes_nothing(api: Caller) -> None:
    """The first end counts; the close is journaled once."""
    await api.create()
    ended = await api.end(reason="left")
    assert ended == await api.end(reason="again")
    assert ["session.closed"] == [row["event"]["type"] for row in await api.journal()]


async def test_of_many_ends_at_once_one_counts(api: Caller) -> None:
    """A session is closed once, however many callers end it at one time."""
    await api.create()
    answers = await asyncio.gather(*(api.end(reason=str(number)) for number in range(8)))
    assert 1 == len({one["reason"] for one in answers}) == (await api.session())["position"]


async def test_after_the_end_new_events_are_refused_and_old_ones_acknowledged(api: Caller) -> None:
    """What was stored before is acknowledged again, what is new is not taken."""
    await api.create()
    first = final(1, "Hi.", seq=1)
    await api.send(first)
    await api.end()
    answered = await api.send(first, final(2, "Late.", seq=2))
    assert [(2, "session_ended")] == [(error["seq"], error["code"]) for error in answered["errors"]]
    assert 2 == (await api.session())["position"]


@pytest.mark.parametrize("reason", ["left", "ended", "api", "max_duration", "idle"])
async def test_an_end_by_request_is_final_whatever_its_reason(api: Caller, reason: str) -> None:
    """Only a close by silence is provisional; a caller's reason does not make a close one."""
    await api.create()
    await api.end(reason=reason)
    answered = await api.send(final(1, "Late.", seq=1))
    assert ["session_ended"] == [error["code"] for error in answered["errors"]]
    assert "ended" == (await api.session())["state"]


@pytest.mark.parametrize("body", [{"reason": 7}, {"why": "x"}, {"reason": "x", "last_seq": 3}, [], "left"])
async def test_a_bad_end_ends_nothing(api: Caller, body: Any) -> None:
    """The body of an end holds a reason, which is text, and nothing else."""
    await api.create()
    assert 400 == (await api.post("/v1/sessions/s/end", body)).told[0]
    assert "running" == (await api.session())["state"]


async def test_a_reason_is_bounded(api: Caller) -> None:
    """A reason is a text, and texts are at most 256 KiB."""
    await api.create()
    assert (400, "text_too_long") == (await api.post("/v1/sessions/s/end", {"reason": "x" * (256 * 1024 + 1)})).told


# Erase


async def test_after_an_erase_nothing_is_left(api: Caller) -> None:
    """DELETE answers 204 without a body; then every path of the session is 404, and it is in no list."""
    await api.create(user_id="ann", labels={"a": "1"})
    await api.send(final(1, "Hi.", seq=1))
    erased = await api.delete("/v1/sessions/s")
    assert (204, b"") == (erased.status, erased.body)
    for path in ("", "/history", "/context", "/turns", "/events"):
        assert (404, "unknown_session") == (await api.get(f"/v1/sessions/s{path}")).told
    assert [] == await listed(api) == await listed(api, "?user_id=ann") == await listed(api, "?label=a:1")


async def test_an_erased_session_cannot_be_changed_ended_or_erased_again(api: Caller) -> None:
    """What is gone is gone for writers too."""
    await api.create()
    await api.delete("/v1/sessions/s")
    assert (404, "unknown_session") == (await api.patch("/v1/sessions/s", {})).told
    assert (404, "unknown_session") == (await api.post("/v1/sessions/s/end")).told
    assert (404, "unknown_session") == (await api.delete("/v1/sessions/s")).told
    assert (404, "unknown_session") == (await api.post("/v1/sessions/s/events", [final(1, "Hi.")])).told


async def test_an_erased_id_is_not_used_again(api: Caller) -> None:
    """Creating it once more is 410, so that nobody takes one caller's session for another's."""
    await api.create(name="Call")
    await api.delete("/v1/sessions/s")
    assert (410, "session_erased") == (await api.post("/v1/sessions", {"session_id": "s", "name": "Call"})).told


async def test_a_buffered_producer_does_not_bring_a_session_back(serve: Serve) -> None:
    """A producer that opens an erased session is told so, and there is none again."""
    app = await serve()
    api = Caller(app)
    await produce(app, [final(1, "Hi.")])
    await api.delete("/v1/sessions/s")
    answer = await opening(app, from_seq=2)
    assert ("error", "session_erased") == (answer["type"], answer["code"])
    assert 404 == (await api.get("/v1/sessions/s/history")).status
    assert [] == await listed(api)


async def test_an_ended_session_can_be_erased(api: Caller) -> None:
    """Erasing does not ask for the state."""
    await api.create()
    await api.end()
    assert 204 == (await api.delete("/v1/sessions/s")).status
    assert 404 == (await api.get("/v1/sessions/s")).status


async def test_erasing_one_session_leaves_the_others(api: Caller) -> None:
    """Only the named session goes."""
    for name in ("a", "b"):
        await api.create(name)
        await api.send(final(1, f"From {name}."), session_id=name)
    await api.delete("/v1/sessions/a")
    assert ["From b."] == [one["content"] for one in await api.contents("b")]


# List


async def test_sessions_are_listed_newest_first(api: Caller) -> None:
    """The list shows whole sessions, the newest first, and ends without a cursor."""
    sessions = [await api.create(name) for name in ("a", "b", "c")]
    assert {"sessions": sessions[::-1], "next_cursor": None} == (await api.get("/v1/sessions")).json


async def test_every_filter(api: Caller) -> None:
    """Each filter takes what fits it, and filters hold together."""
    await api.create("a", user_id="ann", labels={"line": "7", "tier": "gold"})
    await api.create("b", user_id="bob", labels={"line": "7"})
    await api.create("c")
    await api.end("b")
    assert ["c", "a"] == await listed(api, "?state=running")
    assert ["b"] == await listed(api, "?state=ended")
    assert ["a"] == await listed(api, "?user_id=ann")
    assert ["b", "a"] == await listed(api, "?label=line:7") == await listed(api, "?label=line=7")
    assert ["a"] == await listed(api, "?label=tier:gold")
    assert [] == await listed(api, "?label=line:70") == await listed(api, "?label=tier:gol")
    assert ["b"] == await listed(api, "?label=line:7&state=ended&user_id=bob")
    assert [] == await listed(api, "?user_id=ann&state=ended")


async def test_times_bound_a_list(api: Caller) -> None:
    """started_after and started_before leave out their own moment."""
    first = (await api.create("a"))["started_at"]
    assert ["a"] == await listed(api, f"?started_after={first - 1}&started_before={first + 1}")
    assert [] == await listed(api, f"?started_after={first}") == await listed(api, f"?started_before={first}")
    assert ["a"] == await listed(api, "?started_after=0") == await listed(api, "?started_after=-9")


LABELS = [("a", "b=c"), ("a", "b:c"), ("a", "Zm9v="), ("a", "="), ("key", ""), ("é", "ü"), ('q"', "'"), ("a.b", "$[0]")]


@pytest.mark.parametrize(("key", "value"), LABELS)
async def test_a_label_is_found_whatever_its_value_holds(api: Caller, key: str, value: str) -> None:
    """The first colon ends the key; the rest is the value, as it is."""
    await api.create(labels={key: value})
    await api.create("other", labels={"a": "x"})
    answered = await api.call("GET", "/v1/sessions", params={"label": f"{key}:{value}"})
    assert ["s"] == [session["session_id"] for session in answered.json["sessions"]]


async def test_a_user_without_a_name_is_not_everybody(api: Caller) -> None:
    """An empty user_id, as a program with a missing value sends it, lists nobody's sessions."""
    await api.create(user_id="ann")
    answered = await api.get("/v1/sessions?user_id=")
    assert 400 == answered.status or [] == answered.json["sessions"]


async def test_a_changed_session_is_found_by_what_it_is_now(api: Caller) -> None:
    """Filters see the configuration after its patches."""
    await api.create(user_id="ann")
    await api.patch("/v1/sessions/s", {"user_id": "bob", "labels": {"a": "1"}})
    assert [] == await listed(api, "?user_id=ann")
    assert ["s"] == await listed(api, "?user_id=bob&label=a:1")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_have_no_gaps_and_no_doubles(api: Caller, limit: int) -> None:
    """Whatever the length of a page, all pages together are the list, and the last has no cursor."""
    for number in range(7):
        await api.create(f"s{number}")
    assert [f"s{number}" for number in range(6, -1, -1)] == await pages(api, f"limit={limit}")


async def test_pages_hold_while_sessions_are_added_and_erased(api: Caller) -> None:
    """New sessions do not push old ones onto two pages, erased ones do not open a gap."""
    for number in range(6):
        await api.create(f"s{number}")
    page = (await api.get("/v1/sessions?limit=2")).json
    await api.create("new")
    await api.delete("/v1/sessions/s4")
    rest = await listed(api, f"?limit=100&cursor={page['next_cursor']}")
    assert ["s5", "s4"] == [session["session_id"] for session in page["sessions"]]
    assert ["s3", "s2", "s1", "s0"] == rest


async def test_pages_under_load(api: Caller) -> None:
    """While others create sessions, every session that was there before is met once."""
    before = [f"s{number}" for number in range(20)]
    await asyncio.gather(*(api.create(name) for name in before))
    adding = asyncio.gather(*(api.create(f"n{number}") for number in range(30)))
    met = await pages(api, "limit=3")
    await adding
    assert sorted(before) == sorted(name for name in met if name.startswith("s"))
    assert len(met) == len(set(met))


async def test_a_cursor_keeps_to_its_filters(api: Caller) -> None:
    """Pages of a filtered list hold what fits the filter only."""
    for number in range(6):
        await api.create(f"s{number}", labels={"even": str(number % 2 == 0)})
    assert ["s4", "s2", "s0"] == await pages(api, "limit=1&label=even:True")


async def cursor_of(api: Caller) -> str:
    """A cursor as the service gives it out."""
    for name in ("a", "b"):
        await api.create(name)
    return str((await api.get("/v1/sessions?limit=1")).json["next_cursor"])


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "WzEsMV0", "%00", "%F0%9F%98%80", "-" * 4000, "..", "null", "1"])
async def test_made_up_cursors_are_refused(api: Caller, cursor: str) -> None:
    """What was not given out is no cursor."""
    assert (400, "invalid_cursor") == (await api.get(f"/v1/sessions?cursor={cursor}")).told


async def test_a_forged_cursor_is_refused(api: Caller) -> None:
    """One changed character anywhere makes a cursor worthless."""
    cursor = await cursor_of(api)
    for index in range(0, len(cursor) - 1, 5):
        forged = cursor[:index] + ("A" if cursor[index] != "A" else "B") + cursor[index + 1 :]
        assert (400, "invalid_cursor") == (await api.get(f"/v1/sessions?cursor={forged}")).told


async def test_a_cursor_of_another_project_is_refused(serve: Serve) -> None:
    """A cursor says where one project's list goes on, and nothing about another's."""
    app = await serve()
    one, other = await keyed(app, "admin", project="one"), await keyed(app, "admin", project="other")
    cursor = await cursor_of(one)
    assert 200 == (await one.get(f"/v1/sessions?cursor={cursor}")).status
    assert (400, "invalid_cursor") == (await other.get(f"/v1/sessions?cursor={cursor}")).told


async def test_a_cursor_of_another_store_is_refused(serve: Serve) -> None:
    """A cursor does not outlive the store that gave it out."""
    one, other = Caller(await serve()), Caller(await serve())
    assert (400, "invalid_cursor") == (await other.get(f"/v1/sessions?cursor={await cursor_of(one)}")).told


BAD_QUERIES = ["limit=0", "limit=-1", "limit=1001", "limit=1000000000", "limit=x", "limit=", "state=open", "state="]
BAD_QUERIES += ["started_after=yesterday", "started_before=2026-01-01", "started_after=99999999999999999999"]
BAD_QUERIES += [
    "label=",
    "label=x",
    "label=:x",
    "label==x",
    "user=ann",
    "offset=3",
    "page=2",
    "state=ended&state=ended",
]
BAD_QUERIES += ["state=null", "started_after=null", "limit=null"]


@pytest.mark.parametrize("query", BAD_QUERIES)
async def test_bad_filters_are_refused(api: Caller, query: str) -> None:
    """A filter that is unknown, doubled or has a value that it cannot have is never passed over."""
    assert (400, "invalid_query") == (await api.get(f"/v1/sessions?{query}")).told
