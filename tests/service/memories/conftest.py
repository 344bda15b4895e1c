"""A service, and stores that several nodes may have."""

from __future__ import annotations

from tests.support.stores.engines import engine as engine
from tests.support.stores.engines import open_handle as open_handle
from tests.support.stores.engines import store as store
