"""Running services, as tests ask for them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from voicemem.app import App
from voicemem.config.service import Address

ANY_PORT = Address("127.0.0.1", 0)
Serve = Callable[..., Coroutine[Any, Any, App]]
"""Starts a service with these settings; it is torn down with the test."""
