"""Requests of Agora's clients: keys and tokens in headers, and bodies; and errors in Agora's form.

Unknown fields and nulls in bodies are ignored. An error is `{"detail", "reason"}`; the reasons are codes of Agora's
reference.
"""

import base64
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Literal, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
from aiohttp import web
from aiohttp.hdrs import AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE
from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.compat.agora.apps import ANY_CHANNEL, APPS
from voicemem.config.session import URL_PATTERN, URL_RULE, Headers, Labels, LlmConfig, MaxHistory, parse_config
from voicemem.errors import CODES, Refused
from voicemem.protocol.codec import drop_nulls
from voicemem.protocol.explanations import describe_error
from voicemem.protocol.types import JsonObject, fields_given, matching
from voicemem.security.access import FULL_GRANT
from voicemem.server.http import problems
from voicemem.server.http.request import SESSION_ID, Request, get_stream, read_object
from voicemem.server.http.routes import JSON, KEY_SCHEME, ErrorFormat
from voicemem.store.streams import Stream

AppId = Annotated[str, Meta(min_length=1)]
"""An App ID in a path; it may also be the name of a project."""
SCHEMES = {
    **KEY_SCHEME,
    "password": {"type": "http", "scheme": "basic", "description": "The password is the key; any user name will do."},
    "agora": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "`agora token=` and a key, or a token of a registered app; with or without quotes.",
    },
}


def with_bearer(request: Request) -> Request:
    """Return a request with its key as `Bearer`, or without the header if it has no readable key."""
    authorization = request.headers.get(AUTHORIZATION)
    if authorization is None:
        return request
    headers = request.headers.copy()
    key = key_of(authorization)
    if key is None:
        del headers[AUTHORIZATION]
    else:
        headers[AUTHORIZATION] = f"Bearer {key}"
    copy = request.clone(headers=headers)
    assert isinstance(copy, Request)
    return copy


def key_of(authorization: str) -> str | None:
    """Return the key from a Basic password, an `agora token=…` (with or without quotes), or a Bearer token."""
    scheme, _, rest = authorization.strip().partition(" ")
    rest = rest.strip()
    match scheme.lower():
        case "basic":
            with suppress(ValueError):  # base64 and UTF-8 raise it too
                return base64.b64decode(rest, validate=True).decode().partition(":")[2] or None
        case "agora":
            name, _, token = rest.partition("=")
            return token.strip().strip('"') or None if name.strip().lower() == "token" else None
        case "bearer":
            return rest or None
    return None


async def project_of(request: Request) -> str:
    """Return the client's project, which the path must name if keys are needed. Raises `Refused` (`forbidden`)."""
    grant = request.grant
    if grant != FULL_GRANT and not await request.shared[APPS].opens(grant, request.in_path["appid"]):
        raise Refused("forbidden", "The key or token belongs to another project than the one in the path.")
    return grant.project


def check_channel(request: Request, *channels: str | None) -> None:
    """Raise `Refused` (`forbidden`) if the client's token is for none of these channels."""
    if request.grant.channel not in (None, ANY_CHANNEL, *channels):
        raise Refused("forbidden", "The token is for another channel.")


async def agent_of(request: Request, *channels: str) -> Stream:
    """Return the session in the path; a token must be for its channel or for one of these. Raises `Refused`."""
    await project_of(request)
    if not SESSION_ID.match(request.in_path["id"]):
        raise Refused("unknown_session")
    stream = await get_stream(request)
    if request.grant.channel is not None:
        check_channel(request, parse_config(stream.config).channel, *channels)
    return stream


async def running_agent_of(request: Request, *channels: str) -> Stream:
    """Return the session in the path if it runs; for Agora's clients, a session that has ended does not exist."""
    stream = await agent_of(request, *channels)
    if stream.state != "running":
        raise Refused("unknown_session")
    return stream


