"""The client's side of a connection to a server of a tenant, which may answer with interim responses without end.

aiohttp passes over each `100 Continue` at once, before it looks at anything else, its own deadlines included: a server
that sends nothing else would hold up the whole process, and fill its memory.
"""

from __future__ import annotations

from typing import Any

from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

MOST = 16
"""Interim responses before one answer; a server needs one or two."""
LOOK_BYTES = 4 * 1024
"""Of what comes at once, this much is read before more is, while interim responses come."""
SWITCHING_PROTOCOLS = 101


class BoundedResponseHandler(ResponseHandler):
    """A connection on which a server may send `MOST` interim responses before an answer."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.interim = 0
        """Interim responses since the last answer."""

    def data_received(self, data: bytes) -> None:
        at = LOOK_BYTES
        super().data_received(data[:at] if len(data) > at else data)
        while at < len(data):
            if self.interim > MOST:
                return
            end = at + LOOK_BYTES if self.interim else len(data)
            super().data_received(data[at:end])
            at = end

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take a response, as its head and its body. Too many interim ones end the connection."""
        code = data[0].code
        self.interim = self.interim + 1 if 100 <= code < 200 and code != SWITCHING_PROTOCOLS else 0
        if self.interim <= MOST:
            super().feed_data(data, size)
        elif not self.is_eof():
            if self.transport is not None:
                self.transport.abort()
            self.set_exception(HttpProcessingError(message="Too many interim responses"))
