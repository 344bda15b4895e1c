"""The builder of contexts: the memory for the next LLM request, by the session's settings and the client's options."""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from voicemem.config.context import ContextConfig, overlay, settle_recall
from voicemem.config.session import MaxHistory, SessionConfig, parse_config
from voicemem.context import formats
from voicemem.context.carry_over import carry_over
from voicemem.context.policies import (
    MAX_MESSAGES,
    MAX_TOKENS,
    Choice,
    Policy,
    RecentPolicy,
    Remembered,
    cut_results,
    first_current,
)
from voicemem.context.policy_registry import Policies
from voicemem.context.recall import Recall, RecalledMessage
from voicemem.context.summary_policy import SummaryPolicy, render_summary, summarised_count
from voicemem.documents import document as documents
from voicemem.errors import Refused, SessionQuarantined
from voicemem.llm.tokens import TokenCounter
from voicemem.protocol.types import JsonObject, Natural
from voicemem.sessions.derived import find_documents
from voicemem.sessions.off_loop import check_budget
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel, choose_from
from voicemem.store.streams import Stream
from voicemem.transcript.history import begun_positions, newest_tool_uses
from voicemem.transcript.messages import Message, Role, Summary, ToolUse
from voicemem.transcript.state import State

T = TypeVar("T")
LOG = logging.getLogger("voicemem.policies")
MAX_TOOLS = 1_000
"""The most tool calls that a context shows, the newest."""
LONG, LONG_TOOL = 25_000, 10
"""The most messages that a context on the event loop is made from, in 30 ms; and as how many a tool call counts."""


class ContextOptions(Struct, frozen=True, kw_only=True):
    """Options of a request for a context; None leaves a setting as the session has it."""

    enrich: tuple[str, ...] = ()
    style: Literal["openai", "anthropic", "gemini"] | None = None
    system: Literal["one", "separate"] | None = None
    alternate: bool | None = None
    tools: bool = False
    max_history: MaxHistory | None = None
    memory: ContextConfig | None = None
    """Another policy for only this context, or other parameters for the session's policy."""
    data: bool = False
    fields: bool = False
    """Gives each message all its fields, as for the vendor `custom`."""
    peek: bool = False
    """Journal nothing. Text from earlier sessions is missing until another context has collected it."""
    at: Natural | None = None
    """A journal position: the context as it was then."""
    at_turn: Natural | None = None
    """A turn: the context as it was for the first request of this turn."""


class ContextSelection(NamedTuple):
    """The choice of a policy from a memory, with that memory."""

    history: Sequence[Message]
    """All messages, including forgotten ones."""
    indexes: Sequence[int]
    """The indexes of the remembered messages in `history`."""
    carried: tuple[str, ...]
    session_config: SessionConfig
    memory_config: ContextConfig
    policy: Policy
    remembered: Remembered
    choice: Choice
    messages: Sequence[Message]
    """The chosen messages. They and `tools` do not change with the memory, unlike `history`."""
    tools: Sequence[ToolUse]
    """The tool uses to show: those of the shown turns, and all of the turn in progress."""
    counter: TokenCounter
    encoded: Callable[[], Sequence[bytes]]
    """Returns role and content of the chosen messages, except blank ones, as JSON; valid until the memory changes."""
    characters: int
    """The length of all messages in `history` together."""
    document_messages: tuple[JsonObject, ...] = ()
    """System messages with working memory and data, which are not part of the conversation."""
    recalled_message: JsonObject | None = None
    tool_uses: Callable[[], Sequence[ToolUse]] = list
    """Returns all answered tool uses, shown or not; valid until the memory changes."""
    carries_later: bool = False
    """True if the next context that may journal collects text from earlier sessions."""
    recalled: tuple[str, ...] = ()
    is_of_memory_alone: bool = False
    """True if the choice depends only on the session's memory and settings: nothing of its user, of earlier calls or
    of another position is shown, and no custom policy chose."""

    @property
    def summary_source(self) -> Remembered:
        """The memory to summarise, with tool uses even if this context does not show them."""
        return msgspec.structs.replace(self.remembered, tools=self.tool_uses())

    @property
    def system_messages(self) -> tuple[JsonObject, ...]:
        """The session's own system messages, then the memory's: the least changing first, for prompt caches."""
        summary = None if self.choice.summary is None else system_message(render_summary(self.choice.summary))
        added = (*map(system_message, self.carried), *self.document_messages, summary, self.recalled_message)
        return (*self.session_config.llm.system_messages, *(message for message in added if message is not None))


