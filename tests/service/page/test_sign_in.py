"""Signing in to the page: a key once, then a cookie that opens `/ui` and nothing else."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import aiohttp
import pytest

from tests.support.callers.page import PageClient
from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.clock import ManualClock
from tests.support.events import final
from tests.support.routes import ROUTES
from tests.support.rows import every_row
from tests.support.samples.audit_lines import ADMIN_KEY, acts
from tests.support.services import Serve, node_on
from voicemem.app import App
from voicemem.security.rate_limits import WRONG_KEYS_BURST
from voicemem.server.page.login import LIFE_S, NAME, SECURE_NAME
from voicemem.store.sqlite.store import InMemoryStore

NAMED = "https://memory.example"


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with the operator's key."""
    return await serve(admin_key=ADMIN_KEY)


async def signed_in(app: App, *scopes: str, project: str = "default") -> PageClient:
    """A browser that has signed in with a new key."""
    page = PageClient(app)
    assert 204 == (await page.sign_in(await make_key(app, *scopes, project=project))).status
    return page


async def test_without_keys_everybody_is_in(serve: Serve) -> None:
    """There is nothing to sign in with, and the page is told so."""
    page = PageClient(await serve())
    told = (await page.get("/ui/session")).json
    assert {"signed_in": True, "keys_required": False} == {name: told[name] for name in ("signed_in", "keys_required")}
    assert [{"project": "default", "scopes": ["ingest", "read", "admin"], "key_id": None}] == told["projects"]
    assert 204 == (await page.sign_in("anything")).status
    assert {} == page.cookies
    for base in ("/ui", "/ui/p/default"):
        assert 200 == (await page.get(f"{base}/v1/sessions")).status
    assert (401, "unauthorized") == (await page.get("/ui/p/shop/v1/sessions")).problem


async def test_the_command_that_makes_a_key_names_the_store(serve: Serve, tmp_path: Path) -> None:
    """To browsers of this machine alone, since others need not know where the store is."""
    store = f"sqlite:{tmp_path}/my calls.db"
    app = await serve(store=store, ui_origin=NAMED)
    page = PageClient(app)
    command = f"voicemem keys create --store '{store}'"
    assert command == (await page.get("/ui/session")).json["key_command"]
    assert command in (await RestClient(app).post("/v1/keys", {"scopes": ["read"]})).json["detail"]
    key = await make_key(app, "read")
    assert command == (await page.get("/ui/session")).json["key_command"]
    named = {"Host": "memory.example"}
    assert None is (await page.get("/ui/session", headers=named)).json["key_command"]
    assert key


async def test_with_keys_nobody_is_in_until_a_key_is_shown(app: App) -> None:
    """Neither by nothing nor by a wrong key; then by a cookie."""
    page = PageClient(app)
    told = (await page.get("/ui/session")).json
    assert (False, True, []) == (told["signed_in"], told["keys_required"], told["projects"])
    assert (401, "unauthorized") == (await page.get("/ui/v1/sessions")).problem
    for wrong in ("", "vm_", f"{ADMIN_KEY}x", "ключ", "x" * 5000):
        assert (401, "unauthorized") == (await page.sign_in(wrong)).problem
    assert {} == page.cookies
    assert 204 == (await page.sign_in(f"  {ADMIN_KEY}\n")).status
    assert 200 == (await page.get("/ui/v1/sessions")).status
    told = (await page.get("/ui/session")).json
    assert told["signed_in"]
    assert [{"project": "default", "scopes": ["ingest", "read", "admin"], "key_id": "environment"}] == told["projects"]


@every_row("body", [b"", b"[]", b'"x"', b'{"key":1}', b'{"key":"x","more":1}', b"{", b"\xff"])
async def test_what_is_no_key_is_refused(app: App, body: bytes) -> None:
    """Whatever a program sends, it is told what is wrong."""
    assert 400 == (await PageClient(app).call("POST", "/ui/session", data=body)).status


