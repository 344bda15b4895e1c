"""Gemini's generateContent: https://ai.google.dev/api/generate-content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicemem.context.formats.conversation import RoleRun
from voicemem.context.formats.values import arguments_object, as_object, system_text

ALTERNATES = True
TAKES_BLANK = False

ROLES = {"user": "user", "assistant": "model"}

REQUEST_FIELDS = ("systemInstruction", "tools", "toolConfig", "safetySettings", "cachedContent")
"""Params with these names are fields of the request itself; all others belong to its `generationConfig`."""


def conversation(runs: Sequence[RoleRun], system_messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`contents`, and `systemInstruction` if there is any such text."""
    contents = [{"role": ROLES[run.role], "parts": _parts(run), **run.fields} for run in runs]
    system = system_text(system_messages)
    return {"contents": contents} | ({"systemInstruction": {"parts": [{"text": system}]}} if system else {})


def body_params(params: dict[str, Any]) -> dict[str, Any]:
    """Params under `generationConfig`, including those that were given under that name."""
    request = {name: params[name] for name in REQUEST_FIELDS if name in params}
    generation = {name: value for name, value in params.items() if name not in REQUEST_FIELDS and name != "model"}
    nested = generation.pop("generationConfig", None)
    if isinstance(nested, dict):
        generation = nested | generation
    return request | ({"generationConfig": generation} if generation else {})


def _parts(run: RoleRun) -> list[dict[str, Any]]:
    # A response directly follows its call, so no ids are needed; some endpoints refuse them.
    parts: list[dict[str, Any]] = []
    if run.result:
        response = as_object(run.result.result, "output")
        parts.append({"functionResponse": {"name": run.result.name, "response": response}})
    if run.text is not None:
        parts.append({"text": run.text})
    if run.call:
        arguments = arguments_object(run.call.arguments)
        parts.append({"functionCall": {"name": run.call.name, "args": arguments}})
    return parts