T = TypeVar("T")
MAX_SPEECH_BYTES = 512
UrlOrNone = Annotated[str, matching(rf"^({URL_PATTERN})?\Z", URL_RULE, max_length=2048)]
Text = Annotated[str, Meta(min_length=1)]
Action = Literal["inject", "interrupt", "ignore", "append"]


class GeminiPart(Struct, frozen=True):
    """A part of a message in Gemini's form."""

    text: str


class Llm(Struct, frozen=True):
    """The `llm` settings that a session has too; styles without a context format are ignored."""

    vendor: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    style: Literal["openai", "anthropic", "gemini", "dify", "bedrock"] | UnsetType = UNSET
    url: UrlOrNone | UnsetType = UNSET
    api_key: str | UnsetType = UNSET
    headers: Headers | UnsetType = UNSET
    params: JsonObject | UnsetType = UNSET
    max_history: MaxHistory | UnsetType = UNSET
    system_messages: list[JsonObject] | UnsetType = UNSET
    greeting_message: str | UnsetType = UNSET
    failure_message: str | UnsetType = UNSET


class Properties(Struct, frozen=True):
    """The properties of an agent that are kept. `idle_timeout` is in seconds."""

    channel: Text
    llm: Llm = Llm()
    labels: Labels | UnsetType = UNSET
    idle_timeout: Annotated[int, Meta(ge=0, le=259_200)] | UnsetType = UNSET


class Join(Struct, frozen=True):
    """The body of `join`."""

    name: Text
    properties: Properties


class LlmUpdate(Struct, frozen=True):
    """The settings that may change while an agent runs; `params` are replaced as a whole."""

    system_messages: list[JsonObject] | UnsetType = UNSET
    params: JsonObject | UnsetType = UNSET


class UpdateProperties(Struct, frozen=True):
    """The properties that may change; others are ignored."""

    llm: LlmUpdate = LlmUpdate()


class Update(Struct, frozen=True):
    """New settings of a running agent."""

    properties: UpdateProperties


class Speak(Struct, frozen=True):
    """A text that the agent is to say; the engine follows the priority, voicemem does not."""

    text: Text
    priority: Literal["INTERRUPT", "APPEND", "IGNORE"] = "INTERRUPT"
    interruptable: bool = True


class Think(Struct, frozen=True):
    """A text that the agent is to take as the user's; the engine follows the actions, voicemem does not."""

    text: Text
    on_listening_action: Action = "interrupt"
    on_thinking_action: Action = "interrupt"
    on_speaking_action: Action = "ignore"
    interruptable: bool = True
    metadata: dict[str, str] | UnsetType = UNSET


async def body_as(request: Request, kind: type[T]) -> T:
    """Read the body as a struct. Raises `Refused` (`missing_field`, `invalid_field`), `InvalidFrame`."""
    try:
        return msgspec.convert(drop_nulls(await read_object(request)), kind)
    except msgspec.ValidationError as error:
        code = "missing_field" if str(error).startswith("Object missing required field") else "invalid_field"
        raise Refused(code, describe_error(error, kind)) from None


def session_config(join: Join) -> JsonObject:
    settings = fields_given(join.properties.llm)
    # Applications send an empty URL and key if their environment variables are not set.
    llm = move_key_out_of_url({k: value for k, value in settings.items() if value != "" or k not in ("url", "api_key")})
    if "system_messages" in llm:
        llm["system_messages"] = with_content(llm["system_messages"])
    if llm.get("style") in ("dify", "bedrock"):
        del llm["style"]
    config = {"name": join.name, **fields_given(join.properties), "llm": llm}
    return config if llm else {name: value for name, value in config.items() if name != "llm"}


def move_key_out_of_url(llm: JsonObject) -> JsonObject:
    """Move Gemini's key, which Agora's SDK puts into the URL, to `api_key`: keys are never shown, the URL is."""
    url = urlsplit(llm.get("url", ""))
    pairs = url.query.split("&")
    keys = [pair.removeprefix("key=") for pair in pairs if pair.startswith("key=")]
    if not keys:
        return llm
    query = "&".join(pair for pair in pairs if not pair.startswith("key="))
    return {"api_key": unquote(keys[0]), **llm, "url": urlunsplit(url._replace(query=query))}


