"""What can go wrong for a client, each error with the code and the plain sentence that the server gave it.

::

    ClientError
    ├── BufferFull        send: the event was not taken, since too much is unacknowledged
    ├── EventRefused      one event was refused; it is not stored
    │   ├── SessionEnded  the session takes no new events
    │   └── SessionErased the session was erased
    ├── Superseded        another process has opened this producer; this one is out
    ├── RequestRefused    the server refused a request, an open, or the client as a whole
    ├── Unreachable       no answer came
    ├── Closed            the client was closed before the event was acknowledged
    └── Unacknowledged    close: some events were not acknowledged in time
"""

from __future__ import annotations


class ClientError(Exception):
    """The base of all errors of the client. `code` is a code of the server's, or one of the client's own."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(f"{code}: {detail}")


class BufferFull(ClientError):
    """So many events or bytes are unacknowledged that this one was not taken; its seq is still free."""

    def __init__(self, events: int, size: int) -> None:
        super().__init__("buffer_full", f"{events} events of {size} bytes are not acknowledged yet.")


class EventRefused(ClientError):
    """One event was refused, and nothing of it is stored. `seq` is None when it was refused before it had one."""

    def __init__(self, code: str, detail: str, seq: int | None = None) -> None:
        super().__init__(code, detail)
        self.seq = seq


class SessionEnded(EventRefused):
    """The session has ended; it takes no new events."""


class SessionErased(EventRefused):
    """The session was erased; its id is not used again."""


class Superseded(ClientError):
    """Another process has opened this producer. What was not acknowledged may or may not be stored."""

    def __init__(self) -> None:
        super().__init__("superseded", "Another process has opened this producer.")


class RequestRefused(ClientError):
    """The server's answer to a request is an error. `status` is its HTTP status, None when it came by websocket."""

    def __init__(self, code: str, detail: str, status: int | None = None) -> None:
        super().__init__(code, detail)
        self.status = status


class Unreachable(ClientError):
    """No answer came: the connection failed, or the time was over."""

    def __init__(self, detail: str) -> None:
        super().__init__("unreachable", detail)


class Closed(ClientError):
    """The client was closed; what was not acknowledged until then may or may not be stored."""

    def __init__(self) -> None:
        super().__init__("closed", "The client is closed.")


class Unacknowledged(ClientError):
    """The client is closed, and some events were not acknowledged. `events` is their number by session id."""

    def __init__(self, events: dict[str, int]) -> None:
        super().__init__("unacknowledged", f"{sum(events.values())} events were not acknowledged in time.")
        self.events = events
