"""Webhooks that someone has seen, or makes up: they reach no other call, and tell nothing of other projects."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from urllib.parse import urlencode

import msgspec
import pytest
from click.testing import CliRunner

from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.callers.signed_hooks import BODIES, SECRET, body_of, send_hook, signature_of
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.cli import main
from voicemem.dialects.dialect import session_id_of
from voicemem.dialects.registry import WITH_WEBHOOKS
from voicemem.security.hook_secrets import HookTarget, sign_target

SIGNED = tuple(f"{dialect}={SECRET}" for dialect in BODIES)


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with keys, that knows the secret of every platform."""
    app = await serve(hook_secrets=SIGNED)
    await make_key(app, "admin")
    return app


def address(app: App, dialect: str, **target: str) -> str:
    """The query of a URL of `voicemem hooks url`."""
    made = HookTarget("default", dialect, **target)
    return "?" + urlencode({"t": sign_target(made, app.services.store.directory.cursor_secret)})


def test_every_platform_has_a_case() -> None:
    """One that is new gets its body and signature here too."""
    assert set(WITH_WEBHOOKS) == set(BODIES)


@every_row("dialect", BODIES)
async def test_a_webhook_that_was_seen_reaches_no_other_call(app: App, dialect: str) -> None:
    """Its signature does not cover the URL: without a key, another session or user there is refused."""
    admin, stranger = await client_with_key(app, "admin"), RestClient(app)
    await admin.create(dialect)
    body = body_of(dialect, f"{dialect}-1")
    headers = signature_of(dialect, body)
    assert 200 == (await send_hook(stranger, dialect, body, headers)).status
    wrong = await make_key(app, "ingest", project="theirs")
    reader = await make_key(app, "read")
    for query in (f"?session_id={dialect}", "?user_id=ann", f"?session_id={dialect}&user_id=ann"):
        for api in (stranger, RestClient(app, wrong), RestClient(app, reader), RestClient(app, "vm_no_key")):
            if dialect in ("vapi", "livekit-agents") and api is not stranger:
                continue  # its secret or token may stand where a key does
            assert (403, "forbidden") == (await send_hook(api, dialect, body, headers, query)).problem
    assert "running" == await admin.state(dialect)
    assert [] == await admin.journal(dialect)


@every_row("dialect", BODIES)
async def test_a_key_and_a_signed_url_name_the_session(app: App, dialect: str) -> None:
    """Who may send events of the session may name it; and the operator, who has signed the URL."""
    ingest = await client_with_key(app, "ingest")
    by_key = ingest, f"?session_id={dialect}0&user_id=ann"
    by_url = RestClient(app), address(app, dialect, session_id=f"{dialect}1", user_id="ann")
    for number, (api, query) in enumerate((by_key, by_url)):
        if dialect == "livekit-agents" and api is ingest:
            continue  # its token stands where a key does
        body = body_of(dialect, f"{dialect}-{number}")
        answered = await send_hook(api, dialect, body, signature_of(dialect, body), query)
        assert (200, f"{dialect}{number}") == (answered.status, answered.json["session_id"]), answered.body
        session = await (await client_with_key(app, "read")).session(f"{dialect}{number}")
        assert {"user_id": "ann"} == session["config"]


@every_row("dialect", BODIES)
async def test_a_session_token_sends_no_webhook(serve: Serve, dialect: str) -> None:
    """Not even one about its session, where no secret is set and a key would do."""
    app = await serve()
    admin = await client_with_key(app, "admin")
    await admin.create("mine")
    token = (await admin.post("/v1/sessions/mine/tokens")).json["token"]
    for query in ("", "?session_id=mine"):
        answered = await send_hook(RestClient(app, token), dialect, body_of(dialect, "mine"), {}, query)
        assert (403, "forbidden") == answered.problem
    assert [] == await admin.journal("mine")


@every_row("dialect", BODIES)
async def test_without_keys_this_machine_may_name_the_session(serve: Serve, dialect: str) -> None:
    """There a caller could do everything else too."""
    app = await serve(hook_secrets=SIGNED)
    body = body_of(dialect, f"{dialect}-1")
    answered = await send_hook(RestClient(app), dialect, body, signature_of(dialect, body), "?session_id=mine")
    assert (200, "mine") == (answered.status, answered.json["session_id"])
    assert (401, "unauthorized") == (await send_hook(RestClient(app), dialect, body, {}, "?session_id=mine")).problem


@every_row("dialect", BODIES)
async def test_a_url_that_was_seen_takes_no_webhook_of_another_call(app: App, dialect: str) -> None:
    """A session that a URL names belongs to the call whose webhook came first; its own are taken again."""
    stranger, query = RestClient(app), address(app, dialect, session_id=dialect)
    first, other = body_of(dialect, f"{dialect}-1"), body_of(dialect, f"{dialect}-2")
    assert 200 == (await send_hook(stranger, dialect, first, signature_of(dialect, first), query)).status
    assert (403, "forbidden") == (
        await send_hook(stranger, dialect, other, signature_of(dialect, other), query)
    ).problem
    again = await send_hook(stranger, dialect, first, signature_of(dialect, first), query)
    assert (200, 0) == (again.status, again.json["stored"])


