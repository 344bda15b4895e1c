"""voicemem: the memory of voice agents. It durably records what was really said, and what was really heard."""

import importlib
from typing import Any, TypeVar

from voicemem.version import __version__, without_server

C = TypeVar("C")
__all__ = ["__version__", "memory_of", "open", "open_sync", "tee"]


def open(store: str = "memory:", **options: Any) -> Any:
    """Open the library: `async with voicemem.open("sqlite:calls.db") as library`. See `library/sessions.py`."""
    return _library("sessions").open_library(store, **options)


def open_sync(store: str = "memory:", **options: Any) -> Any:
    """Open a store for synchronous code: `with voicemem.open_sync("sqlite:calls.db") as library`, without `await`."""
    return _library("sync").open_library_sync(store, **options)


class _Tee:
    """Sends a copy of each frame of a connection to another voice stack to the memory. See `integrations/tee`."""

    def __call__(self, connection: C, client: Any, session_id: str | None = None, **options: Any) -> C:
        teed: C = importlib.import_module("voicemem.integrations.tee").tee(connection, client, session_id, **options)
        return teed

    def phone(self, connection: C, client: Any, session_id: str | None = None, **options: Any) -> C:
        """Send how far a phone has played the agent's audio: around the socket of its media stream."""
        teed: C = importlib.import_module("voicemem.integrations.tee").phone(connection, client, session_id, **options)
        return teed


tee = _Tee()


def memory_of(connection: object) -> Any:
    """The memory of a connection that `tee` has returned."""
    return importlib.import_module("voicemem.integrations.tee").memory_of(connection)


def _library(name: str) -> Any:
    """A module of the library. Raises `ModuleNotFoundError` where the extra `server` is not installed."""
    try:
        return importlib.import_module(f"voicemem.library.{name}")
    except ModuleNotFoundError as error:
        raise without_server(error) from None
