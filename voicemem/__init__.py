"""voicemem: the memory of voice agents. What was really said, and what was really heard, recorded durably."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"


def open(store: str = "memory:", **options: Any) -> Any:
    """The library: `async with voicemem.open("sqlite:calls.db") as library`; see `voicemem.library.open_library`."""
    return importlib.import_module("voicemem.library").open_library(store, **options)


def open_sync(store: str = "memory:", **options: Any) -> Any:
    """The library for synchronous code: `with voicemem.open_sync("sqlite:calls.db") as library`, without `await`."""
    return importlib.import_module("voicemem.library_sync").open_library_sync(store, **options)
