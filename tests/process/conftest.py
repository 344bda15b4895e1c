"""Services for the tests of this lane."""

from __future__ import annotations

from tests.support.services import serve as serve
