"""What a handler is given: a request that knows who asks, what its path names, and what is served on its port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from aiohttp import web

from voicemem.security.access import Grant
from voicemem.services import Services

T = TypeVar("T")


class Shared:
    """What the handlers of a port share."""

    def __init__(self) -> None:
        self.shared: dict[web.AppKey[Any], Any] = {}

    def __getitem__(self, key: web.AppKey[T]) -> T:
        value: T = self.shared[key]
        return value

    def __setitem__(self, key: web.AppKey[T], value: T) -> None:
        self.shared[key] = value


class Found(NamedTuple):
    """The route of a request, found by its method and path."""

    path: str
    """The path with placeholders, since ids may not appear in metrics; `none` where nothing is served."""
    handler: Handler | None
    values: dict[str, str]
    allowed: tuple[str, ...]
    """The methods that the path takes, where it does not take this one."""
    finish: Finish | None


SERVICES = web.AppKey("services", Services)
APP = web.RequestKey("app", Shared)
FOUND = web.RequestKey("found", Found)
GRANT = web.RequestKey("grant", Grant)


class Request(web.Request):
    """A request; what is known of it is kept where aiohttp's copies of it have it too."""

    @property
    def shared(self) -> Shared:
        return self[APP]

    @property
    def services(self) -> Services:
        return self[APP][SERVICES]

    @property
    def grant(self) -> Grant:
        """What the caller may do, once a key was shown or none is needed."""
        return self[GRANT]

    @property
    def project(self) -> str | None:
        """The caller's project; None before a key was shown."""
        grant = self.get(GRANT)
        return None if grant is None else grant.project

    @property
    def in_path(self) -> dict[str, str]:
        """The values of the path's placeholders, by their names."""
        return self[FOUND].values


Handler = Callable[[Request], Awaitable[web.StreamResponse]]
Finish = Callable[[Request, web.StreamResponse], Awaitable[None]]
"""Adds to an answer that is about to be sent."""
