"""The schemas of tools, and what a token has fixed of them."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.client.errors import ClientError
from voicemem.mcp import schemas
from voicemem.mcp.client import Client, Service, client_with
from voicemem.mcp.tools import MAX_SHOWN, TOOLS, describe_tool, find_tool, newest_that_fit, tools_of

SERVICE = Service("http://127.0.0.1:9")
OWNERS = {"user_id", "session_id"}


def token(**claims: Any) -> str:
    return jwt.encode({"sub": "call-1", "exp": 2_000_000_000, **claims}, "x" * 32, "HS256", headers={"kid": "k"})


@every_row("tool", TOOLS, ids=lambda tool: tool.name)
def test_arguments_are_described(tool: Any) -> None:
    """Each says what it means; none has a pattern, which some clients cannot read, and none may be unknown."""
    schema = describe_tool(tool, Client(SERVICE)).input_schema
    assert schema["additionalProperties"] is False
    for name, field in schema["properties"].items():
        assert field.get("description"), name
        assert "pattern" not in field


@every_row("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_token_takes_owners_away_and_nothing_else(tool: Any) -> None:
    """What else there is to say stays."""
    own, fixed = (
        describe_tool(tool, Client(SERVICE, "b", session_id)).input_schema["properties"] for session_id in (None, "s")
    )
    assert {name: field for name, field in own.items() if name not in OWNERS} == fixed


def test_a_caller_is_what_the_key_says() -> None:
    """A key reaches its project, a token its session or also its user; both are for the service to check."""
    assert "project" == client_with(SERVICE, None).reach == client_with(SERVICE, "vm_1_2").reach
    assert ("session", "call-1") == (client_with(SERVICE, token()).reach, client_with(SERVICE, token()).session_id)
    assert "user" == client_with(SERVICE, token(memories="user")).reach
    assert "session" == client_with(SERVICE, token(memories=["user"])).reach
    assert "project" == client_with(SERVICE, "a.b.c").reach
    assert find_tool(client_with(SERVICE, token()), "recent_calls") is None
    assert len(TOOLS) == len(tools_of(client_with(SERVICE, token(memories="user"))))


@pytest.mark.parametrize("bearer", ["", "a key", "schlüssel", "a\nb", "x" * 5000])
def test_what_cannot_be_a_key_is_refused(bearer: str) -> None:
    """It could not be sent in a header."""
    with pytest.raises(ClientError, match="printable"):
        client_with(SERVICE, bearer)


@given(st.lists(st.sampled_from([10, MAX_SHOWN // 3, MAX_SHOWN, 2 * MAX_SHOWN]), max_size=8))
def test_an_answer_is_bounded(sizes: list[int]) -> None:
    """The newest messages that fit, and always the newest one."""
    messages = [schemas.HeardMessage(turn, "user", "x" * size, None) for turn, size in enumerate(sizes)]
    shown = newest_that_fit(messages)
    assert messages[len(messages) - len(shown) :] == shown
    assert len(shown) <= 1 or sum(len(message.text) for message in shown) <= MAX_SHOWN
    assert bool(shown) is bool(messages)
