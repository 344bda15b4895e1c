"""What a node is called where people see several of them."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import socket

import pytest

from voicemem.app import node_address
from voicemem.config.service import Address


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_node_that_listens_everywhere_is_known_by_its_host(host: str) -> None:
    """All containers of a service listen on the same address; their names differ."""
    assert f"{socket.gethostname()}:8080" == node_address(Address(host, 8080))


def test_a_node_with_an_address_is_known_by_it() -> None:
    """It is as the operator has set it, with the port that was taken."""
    assert "10.0.0.7:8080" == node_address(Address("10.0.0.7", 8080))
