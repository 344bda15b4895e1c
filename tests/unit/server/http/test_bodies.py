"""How many large bodies of a project are received at a time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakValueDictionary

from aiohttp.test_utils import make_mocked_request

from voicemem.security.access import Grant
from voicemem.server.http.application import Application
from voicemem.server.http.request import APP, BODIES, GRANT, LARGE_BODIES, LARGE_BODY_BYTES, Request, receive_body
from voicemem.telemetry import Telemetry
from voicemem.telemetry.metrics import Metrics, Tracer


class Upload:
    """A large body, whose rest comes when `rest` is set."""

    def __init__(self, app: Application, project: str) -> None:
        self.rest = asyncio.Event()
        self.is_read_on = False
        mocked: Any = make_mocked_request("POST", "/", payload=self)  # type: ignore[arg-type]
        parts = (
            mocked._message,
            mocked._payload,
            mocked.protocol,
            mocked.writer,
            mocked.task,
            asyncio.get_running_loop(),
        )
        self.request = Request(*parts)
        self.request[APP], self.request[GRANT] = app, Grant(project, ())
        self.task = asyncio.create_task(receive_body(self.request, 4 * LARGE_BODY_BYTES, 60.0))

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield bytes(2 * LARGE_BODY_BYTES)
        self.is_read_on = True
        await self.rest.wait()


async def test_a_project_has_some_slots_and_no_others() -> None:
    """Further bodies of the project wait, and those of no other one; nothing is kept of a project that holds none."""
    app = Application(Telemetry(Metrics(), Tracer()))
    app[BODIES] = WeakValueDictionary()
    first = [Upload(app, "one") for _ in range(LARGE_BODIES)]
    late, other = Upload(app, "one"), Upload(app, "other")
    await asyncio.sleep(0.01)
    assert [*[True] * LARGE_BODIES, False, True] == [one.is_read_on for one in (*first, late, other)]
    first[0].rest.set()
    await asyncio.sleep(0.01)
    assert late.is_read_on
    for one in (*first, late, other):
        one.rest.set()
        assert bytes(2 * LARGE_BODY_BYTES) == await one.task
    del first, late, other, one
    gc.collect()
    assert not app[BODIES]
