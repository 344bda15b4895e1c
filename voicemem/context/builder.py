"""What the next LLM call should get: the memory under a session's settings and a caller's wishes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from voicemem.config.memory import MemoryConfig, overlay
from voicemem.config.session import SessionConfig, parse_config
from voicemem.context.carry_over import carry_over
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


class ContextOptions(Struct, frozen=True, kw_only=True):
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


class ContextSelection(NamedTuple):
    """What a policy chose of a memory, and how it was counted."""

    history: Sequence[Message]
    """All messages, forgotten ones too."""
    indexes: Sequence[int]
    """Where the remembered ones stand among them."""
    carried: tuple[str, ...]
    session_config: SessionConfig
    memory_config: MemoryConfig
    policy: Policy
    remembered: Remembered
    choice: Choice
    counter: TokenCounter
    extra_messages: tuple[JsonObject, ...] = ()
    """System messages of what is kept beside the call: working memory, data."""
    tool_uses: Callable[[], Sequence[ToolUse]] = list
    """All that were answered, whether they are shown or not, as long as the memory does not change."""

    @property
    def summary_source(self) -> Remembered:
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
    def is_cut(self) -> bool:
        """Whether older messages were left out."""
        kept = self.choice.kept
        return bool(self.remembered.messages) and (not kept or self.indexes[kept[0]] > 0)

    @property
    def system_messages(self) -> tuple[dict[str, Any], ...]:
        """The session's own, and what the memory adds to them."""
        summary = self.choice.summary
        texts = self.carried if summary is None else (*self.carried, render_summary(summary))
        configured = (*self.session_config.llm.system_messages, *self.extra_messages)
        return (*configured, *({"role": "system", "content": text} for text in texts)) if texts else configured


async def build_context(
    memories: Memories, policies: Policies, stream: Stream, options: ContextOptions
) -> dict[str, Any]:
    """The whole body of the next LLM call. Raises `Refused` for an unknown enricher or policy."""
    return render_body(await select_context(memories, policies, stream, options), options)


async def select_context(
    memories: Memories, policies: Policies, stream: Stream, options: ContextOptions
) -> ContextSelection:
    """What the policy of a session, or of a wish, chooses. Raises `Refused`."""
    session_config = parse_config(stream.config)
    user_document_message = await make_user_document_message(memories, stream.project, session_config)
    memory = await memories.at(stream)
    if session_config.memory_from is not None and memory.state.carried is None:
        memory = await carry_over(memories, stream, session_config)
    return select_from(memory, policies, session_config, options, user_document_message, stream.id)


def select_from(
    memory: Memory,
    policies: Policies,
    session_config: SessionConfig,
    options: ContextOptions,
    user_document_message: JsonObject | None = None,
    session_id: str = "",
) -> ContextSelection:
    """The same of a memory as it is now; `of_user` shows the document of its user, `session_id` is for the log."""
    memory_config = policies.resolve(session_config.memory)
    memory_config = memory_config if options.memory is None else overlay(memory_config, options.memory)
    model = model_of(session_config, policies)
    counter = policies.counter(model)

    def answered() -> list[ToolUse]:
        return [use for use in memory.tool_uses() if use.answered]

    messages, tokens, indexes = memory.made_messages(), memory.tokens(counter), memory.remembered()
    remembered = Remembered(
        messages=messages if len(indexes) == len(messages) else [messages[index] for index in indexes],
        tools=answered() if options.tools else [],
        tokens=tokens if len(indexes) == len(messages) else lambda index: tokens(indexes[index]),
        tool_tokens=lambda use: tool_tokens(use, counter),
        text_tokens=counter.count,
        summary=memory.state.summary,
        window=policies.window(memory_config, model),
    )
    extra_messages = make_extra_messages(memory.state, session_config, user_document_message, options.data)
    carried = tuple(session.text for session in memory.state.carried or ())
    recent = RecentPolicy(options.max_history or session_config.llm.max_history)
    try:
        policy, choice = apply_policy(policies, memory_config, recent, remembered)
    except Exception as error:
        if isinstance(error, Refused) and options.memory is not None:
            raise  # this call alone has asked for it
        # One of the operator's own: the call goes on without it.
        LOG.error(
            "Session %s is shown its newest messages, not by %s", session_id, memory_config.policy, exc_info=error
        )
        memory_config, policy, choice = MemoryConfig(), recent, recent.choose(remembered)
    return ContextSelection(
        messages,
        indexes,
        carried,
        session_config,
        memory_config,
        policy,
        remembered,
        choice,
        counter,
        extra_messages,
        answered,
    )


