"""Reading the context: the body of the next LLM request."""

from collections.abc import Callable
from functools import lru_cache, partial
from sys import getsizeof
from typing import Annotated, Any, Literal, get_args

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from voicemem.config import context
from voicemem.config.session import parse_config
from voicemem.context.builder import (
    ContextOptions,
    ContextSelection,
    SummaryState,
    Usage,
    render_body,
    request_format,
    select_context,
    usage_of,
)
from voicemem.context.formats import ENRICHERS, makes_texts
from voicemem.context.summaries import settled_state
from voicemem.errors import Refused
from voicemem.protocol.pieces import object_parts
from voicemem.protocol.types import MAX_INTEGER, JsonObject, fields_of, matching
from voicemem.server.http.request import KEPT_QUERIES, Answer, Request, answer_in_parts, reader_of, wait_for_slot
from voicemem.server.http.routes import JSON, Routes
from voicemem.store.streams import Stream

ROUTES = Routes()

LARGE_CHARACTERS = 256 * 1024
"""Characters of messages from which on a context is made and sent in pieces."""
MAKING_BYTES = 6
"""The bytes per character while texts are enriched and joined: up to three copies of letters of two bytes."""
TOOL_BYTES = 500
"""The bytes that a tool call counts besides its arguments and result."""
LARGE_MESSAGES = 1_000
"""Messages of a memory from which on a context waits in the fair queue; with fewer it costs no more than waiting."""
ENRICHER_NAMES = rf"^(?:{'|'.join(ENRICHERS)})?(?:,(?:{'|'.join(ENRICHERS)})?)*\Z"
ENRICHER_RULE = f"Enrichers must be names separated by commas, of {', '.join(ENRICHERS)}"
Enrich = Annotated[str, matching(ENRICHER_NAMES, ENRICHER_RULE)]
POLICY_QUERY = ("policy", "max_messages", "max_tokens", "context_window")
OTHER_CALLS = "A session token asks for no memories of other calls, unless it was made with memories: user."
KIND_NAMES = rf"^(?:{'|'.join(get_args(context.RecalledKind))})(?:,(?:{'|'.join(get_args(context.RecalledKind))}))*\Z"
KIND_RULE = f"Kinds of memories must be names separated by commas, of {', '.join(get_args(context.RecalledKind))}"
Kinds = Annotated[str, matching(KIND_NAMES, KIND_RULE)]


class ContextQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`enrich` names enrichers, separated by commas; `system` makes one system message, or leaves them `separate`;
    `usage` adds the size of the context and what it leaves out; `data` shows the session's data to the LLM; `peek`
    writes nothing and starts no summary.

    `fields` gives each message its `turn_id`, `timestamp` and `metadata`, as an LLM of the vendor `custom` gets them.

    `at`, a journal position, or `at_turn` asks for the context of an earlier moment, which implies `peek`.

    `policy` and its parameters hold for this request; without `policy`, the parameters are for the session's policy.
    `memories_max_tokens`, `memories_kinds` and `memories_from` say what is shown of earlier calls.
    """

    enrich: Enrich = ""
    style: Literal["openai", "anthropic", "gemini"] | None = None
    system: Literal["one", "separate"] | None = None
    alternate: bool | None = None
    tools: bool = False
    max_history: Annotated[int, Meta(ge=1, le=1024)] | None = None
    policy: context.PolicyName | None = None
    max_messages: context.Messages | None = None
    max_tokens: context.Tokens | None = None
    context_window: context.Tokens | None = None
    memories_max_tokens: context.RecallTokens | None = None
    memories_kinds: Kinds | None = None
    memories_from: context.RecallSource | None = None
    usage: bool = False
    data: bool = False
    fields: bool = False
    peek: bool = False
    at: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    at_turn: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None


class OpenAiContext(Struct, frozen=True):
    """A body for OpenAI's Chat Completions; it also has `model`, `llm.params`, and the fields of `custom`."""

    messages: list[JsonObject]


class AnthropicContext(Struct, frozen=True):
    """A body for Anthropic's Messages."""

    messages: list[JsonObject]
    max_tokens: Any


class GeminiContext(Struct, frozen=True):
    """A body for Gemini's generateContent."""

    contents: list[JsonObject]


class AccountedContext(Usage, frozen=True):
    """Fields added to the body with `usage=true`."""


class PeekedContext(Struct, frozen=True):
    """Fields added to the body with `peek=true` while what earlier sessions leave is not put together yet."""

    carried: None


