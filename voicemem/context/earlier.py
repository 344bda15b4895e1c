"""Contexts of an earlier moment: what an LLM was given, folded from the journal up to there. Nothing is written.

The settings are those that the session has now, and so are the memories of earlier calls and the document of a user.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial

from msgspec.structs import replace

from voicemem.config.session import parse_config
from voicemem.context.builder import (
    ContextOptions,
    ContextSelection,
    make_user_document_message,
    model_of,
    select_context,
    select_from,
)
from voicemem.context.carry_over import may_carry_over
from voicemem.context.policies import Policies
from voicemem.context.recall import Recall, last_words, wanted_memories
from voicemem.errors import Refused
from voicemem.llm.tokens import TokenCounter
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.streams import Stream
from voicemem.transcript.history import begun_positions
from voicemem.transcript.state import State


async def select_context_at(
    memories: ReadModelCache, policies: Policies, stream: Stream, options: ContextOptions, recall: Recall | None = None
) -> ContextSelection:
    """What the policy chooses: from the memory of `options.at` or `options.at_turn`, else from that of now.

    Raises `Refused` (`invalid_query` for a position that is not there yet, `unknown_turn`), and as `select_context`.
    """
    position = options.at
    if position is not None and options.at_turn is not None:
        raise Refused("invalid_query", "A context is of a position or of a turn, not of both.")
    if options.at_turn is not None:
        position = first_request(await memories.get_state(stream), options.at_turn)
    if position is None:
        return await select_context(memories, policies, stream, options, recall)
    if position > stream.position:
        raise Refused("invalid_query", f"The journal ends at position {stream.position}.")
    return await select_earlier(memories, policies, stream, replace(options, peek=True), position, recall)


async def select_earlier(
    memories: ReadModelCache,
    policies: Policies,
    stream: Stream,
    options: ContextOptions,
    position: int,
    recall: Recall | None,
) -> ContextSelection:
    """What the policy chooses from the memory of a position."""
    session_config = parse_config(stream.config)
    user_document_message = await make_user_document_message(memories, stream.project, session_config)
    counter = policies.counter(model_of(session_config, policies))
    memory = await memories.load_as_of(stream.key, position)
    is_large = memory.is_large or memory.has_large_refresh
    await memories.perform(stream.key, memory, partial(prepare, memory, counter), is_large)
    wanted = None if recall is None else wanted_memories(policies, session_config, options.memory)
    recalled = None
    if recall is not None and wanted is not None:
        recalled = await recall.message(stream, wanted, last_words(memory), counter.count, note=False)
    selection = select_from(memory, policies, session_config, options, user_document_message, stream.id, recalled)
    carries = memory.state.carried is None and may_carry_over(stream, session_config)
    return selection._replace(carries_later=carries)


def prepare(memory: ReadModel, counter: TokenCounter) -> None:
    """Make the messages, and count their tokens, so that a policy has nothing to wait for."""
    count = memory.token_counter(counter)
    for index in range(len(memory.current_messages())):
        count(index)


def first_request(state: State, number: int) -> int:
    """The position before the first thing that an LLM made in a turn; without any, the last before the next turn.

    Raises `Refused` (`unknown_turn`).
    """
    turn = state.turns.get(number)
    if turn is None:
        raise Refused("unknown_turn")
    made = [id >> 1 for id in turn.replies]
    made += [call.order for call in turn.tool_calls or () if call.name is not None]
    if made:
        return min(made) - 1
    own = max(begun_positions(state, turn), default=0)
    place = bisect_right(state.turn_numbers, number)
    following = (begun_positions(state, state.turns[later]) for later in state.turn_numbers[place:])
    first = next((min(begun) for begun in following if begun), state.position + 1)
    return max(own, first - 1)