async def test_the_cookie_is_for_the_page_alone(app: App) -> None:
    """Scripts do not see it, other sites do not send it, the API does not get it, and it lasts twelve hours."""
    page = PageClient(app)
    await page.sign_in(ADMIN_KEY)
    ((name, cookie),) = page.last_cookies.items()
    assert f"{NAME}0" == name
    assert ("Strict", "/ui", str(LIFE_S)) == (cookie["samesite"], cookie["path"], cookie["max-age"])
    assert cookie["httponly"]
    assert not cookie["secure"]
    assert not cookie["domain"]
    assert ADMIN_KEY not in cookie.value


async def test_behind_https_the_cookie_stays_there(serve: Serve) -> None:
    """Where the operator says https the cookie is Secure, and its name says so; on loopback beside it, it is plain."""
    app = await serve(admin_key=ADMIN_KEY, ui_origin=NAMED)
    page = PageClient(app, Host="memory.example", Origin=NAMED)
    assert 204 == (await page.sign_in(ADMIN_KEY)).status
    ((name, cookie),) = page.last_cookies.items()
    assert (f"{SECURE_NAME}0", True) == (name, cookie["secure"])
    assert 200 == (await page.get("/ui/v1/sessions")).status
    beside = PageClient(app)
    await beside.sign_in(ADMIN_KEY)
    assert [f"{NAME}0"] == list(beside.cookies)


async def test_a_cookie_is_renewed_under_its_name() -> None:
    """Also where the proxy does not pass on the name that the browser asked for, and reads show no origin."""
    clock = ManualClock()
    async with node_on(InMemoryStore(), clock, admin_key=ADMIN_KEY, ui_origin=NAMED) as app:
        page = PageClient(app)
        await page.call("POST", "/ui/session", {"Origin": NAMED}, json={"key": ADMIN_KEY})
        clock.wait(LIFE_S - 1)
        await page.get("/ui/v1/sessions")
        ((name, cookie),) = page.last_cookies.items()
    assert (f"{SECURE_NAME}0", True) == (name, cookie["secure"])


@pytest.mark.parametrize("path", ["/ui/", "/ui/session", "/ui/v1/sessions"])
async def test_without_keys_a_name_of_ones_own_opens_nothing(serve: Serve, path: str) -> None:
    """Else everybody who reaches the proxy could read and erase; with the first key it is answered."""
    app = await serve(ui_origin=NAMED)
    named = PageClient(app, Host="memory.example")
    assert (403, "foreign_host") == (await named.get(path)).problem
    assert 200 == (await PageClient(app).get(path)).status
    await make_key(app, "read")
    assert (401 if "v1" in path else 200) == (await named.get(path)).status


async def test_rest_takes_no_cookie_and_the_page_no_key(app: App) -> None:
    """Each door has its own: so a cookie changes nothing for REST, and a key sent along nothing for the page."""
    page = await signed_in(app, "admin")
    assert (401, "unauthorized") == (await page.get("/v1/sessions")).problem
    header = {"Authorization": f"Bearer {ADMIN_KEY}"}
    assert (401, "unauthorized") == (await PageClient(app).get("/ui/v1/sessions", header)).problem
    cookie = next(iter(page.cookies.values()))
    assert (401, "unauthorized") == (await RestClient(app, cookie).get("/v1/sessions")).problem


async def test_keys_that_only_send_and_session_tokens_are_told_why(app: App) -> None:
    """They get 403 with a sentence, and no cookie."""
    admin = await client_with_key(app, "admin")
    await admin.create()
    token = (await admin.post("/v1/sessions/s/tokens")).json["token"]
    for key, sentence in ((await make_key(app, "ingest"), "scope read or admin"), (token, "sign in with a key")):
        page = PageClient(app)
        answer = await page.sign_in(key)
        assert (403, "forbidden") == answer.problem
        assert sentence in answer.json["detail"]
        page.cookies[f"{NAME}0"] = token
        assert (401, "unauthorized") == (await page.get("/ui/v1/sessions")).problem


