"""voicemem: the memory of voice agents. It durably records what was really said, and what was really heard."""

from __future__ import annotations

import importlib
from typing import Any

from voicemem.version import __version__

__all__ = ["__version__", "open", "open_sync"]


def open(store: str = "memory:", **options: Any) -> Any:
    """Open the library: `async with voicemem.open("sqlite:calls.db") as library`. See `library/sessions.py`."""
    return importlib.import_module("voicemem.library.sessions").open_library(store, **options)


def open_sync(store: str = "memory:", **options: Any) -> Any:
    """The same for synchronous code: `with voicemem.open_sync("sqlite:calls.db") as library`, without `await`."""
    return importlib.import_module("voicemem.library.sync").open_library_sync(store, **options)
