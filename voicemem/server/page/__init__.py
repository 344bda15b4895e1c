"""The page at `/ui/`: its files, its login, and the API behind that login (docs/page.md)."""

from __future__ import annotations

from aiohttp import web

from voicemem.security.access import Gate
from voicemem.server.http.listener import answer_expect
from voicemem.server.http.problems import Handler
from voicemem.server.http.request import DOCUMENTED
from voicemem.server.page.files import add_headers, get_asset, get_shell, page_files
from voicemem.server.page.login import SESSION_PATH, Login, PageOrigin, guard_page

BASES = ("/ui", "/ui/p/{project}")
"""Without the name of a project, the first one that the browser is signed in to."""
TABS = "conversation|timeline|memory|deliveries|journal|settings|played"
PAGES = (
    "/",
    "/calls",
    "/calls/{id}",
    f"/calls/{{id}}/{{tab:{TABS}}}",
    "/deliveries",
    "/deliveries/{endpoint}",
    "/operator",
    "/sign-in",
)
"""Where the shell is served; anything else below `/ui` is not there."""


def mount(app: web.Application, gate: Gate, origin: PageOrigin) -> None:
    """Add the page to the REST application; behind its login are those of the routes so far that need a key."""
    login = Login(gate, origin)
    page_files()
    app.on_response_prepare.append(add_headers)
    app.on_response_prepare.append(login.renew)
    app.router.add_route("GET", "/", to_page, expect_handler=answer_expect)
    app.router.add_route("GET", "/ui", to_page, expect_handler=answer_expect)
    app.router.add_get("/ui/assets/{version}/{path:.+}", on_host(get_asset, login), expect_handler=answer_expect)
    for method, handler in (("GET", login.show), ("POST", login.sign_in), ("DELETE", login.sign_out)):
        app.router.add_route(method, SESSION_PATH, handler, expect_handler=answer_expect)
    behind = [route for route in app[DOCUMENTED] if route.scope is not None and route.path.startswith("/v1/")]
    for base in BASES:
        for page in PAGES:
            app.router.add_get(base + page, on_host(get_shell, login), expect_handler=answer_expect)
        for route in behind:
            guarded = guard_page(route, login)
            app.router.add_route(route.method, base + route.path, guarded, expect_handler=answer_expect)


def on_host(handler: Handler, login: Login) -> Handler:
    """Wrap a handler of files: these hold no one's data, so only the host is checked."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await login.check_host(request)
        return await handler(request)

    return handle


async def to_page(request: web.Request) -> web.Response:
    """Lead a browser to the page; for programs there is nothing here."""
    accepted = request.headers.get("Accept", "")
    if request.path == "/" and "text/html" not in accepted:
        raise web.HTTPNotFound
    return web.Response(status=303, headers={"Location": "/ui/"})
