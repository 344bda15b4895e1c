"""Which handler a request is for."""

from __future__ import annotations

import pytest
from aiohttp import web

from tests.support.rows import every_row
from voicemem.server.http.application import Paths

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


def served() -> Paths:
    paths = Paths()
    for method, path in ROUTES:
        paths.add(path).handlers[method] = handle
    return paths


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
    matches = (match for match in served().matches(path) if method in match[0].handlers)
    endpoint, found = next(matches)
    assert (route, values) == (endpoint.path, found)


@pytest.mark.parametrize("path", ["", "/v1", "/v1/sessions/", "/v1/sessions//history", "//", "/ui", "/ui/assets/1"])
def test_other_paths_have_none(path: str) -> None:
    """A placeholder is never empty, and a slash at the end makes another path."""
    assert [*served().matches(path)] == []


def test_what_a_path_would_take_is_found() -> None:
    """For another method, the endpoints are known that have the path, the most literal one first."""
    found = [endpoint.path for endpoint, _ in served().matches("/v1/sessions/search")]
    assert found == ["/v1/sessions/search", "/v1/sessions/{id}"]