async def select_context(
    read_models: ReadModelCache,
    policies: Policies,
    stream: Stream,
    options: ContextOptions,
    make: Callable[[ContextSelection], T],
    recall: Recall | None = None,
    said: str | None = None,
    reads_all: bool = False,
) -> T:
    """Choose from the memory, now or as of `options.at`, by the options' or the session's policy. Return `make` of it.

    Both run off the event loop if the policy, the tools or `reads_all` involve very much, so `make` must not wait, and
    its result must not depend on parts of the choice that change with the memory.

    The first context of a session with `memory_from` journals the text carried over, unless it peeks or is of an
    earlier position. `recall` finds memories of earlier calls that match what the caller `said`, by default their last
    message. Settings and the document of a user are always current, memories of earlier calls are current or as of the
    session's end. Raises `Refused` (`invalid_query` for a position beyond the journal, `unknown_turn`).
    """
    position = await position_of(read_models, stream, options)
    peek = options.peek or position is not None
    session_config = parse_config(stream.config)
    user_documents = await make_user_documents(read_models, stream.project, session_config)
    if position is None:
        read_model = await read_models.get(stream)
    else:
        counter = policies.counter(model_of(session_config, policies))
        read_model = await load_earlier(read_models, stream, position, counter)
    has_source = session_config.memory_from is not None and session_config.user_id is not None
    carries = read_model.state.carried is None and has_source and stream.state == "running"
    if carries and not peek:
        stream, read_model = await carry_over(read_models, stream, session_config)
    requested = None if options.memory is None else options.memory.memories
    recall_settings = settle_recall(requested, session_config.memory.memories, policies.default.memories)
    recalled = None
    if recall is not None and recall_settings is not None:
        said = last_said(read_model) if said is None else said
        count = policies.counter(model_of(session_config, policies)).count
        carried = "\n".join(session.text for session in read_model.state.carried or ())
        recalled = await recall.message(stream, recall_settings, said, count, note=not peek, carried=carried)
    section, from_others = session_config.working_memory, recall_settings or session_config.memory_from
    is_own = position is None and from_others is None and (section is None or section.scope == "session")

    def choose_and_make(read_model: ReadModel) -> T:  # it may have changed while the store was read
        selection = select_from(read_model, policies, session_config, options, user_documents, stream.id, recalled)
        is_built_in = selection.memory_config.policy not in policies.custom_policies
        return make(selection._replace(is_of_memory_alone=is_own and is_built_in, carries_later=carries and peek))

    is_long = partial(takes_long, policies, session_config, options, reads_all)
    if (position is not None or recall is None or recall_settings is None) and not is_long(read_model):
        made = choose_and_make(read_model)
        read_models.charge(stream.key, read_model)
        return made
    if position is None:
        return await read_models.read(stream, choose_and_make, is_long)
    return await read_models.perform(stream.key, read_model, partial(choose_and_make, read_model), off_loop=True)


async def position_of(read_models: ReadModelCache, stream: Stream, options: ContextOptions) -> int | None:
    """Return the earlier position of a requested context; None for the newest. Raises `Refused`, and as `get`."""
    if options.at is not None and options.at_turn is not None:
        raise Refused("invalid_query", "A context is of a position or of a turn, not of both.")
    position = options.at
    if options.at_turn is not None:
        position = first_request(await read_models.get_state(stream), options.at_turn)
    if position is not None and position > stream.position:
        raise Refused("invalid_query", f"The journal ends at position {stream.position}.")
    return position


