"""Agora's paths: tokens that are signed with the certificate of a registered app."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.support.callers.agora_rest import JOIN, agora_problem, joining
from tests.support.callers.rest import RestClient, RestResponse, make_key
from tests.support.clock import ManualClock
from tests.support.rows import every_row
from tests.support.samples.agora_tokens import (
    APP_ID,
    CERTIFICATE,
    OTHER_CERTIFICATE,
    bomb,
    content,
    packed,
    rtc,
    service,
    token,
)
from tests.support.services import ANY_PORT, Serve
from voicemem.app import App, running
from voicemem.compat.agora.apps import AppRegistry
from voicemem.config.service import Settings
from voicemem.runtime import now_ms
from voicemem.security.rate_limits import WRONG_KEYS_BURST

ADMIN_KEY = "sixteen letters and more"
BASES = ("/api/conversational-ai-agent", "/cn/api/conversational-ai-agent")
PROJECT = f"{BASES[0]}/v2/projects/{APP_ID}"
OTHER_APP = "f" * 32


def now_s() -> int:
    return now_ms() // 1000


def signed(**given: Any) -> dict[str, str]:
    """The header with a token of now; see `agora_tokens.content`."""
    return {"Authorization": f"agora token={token(now_s(), **given)}"}


def for_channel(channel: str) -> dict[str, str]:
    return signed(services=(rtc(channel),))


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service that has an app for the project `shop`."""
    app = await serve(admin_key=ADMIN_KEY)
    await AppRegistry(app.services.access).add("shop", APP_ID, CERTIFICATE)
    return app


async def call(app: App, method: str, path: str, headers: dict[str, str], body: Any = None) -> RestResponse:
    return await RestClient(app).call(method, path, headers, **({} if body is None else {"json": body}))


async def joined(app: App, channel: str = "lobby", name: str = "desk") -> str:
    """The id of an agent that joined with a token."""
    body = {"name": name, "properties": {"channel": channel}}
    answered = await call(app, "POST", f"{PROJECT}/join", for_channel(channel), body)
    assert 200 == answered.status, answered.body
    return str(answered.json["agent_id"])


async def agent_statuses(app: App, agent: str, headers: dict[str, str]) -> list[int]:
    """The status of each request about an agent, the one that ends it last."""
    requests: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("GET", "/history", None),
        ("GET", "/turns", None),
        ("POST", "/update", {"properties": {}}),
        ("POST", "/speak", {"text": "Hello."}),
        ("POST", "/think", {"text": "Hello."}),
        ("POST", "/interrupt", None),
        ("POST", "/leave", None),
    ]
    return [
        (await call(app, method, f"{PROJECT}/agents/{agent}{path}", headers, body)).status
        for method, path, body in requests
    ]


async def test_a_token_opens_every_request(app: App) -> None:
    """A token for the agent's channel is enough for all requests about it, and for a join that names an LLM."""
    answered = await call(app, "POST", f"{PROJECT}/join", signed(), JOIN)
    agent = answered.json["agent_id"]
    assert 1 == (await call(app, "GET", f"{PROJECT}/agents", signed())).json["data"]["count"]
    assert [200] * 8 == await agent_statuses(app, agent, signed())
    key = await make_key(app, "read", project="shop")
    assert "ended" == (await RestClient(app, key).get(f"/v1/sessions/{agent}")).json["state"]


@every_row("base", BASES)
@every_row("form", ["agora token={}", 'agora token="{}"', "Bearer {}"])
async def test_every_form_of_the_header_and_both_bases(app: App, base: str, form: str) -> None:
    """A token is accepted wherever a key is."""
    headers = {"Authorization": form.format(token(now_s()))}
    assert 200 == (await call(app, "GET", f"{base}/v2/projects/{APP_ID}/agents", headers)).status


async def test_a_token_opens_one_channel(app: App) -> None:
    """A token for another channel reads, changes and ends nothing; its list has only its own channel."""
    lobby, bar = await joined(app), await joined(app, "bar", "barman")
    assert [403] * 8 == await agent_statuses(app, lobby, for_channel("bar"))
    listed = (await call(app, "GET", f"{PROJECT}/agents", for_channel("bar"))).json["data"]["list"]
    assert [bar] == [agent["agent_id"] for agent in listed]
    other = await call(app, "GET", f"{PROJECT}/agents?channel=lobby", for_channel("bar"))
    assert (403, "InvalidPermission") == agora_problem(other)
    join = await call(app, "POST", f"{PROJECT}/join", for_channel("bar"), joining())
    assert (403, "InvalidPermission") == agora_problem(join)
    assert 2 == (await call(app, "GET", f"{PROJECT}/agents", for_channel("*"))).json["data"]["count"]
    assert [200] * 8 == await agent_statuses(app, lobby, for_channel("*"))


