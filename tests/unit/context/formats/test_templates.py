"""What the prompts of strict models refuse, in our words and run by jinja2 as their servers run the originals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.support.profiles import examples
from tests.support.random_calls.gateway import RandomAgent, Way
from tests.support.rows import every_row
from tests.support.samples.formats import SEED_CALL, memories, message_of, tool_use_of, tool_uses
from voicemem.config.context import ContextConfig
from voicemem.config.session import LlmConfig, SessionConfig
from voicemem.context.builder import ContextOptions, render_body, select_from
from voicemem.context.formats import RequestFormat, request_body
from voicemem.context.policy_registry import Policies
from voicemem.gateway.request_events import NewInput
from voicemem.transcript.messages import Message, ToolUse

SYSTEM = ({"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Rhyme."})
QWEN = """
{%- set seen = namespace(user=false) -%}
{%- for message in messages -%}
  {%- if message.role == "user" -%}{%- set seen.user = true -%}
  {%- elif message.role == "system" -%}{%- if not loop.first -%}{{ refuse("a system message later on") }}{%- endif -%}
  {%- elif message.role == "assistant" -%}
    {%- for call in message.tool_calls or [] -%}
      {%- for name, value in call.function.arguments | items -%}{{ name }}={{ value }}{%- endfor -%}
    {%- endfor -%}
  {%- elif message.role != "tool" -%}{{ refuse("an unknown role") }}{%- endif -%}
{%- endfor -%}
{%- if not seen.user -%}{{ refuse("no question") }}{%- endif -%}
"""
MISTRAL = """
{%- set rest = messages[1:] if messages[0].role == "system" else messages -%}
{%- set place = namespace(odd=false, before="") -%}
{%- for message in rest -%}
  {%- if message.role not in ("user", "assistant", "tool") -%}{{ refuse("a role") }}{%- endif -%}
  {%- if message.role == "user" and place.before == "tool" -%}{{ refuse("a user after a tool") }}{%- endif -%}
  {%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) -%}
    {%- if (message.role == "user") == place.odd -%}{{ refuse("two of one role") }}{%- endif -%}
    {%- set place.odd = not place.odd -%}
  {%- endif -%}
  {%- set place.before = message.role -%}
{%- endfor -%}
"""
GEMMA = """
{%- set rest = messages[1:] if messages[0].role == "system" else messages -%}
{%- for message in rest -%}
  {%- if (message.role == "user") != (loop.index0 % 2 == 0) -%}{{ refuse("two of one role") }}{%- endif -%}
  {%- if message.content is not string -%}{{ refuse("no text") }}{%- endif -%}
{%- endfor -%}
"""
LLAMA = """
{%- for message in messages -%}
  {%- if message.role == "system" and not loop.first -%}{{ refuse("a system message later on") }}{%- endif -%}
  {%- if message.role == "tool" and not messages[loop.index0 - 1].role in ("tool", "assistant") -%}
    {{ refuse("a result without its call") }}
  {%- endif -%}
  {%- if message.role not in ("system", "user", "assistant", "tool") -%}{{ refuse("a role") }}{%- endif -%}
{%- endfor -%}
"""


class RefusedByTemplate(Exception):
    """What a template raises."""


def refuse(why: str) -> None:
    raise RefusedByTemplate(why)


@cache
def compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["items"] = lambda value: value.items() if isinstance(value, dict) else ()
    environment.globals["refuse"] = refuse
    return environment.from_string(template)


def apply(template: str, messages: Sequence[dict[str, Any]]) -> None:
    """Render a prompt as servers do. Raises `RefusedByTemplate`."""
    compiled(template).render(messages=messages)


def parsed(message: dict[str, Any]) -> dict[str, Any]:
    """A message as servers hand it to a template: with the object that its arguments are. Raises `ValueError`."""
    calls = [
        {**call, "function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    if not all(isinstance(call["function"]["arguments"], dict) for call in calls):
        raise ValueError("arguments are an object")
    return message | ({"tool_calls": calls} if calls else {})


def made(memory: Sequence[Message], tools: Sequence[ToolUse], **options: Any) -> list[dict[str, Any]]:
    format = RequestFormat(system_messages=SYSTEM, tools=True, **options)
    messages: list[dict[str, Any]] = request_body(memory, tools, format)["messages"]
    return messages


@given(memories, tool_uses)
def test_one_system_message_stands_first(memory: Sequence[Message], tools: Sequence[ToolUse]) -> None:
    """Whatever was said and called before the newest words."""
    for template in (QWEN, LLAMA):
        apply(template, made([*memory, message_of("user", "So?", 9)], tools))


@given(memories, tool_uses)
def test_roles_alternate_also_around_tools(memory: Sequence[Message], tools: Sequence[ToolUse]) -> None:
    """What a caller says while a tool runs stands before its call."""
    for template in (QWEN, MISTRAL, LLAMA):
        apply(template, made([*memory, message_of("user", "So?", 9)], tools, alternate=True))


POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"policy": "full"},
    {"max_messages": 3},
    {"policy": "window", "max_tokens": 12},
    {"policy": "window", "max_tokens": 80},
    {"policy": "priority", "max_tokens": 30},
    {"policy": "summary", "max_tokens": 60},
)


class StrictAgent(RandomAgent):
    """A random agent whose LLM is behind a strict prompt, whatever the policy of its session is."""

    def request(self, *more: dict[str, Any]) -> NewInput:
        new = super().request(*more)
        said = None if new.pending_text is None else message_of("user", new.pending_text, new.turn_id)
        session = SessionConfig(llm=LlmConfig(system_messages=SYSTEM))
        for values in POLICIES:
            options = ContextOptions(tools=True, alternate=True, memory=ContextConfig(**values) if values else None)
            selection = select_from(self.call.read_model, Policies(), session, options)
            body = render_body(selection, options, [*self.instructions, *more], said)
            for template in (QWEN, MISTRAL, LLAMA):
                apply(template, [parsed(message) for message in body["messages"]])
        return new


@examples(0.2, least=2)
@given(st.sampled_from(["whole", "since the last request", "new messages"]), st.booleans(), st.randoms())
def test_random_sessions_are_taken(way: Way, few_words: bool, chance: Random) -> None:
    """With tools, fillers, interruptions, speech under way and everything forgotten, under every policy."""
    StrictAgent(chance, way, few_words).talk()


@given(memories)
def test_roles_alternate_without_tools(memory: Sequence[Message]) -> None:
    """For models that take none."""
    apply(GEMMA, made([*memory, message_of("user", "So?", 9)], (), alternate=True))


@every_row("arguments", ["", " ", "{", '{"city":', None, {}, "[1]", 5, '{"a": 1}'], ids=repr)
def test_arguments_can_be_read(arguments: Any) -> None:
    """Also those of a call that was cut off."""
    memory = [message_of("user", "Rain?", 1), message_of("user", "So?", 2)]
    for template in (QWEN, MISTRAL, LLAMA):
        messages = made(memory, [tool_use_of(arguments, "no", turn_id=1)], alternate=True)
        apply(template, [parsed(message) for message in messages])


def test_a_developer_is_a_system() -> None:
    """Alone too: few prompts know the role."""
    for template in (QWEN, MISTRAL, GEMMA, LLAMA):
        format = RequestFormat(system_messages=({"role": "developer", "content": "Rhyme."},))
        apply(template, request_body([message_of("user", "Hi.", 1)], (), format)["messages"])


def test_the_templates_refuse_what_is_not_made_for_them() -> None:
    """Several system messages, two replies in a row, and words behind a result."""
    use = tool_use_of(turn_id=1)
    spoken = [message_of("user", "Rain?", 1), message_of("user", "Hello?", 2)]
    for template, messages in (
        (QWEN, made(spoken, (), system="separate")),
        (MISTRAL, made(SEED_CALL, ())),
        (GEMMA, made(SEED_CALL, ())),
        (MISTRAL, made(spoken, [use])),
    ):
        try:
            apply(template, messages)
        except RefusedByTemplate:
            continue
        raise AssertionError(template)
