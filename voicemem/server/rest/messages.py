"""Managing a memory: forget parts of it, add to it, read statistics about it."""

from voicemem.context.builder import ContextOptions, ContextSelection, SummaryState, select_context
from voicemem.errors import InvalidFrame, Refused
from voicemem.llm.tokens import TokenCounter
from voicemem.memory.add_and_forget import API_PRODUCER, Added, AddedAt, ForgetRequest, Forgot, forget, record_messages
from voicemem.memory.statistics import Statistics, statistics_of
from voicemem.protocol.arguments import converted
from voicemem.server.http.request import Request, read_body, read_json, read_struct
from voicemem.server.http.routes import Routes
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.store.streams import Stream

ROUTES = Routes()


@ROUTES.add(
    "POST /v1/sessions/{id}/forget", "ingest", body=ForgetRequest, codes="missing_field unknown_turn session_set_aside"
)
async def forget_messages(request: Request, stream: Stream) -> Forgot:
    """Forget messages: they are left out of every context, and stay in the history.

    Forget all up to `through_turn`, all but the newest `keep_last`, or everything, which an empty object means too.
    """
    if not (await read_body(request)).strip():
        raise Refused("missing_field", 'The body must say what to forget; everything is {"everything": true}.')
    forgetting = await read_struct(request, ForgetRequest)
    return await forget(request.services.sessions, request.services.read_models, stream, forgetting)


@ROUTES.add(
    "POST /v1/sessions/{id}/messages",
    "ingest",
    body=Added | list[Added],
    codes="missing_field text_too_long reserved_metadata session_ended session_erased seq_required session_set_aside "
    "quota_exceeded",
)
async def add_messages(request: Request, stream: Stream) -> AddedAt:
    """Add a message or a tool trace, or a list of them, all or none; the answer comes once they are on disk."""
    services, grant = request.services, request.grant
    messages = await read_messages(request)
    services.limits.count_events(grant.principal, len(messages), len(await read_body(request)))
    lease = ProducerLease(stream, API_PRODUCER, None, may_call_out=False, may_set=False, key_id=grant.key_id)
    return await record_messages(services.recorder, services.read_models, lease, messages, services.sessions.new_id)


async def read_messages(request: Request) -> list[Added]:
    value = await read_json(request)
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, dict) for item in items):
        raise InvalidFrame("not_events", "The body must be a message or a list of messages, each a JSON object.")
    return converted(items, list[Added])


@ROUTES.add("GET /v1/sessions/{id}/stats", "read", codes="session_set_aside")
async def read_statistics(request: Request, stream: Stream) -> Statistics:
    """Read what can be counted in a session: messages, turns, interruptions, tokens, latencies, tools.

    It changes nothing: neither is anything carried over, nor does a summary start because of it.
    """
    services = request.services

    def found(selection: ContextSelection) -> tuple[TokenCounter, SummaryState | None]:
        return selection.counter, services.summaries.summary_state(stream, selection)

    options = ContextOptions(peek=True)
    counter, summary = await select_context(
        services.read_models, services.policies, stream, options, found, reads_all=True
    )
    now_ms, extraction = services.sessions.clock(), services.extractions.state_of
    return await services.read_models.read(
        stream, lambda read_model: statistics_of(stream, read_model, counter, summary, now_ms, extraction)
    )