async def test_a_session_without_a_channel_is_in_no_tokens_reach(app: App) -> None:
    """A session that was made under /v1 and has no channel opens to keys only."""
    await RestClient(app, await make_key(app, "ingest", project="shop")).create("s")
    assert [403] * 8 == await agent_statuses(app, "s", for_channel("lobby"))


async def test_the_sdks_token_for_stopping_stops(app: App) -> None:
    """The SDK stops an agent of which it has the id only with a token for the channel `stop`; it opens no more."""
    agent = await joined(app)
    assert [403] * 7 + [200] == await agent_statuses(app, agent, for_channel("stop"))


async def test_the_app_of_the_path_is_that_of_the_token(app: App) -> None:
    """Neither another App ID nor the project's name stands for it."""
    for name in (OTHER_APP, "shop", "default", APP_ID.upper()):
        answered = await call(app, "GET", f"{BASES[0]}/v2/projects/{name}/agents", signed())
        assert (403, "InvalidPermission") == agora_problem(answered), name


async def test_a_key_of_the_project_may_use_the_app_id(app: App) -> None:
    """A key is accepted with the App ID of its project, as with the project; not with that of another."""
    mine = RestClient(app, await make_key(app, "read", project="shop"))
    theirs = RestClient(app, await make_key(app, "read", project="other"))
    for name in (APP_ID, "shop"):
        path = f"{BASES[0]}/v2/projects/{name}/agents"
        assert 200 == (await mine.get(path)).status
        assert (403, "InvalidPermission") == agora_problem(await theirs.get(path))


async def test_tokens_open_nothing_else(app: App) -> None:
    """Below /v1 a token is not a key, in whatever form it is sent."""
    text = token(now_s())
    for form in ("Bearer", "agora token=", "Basic"):
        assert (401, "unauthorized") == (
            await RestClient(app).get("/v1/sessions", {"Authorization": f"{form} {text}"})
        ).problem


async def test_scopes_of_an_app(serve: Serve) -> None:
    """An app's tokens may do what the app may: without admin no join names an LLM, without ingest there is none."""
    app = await serve(admin_key=ADMIN_KEY)
    await AppRegistry(app.services.access).add("shop", APP_ID, CERTIFICATE, ("ingest", "read"))
    join = await call(app, "POST", f"{PROJECT}/join", signed(), JOIN)
    assert (403, "InvalidPermission") == agora_problem(join)
    assert 200 == (await call(app, "POST", f"{PROJECT}/join", signed(), joining())).status
    await AppRegistry(app.services.access).remove("shop", APP_ID)
    await AppRegistry(app.services.access).add("shop", APP_ID, CERTIFICATE, ("read",))
    assert 403 == (await call(app, "POST", f"{PROJECT}/join", signed(), joining())).status
    assert 200 == (await call(app, "GET", f"{PROJECT}/agents", signed())).status


async def test_two_certificates_while_one_is_replaced(app: App) -> None:
    """After a rotation both certificates sign; after the old one is retired, or the app removed, they do not."""
    path, apps = f"{PROJECT}/agents", AppRegistry(app.services.access)

    async def statuses() -> list[int]:
        pair = (CERTIFICATE, OTHER_CERTIFICATE)
        return [(await call(app, "GET", path, signed(certificate=certificate))).status for certificate in pair]

    assert [200, 401] == await statuses()
    await apps.rotate("shop", APP_ID, OTHER_CERTIFICATE)
    await apps.rotate("shop", APP_ID, OTHER_CERTIFICATE)
    assert [200, 200] == await statuses()
    await apps.retire("shop", APP_ID)
    assert [401, 200] == await statuses()
    await apps.remove("shop", APP_ID)
    assert [401, 401] == await statuses()


async def test_an_app_closes_a_service_without_keys(serve: Serve) -> None:
    """With the first app every caller needs a key or a token, also after the app is removed."""
    app = await serve()
    assert 200 == (await RestClient(app).get("/v1/sessions")).status
    await AppRegistry(app.services.access).add("default", APP_ID, CERTIFICATE)
    assert (401, "unauthorized") == (await RestClient(app).get("/v1/sessions")).problem
    assert 200 == (await call(app, "GET", f"{PROJECT}/agents", signed())).status
    await AppRegistry(app.services.access).remove(None, APP_ID)
    assert 401 == (await call(app, "GET", f"{PROJECT}/agents", signed())).status


