"""`voicemem import`: calls of the past come as their webhooks would have brought them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from tests.support.callers.rest import RestClient, make_key
from tests.support.rows import every_row
from tests.support.servers.vendor_apis import (
    BEGIN_MS,
    DAY_MS,
    KEY,
    NUMBERS,
    WEBHOOKS,
    elevenlabs_call,
    iso,
    retell_call,
    vapi_call,
    vendor_server,
)
from tests.support.services import Serve
from voicemem.app import App
from voicemem.cli import main, past_calls
from voicemem.cli.backfill import import_since
from voicemem.cli.common import CommandFailed, Server
from voicemem.protocol.types import JsonObject

MAKE: dict[str, Callable[..., JsonObject]] = {
    "retell": retell_call,
    "vapi": vapi_call,
    "elevenlabs": elevenlabs_call,
}
DIALECTS = {"retell": "retell", "vapi": "vapi", "elevenlabs": "elevenlabs-agents"}
VARIABLES = {"retell": "RETELL_API_KEY", "vapi": "VAPI_API_KEY", "elevenlabs": "ELEVENLABS_API_KEY"}
IDS = {"retell": "call_id", "vapi": "id", "elevenlabs": "conversation_id"}
DAY = "2025-11-01"


def webhook_of(vendor: str, call: JsonObject) -> JsonObject:
    """The webhook that the vendor sends after a call."""
    if vendor == "retell":
        return {"event": "call_ended", "call": call}
    if vendor == "vapi":
        report = {"type": "end-of-call-report", "timestamp": BEGIN_MS + 21_000, "call": {"id": call["id"]}}
        fields = ("artifact", "endedReason", "startedAt", "endedAt", "customer", "phoneNumber")
        return {"message": report | {name: call[name] for name in fields}}
    return {"type": "post_call_transcription", "event_timestamp": BEGIN_MS // 1000 + 60, "data": call}


async def imported(app: App, *arguments: str | Path, code: int = 0, key: str | None = None) -> Result:
    """The result of the command."""
    server = ["--url", f"http://{app.rest_address}", *([] if key is None else ["--key", key])]
    command = ["import", *map(str, arguments), *server]
    env = dict.fromkeys(VARIABLES.values(), KEY)
    result = await asyncio.to_thread(CliRunner(env=env).invoke, main, command)
    assert result.exit_code == code, result.output
    return result


def counts(*numbers: int) -> str:
    one, known, without, refused = numbers
    return f"{one} imported, {known} known already, {without} skipped (not over, or without words), {refused} refused\n"


def save(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=1), "utf-8")
    return path


async def heard(app: App, session_id: str) -> list[tuple[str, str, int]]:
    return [(one["role"], one["content"], one["timestamp"]) for one in await RestClient(app).contents(session_id)]


async def entries(app: App, session_id: str) -> int:
    return int((await RestClient(app).session(session_id))["position"])


@every_row("vendor", MAKE)
async def test_a_saved_call_is_what_its_webhook_makes(serve: Serve, tmp_path: Path, vendor: str) -> None:
    """The same messages, times and session, whether the webhook or what the API answers was saved."""
    call, ids = MAKE[vendor]("call_1"), IDS[vendor]
    hooked, app = await serve(), await serve()
    path = f"/v1/hooks/{DIALECTS[vendor]}"
    assert (await RestClient(hooked).post(path, webhook_of(vendor, call))).json["session_id"] == "call_1"
    save(tmp_path / "answer.json", call)
    save(tmp_path / "webhook.json", webhook_of(vendor, call | {ids: "call_2"}))
    assert (await imported(app, vendor, tmp_path)).stdout == counts(2, 0, 0, 0)
    expected = await heard(hooked, "call_1")
    assert len(expected) >= 4
    for session_id in ("call_1", "call_2"):
        assert await heard(app, session_id) == expected
        info = await RestClient(app).session(session_id)
        before = await RestClient(hooked).session("call_1")
        assert [info[name] for name in ("state", "reason", "started_at", "ended_at")] == [
            before[name] for name in ("state", "reason", "started_at", "ended_at")
        ]
        assert info["started_at"] == BEGIN_MS
        assert BEGIN_MS < info["ended_at"] < BEGIN_MS + 60_000
        assert {BEGIN_MS <= at <= info["ended_at"] for _, _, at in expected} == {True}


async def test_a_call_of_another_vendor_is_said_to_be_one(serve: Serve, tmp_path: Path) -> None:
    """With the file that has it."""
    save(tmp_path / "el.json", webhook_of("elevenlabs", MAKE["elevenlabs"]("call_1")))
    refused = await imported(await serve(), "retell", tmp_path, code=1)
    assert (counts(0, 0, 0, 1), True) == (refused.stdout, "el.json: It is not a call of retell: " in refused.stderr)


@every_row("vendor", MAKE)
@pytest.mark.parametrize("first", ["webhook", "import"])
async def test_nothing_is_stored_twice(serve: Serve, tmp_path: Path, vendor: str, first: str) -> None:
    """Whether the webhook came before or comes later, and however often a call is imported."""
    app, call = await serve(), MAKE[vendor]("call_1")
    save(tmp_path / "call.json", call)

    async def hook() -> None:
        answered = await RestClient(app).post(f"/v1/hooks/{DIALECTS[vendor]}", webhook_of(vendor, call))
        assert answered.status == 200

    if first == "webhook":
        await hook()
    else:
        assert (await imported(app, vendor, tmp_path)).stdout == counts(1, 0, 0, 0)
    before, position = await heard(app, "call_1"), await entries(app, "call_1")
    await hook()
    for _ in range(2):
        assert (await imported(app, vendor, tmp_path)).stdout == counts(0, 1, 0, 0)
    assert (await heard(app, "call_1"), await entries(app, "call_1")) == (before, position)


async def test_what_is_missing_of_a_call_is_added(serve: Serve, tmp_path: Path) -> None:
    """Of a call whose last webhook was lost the import brings what that had, once."""
    app, call = await serve(), retell_call("call_1")
    part = call | {"transcript_object": call["transcript_object"][:2]}
    part |= {"transcript_with_tool_calls": call["transcript_object"][:2]}
    await RestClient(app).post("/v1/hooks/retell", {"event": "transcript_updated", "call": part})
    assert len(await heard(app, "call_1")) == 2
    save(tmp_path / "call.json", call)
    assert (await imported(app, "retell", tmp_path)).stdout == counts(1, 0, 0, 0)
    whole = await heard(app, "call_1")
    assert len(whole) > 2
    assert len({text for _, text, _ in whole}) == len(whole)


@every_row("vendor", MAKE)
async def test_calls_come_from_the_vendors_api(serve: Serve, vendor: str) -> None:
    """All pages since a day, but not those before it, nor those that are not over; again, nothing is fetched twice."""
    app = await serve()
    calls = [MAKE[vendor](f"call_{n}", n * DAY_MS) for n in range(5)]
    running = {"retell": {"call_status": "ongoing"}, "vapi": {"status": "in-progress"}}.get(
        vendor, {"status": "processing"}
    )
    calls.append(MAKE[vendor]("call_now", 5 * DAY_MS, **running))
    async with vendor_server(vendor, *calls) as api:
        api.page = 2
        since = iso(BEGIN_MS + DAY_MS - 3_600_000)
        arguments = (vendor, "--since", since, "--base-url", api.url)
        assert (await imported(app, *arguments)).stdout == counts(4, 0, 1, 0)
        asked = len(api.requests)
        assert (await imported(app, *arguments)).stdout == counts(0, 4, 1, 0)
        details = [one for one in api.requests[asked:] if "/call_" in one]
        assert len(details) == (0 if vendor == "vapi" else 1), details
    sessions = (await RestClient(app).get("/v1/sessions")).json["sessions"]
    assert [one["session_id"] for one in sessions] == ["call_4", "call_3", "call_2", "call_1"]
    assert [one["started_at"] for one in sessions] == [BEGIN_MS + n * DAY_MS for n in (4, 3, 2, 1)]


async def test_pages_of_vapi_begin_with_what_stands_at_the_same_time(serve: Serve) -> None:
    """Calls of one moment are all there, although a time is all that names the next page."""
    app = await serve()
    calls = [vapi_call(f"call_{n}", n // 40 * 1_000) for n in range(210)]
    async with vendor_server("vapi", *calls) as api:
        assert (await imported(app, "vapi", "--since", DAY, "--base-url", api.url)).stdout == counts(210, 0, 0, 0)


def text(status: int, body: str, **headers: str) -> Callable[[web.Request], web.Response]:
    return lambda request: web.Response(status=status, text=body, headers=headers)


async def import_quickly(app: App, vendor: str, url: str) -> None:
    """The import, with short pauses where the vendor names none."""
    server, since = Server(f"http://{app.rest_address}", None), BEGIN_MS - DAY_MS
    await import_since(past_calls.VENDORS[vendor], server, url, KEY, since, pause_s=0.001)


@every_row("vendor", MAKE)
async def test_a_busy_vendor_is_asked_again(serve: Serve, vendor: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After the time that it names, or a pause; broken answers likewise."""
    app = await serve()
    async with vendor_server(vendor, MAKE[vendor]("call_1")) as api:
        api.faults = [
            text(429, "{}", **{"Retry-After": "1"}),
            text(503, "<html>"),
            text(200, "<html>"),
            text(200, '{"items": [', **{"Content-Type": "application/json"}),
        ]
        await import_quickly(app, vendor, api.url)
        first, second, *_ = api.times
    assert capsys.readouterr().out == counts(1, 0, 0, 0)
    assert second - first >= 1


