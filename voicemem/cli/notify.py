"""Tells a supervisor about the service's state (`Type=notify` of systemd; `man sd_notify`)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Send `READY=1` or `STOPPING=1` to the supervisor, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as supervisor:
        supervisor.connect(f"\0{path[1:]}" if path.startswith("@") else path)
        supervisor.send(state.encode())
