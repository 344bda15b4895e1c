"""Anthropic's Messages: https://docs.anthropic.com/en/api/messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from voicemem.context.formats.conversation import RoleRun
from voicemem.context.formats.values import arguments_object, json_text, system_text
from voicemem.transcript.messages import ToolUse

ALTERNATES = True
TAKES_BLANK = False

MAX_TOKENS = 1024
"""Of a reply, if params do not say: the API requires a limit, and a spoken reply is short."""


def conversation(runs: Sequence[RoleRun], system_messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`messages`, and `system` if there is any such text."""
    messages = [{"role": run.role, "content": _content(run), **run.fields} for run in runs]
    system = system_text(system_messages)
    return {"messages": messages, "system": system} if system else {"messages": messages}


def body_params(params: dict[str, Any]) -> dict[str, Any]:
    """Params at the top level, always with `max_tokens`."""
    max_tokens = params.get("max_tokens")
    return {**params, "max_tokens": MAX_TOKENS if max_tokens is None else max_tokens}


def _content(run: RoleRun) -> str | list[dict[str, Any]]:
    """Plain text, or blocks if the run has a tool call or result."""
    if run.text is not None and not run.result and not run.call:
        return run.text
    blocks: list[dict[str, Any]] = []
    if run.result:
        blocks.append(_result(run.result))
    if run.text is not None:
        blocks.append({"type": "text", "text": run.text})
    if run.call:
        blocks.append(_call(run.call))
    return blocks


def _call(use: ToolUse) -> dict[str, Any]:
    return {"type": "tool_use", "id": _id(use), "name": use.name, "input": arguments_object(use.arguments)}


def _result(use: ToolUse) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": _id(use)}
    content = json_text(use.result)
    return block | {"content": content} if content.strip() else block


def _id(use: ToolUse) -> str:
    """The tool call's id in characters that the API takes (`[a-zA-Z0-9_-]`); different ids stay different."""
    return re.sub(r"[^a-zA-Z0-9_-]", lambda letter: f"_{ord(letter[0]):x}_", use.call_id)