async def test_an_admin_key_may_begin_like_a_token(serve: Serve) -> None:
    """The operator chooses that key."""
    key = "007bondjamesbondjamesbond"
    app = await serve(admin_key=key)
    path = f"{BASES[0]}/v2/projects/default/agents"
    assert 200 == (await RestClient(app, key).get(path)).status


def hostile() -> dict[str, str]:
    """Tokens that no one should accept, by what is wrong with them."""
    good = token(now_s())
    return {
        "forged": token(now_s(), certificate=OTHER_CERTIFICATE),
        "forged and expired": token(now_s() - 100_000, certificate=OTHER_CERTIFICATE),
        "unknown app": token(now_s(), app_id=OTHER_APP),
        "not yet": token(now_s() + 3600),
        "truncated": good[:-9],
        "bomb": bomb(),
        "bomb of a known app": packed(content(now_s(), services=(rtc("c" * 60_000),))),
        "huge": "007" + "A" * 7000,
        "version 006": "006" + good[3:],
        "no channel": token(now_s(), services=(service(2, {1: 0}, "1001"),)),
        "random": "007eJxSYA",
    }


async def test_hostile_tokens_are_refused(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Each is a 401 with a sentence, and neither token nor certificate is in the log."""
    caplog.set_level(logging.DEBUG)
    agent = await joined(app)
    for name, text in hostile().items():
        headers = {"Authorization": f"agora token={text}"}
        for path in (f"{PROJECT}/agents", f"{PROJECT}/agents/{agent}/history"):
            answered = await call(app, "GET", path, headers)
            assert (401, "InvalidPermission") == agora_problem(answered), name
            assert text not in answered.body.decode()
    assert not [text for text in (*hostile().values(), token(now_s()), CERTIFICATE) if text in caplog.text]


async def test_an_expired_token_says_so(app: App) -> None:
    """Its sentence says that it expired, since it was a good one."""
    answered = await call(app, "GET", f"{PROJECT}/agents", {"Authorization": f"agora token={token(now_s() - 3600)}"})
    assert (401, "InvalidPermission") == agora_problem(answered)
    assert "expired" in answered.json["detail"]


async def test_wrong_tokens_count_as_wrong_keys() -> None:
    """An address that has sent too many gets 429; expired tokens, which are no guesses, do not count."""
    clock = ManualClock()
    now = clock() // 1000
    settings = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT, admin_key=ADMIN_KEY)
    async with running(settings, clock) as app:
        await AppRegistry(app.services.access).add("shop", APP_ID, CERTIFICATE)

        async def status(text: str) -> int:
            return (await call(app, "GET", f"{PROJECT}/agents", {"Authorization": f"agora token={text}"})).status

        assert [401] * 120 == [await status(token(now - 3600)) for _ in range(120)]
        wrong = token(now, certificate=OTHER_CERTIFICATE)
        assert [401] * int(WRONG_KEYS_BURST) == [await status(wrong) for _ in range(int(WRONG_KEYS_BURST))]
        assert [429, 200] == [await status(wrong), await status(token(now))]


async def test_requests_with_tokens_are_limited_like_those_of_a_key() -> None:
    """All tokens of an app are one caller."""
    clock = ManualClock()
    settings = Settings(store="memory:", rest=ANY_PORT, ingest=ANY_PORT, admin_key=ADMIN_KEY, request_rate=1)
    async with running(settings, clock) as app:
        await AppRegistry(app.services.access).add("shop", APP_ID, CERTIFICATE)
        tokens = [token(clock() // 1000, services=(rtc(channel),)) for channel in "abc"]
        answers = [
            await call(app, "GET", f"{PROJECT}/agents", {"Authorization": f"agora token={text}"}) for text in tokens
        ]
        assert [200, 200, 429] == [answered.status for answered in answers]


async def test_a_join_with_a_token_is_audited(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """A join that names an LLM is an act of the app."""
    agent = (await call(app, "POST", f"{PROJECT}/join", signed(), JOIN)).json["agent_id"]
    line = f'{{"act":"calling_out_changed","by":"{APP_ID}","project":"shop","session":"{agent}"}}'
    assert line in caplog.messages