async def test_wrong_keys_are_throttled_with_those_of_rest() -> None:
    """Guessing at the page and at the API is one guessing."""
    async with node_on(InMemoryStore(), ManualClock(), admin_key=ADMIN_KEY) as app:
        page = PageClient(app)
        statuses = [(await page.sign_in(f"wrong key {number}")).status for number in range(int(WRONG_KEYS_BURST) + 1)]
        assert ([401] * int(WRONG_KEYS_BURST), 429) == (statuses[:-1], statuses[-1])
        assert 429 == (await RestClient(app, "one more").get("/v1/sessions")).status
        assert 204 == (await page.sign_in(ADMIN_KEY)).status


async def test_a_key_opens_its_scopes_and_no_more(app: App) -> None:
    """With `read` one looks, and every other request is refused; `admin` acts."""
    admin = await client_with_key(app, "admin")
    await admin.create()
    reader, actor = await signed_in(app, "read"), await signed_in(app, "admin")
    refused = set()
    for route in (one for one in ROUTES if one.scope is not None and one.path.startswith("/v1/")):
        path = "/ui" + route.path.replace("{id}", "s").replace("{", "").replace("}", "")
        status = (await reader.call(route.method, path)).status
        assert (403 == status) == (route.scope not in ("read", "any")), path
        refused |= {route.scope} if status == 403 else set()
    assert {"ingest", "admin"} == refused
    assert 200 == (await actor.call("POST", "/ui/v1/sessions/s/end", json={})).status


