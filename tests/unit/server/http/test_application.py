"""Which handler a request is for."""

from __future__ import annotations

import pytest
from aiohttp import web

from tests.support.rows import every_row
from voicemem.server.http.application import Endpoint, Segment

ROUTES = (
    ("GET", "/"),
    ("GET", "/v1/sessions"),
    ("GET", "/v1/sessions/{id}"),
    ("DELETE", "/v1/sessions/{id}"),
    ("POST", "/v1/sessions/search"),
    ("GET", "/v1/sessions/{id}/history"),
    ("GET", "/ui/"),
    ("GET", "/ui/assets/{version}/{path:.+}"),
    ("PUT", "/v1/{kind}/{id}/same-as"),
)


async def handle(_: web.Request) -> web.StreamResponse:
    return web.Response()


def served() -> Segment:
    root = Segment()
    for method, path in ROUTES:
        root.add(path).handlers[method] = handle
    return root


MATCHES = [
    ("GET", "/", "/", []),
    ("GET", "/v1/sessions/a", "/v1/sessions/{id}", ["a"]),
    ("GET", "/v1/sessions/search", "/v1/sessions/{id}", ["search"]),
    ("POST", "/v1/sessions/search", "/v1/sessions/search", []),
    ("GET", "/v1/sessions/a%2Fb/history", "/v1/sessions/{id}/history", ["a%2Fb"]),
    ("PUT", "/v1/sessions/a/same-as", "/v1/{kind}/{id}/same-as", ["sessions", "a"]),
    ("GET", "/ui/", "/ui/", []),
    ("GET", "/ui/assets/1/calls/list.js", "/ui/assets/{version}/{path:.+}", ["1", "calls/list.js"]),
]


@every_row(("method", "path", "route", "values"), MATCHES)
def test_a_path_has_one_route(method: str, path: str, route: str, values: list[str]) -> None:
    """Literal segments go before placeholders, but only where they take the method."""
    match = served().match(path.split("/"), 0, method, [])
    assert match is not None
    assert (route, values) == (match[0].path, match[1])


@pytest.mark.parametrize("path", ["", "/v1", "/v1/sessions/", "/v1/sessions//history", "//", "/ui", "/ui/assets/1"])
def test_other_paths_have_none(path: str) -> None:
    """A placeholder is never empty, and a slash at the end makes another path."""
    found: list[Endpoint] = []
    assert served().match(path.split("/"), 0, "GET", found) is None
    assert found == []


def test_what_a_path_would_take_is_found() -> None:
    """For another method, the endpoints are known that have the path, the most literal one first."""
    found: list[Endpoint] = []
    assert served().match(["", "v1", "sessions", "search"], 0, "PATCH", found) is None
    assert [one.path for one in found] == ["/v1/sessions/search", "/v1/sessions/{id}"]