def last_said(read_model: ReadModel) -> str:
    """Return the caller's last message; empty before the first one."""
    messages = reversed(read_model.current_messages())
    return next((message.content for message in messages if message.role == "user"), "")


def resolve_settings(policies: Policies, session_config: SessionConfig, options: ContextOptions) -> ContextConfig:
    memory_config = policies.resolve(session_config.memory)
    return memory_config if options.memory is None else overlay(memory_config, options.memory)


def takes_long(
    policies: Policies, session_config: SessionConfig, options: ContextOptions, reads_all: bool, read_model: ReadModel
) -> bool:
    """Return whether a context involves so much of a memory that it must not be made on the event loop."""
    state, looked_at = read_model.state, len(read_model.current_messages())
    if state.tool_calls and state.is_very_large:
        return options.tools or reads_all
    if state.tool_calls and reads_all:
        looked_at += LONG_TOOL * sum(len(turn.tool_calls or ()) for turn in state.turns.values())
    if looked_at > LONG and not reads_all:
        config = resolve_settings(policies, session_config, options)
        recent, window = config.max_messages or MAX_MESSAGES, config.max_tokens or MAX_TOKENS
        looked_at = min(looked_at, {None: 0, "recent": recent, "window": window}.get(config.policy, looked_at))
    return looked_at > LONG


def first_request(state: State, number: int) -> int:
    """Return the position before an LLM's first output in a turn; without any, the last before the next turn.

    Raises `Refused` (`unknown_turn`).
    """
    turn = state.turns.get(number)
    if turn is None:
        raise Refused("unknown_turn")
    made = [id >> 1 for id in turn.replies or ()]
    made += [call.order for call in turn.tool_calls or () if call.name is not None]
    if made:
        return min(made) - 1
    own = max(begun_positions(state, turn), default=0)
    place = bisect_right(state.turn_numbers, number)
    following = (begun_positions(state, state.turns[later]) for later in state.turn_numbers[place:])
    first = next((min(begun) for begun in following if begun), state.position + 1)
    return max(own, first - 1)


async def load_earlier(read_models: ReadModelCache, stream: Stream, position: int, counter: TokenCounter) -> ReadModel:
    """Return the memory of an earlier position, with its messages made and counted, on a thread if it is large."""
    read_model = await read_models.load_as_of(stream.key, position, owner=stream.project)

    def count_tokens() -> None:
        count = read_model.token_counter(counter)
        for index in range(len(read_model.current_messages())):
            count(index)

    await read_models.perform(stream.key, read_model, count_tokens, read_model.is_large or read_model.has_large_refresh)
    return read_model


