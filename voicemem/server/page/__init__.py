"""The page at `/ui/`: its files, its login, and the API behind that login (docs/page.md)."""

import re

from aiohttp import web

from voicemem.errors import Refused
from voicemem.security.access import Gate
from voicemem.server.http.application import Application
from voicemem.server.http.request import DOCUMENTED, Request
from voicemem.server.http.routes import Handler
from voicemem.server.page.files import add_headers, get_asset, get_shell, page_files
from voicemem.server.page.login import SESSION_PATH, Login, PageOrigin, guard_page

BASES = ("/ui", "/ui/p/{project}")
"""The paths of the page; without a project's name it shows the first one that the browser is signed in to."""
TABS = ("conversation", "timeline", "memory", "deliveries", "journal", "settings", "played")
PAGES = (
    "/",
    "/calls",
    "/calls/{id}",
    *(f"/calls/{{id}}/{tab}" for tab in TABS),
    "/deliveries",
    "/deliveries/{endpoint}",
    "/operator",
    "/sign-in",
)
"""Paths of the shell; at any other path below `/ui` it says that there is no such page."""
NO_PAGE = re.compile("/ui/(?:p/[^/]*/)?(?:v1|assets)/")
"""Beginnings of paths that no page can have."""


def mount(app: Application, gate: Gate, origin: PageOrigin) -> None:
    """Add the page to the REST application, and behind its login the routes added so far that need a key."""
    login = Login(gate, origin)
    page_files()

    def add(handler: Handler, path: str, method: str = "GET") -> None:
        app.add_route(method, path, handler)

    def on_host(handler: Handler) -> Handler:
        async def handle(request: Request) -> web.StreamResponse:
            await login.check_host(request)  # files hold no one's data, so only the host is checked
            return await handler(request)

        return handle

    async def finish(request: Request, response: web.StreamResponse) -> None:
        add_headers(response)
        await login.renew(request, response)

    app.finishing["ui"] = finish
    add(to_page, "/")
    add(to_page, "/ui")
    add(on_host(get_asset), "/ui/assets/{version}/{path:.+}")
    add(login.show, SESSION_PATH)
    add(login.sign_in, SESSION_PATH, "POST")
    add(login.sign_out, SESSION_PATH, "DELETE")
    behind = [route for route in app[DOCUMENTED] if route.scope is not None and route.path.startswith("/v1/")]
    for base in BASES:
        for page in PAGES:
            add(on_host(get_shell), base + page)
        for route in behind:
            add(guard_page(route, login), base + route.path, route.method)
    add(on_host(show_nothing), "/ui/{path:.+}")


def is_for_browser(request: Request) -> bool:
    """Return whether a browser requests a page to show; for programs there is nothing at its address."""
    return "text/html" in request.headers.get("Accept", "")


async def show_nothing(request: Request) -> web.StreamResponse:
    """Say that there is no such page, and lead back."""
    if not is_for_browser(request) or NO_PAGE.match(request.path):
        raise Refused("not_found")
    response = await get_shell(request)
    response.set_status(404)
    return response


async def to_page(request: Request) -> web.StreamResponse:
    if request.path == "/" and not is_for_browser(request):
        raise Refused("not_found")
    return web.Response(status=303, headers={"Location": "/ui/"})