@ROUTES.add(
    "GET /v1/sessions/{id}/context",
    "read",
    OpenAiContext | AnthropicContext | GeminiContext | AccountedContext | PeekedContext,
    codes="session_set_aside unknown_turn",
    takes_turn=False,
)
async def read_context(request: Request, query: ContextQuery, stream: Stream) -> web.StreamResponse:
    """Read the whole body of the next LLM request, in the style that the query names, or else in the session's."""
    services = request.services
    options, grant = options_of(query), request.grant
    memory = options.memory
    if grant.session_id is not None and not grant.reaches_user and memory is not None and memory.memories is not None:
        raise Refused("forbidden", OTHER_CALLS)

    read_models, question = services.read_models, f"context?{request.rel_url.raw_query_string}"
    read_model = read_models.find_ready(stream)
    if read_model is not None and (body := read_model.kept_answer(question, stream)) is not None:
        return Answer(body)
    if read_model is None or len(read_model.all_messages) > LARGE_MESSAGES:
        await wait_for_slot(request)

    is_earlier = query.at is not None or query.at_turn is not None

    def state_of(selection: ContextSelection) -> SummaryState | None:
        return settled_state(selection) if is_earlier else services.summaries.summary_state(stream, selection)

    async def make() -> tuple[bytes | JsonObject, int]:
        render = partial(body_of, options, state_of if query.usage else None)
        made, size, is_kept = await select_context(
            read_models, services.policies, stream, options, render, services.recall, reads_all=query.usage
        )
        if is_kept and isinstance(made, bytes):
            read_models.keep_answer(question, stream, made)
        if query.usage and not (query.peek or is_earlier):
            services.summaries.check_again(stream)
        return made, size

    has_own_texts = makes_texts(request_format(parse_config(stream.config), options))
    with reader_of(request, None if has_own_texts else stream) as reader:
        if has_own_texts:
            characters = (read_model or await read_models.get(stream)).characters
            if characters > LARGE_CHARACTERS:
                await reader.reserve(MAKING_BYTES * characters)
        made: bytes | JsonObject = await reader.make(make)
        if isinstance(made, bytes):
            return Answer(made)
        fields = {name: iter(value) if isinstance(value, list) else value for name, value in made.items()}
        return await answer_in_parts(request, {"Content-Type": JSON}, object_parts(fields))


def body_of(
    options: ContextOptions,
    state_of: Callable[[ContextSelection], SummaryState | None] | None,
    selection: ContextSelection,
) -> tuple[bytes | JsonObject, int, bool]:
    """Return the body, as JSON unless it is large, and with its usage if `state_of` gives the state of its summary.

    Also return the size that it takes while it is sent in pieces, and whether this memory always gives the same body.
    """
    size = selection.characters
    if size > LARGE_CHARACTERS:
        size = sum(getsizeof(message.content) for message in selection.messages)
    tools = sum(TOOL_BYTES + len(use.arguments_json) + len(use.result_json) for use in selection.tools)
    is_large = size + tools > LARGE_CHARACTERS
    body = render_body(selection, options, as_json=not is_large, lazily=is_large)
    if state_of is not None:
        body |= msgspec.to_builtins(usage_of(selection, state_of(selection)))
    if is_large:
        return body, size, False
    return msgspec.json.encode(body), 0, selection.is_of_memory_alone and state_of is None


@lru_cache(KEPT_QUERIES)
def options_of(query: ContextQuery) -> ContextOptions:
    """Return the options that a query names. Raises `Refused` (`invalid_query`)."""
    enrich = tuple(name for name in query.enrich.split(",") if name)
    fields = fields_of(ContextOptions, query) | {"enrich": enrich, "memory": memory_from_query(query)}
    return ContextOptions(**fields)


def memory_from_query(query: ContextQuery) -> context.ContextConfig | None:
    """Return the policy, and the recall of earlier calls, that a query names. Raises `Refused` (`invalid_query`)."""
    memory = {name: value for name in POLICY_QUERY if (value := getattr(query, name)) is not None}
    try:
        context.check_context(memory)
    except Refused as refused:
        raise Refused("invalid_query", refused.detail) from None
    kinds: context.RecalledKinds | None = None
    if query.memories_kinds is not None:
        kinds = msgspec.convert(tuple(dict.fromkeys(query.memories_kinds.split(","))), context.RecalledKinds)
    memories = context.RecallConfig(query.memories_max_tokens, kinds, query.memories_from)
    if memories != context.RecallConfig():
        return context.ContextConfig(**memory, memories=memories)
    return context.ContextConfig(**memory) if memory else None
