"""The page's login: which requests its paths answer, signing in, and cookies in place of keys (docs/page.md).

Only requests of the page itself are answered, at an address that the operator named. This is the rule of Go's
`CrossOriginProtection`, stricter by one step: reads must come from the page as well. A browser sends a cookie to every
port of a host, and to any name that resolves to it (DNS rebinding); such requests are not the page's.

A browser has one cookie for each project that it is signed in to: `<key id>.<expiry>.<mac>`. The MAC is made with a
secret derived from the hash of the key, so that no session token can be used as a cookie, and no cookie as a token; it
ends with the key, and needs no table.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from contextlib import suppress
from http.cookies import SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from msgspec import Struct

from voicemem.config.service import is_loopback
from voicemem.errors import Refused, StoreUnavailable
from voicemem.security.access import DEFAULT_PROJECT, HOST, SCOPES, Access, Gate, Grant
from voicemem.security.audit import audit
from voicemem.server.http.connections import authenticated
from voicemem.server.http.request import Request, answer_as, json_response, parse_query, read_struct
from voicemem.server.http.routes import Handler, NoQuery, Route

NAME_IT = (
    "The page answers loopback names only. To open it under another name, start the service with --ui-origin "
    "https://NAME."
)
OTHER_NAME = "The page answers loopback names, and the name in --ui-origin."
ANOTHERS = "These paths answer only the page that this service serves."


class PageOrigin(NamedTuple):
    """Origins of the page: on loopback, at `named` (`https://memory.example`), and with `anywhere` under any name."""

    named: str | None = None
    anywhere: bool = False

    def check_host(self, host: str | None) -> None:
        """Check the `Host` of a request. Raises `Refused` (`foreign_host`)."""
        name = host_name(host)
        if name and (is_loopback(name) or self.anywhere or name == urlsplit(self.named or "").hostname):
            return
        raise Refused("foreign_host", NAME_IT if self.named is None else OTHER_NAME)

    def check_sender(self, method: str, headers: Mapping[str, str]) -> None:
        """Check that the page itself sends a request whose host was checked. Raises `Refused` (`foreign_origin`)."""
        site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
        if site not in (None, "same-origin"):
            raise Refused("foreign_origin", ANOTHERS)
        if origin not in (None, self.named, f"http://{headers.get('Host', '').lower()}"):
            raise Refused("foreign_origin", ANOTHERS)
        if method in ("GET", "HEAD"):
            return
        if site is None and origin is None:
            raise Refused("foreign_origin", ANOTHERS)
        if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused("foreign_origin", "The page sends what it changes as application/json.")

    def is_https(self, host: str | None, origin: str | None) -> bool:
        """Return whether the browser sees the page over https: only a proxy knows, so the operator's word counts."""
        if self.named is None or not self.named.startswith("https:"):
            return False
        return origin == self.named or (
            host_name(host) == urlsplit(self.named).hostname and not is_loopback(host_name(host))
        )


def host_name(host: str | None) -> str:
    """Return the name in a `Host` header, without its port; empty if there is none."""
    match = HOST.match(host or "")
    return match[1].strip("[]").lower() if match else ""


LIFE_S = 12 * 3600
MAX_PROJECTS = 8
NAME, SECURE_NAME = "voicemem_ui_", "__Secure-voicemem_ui_"
VALUE = re.compile(r"([0-9a-z]{11,12})\.([0-9]{10,11})\.([0-9a-f]{64})\Z", re.ASCII)
NOT_SIGNED_IN = "No one is signed in to this project here; sign in with a key."
READ_NEEDED = "This key may only send events. To look at calls, sign in with one that has the scope read or admin."


class SignedIn(Struct, frozen=True):
    """A valid cookie, and the rights of its holder."""

    name: str
    number: int
    grant: Grant
    expires_s: int


