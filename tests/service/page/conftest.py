"""Services with the page."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.services import Serve
from voicemem.app import App
from voicemem.runtime import Clock


@pytest.fixture
def serve(serve: Serve) -> Serve:
    async def start(clock: Clock | None = None, /, **settings: Any) -> App:
        return await serve(clock, **{"ui": True, **settings})

    return start
