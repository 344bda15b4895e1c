"""Stores that several nodes have: one of each engine in `tests/support/stores/engines.py`."""

from __future__ import annotations

from tests.support.stores.engines import engine as engine
from tests.support.stores.engines import open_handle as open_handle
from tests.support.stores.engines import two_handles as two_handles
