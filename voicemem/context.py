"""What the next LLM call should get: the memory under a session's settings and a caller's wishes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from voicemem import config
from voicemem.admission import Stream
from voicemem.config import SessionConfig
from voicemem.documents import Document, WorkingMemoryConfig, data_shown, form_for, form_of
from voicemem.documents import shown as shown_document
from voicemem.formats import Format, request_body
from voicemem.formats.values import json_text
from voicemem.memories import Memories
from voicemem.memory import Memory
from voicemem.messages import Message, ToolUse
from voicemem.policies import Choice, MemoryConfig, Policies, Policy, Remembered
from voicemem.policies.recent import Recent
from voicemem.policies.summary import shown
from voicemem.policies.tokens import Counter


class Wishes(Struct, frozen=True, kw_only=True):
    """What a caller of `context` asks for; what is None is as the session has it."""

    enrich: tuple[str, ...] = ()
    style: Literal["openai", "anthropic", "gemini"] | None = None
    alternate: bool = False
    tools: bool = False
    max_history: int | None = None
    memory: MemoryConfig | None = None
    """Another policy for this call, or other parameters of the session's."""
    data: bool = False
    """Whether the session's data are shown."""


class Chosen(NamedTuple):
    """What a policy chose of a memory, and how it was counted."""

    settings: SessionConfig
    memory: MemoryConfig
    policy: Policy
    remembered: Remembered
    choice: Choice
    counter: Counter
    kept: tuple[dict[str, Any], ...] = ()
    """System messages of what is kept beside the call: working memory, data."""

    @property
    def messages(self) -> Sequence[Message]:
        messages, kept = self.remembered.messages, self.choice.kept
        if isinstance(kept, range):
            return messages[kept.start : kept.stop]
        return [messages[index] for index in kept]

    @property
    def tools(self) -> Sequence[ToolUse]:
        """Those of the turns that are shown; between neighbouring messages all of them."""
        tools, kept = self.remembered.tools, self.choice.kept
        if not tools or not self.choice.tools:
            return ()
        if isinstance(kept, range):
            since = self.remembered.messages[kept.start].turn_id if kept and kept.start else -1
            return [use for use in tools if use.turn_id >= since]
        turns = {message.turn_id for message in self.messages}
        return [use for use in tools if use.turn_id in turns]

    @property
    def cut(self) -> bool:
        """Whether older messages were left out."""
        kept = self.choice.kept
        return bool(self.remembered.messages) and (not kept or kept[0] > 0)

    @property
    def system_messages(self) -> tuple[dict[str, Any], ...]:
        """The session's own, and what the memory adds to them."""
        summary = self.choice.summary
        own = (*self.settings.llm.system_messages, *self.kept)
        return own if summary is None else (*own, {"role": "system", "content": shown(summary)})


async def context(memories: Memories, policies: Policies, stream: Stream, wishes: Wishes) -> dict[str, Any]:
    """The whole body of the next LLM call. Raises `Refused` for an unknown enricher or policy."""
    return body_of(await choose(memories, policies, stream, wishes), wishes)


async def choose(memories: Memories, policies: Policies, stream: Stream, wishes: Wishes) -> Chosen:
    """What the policy of a session, or of a wish, chooses. Raises `Refused`."""
    settings = config.read(stream.config)
    users = await users_document(memories, stream.project, settings)
    return chosen(await memories.at(stream), policies, settings, wishes, users)


async def users_document(memories: Memories, project: str, settings: SessionConfig) -> dict[str, Any] | None:
    """The system message of the document that a session shares with others of its user, if it does."""
    section = settings.working_memory
    if section is None or section.scope != "user" or settings.user_id is None:
        return None
    stream = await memories.journal.user(project, settings.user_id)
    document = None if stream is None else (await memories.at(stream)).state.document
    return document_message(document, settings)


def document_message(document: Document | None, settings: SessionConfig) -> dict[str, Any]:
    section = settings.working_memory or WorkingMemoryConfig()
    found = document or Document()
    form = form_for(found.content, found.form, form_of(section))
    return {"role": "system", "content": shown_document(found.content, form, section.scope, section.tools)}


def kept_messages(
    memory: Memory, settings: SessionConfig, wishes: Wishes, users: dict[str, Any] | None
) -> tuple[dict[str, Any], ...]:
    section, own = settings.working_memory, memory.state.document
    messages = [] if users is None else [users]
    if (section is None and own is not None and own.content is not None) or (
        section is not None and section.scope == "session"
    ):
        messages.append(document_message(own, settings))
    if wishes.data and memory.state.data:
        messages.append({"role": "system", "content": data_shown(memory.state.data)})
    return tuple(messages)


def chosen(
    memory: Memory,
    policies: Policies,
    settings: SessionConfig,
    wishes: Wishes,
    users: dict[str, Any] | None = None,
) -> Chosen:
    """The same of a memory as it is now; `users` is what it shows of its user's document."""
    wanted = wanted_memory(policies.settled(settings.memory), wishes.memory)
    policy = policies.policy(wanted) or Recent(wishes.max_history or settings.llm.max_history)
    model = settings.llm.model or settings.llm.params.get("model")
    model = model if isinstance(model, str) else None
    counter = policies.counter(model)
    remembered = Remembered(
        messages=memory.made_messages(),
        tools=[use for use in memory.tool_uses() if use.answered] if wishes.tools else [],
        tokens=memory.tokens(counter),
        tool_tokens=lambda use: tool_tokens(use, counter),
        text_tokens=counter.count,
        summary=memory.state.summary,
        window=policies.window(wanted, model),
    )
    kept = kept_messages(memory, settings, wishes, users)
    return Chosen(settings, wanted, policy, remembered, policy.choose(remembered), counter, kept)


def wanted_memory(own: MemoryConfig, wished: MemoryConfig | None) -> MemoryConfig:
    """The settings of a call: another policy brings its own parameters, the same one takes those that are given."""
    if wished is None or wished.policy not in (None, own.policy):
        return own if wished is None else wished
    given = {name: value for name in wished.__struct_fields__ if (value := getattr(wished, name)) not in (None, {})}
    return msgspec.structs.replace(own, **given)


def tool_tokens(use: ToolUse, counter: Counter) -> int:
    return sum(counter.count(text) for text in (use.name, json_text(use.arguments), json_text(use.result)))


def body_of(chosen: Chosen, wishes: Wishes) -> dict[str, Any]:
    settings, llm = chosen.settings, chosen.settings.llm
    format = Format(
        vendor=llm.vendor,
        model=llm.model,
        style=wishes.style or llm.style,
        params=llm.params,
        system_messages=chosen.system_messages,
        interruptable=settings.interruptable,
        enrich=wishes.enrich,
        alternate=wishes.alternate,
        tools=wishes.tools,
    )
    return request_body(chosen.messages, chosen.tools, format, cut=chosen.cut)