@every_row("vendor", MAKE)
async def test_an_api_that_cannot_be_read_ends_the_import(
    serve: Serve, vendor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one sentence and what was imported by then; nothing of the answer, and no key, is shown."""
    app = await serve()
    secret = f"{NUMBERS[0]} {KEY}"
    cases: tuple[tuple[list[Callable[[web.Request], web.Response]], str], ...] = (
        ([text(401, secret)], "refused the key"),
        ([text(302, secret, Location="http://127.0.0.1:1/")], "HTTP status 302"),
        ([text(200, json.dumps({"what": secret}))], "not a page of calls"),
        ([text(429, secret, **{"Retry-After": "7200"})], "HTTP status 429"),
        ([text(200, secret)] * 6, "not JSON"),
        ([text(500, secret)] * 6, "HTTP status 500"),
    )
    async with vendor_server(vendor, MAKE[vendor]("call_1")) as api:
        for faults, why in cases:
            api.faults = list(faults)
            with pytest.raises(CommandFailed, match=why) as failed:
                await import_quickly(app, vendor, api.url)
            shown = "".join(capsys.readouterr())
            assert counts(0, 0, 0, 0) in shown
            for quoted in (NUMBERS[0], KEY):
                assert quoted not in shown + failed.value.message


async def test_pages_that_repeat_end_the_import(serve: Serve) -> None:
    """A cursor that leads to the same page again is no endless loop."""
    app = await serve()
    again = text(200, json.dumps({"items": [{"call_id": "call_9"}], "has_more": True, "pagination_key": "x"}))
    async with vendor_server("retell") as api:
        api.faults = [again, text(404, "{}"), again]
        result = await imported(app, "retell", "--since", DAY, "--base-url", api.url, code=1)
    assert "repeat" in result.stderr
    assert "call call_9: GET " in result.stderr
    assert result.stdout == counts(0, 0, 0, 1)


async def test_what_cannot_be_imported_is_named(serve: Serve, tmp_path: Path) -> None:
    """With the file, the line and the reason; the rest is imported, and the exit code is 1."""
    app = await serve()
    save(tmp_path / "a.json", retell_call("call_a"))
    (tmp_path / "b.json").write_text("{", "utf-8")
    (tmp_path / "b2.json").write_text("[" * 100_000, "utf-8")
    lines = [json.dumps({"event": "call_started", "call": {"call_id": "call_c"}}), "5", "", '{"call": {}}']
    (tmp_path / "c.jsonl").write_text("\n".join([*lines, json.dumps(retell_call("call_c"))]), "utf-8")
    save(tmp_path / "d.json", [retell_call("call_d"), {"event": "call_ended", "call": 5}, retell_call("call_e")])
    save(tmp_path / "e.json", retell_call("call_f", transcript_object=[], transcript_with_tool_calls=[]))
    inside = tmp_path / "sub"
    inside.mkdir()
    save(inside / "f.ndjson", retell_call("call_g"))
    (tmp_path / "notes.txt").write_text("5", "utf-8")
    result = await imported(app, "retell", tmp_path, code=1)
    assert result.stdout == counts(5, 0, 2, 5)
    shown = [line for line in result.stderr.splitlines() if ": " in line]
    for name in ("b.json: ", "b2.json: ", "c.jsonl, line 2: ", "c.jsonl, line 4: ", "d.json, call 2: "):
        assert [line for line in shown if line.startswith(name)], (name, shown)
    assert "5 could not be imported" in result.stderr


async def test_an_import_by_key(serve: Serve, tmp_path: Path) -> None:
    """It needs the scope `ingest`, also where webhooks are signed, and works without `read`; it goes to its project."""
    app = await serve(hook_secrets=("retell=secret-of-hooks",))
    key, reader = await make_key(app, "ingest", project="shop"), await make_key(app, "read", project="shop")
    save(tmp_path / "call.json", retell_call("call_1"))
    assert "(forbidden)" in (await imported(app, "retell", tmp_path, key=reader, code=1)).stderr
    assert "(unauthorized)" in (await imported(app, "retell", tmp_path, code=1)).stderr
    assert (await imported(app, "retell", tmp_path, key=key)).stdout == counts(1, 0, 0, 0)
    async with vendor_server("retell", retell_call("call_1"), retell_call("call_2")) as api:
        arguments = ("retell", "--since", DAY, "--base-url", api.url)
        assert (await imported(app, *arguments, key=key)).stdout == counts(1, 1, 0, 0)
    assert (await RestClient(app, reader).session("call_2"))["state"] == "ended"


async def test_what_was_erased_stays_erased(serve: Serve, tmp_path: Path) -> None:
    """Its call is one that is known."""
    app = await serve()
    save(tmp_path / "call.json", retell_call("call_1"))
    await imported(app, "retell", tmp_path)
    assert (await RestClient(app).delete("/v1/sessions/call_1")).status == 204
    assert (await imported(app, "retell", tmp_path)).stdout == counts(0, 1, 0, 0)
    async with vendor_server("retell", retell_call("call_1")) as api:
        arguments = ("retell", "--since", DAY, "--base-url", api.url)
        assert (await imported(app, *arguments)).stdout == counts(0, 1, 0, 0)


@every_row("vendor", MAKE)
async def test_no_number_of_a_party_is_kept(
    serve: Serve, tmp_path: Path, vendor: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the journal, nor in what is shown or logged."""
    caplog.set_level("DEBUG")
    app = await serve()
    save(tmp_path / "call.json", MAKE[vendor]("call_1"))
    result = await imported(app, vendor, tmp_path)
    journal = (await RestClient(app).get("/v1/sessions/call_1/events")).body.decode()
    for number in NUMBERS:
        for digits in (number, number[1:]):
            assert digits not in journal
            assert digits not in result.output
            assert digits not in caplog.text


async def test_what_the_command_wants_is_said(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder or a day; a key that is one; an address to which a key may go."""
    app = await serve()
    key = tmp_path / "key.txt"
    key.write_text("two words", "utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    cases: tuple[tuple[tuple[str | Path, ...], int, str], ...] = (
        (("retell",), 2, "Name a FOLDER"),
        (("retell", tmp_path, "--since", DAY), 2, "Name a FOLDER"),
        (("retell", tmp_path, "--base-url", "https://a.example"), 2, "are for --since"),
        (("retell", "--since", "yesterday"), 2, "2026-05-03"),
        (("retell", "--since", "2026-02-30"), 2, "2026-05-03"),
        (("retell", "--since", DAY, "--base-url", "http://api.example.com"), 1, "https://"),
        (("retell", "--since", DAY, "--base-url", "https://me:secret@api.example.com"), 1, "user name"),
        (("retell", "--since", DAY, "--base-url", "ftp://api.example.com"), 1, "https://"),
        (("retell", "--since", DAY, "--base-url", "https://api.example.com", "--key-file", key), 1, "is not a key"),
        (("retell", empty), 1, "no file"),
    )
    for arguments, code, why in cases:
        result = await imported(app, *arguments, code=code)
        assert why in result.stderr, (arguments, result.stderr)
        assert "secret" not in result.output
    monkeypatch.setattr("tests.service.dialects.test_import.KEY", "")
    assert "RETELL_API_KEY" in (await imported(app, "retell", "--since", DAY, code=1)).stderr


def test_the_servers_answers_are_as_the_sdks_have_them() -> None:
    """What the APIs of these tests answer has what the vendors' types require."""
    from typing import get_args

    from elevenlabs.types import GetConversationResponseModel
    from retell.types import CallResponse

    web_or_phone = get_args(get_args(CallResponse)[0]) or get_args(CallResponse)
    phone = next(one for one in web_or_phone if "Phone" in getattr(one, "__name__", ""))
    phone.model_validate(retell_call("call_1", agent_version=1, direction="inbound"))
    GetConversationResponseModel.model_validate(elevenlabs_call("conv_1"))
    assert set(WEBHOOKS) == set(DIALECTS.values())
