"""OpenAI's Chat Completions: https://platform.openai.com/docs/api-reference/chat/create."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicemem.context.formats.conversation import RoleRun
from voicemem.context.formats.values import json_text
from voicemem.transcript.messages import ToolUse

ALTERNATES = False
TAKES_BLANK = True


def conversation(runs: Sequence[RoleRun], system_messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`messages`: the system messages unchanged, then the conversation."""
    messages = list(system_messages)
    for run in runs:
        if run.result:
            messages.append(
                {"role": "tool", "tool_call_id": run.result.call_id, "content": json_text(run.result.result)}
            )
        if run.call:
            messages.append({"role": run.role, "content": run.text, **run.fields, "tool_calls": [_tool_call(run.call)]})
        elif run.text is not None:
            said = {"role": run.role, "content": run.text}
            messages.append(said | run.fields if run.fields else said)
    return {"messages": messages}


def body_params(params: dict[str, Any]) -> dict[str, Any]:
    """Params unchanged, at the top level."""
    return params


def _tool_call(use: ToolUse) -> dict[str, Any]:
    # Servers that render a prompt from the arguments iterate over them, so none become an empty object, not null.
    arguments = json_text({} if use.arguments is None else use.arguments)
    return {"id": use.call_id, "type": "function", "function": {"name": use.name, "arguments": arguments}}