async def test_calls_of_two_platforms_with_one_id_are_not_mixed(app: App) -> None:
    """The first to come has the session, unless someone with a key says that both are one call."""
    admin = await client_with_key(app, "admin")
    hello = {"role": "user", "message": "Hello.", "time": 1_790_000_000_000}
    began = {"message": {"type": "conversation-update", "messages": [hello], "call": {"id": "call-1"}}}
    ours, theirs = msgspec.json.encode(began), body_of("retell", "call-1")
    for _ in range(2):
        assert 200 == (await send_hook(RestClient(app), "vapi", ours, signature_of("vapi", ours))).status
        answered = await send_hook(RestClient(app), "retell", theirs, signature_of("retell", theirs))
        assert (403, "forbidden") == answered.problem
    assert "running" == await admin.state("call-1")
    said = await send_hook(admin, "retell", theirs, signature_of("retell", theirs), "?session_id=call-1")
    assert (200, "call-1") == (said.status, said.json["session_id"])


@every_row("change", ["cut", "changed", "project", "dialect", "secret", "text", "cursor"])
async def test_a_token_in_the_url_cannot_be_made(app: App, change: str) -> None:
    """Nor used for another project or platform; the webhook is not taken then."""
    secret = app.services.store.directory.cursor_secret
    good = sign_target(HookTarget("default", "vapi", "victim"), secret)
    made = {
        "cut": good[:-4],
        "changed": good[:-1] + ("A" if good[-1] != "A" else "B"),
        "project": sign_target(HookTarget("other", "vapi", "victim"), secret),
        "dialect": sign_target(HookTarget("default", "retell", "victim"), secret),
        "secret": sign_target(HookTarget("default", "vapi", "victim"), b"guessed"),
        "text": "é",
        "cursor": app.services.sessions.format_cursor("default", (1, 1)),
    }[change]
    body = body_of("vapi", "call-1")
    query = "?" + urlencode({"t": made})
    answered = await send_hook(RestClient(app), "vapi", body, signature_of("vapi", body), query)
    assert (403, "forbidden") == answered.problem
    assert [] == (await (await client_with_key(app, "read")).get("/v1/sessions")).json["sessions"]


@every_row("dialect", BODIES)
async def test_a_delivery_that_comes_again_changes_nothing(app: App, dialect: str) -> None:
    """As it was, and signed again as platforms do: after the end, when nothing is in memory, and after erasure."""
    admin, stranger = await client_with_key(app, "admin"), RestClient(app)
    body = body_of(dialect, f"{dialect}-1")
    headers = signature_of(dialect, body)
    assert 0 < (await send_hook(stranger, dialect, body, headers)).json["stored"]
    before = await admin.journal(f"{dialect}-1")
    stream = await app.services.store.journal.get_session("default", f"{dialect}-1")
    for one in (headers, signature_of(dialect, body)):
        app.services.read_models.discard(stream.key)
        answered = await send_hook(stranger, dialect, body, one)
        assert (200, 0) == (answered.status, answered.json["stored"])
    assert before == await admin.journal(f"{dialect}-1")
    assert 204 == (await admin.delete(f"/v1/sessions/{dialect}-1")).status
    answered = await send_hook(stranger, dialect, body, headers)
    assert (200, 0, "session_erased") == (answered.status, answered.json["stored"], answered.json["refused"])


@every_row("dialect", BODIES)
async def test_calls_with_similar_ids_are_different_sessions(app: App, dialect: str) -> None:
    """Ids that differ where a session id has no such character, or behind the 128th, stay apart."""
    long = f"{dialect}{'x' * 128}"[:128]
    ids = [f"{dialect}{odd}" for odd in ("a/b", "a b", "a-b", "a\u00e9b", "A/B")] + [long, long + "1", long + "2"]
    ids.append(session_id_of(ids[0]))  # as if a vendor gave what another id becomes
    sessions = set()
    for said in ids:
        body = body_of(dialect, said)
        answered = await send_hook(RestClient(app), dialect, body, signature_of(dialect, body))
        assert 200 == answered.status, answered.body
        assert 0 < answered.json["stored"]
        sessions.add(answered.json["session_id"])
    assert len(ids) == len(sessions)
    assert {ids[2], long} <= sessions


@every_row("dialect", BODIES)
async def test_the_answers_do_not_tell_which_projects_there_are(serve: Serve, dialect: str) -> None:
    """A stranger, and a key of another project, get one answer for a project with a secret, one without, and none."""
    app = await serve(hook_secrets=(f"signed/{dialect}={SECRET}",))
    await make_key(app, "admin", project="unsigned")
    key = await make_key(app, "ingest")
    body = body_of(dialect, f"{dialect}-1")
    bodies = (body, b"{", b"x" * (9 * 1024 * 1024))
    wrong = signature_of(dialect, body, "guessed")
    for api, headers in ((RestClient(app), {}), (RestClient(app), wrong), (RestClient(app, key), {})):
        for sent in bodies:
            answers = [
                await send_hook(api, dialect, sent, headers, f"?project={project}&session_id=s")
                for project in ("signed", "unsigned", "nowhere")
            ]
            assert 1 == len({(one.status, one.body) for one in answers})
            assert answers[0].status in (401, 403, 413)


def test_a_url_is_made_by_a_command(tmp_path: object) -> None:
    """With the session and user signed into it; without them it needs no token."""
    store = f"sqlite:{tmp_path}/calls.db"
    run = CliRunner().invoke
    assert 0 == run(main, ["hooks", "set", "--store", store, "--generate", "vapi"]).exit_code
    given = ["hooks", "url", "--store", store, "--base", "https://calls.example.com/"]
    assert "https://calls.example.com/v1/hooks/vapi\n" == run(main, [*given, "vapi"]).output
    shop = run(main, [*given, "--project", "shop", "--user-id", "ann", "retell"]).output
    assert shop.startswith("https://calls.example.com/v1/hooks/retell?project=shop&t=")
    assert 0 != run(main, [*given, "--session-id", "not one", "vapi"]).exit_code
    assert 0 != run(main, [*given, "openai-realtime"]).exit_code
