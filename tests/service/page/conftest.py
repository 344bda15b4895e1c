"""Services with the page."""

from __future__ import annotations

import pytest

from tests.support.services import Serve, with_page


@pytest.fixture
def serve(serve: Serve) -> Serve:
    return with_page(serve)
