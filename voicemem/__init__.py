"""voicemem: the memory of voice agents. It durably records what was really said, and what was really heard."""

from __future__ import annotations

import importlib
from typing import Any

from voicemem.version import __version__, without_server

__all__ = ["__version__", "open", "open_sync"]


def open(store: str = "memory:", **options: Any) -> Any:
    """Open the library: `async with voicemem.open("sqlite:calls.db") as library`. See `library/sessions.py`."""
    return _library("sessions").open_library(store, **options)


def open_sync(store: str = "memory:", **options: Any) -> Any:
    """The same for synchronous code: `with voicemem.open_sync("sqlite:calls.db") as library`, without `await`."""
    return _library("sync").open_library_sync(store, **options)


def _library(name: str) -> Any:
    """A module of the library. Raises `ModuleNotFoundError` where the extra `server` is not installed."""
    try:
        return importlib.import_module(f"voicemem.library.{name}")
    except ModuleNotFoundError as error:
        raise without_server(error) from None
