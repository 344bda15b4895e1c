"""What the next LLM call should get: the memory under a session's settings and a caller's wishes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from voicemem.config.memory import MemoryConfig, overlay
from voicemem.config.session import SessionConfig, parse_config
from voicemem.context.carry_over import carry
from voicemem.context.formats import RequestFormat, request_body
from voicemem.context.formats.values import json_text
from voicemem.context.policies import Policies
from voicemem.context.policies.policy import Choice, Policy, Remembered
from voicemem.context.policies.recent import RecentPolicy
from voicemem.context.policies.summary import render_summary
from voicemem.documents.document import (
    Document,
    WorkingMemoryConfig,
    form_of,
    render_data,
    render_document,
    resolve_form,
)
from voicemem.errors import Refused
from voicemem.llm.tokens import TokenCounter
from voicemem.protocol.types import JsonObject
from voicemem.sessions.cache import Memories
from voicemem.sessions.read_model import Memory
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Message, ToolUse
from voicemem.transcript.state import State

LOG = logging.getLogger("voicemem.context.policies")


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

    history: Sequence[Message]
    """All messages, forgotten ones too."""
    places: Sequence[int]
    """Where the remembered ones stand among them."""
    carried: tuple[str, ...]
    settings: SessionConfig
    memory: MemoryConfig
    policy: Policy
    remembered: Remembered
    choice: Choice
    counter: TokenCounter
    beside: tuple[JsonObject, ...] = ()
    """System messages of what is kept beside the call: working memory, data."""
    tool_uses: Callable[[], Sequence[ToolUse]] = list
    """All that were answered, whether they are shown or not, as long as the memory does not change."""

    @property
    def everything(self) -> Remembered:
        """What a summary is made of."""
        return msgspec.structs.replace(self.remembered, tools=self.tool_uses())

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
        return bool(self.remembered.messages) and (not kept or self.places[kept[0]] > 0)

    @property
    def system_messages(self) -> tuple[dict[str, Any], ...]:
        """The session's own, and what the memory adds to them."""
        summary = self.choice.summary
        texts = self.carried if summary is None else (*self.carried, render_summary(summary))
        own = (*self.settings.llm.system_messages, *self.beside)
        return (*own, *({"role": "system", "content": text} for text in texts)) if texts else own


async def context(memories: Memories, policies: Policies, stream: Stream, wishes: Wishes) -> dict[str, Any]:
    """The whole body of the next LLM call. Raises `Refused` for an unknown enricher or policy."""
    return body_of(await choose(memories, policies, stream, wishes), wishes)


async def choose(memories: Memories, policies: Policies, stream: Stream, wishes: Wishes) -> Chosen:
    """What the policy of a session, or of a wish, chooses. Raises `Refused`."""
    settings = parse_config(stream.config)
    of_user = await user_message(memories, stream.project, settings)
    memory = await memories.at(stream)
    if settings.memory_from is not None and memory.state.carried is None:
        memory = await carry(memories, stream, settings)
    return chosen(memory, policies, settings, wishes, of_user, stream.id)


def chosen(
    memory: Memory,
    policies: Policies,
    settings: SessionConfig,
    wishes: Wishes,
    of_user: JsonObject | None = None,
    session_id: str = "",
) -> Chosen:
    """The same of a memory as it is now; `of_user` shows the document of its user, `session_id` is for the log."""
    wanted = policies.resolve(settings.memory)
    wanted = wanted if wishes.memory is None else overlay(wanted, wishes.memory)
    model = model_of(settings, policies)
    counter = policies.counter(model)

    def answered() -> list[ToolUse]:
        return [use for use in memory.tool_uses() if use.answered]

    messages, tokens, places = memory.made_messages(), memory.tokens(counter), memory.remembered()
    remembered = Remembered(
        messages=messages if len(places) == len(messages) else [messages[index] for index in places],
        tools=answered() if wishes.tools else [],
        tokens=tokens if len(places) == len(messages) else lambda index: tokens(places[index]),
        tool_tokens=lambda use: tool_tokens(use, counter),
        text_tokens=counter.count,
        summary=memory.state.summary,
        window=policies.window(wanted, model),
    )
    beside = kept_messages(memory.state, settings, of_user, wishes.data)
    carried = tuple(session.text for session in memory.state.carried or ())
    recent = RecentPolicy(wishes.max_history or settings.llm.max_history)
    try:
        policy, choice = applied(policies, wanted, recent, remembered)
    except Exception as error:
        if isinstance(error, Refused) and wishes.memory is not None:
            raise  # this call alone has asked for it
        # One of the operator's own: the call goes on without it.
        LOG.error("Session %s is shown its newest messages, not by %s", session_id, wanted.policy, exc_info=error)
        wanted, policy, choice = MemoryConfig(), recent, recent.choose(remembered)
    return Chosen(messages, places, carried, settings, wanted, policy, remembered, choice, counter, beside, answered)


def applied(policies: Policies, wanted: MemoryConfig, recent: Policy, remembered: Remembered) -> tuple[Policy, Choice]:
    """The policy that is wanted, else `recent`, and what it chooses. Raises what an own one raises."""
    policy = policies.policy(wanted) or recent
    choice = policy.choose(remembered)
    return policy, checked(choice, remembered) if wanted.policy in policies.own else choice


def checked(choice: Any, remembered: Remembered) -> Choice:
    """What a policy that anybody wrote has chosen, in the order of the call. Raises `ValueError`."""
    if not isinstance(choice, Choice):
        raise ValueError("A policy must return a Choice.")
    kept = sorted(set(choice.kept))
    if kept and not 0 <= kept[0] <= kept[-1] < len(remembered.messages):
        raise ValueError("A policy must keep messages that there are.")
    return choice._replace(kept=kept, reason=str(choice.reason))


def model_of(settings: SessionConfig, policies: Policies) -> str | None:
    """The model that a session's context is for."""
    llm = settings.llm
    model = llm.model or llm.params.get("model") or (policies.default_model if llm.url is None else None)
    return model if isinstance(model, str) else None


def tool_tokens(use: ToolUse, counter: TokenCounter) -> int:
    return sum(counter.count(text) for text in (use.name, json_text(use.arguments), json_text(use.result)))


def body_of(chosen: Chosen, wishes: Wishes) -> dict[str, Any]:
    settings, llm = chosen.settings, chosen.settings.llm
    format = RequestFormat(
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


async def user_message(memories: Memories, project: str, settings: SessionConfig) -> JsonObject | None:
    """The system message of the document that a session shares with the others of its user, if it does."""
    section = settings.working_memory
    if section is None or section.scope != "user" or settings.user_id is None:
        return None
    stream = await memories.journal.user(project, settings.user_id)
    document = None if stream is None else (await memories.at(stream)).state.document
    return message_of(document, section)


def kept_messages(
    state: State, settings: SessionConfig, of_user: JsonObject | None, data: bool
) -> tuple[JsonObject, ...]:
    """The system messages of a session. Its own document is shown where it is configured, or was written."""
    section, own = settings.working_memory, state.document
    messages = [] if of_user is None else [of_user]
    if section is not None and section.scope == "session":
        messages.append(message_of(own, section))
    elif section is None and own is not None and own.content is not None:
        messages.append(message_of(own, WorkingMemoryConfig()))
    if data and state.data:
        messages.append({"role": "system", "content": render_data(state.data)})
    return tuple(messages)


def message_of(document: Document | None, section: WorkingMemoryConfig) -> JsonObject:
    document = document or Document()
    form = resolve_form(document.content, document.form, form_of(section))
    return {"role": "system", "content": render_document(document.content, form, section.scope, section.tools)}