class PageCookies:
    """Makes and reads the page's cookies."""

    def __init__(self, access: Access) -> None:
        self.access = access

    async def make(self, grant: Grant) -> tuple[str, int]:
        """Return the value of a cookie for the holder of a key, and when it expires, Unix s. Raises `Refused`."""
        if grant.session_id is not None:
            raise Refused("forbidden", "A session token opens one session, and not the page; sign in with a key.")
        if not grant.allows("read"):
            raise Refused("forbidden", READ_NEEDED)
        assert grant.key_id is not None
        _, secret = await self.access.find_signer(grant.key_id)
        expires_s = self.access.clock() // 1000 + LIFE_S
        return f"{grant.key_id}.{expires_s}.{mac(secret, grant.key_id, expires_s)}", expires_s

    async def read(self, cookies: Mapping[str, str]) -> list[SignedIn]:
        """Return the valid cookies of a request by number; of a project's cookies the one that lasts longest."""
        valid: dict[str, SignedIn] = {}
        for number in range(MAX_PROJECTS):
            for name in (f"{SECURE_NAME}{number}", f"{NAME}{number}"):
                one = await self.verify(name, number, cookies[name]) if name in cookies else None
                if one is not None and one.expires_s > valid.setdefault(one.grant.project, one).expires_s:
                    valid[one.grant.project] = one
        return list(valid.values())

    async def verify(self, name: str, number: int, value: str) -> SignedIn | None:
        """Return the grant of a cookie; None for one that is not ours, has expired, or whose key was revoked."""
        match, now_s = VALUE.match(value), self.access.clock() // 1000
        if match is None or not now_s < (expires_s := int(match[2])) <= now_s + LIFE_S:
            return None
        try:
            grant, secret = await self.access.find_signer(match[1])
        except Refused:
            return None
        if not hmac.compare_digest(mac(secret, match[1], expires_s), match[3]) or not grant.allows("read"):
            return None
        grant = msgspec.structs.replace(grant, expires_ms=expires_s * 1000, via="page")
        return SignedIn(name, number, grant, expires_s)


def mac(secret: bytes, key_id: str, expires_s: int) -> str:
    """Return the MAC of a cookie, made with the hash of a key."""
    return hmac.digest(hmac.digest(secret, b"page", "sha256"), f"{key_id}.{expires_s}".encode(), "sha256").hex()


def free_number(cookies: Mapping[str, str], signed_in: list[SignedIn], project: str) -> int:
    """Return the number of the cookie for a project: its own, else an unused one, else an invalid one's.

    Others are left alone, since a service on another port of the host shares the browser's cookies.
    """
    own = [one.number for one in signed_in if one.grant.project == project]
    taken = {number for number in range(MAX_PROJECTS) for name in (NAME, SECURE_NAME) if f"{name}{number}" in cookies}
    standing = {one.number for one in signed_in}
    unused = [number for number in range(MAX_PROJECTS) if number not in taken]
    fallen = [number for number in range(MAX_PROJECTS) if number not in standing]
    return (own + unused + fallen + [MAX_PROJECTS - 1])[0]


SESSION_PATH = "/ui/session"
EVERYBODY = Grant(DEFAULT_PROJECT, SCOPES, via="page")
"""The grant of every sender while there is no key."""
RENEWED = web.RequestKey("renewed", SignedIn)


class GivenKey(Struct, frozen=True, forbid_unknown_fields=True):
    """The key to sign in with."""

    key: str


class ShownProject(Struct, frozen=True):
    """A project that this browser may look at."""

    project: str
    scopes: tuple[str, ...]
    key_id: str | None

    @classmethod
    def of(cls, grant: Grant) -> ShownProject:
        return cls(grant.project, grant.scopes, grant.key_id)


class ShownSession(Struct, frozen=True):
    """The login state of the page: whether it has to ask for a key, and the projects that it may show."""

    signed_in: bool
    keys_required: bool
    projects: list[ShownProject]
    key_command: str | None
    """The command that makes a key; shown on this machine only, since it names the store."""


class SignOutQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The project to sign out of; by default all."""

    project: str | None = None


class Login:
    """Admits the page itself, for those who have signed in; while there is no key, everyone on this machine."""

    def __init__(self, gate: Gate, origin: PageOrigin) -> None:
        self.gate = gate
        self.origin = origin
        self.cookies = PageCookies(gate.access)

    async def check_host(self, request: Request) -> bool:
        """Check the host, and return whether a key is needed; without one only loopback is answered, as by REST."""
        host = request.headers.get("Host")
        self.origin.check_host(host)
        return await self.gate.check_origin(host, request.headers.get("Origin"))

    async def check(self, request: Request) -> bool:
        needed = await self.check_host(request)
        self.origin.check_sender(request.method, request.headers)
        return needed

    async def admit(self, request: Request) -> Grant:
        """Return the grant of the sender in the project of the path, or else the first one. Raises `Refused`."""
        needed = await self.check(request)
        project = request.in_path.get("project")
        if not needed:
            if project not in (None, DEFAULT_PROJECT):
                raise Refused("unauthorized", NOT_SIGNED_IN)
            return EVERYBODY
        signed_in = await self.cookies.read(request.cookies)
        one = next((one for one in signed_in if project in (None, one.grant.project)), None)
        if one is None:
            raise Refused("unauthorized", NOT_SIGNED_IN)
        self.gate.limits.count_request(one.grant.principal)
        if one.expires_s - self.gate.access.clock() // 1000 < LIFE_S // 2:
            request[RENEWED] = one
        return one.grant

    async def renew(self, request: Request, response: web.StreamResponse) -> None:
        """Renew a cookie before it expires; called when an answer is about to be sent."""
        one = request.get(RENEWED)
        if one is None:
            return
        with suppress(Refused, StoreUnavailable):  # the answer is sent all the same
            value, _ = await self.cookies.make(one.grant)
            set_cookie(response, one.name, value)

    async def show(self, request: Request) -> web.StreamResponse:
        needed = await self.check(request)
        parse_query(request, NoQuery)
        is_here = is_loopback(host_name(request.headers.get("Host")))
        command = self.gate.access.key_command if is_here else None
        if not needed:
            return json_response(ShownSession(True, False, [ShownProject.of(EVERYBODY)], command))
        signed_in = await self.cookies.read(request.cookies)
        projects = [ShownProject.of(one.grant) for one in signed_in]
        return json_response(ShownSession(bool(signed_in), True, projects, command))

    async def sign_in(self, request: Request) -> web.StreamResponse:
        needed = await self.check(request)
        parse_query(request, NoQuery)
        body = await read_struct(request, GivenKey)
        response = web.Response(status=204)
        if not needed:
            return response
        grant = await self.gate.grant_token(body.key.strip(), request.remote)
        value, _ = await self.cookies.make(grant)
        self.gate.limits.count_request(grant.principal)
        authenticated(request)
        signed_in = await self.cookies.read(request.cookies)
        number = free_number(request.cookies, signed_in, grant.project)
        is_https = self.origin.is_https(request.headers.get("Host"), request.headers.get("Origin"))
        set_cookie(response, f"{SECURE_NAME if is_https else NAME}{number}", value)
        audit("page_signed_in", grant)
        return response

    async def sign_out(self, request: Request) -> web.StreamResponse:
        """Remove the cookies; other browsers with the key stay signed in until it is revoked."""
        await self.check(request)
        project = parse_query(request, SignOutQuery).project
        response = web.Response(status=204)
        for one in await self.cookies.read(request.cookies):
            if project in (None, one.grant.project):
                set_cookie(response, one.name, "", max_age=0)
        return response


def set_cookie(response: web.StreamResponse, name: str, value: str, max_age: int = LIFE_S) -> None:
    """Set a cookie for the page's paths only; with `max_age` 0 remove it."""
    secure = name.startswith(SECURE_NAME)
    cookie = SimpleCookie({name: value})[name]
    attributes = {"max-age": str(max_age), "path": "/ui", "samesite": "Strict", "httponly": "true"}
    cookie.update(attributes | ({"secure": "true"} if secure else {}))
    response.headers.add("Set-Cookie", cookie.OutputString())


def guard_page(route: Route[Any], login: Login) -> Handler:
    async def handler(request: Request) -> web.StreamResponse:
        grant = await login.admit(request)
        grant.require(str(route.scope))
        return await answer_as(grant, request, route)

    return handler
