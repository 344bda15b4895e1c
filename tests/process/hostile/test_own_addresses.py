"""A public address of the machine itself is not one that tenants may reach."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]
can_unshare = shutil.which("unshare") is not None and not subprocess.run([*UNSHARE, "true"], check=False).returncode
PROGRAM = """
import fcntl, socket, struct
from voicemem.security.address_guard import allowed_networks, is_blocked

ADDRESS, OTHER = "1.2.3.4", "1.2.3.5"
assert not is_blocked(ADDRESS)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    address = struct.pack("16sH2x4s8x", b"lo", socket.AF_INET, socket.inet_aton(ADDRESS))
    fcntl.ioctl(control, 0x8916, address)  # SIOCSIFADDR
    fcntl.ioctl(control, 0x891C, struct.pack("16sH2x4s8x", b"lo", socket.AF_INET, socket.inet_aton("255.255.255.255")))
    fcntl.ioctl(control, 0x8914, struct.pack("16sH", b"lo", 0x41))  # SIOCSIFFLAGS: up, running
assert is_blocked(ADDRESS)
assert is_blocked("::ffff:" + ADDRESS)
assert not is_blocked(OTHER)
assert not is_blocked(ADDRESS, allowed_networks(["1.2.3.0/24"]))
with open("/proc/sys/net/ipv4/ip_nonlocal_bind", "w") as setting:
    setting.write("1")
assert not is_blocked(OTHER)
"""


@pytest.mark.skipif(not can_unshare, reason="needs a network of its own (unshare)")
def test_an_address_is_blocked_once_an_interface_has_it() -> None:
    """A public address is blocked from the moment on at which it is the machine's, unless it is allowed."""
    ran = subprocess.run([*UNSHARE, sys.executable, "-c", PROGRAM], env=os.environ, capture_output=True, check=False)
    assert (0, b"") == (ran.returncode, ran.stderr)