def select_from(
    read_model: ReadModel,
    policies: Policies,
    session_config: SessionConfig,
    options: ContextOptions,
    user_documents: tuple[JsonObject, ...] = (),
    session_id: str = "",
    recalled: RecalledMessage | None = None,
) -> ContextSelection:
    """Return the policy's choice from a memory. `session_id` is for the log. Raises `Refused`."""
    memory_config, model = resolve_settings(policies, session_config, options), model_of(session_config, policies)
    counter = policies.counter(model)

    def answered_uses() -> list[ToolUse]:
        return [use for use in read_model.tool_uses() if use.answered]

    tools = newest_tool_uses(read_model.state, MAX_TOOLS) if options.tools else []
    indexes = read_model.remembered_indexes()
    remembered = remembered_of(read_model, indexes, tools, counter, policies.window(memory_config, model))
    recent = RecentPolicy(options.max_history or session_config.llm.max_history)
    try:
        policy, choice = choose(policies, memory_config, recent, remembered)
    except Exception as error:  # an operator's policy may raise anything, and the conversation must continue
        if isinstance(error, Refused) and options.memory is not None:
            raise  # the client requested this policy
        message = "The policy %s failed; session %s is shown its newest messages"
        LOG.error(message, memory_config.policy, session_id, exc_info=error)
        memory_config, policy, choice = ContextConfig(), recent, recent.choose(remembered)
    messages = choose_from(remembered.messages, choice.kept)
    chosen = choose_from(indexes, choice.kept)
    is_cut = bool(remembered.messages) and (not choice.kept or indexes[choice.kept[0]] > 0)
    return ContextSelection(
        history=read_model.current_messages(),
        indexes=indexes,
        carried=tuple(session.text for session in read_model.state.carried or ()),
        session_config=session_config,
        memory_config=memory_config,
        policy=policy,
        remembered=remembered,
        choice=choice,
        messages=messages,
        tools=chosen_tools(remembered, choice, messages, is_cut, counter),
        counter=counter,
        encoded=partial(read_model.encoded_contents, chosen),
        characters=read_model.characters,
        document_messages=make_document_messages(read_model.state, session_config, user_documents, options.data),
        recalled_message=None if recalled is None else recalled.message,
        tool_uses=answered_uses,
        recalled=() if recalled is None else recalled.ids,
    )


def remembered_of(
    read_model: ReadModel,
    indexes: Sequence[int],
    tools: Sequence[ToolUse],
    counter: TokenCounter,
    window: int | None,
) -> Remembered:
    """Return the memory as policies see it: the messages at these indexes, which are not forgotten."""
    messages, tokens = read_model.current_messages(), read_model.token_counter(counter)
    nothing_forgotten = len(indexes) == len(messages)

    def tool_tokens(use: ToolUse) -> int:
        check_budget()
        return sum(map(counter.count, (use.name, formats.json_text(use.arguments), formats.json_text(use.result))))

    return Remembered(
        messages=messages if nothing_forgotten else [messages[index] for index in indexes],
        tools=tools,
        tokens=tokens if nothing_forgotten else lambda index: tokens(indexes[index]),
        tool_tokens=tool_tokens,
        text_tokens=counter.count,
        summary=read_model.state.summary,
        window=window,
    )


def choose(
    policies: Policies, memory_config: ContextConfig, recent: RecentPolicy, remembered: Remembered
) -> tuple[Policy, Choice]:
    """Return the policy of these settings, `recent` if there is none, and its choice. Raises as the policy does."""
    policy = policies.create_policy(memory_config) or recent
    choice = policy.choose(remembered)
    if memory_config.policy in policies.custom_policies:
        choice = check_choice(choice, remembered)
    return policy, choice


def chosen_tools(
    remembered: Remembered, choice: Choice, messages: Sequence[Message], is_cut: bool, counter: TokenCounter
) -> Sequence[ToolUse]:
    """Return the tool uses to show with the chosen messages; `is_cut` if earlier messages are left out."""
    tools = remembered.tools
    if not tools:
        return tools
    first = first_current(remembered)
    older = tools[:first] if choice.tools else ()
    if older and not isinstance(choice.kept, range):
        turns = {message.turn_id for message in messages}
        older = [use for use in older if use.turn_id in turns]
    if older and is_cut:
        begin = next(iter(messages), None)
        older = [use for use in older if begin is not None and not formats.comes_before(use, begin)]
    current = tools[first:]
    if choice.budget is not None:
        current = cut_results(current, choice.budget, counter.count)
    return [*older, *current]


def check_choice(choice: Any, remembered: Remembered) -> Choice:
    """Check the choice of a custom policy. Return it with indexes in rising order. Raises `ValueError`."""
    if not isinstance(choice, Choice):
        raise ValueError("A policy must return a Choice.")
    kept = sorted(set(choice.kept))
    if kept and not 0 <= kept[0] <= kept[-1] < len(remembered.messages):
        raise ValueError("A policy must keep messages that exist.")
    budget = choice.budget
    if not (budget is None or (isinstance(budget, int) and budget > 0)):
        raise ValueError("A policy's budget must be a number of tokens.")
    if not isinstance(choice.summary, Summary | None):
        raise ValueError("A policy must show a Summary, or none.")
    results = remembered.tools[first_current(remembered) :]
    is_over = budget is not None and sum(map(remembered.tool_tokens, results)) > budget
    return choice._replace(kept=kept, reason=str(choice.reason), over_budget=bool(choice.over_budget) or is_over)