async def test_acts_of_the_page_are_lines_of_the_audit(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Signing in, and each act once, by the key, by way of the page; ends that programs make are none."""
    page = PageClient(app)
    await page.sign_in(ADMIN_KEY)
    admin = RestClient(app, ADMIN_KEY)
    for session in ("s", "t"):
        await admin.create(session)
    await admin.end("t")
    await page.call("POST", "/ui/v1/sessions/s/end", json={})
    await page.call("DELETE", "/ui/v1/sessions/s")
    by = {"by": "environment", "project": "default"}
    assert [
        {"act": "page_signed_in", **by},
        {"act": "session_ended", **by, "session": "s", "via": "page"},
        {"act": "session_erased", **by, "session": "s", "via": "page"},
    ] == acts(caplog)


async def test_two_projects_are_two_cookies(app: App) -> None:
    """The path says whose calls are shown; neither project's ever show in the other."""
    for project in ("one", "two"):
        await (await client_with_key(app, "admin", project=project)).create(f"call-of-{project}", user_id="ann")
    page = await signed_in(app, "read", project="one")
    await page.sign_in(await make_key(app, "admin", project="two"))
    assert [f"{NAME}0", f"{NAME}1"] == list(page.cookies)
    assert ["one", "two"] == [one["project"] for one in (await page.get("/ui/session")).json["projects"]]
    for base, project in (("/ui", "one"), ("/ui/p/one", "one"), ("/ui/p/two", "two")):
        for path in ("/v1/sessions", "/v1/users/ann/sessions"):
            listed = (await page.get(base + path)).json["sessions"]
            assert [f"call-of-{project}"] == [row["session_id"] for row in listed]
        other = {"one": "two", "two": "one"}[project]
        assert 404 == (await page.get(f"{base}/v1/sessions/call-of-{other}")).status
    assert (403, "forbidden") == (await page.call("DELETE", "/ui/p/one/v1/sessions/call-of-one")).problem
    assert (401, "unauthorized") == (await page.get("/ui/p/default/v1/sessions")).problem
    await page.sign_in(await make_key(app, "admin", project="one"))
    assert 2 == len(page.cookies)
    assert ["admin"] == (await page.get("/ui/session")).json["projects"][0]["scopes"]


async def test_signing_out(app: App) -> None:
    """Of one project, or of all; the cookies of a service on another port stay."""
    page = await signed_in(app, "read", project="one")
    await page.sign_in(await make_key(app, "read", project="two"))
    page.cookies[f"{NAME}5"] = "abcdefghijkl.1234567890." + "0" * 64
    assert 204 == (await page.call("DELETE", "/ui/session?project=one")).status
    assert ["two"] == [one["project"] for one in (await page.get("/ui/session")).json["projects"]]
    assert 204 == (await page.call("DELETE", "/ui/session")).status
    assert [f"{NAME}5"] == list(page.cookies)
    assert (401, "unauthorized") == (await page.get("/ui/v1/sessions")).problem


async def test_a_key_that_is_revoked_ends_the_page_and_its_tails(app: App) -> None:
    """Also the tail of a call on which something comes all the time."""
    admin, key = RestClient(app, ADMIN_KEY), await make_key(app, "read")
    await admin.create()
    page = PageClient(app)
    await page.sign_in(key)
    headers = {**page.headers, "Accept": "text/event-stream"}
    url = f"http://{app.rest_address}/ui/v1/sessions/s/events?view=messages&open=true"
    async with (
        aiohttp.ClientSession(cookies=page.cookies) as http,
        http.get(url, headers=headers) as tail,
        asyncio.timeout(30),
    ):
        talking = asyncio.create_task(talk(admin))
        told = await tail.content.readuntil(b"Word 3.")
        await admin.delete(f"/v1/keys/{key.split('_')[1]}")
        told = await tail.read()
        talking.cancel()
    assert b"event: error" in told
    assert b'"reason":"unauthorized"' in told
    assert (401, "unauthorized") == (await page.get("/ui/v1/sessions")).problem
    assert not (await page.get("/ui/session")).json["signed_in"]


async def talk(admin: RestClient) -> None:
    """One word after the other, until no one wants them any more."""
    for seq in itertools.count(1):
        await admin.send(final(seq, f"Word {seq}.", seq=seq))


async def test_a_cookie_is_renewed_while_it_is_used() -> None:
    """In the second half of its life every answer brings a new one, and without any use it ends."""
    clock = ManualClock()
    async with node_on(InMemoryStore(), clock, admin_key=ADMIN_KEY) as app:
        page = PageClient(app)
        await page.sign_in(ADMIN_KEY)
        first = dict(page.cookies)
        assert not (await page.get("/ui/v1/sessions")).headers.getall("Set-Cookie", [])
        clock.wait(LIFE_S / 2 + 1)
        assert 200 == (await page.get("/ui/v1/sessions")).status
        assert first.keys() == page.cookies.keys()
        assert first != page.cookies
        clock.wait(LIFE_S - 1)
        assert 200 == (await page.get("/ui/v1/sessions")).status
        clock.wait(LIFE_S)
        assert (401, "unauthorized") == (await page.get("/ui/v1/sessions")).problem


FOREIGN = [
    {"Host": "evil.example"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "null"},
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=str)
async def test_others_than_the_page_are_refused_with_its_cookie_too(app: App, foreign: dict[str, str]) -> None:
    """Whatever a browser is led to ask with the cookie, nothing is read or done."""
    page = await signed_in(app, "admin")
    await (await client_with_key(app, "admin")).create()
    for method, path in (
        ("GET", "/ui/v1/sessions"),
        ("GET", "/ui/session"),
        ("POST", "/ui/session"),
        ("DELETE", "/ui/session"),
        ("POST", "/ui/v1/sessions/s/end"),
        ("DELETE", "/ui/v1/sessions/s"),
    ):
        status, code = (await page.call(method, path, foreign)).problem
        assert (403, "foreign_host" if "Host" in foreign else "foreign_origin") == (status, code)
    assert "running" == (await page.get("/ui/v1/sessions/s")).json["state"]


async def test_forms_do_nothing(app: App) -> None:
    """What a form can send is refused, from the page's own address too."""
    page = await signed_in(app, "admin")
    await (await client_with_key(app, "admin")).create()
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = await page.call("POST", "/ui/v1/sessions/s/end", {"Content-Type": media_type}, data=b"{}")
        assert (403, "foreign_origin") == answer.problem
    assert "running" == (await page.get("/ui/v1/sessions/s")).json["state"]


async def test_insecure_means_under_any_name(serve: Serve) -> None:
    """As REST does then; a sender that is not the page is refused all the same."""
    app = await serve(insecure=True)
    page = PageClient(app, Host="10.1.2.3:8080")
    assert 200 == (await page.get("/ui/")).status
    assert 200 == (await page.get("/ui/v1/sessions")).status
    assert (403, "foreign_origin") == (await page.get("/ui/v1/sessions", {"Sec-Fetch-Site": "cross-site"})).problem
