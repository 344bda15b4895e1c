"""aiohttp answering from constants: the least work an HTTP answer can be, as the baseline of `bench.history`.

    python -m bench.harness.baselines.constant < ANSWERS     a list of `Constant` as JSON; prints its port

`GET /NAME/…` is answered with the constant of that name, with the headers that voicemem gives.
"""

from __future__ import annotations

import sys

import msgspec
import uvloop
from aiohttp import web
from msgspec import Struct

from bench.harness.web_server import serve_until_stopped


class Constant(Struct, kw_only=True):
    name: str
    status: int
    etag: str
    body: str


class Constants:
    """The answers by name."""

    def __init__(self, constants: list[Constant]) -> None:
        self.bodies = {constant.name: constant.body.encode() for constant in constants}
        self.headers = {one.name: {"ETag": one.etag} if one.etag else None for one in constants}
        self.statuses = {constant.name: constant.status for constant in constants}

    async def handle(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if self.statuses[name] == 304:
            return web.Response(status=304, headers=self.headers[name])
        return web.Response(body=self.bodies[name], content_type="application/json", headers=self.headers[name])


async def main(constants: list[Constant]) -> None:
    app = web.Application()
    app.router.add_get("/{name}/{id}", Constants(constants).handle)
    await serve_until_stopped(app)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.stdin.buffer.read(), type=list[Constant])))