def model_of(session_config: SessionConfig, policies: Policies) -> str | None:
    """Return the model of a session's context: `llm.model`, else `llm.params.model`, else the operator's.

    Summaries are written by the same model (`BackgroundLlm.ask`), whose window limits their prompt.
    """
    llm = session_config.llm
    model = llm.model or llm.params.get("model") or (policies.default_model if llm.url is None else None)
    return model if isinstance(model, str) else None


def render_body(
    selection: ContextSelection,
    options: ContextOptions,
    instructions: Sequence[JsonObject] = (),
    said: Message | None = None,
    as_json: bool = False,
    lazily: bool = False,
) -> JsonObject:
    """Return the body; that of a peek has `carried`, null, while text from earlier sessions is not collected yet.

    `instructions` follow the session's own system messages; a message just `said` follows the memory. With `as_json`,
    for a body that is only encoded, unchanged messages may be one piece of JSON. `lazily` is for a body that is sent
    in pieces.
    """
    llm, own = selection.session_config.llm, selection.system_messages
    system_messages = (*own[: len(llm.system_messages)], *instructions, *own[len(llm.system_messages) :])
    format = request_format(selection.session_config, options, system_messages)
    more = () if said is None else (said,)
    if as_json and formats.shows_contents(format, selection.tools):
        body = formats.request_body((), (), format)
        texts = selection.encoded()
        body["messages"] += [Raw(b",".join(texts))] if texts else []
        body["messages"] += formats.request_body(more, (), formats.RequestFormat())["messages"]
    else:
        messages = [*selection.messages, *more] if more else selection.messages
        body = formats.request_body(messages, selection.tools, format, lazily)
    return body | {"carried": None} if selection.carries_later else body


def request_format(
    session_config: SessionConfig, options: ContextOptions, system_messages: tuple[JsonObject, ...] = ()
) -> formats.RequestFormat:
    """Return the settings that shape a body: the options', or else the session's."""
    llm = session_config.llm
    return formats.RequestFormat(
        vendor=llm.vendor,
        model=llm.model,
        style=options.style or llm.style,
        params=llm.params,
        system_messages=system_messages,
        system=options.system or llm.system,
        interruptable=session_config.interruptable,
        enrich=options.enrich,
        alternate=llm.alternate is True if options.alternate is None else options.alternate,
        tools=options.tools,
        fields=options.fields,
    )


async def make_user_documents(
    read_models: ReadModelCache, project: str, session_config: SessionConfig
) -> tuple[JsonObject, ...]:
    """Return the system messages with the documents of the session's user; none if the session does not share one.

    There are two if each of two linked ids of a person has a document.
    """
    section = session_config.working_memory
    if section is None or section.scope != "user" or session_config.user_id is None:
        return ()
    try:
        documents = await find_documents(read_models, project, session_config.user_id)
    except SessionQuarantined:  # the call continues without the document
        return ()
    first = documents[0][1] if documents else None
    others = [document for _, document in documents[1:] if document is not None and document.content is not None]
    return tuple(document_message(one, section) for one in (first, *others))


def make_document_messages(
    state: State, session_config: SessionConfig, user_documents: tuple[JsonObject, ...], data: bool
) -> tuple[JsonObject, ...]:
    """Return system messages with the documents and, on request, the data of a session.

    The session's own document is shown if it is configured or has content.
    """
    section, session_document = session_config.working_memory, state.document
    messages = [*user_documents]
    if section is not None and section.scope == "session":
        messages.append(document_message(session_document, section))
    elif section is None and session_document is not None and session_document.content is not None:
        messages.append(document_message(session_document, documents.WorkingMemoryConfig()))
    if data and state.data:
        messages.append(system_message(documents.render_data(state.data)))
    return tuple(messages)