def apply_policy(
    policies: Policies, memory_config: MemoryConfig, recent: Policy, remembered: Remembered
) -> tuple[Policy, Choice]:
    """The policy that is wanted, else `recent`, and what it chooses. Raises what an own one raises."""
    policy = policies.create_policy(memory_config) or recent
    choice = policy.choose(remembered)
    return policy, check_choice(choice, remembered) if memory_config.policy in policies.custom_policies else choice


def check_choice(choice: Any, remembered: Remembered) -> Choice:
    """What a policy that anybody wrote has chosen, in the order of the call. Raises `ValueError`."""
    if not isinstance(choice, Choice):
        raise ValueError("A policy must return a Choice.")
    kept = sorted(set(choice.kept))
    if kept and not 0 <= kept[0] <= kept[-1] < len(remembered.messages):
        raise ValueError("A policy must keep messages that there are.")
    return choice._replace(kept=kept, reason=str(choice.reason))


def model_of(session_config: SessionConfig, policies: Policies) -> str | None:
    """The model that a session's context is for."""
    llm = session_config.llm
    model = llm.model or llm.params.get("model") or (policies.default_model if llm.url is None else None)
    return model if isinstance(model, str) else None


def tool_tokens(use: ToolUse, counter: TokenCounter) -> int:
    return sum(counter.count(text) for text in (use.name, json_text(use.arguments), json_text(use.result)))


def render_body(selection: ContextSelection, options: ContextOptions) -> dict[str, Any]:
    session_config, llm = selection.session_config, selection.session_config.llm
    format = RequestFormat(
        vendor=llm.vendor,
        model=llm.model,
        style=options.style or llm.style,
        params=llm.params,
        system_messages=selection.system_messages,
        interruptable=session_config.interruptable,
        enrich=options.enrich,
        alternate=options.alternate,
        tools=options.tools,
    )
    return request_body(selection.messages, selection.tools, format, cut=selection.is_cut)


async def make_user_document_message(
    memories: Memories, project: str, session_config: SessionConfig
) -> JsonObject | None:
    """The system message of the document that a session shares with the others of its user, if it does."""
    section = session_config.working_memory
    if section is None or section.scope != "user" or session_config.user_id is None:
        return None
    stream = await memories.journal.user(project, session_config.user_id)
    document = None if stream is None else (await memories.at(stream)).state.document
    return document_message(document, section)


def make_extra_messages(
    state: State, session_config: SessionConfig, user_document_message: JsonObject | None, data: bool
) -> tuple[JsonObject, ...]:
    """The system messages of a session. Its own document is shown where it is configured, or was written."""
    section, session_document = session_config.working_memory, state.document
    messages = [] if user_document_message is None else [user_document_message]
    if section is not None and section.scope == "session":
        messages.append(document_message(session_document, section))
    elif section is None and session_document is not None and session_document.content is not None:
        messages.append(document_message(session_document, WorkingMemoryConfig()))
    if data and state.data:
        messages.append({"role": "system", "content": render_data(state.data)})
    return tuple(messages)


def document_message(document: Document | None, section: WorkingMemoryConfig) -> JsonObject:
    document = document or Document()
    form = resolve_form(document.content, document.form, form_of(section))
    return {"role": "system", "content": render_document(document.content, form, section.scope, section.tools)}