def with_content(messages: list[JsonObject]) -> list[JsonObject]:
    """Turn system messages in Gemini's form (`parts`) into a session's; keep others. Raises `Refused`."""
    kept = []
    for message in messages:
        if "content" not in message and "parts" in message:
            try:
                parts = msgspec.convert(message["parts"], list[GeminiPart])
            except msgspec.ValidationError:
                raise Refused("invalid_field", "The parts of a system message must be texts.") from None
            message = {"role": "system", "content": "\n".join(part.text for part in parts)}
        kept.append(message)
    return kept


def agora_update_patch(update: Update, now: LlmConfig) -> JsonObject:
    llm: JsonObject = {}
    changes = update.properties.llm
    if changes.system_messages is not UNSET:
        llm["system_messages"] = with_content(changes.system_messages)
    if changes.params is not UNSET:
        llm["params"] = replacement_patch(now.params, changes.params)
    return {"llm": llm} if llm else {}


def replacement_patch(old: JsonObject, new: JsonObject) -> JsonObject:
    """Return the merge patch (RFC 7396) that turns the old object into the new one."""
    nested = {
        name: replacement_patch(old[name], value)
        for name, value in new.items()
        if isinstance(value, dict) and isinstance(old.get(name), dict)
    }
    return {**dict.fromkeys(old), **new, **nested}


NOT_FOUND = "The session was not found, has already ended, or failed to start."
REASONS_BY_STATUS = {
    400: "InvalidFieldValue",
    401: "InvalidPermission",
    403: "InvalidPermission",
    404: "TaskNotFound",
    408: "TaskOperationTimeout",
    409: "TaskConflict",
    410: "TaskNotFound",
    413: "InvalidRequestBody",
    429: "ConcurrencyLimitExceeded",
    500: "InternalError",
    503: "ServiceUnavailable",
}
REASONS_BY_CODE = {
    "invalid_json": "InvalidRequestBody",
    "invalid_http": "InvalidRequestBody",
    "too_deep": "InvalidRequestBody",
    "not_events": "InvalidRequestBody",
    "missing_field": "MissingRequiredField",
    "session_ended": "TaskNotFound",
}
"""Agora's reasons for codes that mean more than their status."""
AgoraReason = Annotated[
    str, Meta(extra_json_schema={"enum": sorted({*REASONS_BY_STATUS.values(), *REASONS_BY_CODE.values()})})
]


class AgoraError(Struct, frozen=True):
    """The body of every answer that is not 200."""

    detail: str
    reason: AgoraReason


def translate_problem(response: web.StreamResponse) -> web.StreamResponse:
    """Turn a problem document into Agora's error; any other answer stays as it is."""
    if not isinstance(response, web.Response) or response.content_type != problems.MEDIA_TYPE:
        return response
    assert isinstance(response.body, bytes)
    problem = msgspec.json.decode(response.body, type=problems.Problem)
    headers = {name: value for name, value in response.headers.items() if name not in (CONTENT_TYPE, CONTENT_LENGTH)}
    return web.Response(
        status=status_of(problem.reason),
        body=msgspec.json.encode(agora_error(problem.reason, problem.detail)),
        content_type="application/json",
        headers=headers,
    )


def status_of(code: str) -> int:
    """Return the HTTP status of a code; for Agora, a session that has ended is unknown."""
    return HTTPStatus.NOT_FOUND if reason_of(code) == "TaskNotFound" else CODES[code].status


def reason_of(code: str) -> str:
    return REASONS_BY_CODE.get(code) or REASONS_BY_STATUS.get(CODES[code].status, "InternalError")


def agora_error(code: str, detail: str) -> AgoraError:
    reason = reason_of(code)
    return AgoraError(NOT_FOUND if reason == "TaskNotFound" else detail, reason)


ERRORS = ErrorFormat(JSON, AgoraError, status_of, reason_of)
