"""What programs give to the library, checked as what comes over the network is: nothing else reaches a session."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from voicemem.config.memory import Tokens, check_memory
from voicemem.config.session import MaxHistory
from voicemem.context.builder import ContextOptions
from voicemem.context.formats import ENRICHERS
from voicemem.context.plugins import (
    check_policies,
    check_policy_class,
    check_policy_name,
    default_memory_config,
    with_cause,
)
from voicemem.context.policies import MemoryConfig, Policies
from voicemem.errors import CannotStart, InvalidFrame, Refused
from voicemem.protocol.explain import describe_error
from voicemem.protocol.strict_json import check_frame, decode_body
from voicemem.protocol.types import JsonObject, Name, Natural, SequenceNumber, SessionId
from voicemem.security.access import PROJECT

T = TypeVar("T")
CONTEXT_OPTIONS = "enrich, style, alternate, tools, max_history, data, memory"


def policies_from_options(policies: Any, memory: Any, model_windows: Any) -> Policies:
    """The options of `voicemem.open` that are about policies. Raises `CannotStart`."""
    own = {} if policies is None else policies
    if not isinstance(own, Mapping):
        raise CannotStart("The policies are a dict of classes by name.")
    for name, kind in own.items():
        check_policy_name(name)
        check_policy_class(kind, f"What is given as {name}")
    try:
        default = default_memory_config(None if memory is None else json_bytes(memory).decode())
    except Refused as refused:
        raise CannotStart(f"The default memory cannot be used: {refused.detail}") from None
    try:
        windows = msgspec.convert({} if model_windows is None else model_windows, dict[Name, Tokens])
    except msgspec.ValidationError:
        raise CannotStart("The model_windows are a dict of tokens, from 1 on, by the name of a model.") from None
    return check_policies(Policies(default, dict(own), windows))


def check_project(project: Any) -> None:
    """Raises `CannotStart`."""
    if not (isinstance(project, str) and PROJECT.match(project)):
        raise CannotStart("A project is 1 to 128 characters of A-Za-z0-9._:-.")


@contextmanager
def with_policy_reason() -> Iterator[None]:
    """Adds what a policy says of its parameters, since its author is the caller."""
    try:
        yield
    except Refused as refused:
        if refused.__cause__ is None:
            raise
        raise Refused(refused.code, with_cause(refused)) from refused.__cause__


class Arguments(Struct, forbid_unknown_fields=True):
    """The arguments of methods, with the types that they have over REST."""

    session_id: SessionId | None = None
    user_id: Name | None = None
    producer: Name | None = None
    state: Literal["running", "ended"] | None = None
    limit: SequenceNumber | None = None
    version: SequenceNumber | None = None
    before: SequenceNumber | None = None
    expected: Natural | None = None
    at_turn: Natural | None = None
    reason: str | None = None
    open: bool = False


def check_arguments(**given: Any) -> Arguments:
    """Arguments by their names. Raises `Refused` (`invalid_field`)."""
    return converted(given, Arguments)


class ContextArguments(Struct, forbid_unknown_fields=True):
    """`Wishes` but for `memory`, as `GET …/context` has them."""

    enrich: tuple[str, ...] = ()
    style: Literal["openai", "anthropic", "gemini"] | None = None
    alternate: bool = False
    tools: bool = False
    max_history: MaxHistory | None = None
    data: bool = False


def context_options(given: Mapping[str, Any]) -> ContextOptions:
    """What a context is asked for. Raises `Refused`."""
    unknown = sorted(given.keys() - {*ContextOptions.__struct_fields__})
    if unknown:
        raise Refused("invalid_field", f"Unknown option `{unknown[0]}`; the options are {CONTEXT_OPTIONS}.")
    fields = plain_json(given)
    memory = fields.pop("memory", None)
    options = msgspec.structs.asdict(converted(fields, ContextArguments))
    if not set(options["enrich"]) <= {*ENRICHERS}:
        raise Refused("invalid_field", f"The enrichers are {', '.join(ENRICHERS)}.")
    wanted = None if memory is None else converted(memory, MemoryConfig)
    check_memory(memory)
    return ContextOptions(**options, memory=wanted)


def plain_json(given: Any) -> JsonObject:
    """A dict as it comes out of JSON. Raises `Refused` for anything else."""
    value = json_value(given)
    if not isinstance(value, dict):
        raise Refused("invalid_field", "What is given is no dict.")
    return value


def json_value(given: Any) -> Any:
    """A value as it comes out of JSON. Raises `Refused`."""
    return decode_body(json_bytes(given))


def json_bytes(given: Any) -> bytes:
    """A value as JSON of at most 1 MiB. Raises `Refused` for what JSON does not have: bytes, NaN, objects."""
    try:
        text = json.dumps(given, allow_nan=False, ensure_ascii=False, default=dict_of).encode()
        check_frame(text)
    except (TypeError, ValueError, RecursionError):
        raise Refused("invalid_field", "What is given cannot be written as JSON.") from None
    except InvalidFrame as error:
        raise Refused(error.code, error.detail) from None
    return text


def dict_of(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def converted(value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Refused("invalid_field", describe_error(error, kind)) from None
