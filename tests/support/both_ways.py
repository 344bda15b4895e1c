"""Services as the tests of connections ask for them: read together, and then each connection by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.services import Serve
from voicemem.app import App
from voicemem.runtime import Clock


@pytest.fixture(params=[True, False], ids=["in rounds", "by the loop"])
def serve(serve: Serve, request: pytest.FixtureRequest) -> Serve:
    """Start services that read busy connections together, and then services that read each by itself."""

    async def start(clock: Clock | None = None, /, **settings: Any) -> App:
        return await serve(clock, **{"ingest_looks": request.param, **settings})

    return start