def system_message(text: str) -> JsonObject:
    return {"role": "system", "content": text}


def document_message(document: documents.Document | None, section: documents.WorkingMemoryConfig) -> JsonObject:
    document = document or documents.Document()
    form = documents.resolve_form(document.content, document.form, documents.form_of(section))
    return system_message(documents.render_document(document.content, form, section.scope, section.tools))


DEFAULT_POLICY = "recent"
"""The policy of sessions that configure none: the newest `llm.max_history` messages."""


class LeftOut(Struct, frozen=True):
    """A message that the LLM does not see; `reason` is a word such as `max_tokens` or `summarized`."""

    index: int
    turn_id: int
    role: Role
    timestamp: int
    reason: str


class SummaryState(Struct, frozen=True):
    """The newest summary's last turn and number of messages, and the state of the next one."""

    state: Literal["none", "current", "due", "running", "failing"]
    through_turn: int | None = None
    messages: int = 0
    failures: int = 0
    """Failed attempts since the last success."""
    error: str | None = None


class Usage(Struct, frozen=True):
    """The usage of a context: `tokens` of the chosen messages, the summary and the tools; percentages are up to 100."""

    policy: str
    counter: str
    tokens: int
    system_tokens: int
    context_window: int | None
    context_percentage_total_used: float | None
    context_percentage_until_summarization: float | None
    over_budget: bool
    summary: SummaryState | None
    left_out: list[LeftOut]
    memories: list[str]


def usage_of(selection: ContextSelection, summary: SummaryState | None) -> Usage:
    remembered, choice, policy = selection.remembered, selection.choice, selection.policy
    tokens = sum(map(remembered.tokens, choice.kept)) + sum(map(remembered.tool_tokens, selection.tools))
    if choice.summary is not None:
        tokens += remembered.text_tokens(render_summary(choice.summary))
    without_summary = selection._replace(choice=choice._replace(summary=None))
    system_tokens = remembered.text_tokens(formats.system_text(without_summary.system_messages))
    until = None
    if isinstance(policy, SummaryPolicy):
        until = percent(policy.used_tokens(selection.summary_source), policy.threshold * policy.budget(remembered))
    window = remembered.window
    return Usage(
        policy=selection.memory_config.policy or DEFAULT_POLICY,
        counter=selection.counter.name,
        tokens=tokens,
        system_tokens=system_tokens,
        context_window=window,
        context_percentage_total_used=None if window is None else percent(tokens + system_tokens, window),
        context_percentage_until_summarization=until,
        over_budget=choice.over_budget,
        summary=summary,
        left_out=list(left_out(selection)),
        memories=list(selection.recalled),
    )


def percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2)


def left_out(selection: ContextSelection) -> Iterator[LeftOut]:
    """Yield every message that is not shown, and why: it is forgotten, blank, or left out by the policy."""
    choice = selection.choice
    covered = summarised_count(selection.remembered) if choice.summary is not None else 0
    kept = choice.kept if isinstance(choice.kept, range) else frozenset(choice.kept)
    remembered = {position: index for index, position in enumerate(selection.indexes)}
    for position, message in enumerate(selection.history):
        index = remembered.get(position)
        if index is None:
            reason: str | None = "forgotten"
        elif index in kept:
            is_blank = not message.content.strip() and selection.session_config.llm.vendor != formats.CUSTOM
            reason = "blank" if is_blank else None  # in the OpenAI style, without enrichers
        else:
            reason = "summarized" if index < covered else choice.reason
        if reason is not None:
            yield LeftOut(position, message.turn_id, message.role, message.timestamp, reason)
