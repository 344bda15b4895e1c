"""Checks of the library's arguments: the same as for requests over the network."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from voicemem.config.context import ContextConfig, Tokens, check_context
from voicemem.context.builder import ContextOptions
from voicemem.context.formats import ENRICHERS
from voicemem.context.policy_registry import (
    Policies,
    check_policies,
    check_policy_class,
    check_policy_name,
    default_memory_config,
    with_cause,
)
from voicemem.errors import CannotStart, InvalidFrame, Refused
from voicemem.protocol.arguments import converted
from voicemem.protocol.codec import check_frame, decode_body
from voicemem.protocol.types import JsonObject, Name, Natural, SequenceNumber, SessionId
from voicemem.security.access import PROJECT_PATTERN

T = TypeVar("T")
CONTEXT_OPTIONS = "enrich, style, system, alternate, tools, max_history, data, peek, at, at_turn, memory"


def policies_from_options(policies: Any, memory: Any, model_windows: Any) -> Policies:
    """Return the policies from the options of `voicemem.open`. Raises `CannotStart`."""
    own = {} if policies is None else policies
    if not isinstance(own, Mapping):
        raise CannotStart("policies must be a dict of classes, by name.")
    for name, kind in own.items():
        check_policy_name(name)
        check_policy_class(kind, f"What is given as {name}")
    try:
        default = default_memory_config(None if memory is None else json_bytes(memory).decode())
    except Refused as refused:
        raise CannotStart(f"The option memory is invalid: {refused.detail}") from None
    try:
        windows = msgspec.convert({} if model_windows is None else model_windows, dict[Name, Tokens])
    except msgspec.ValidationError:
        raise CannotStart("model_windows must be a dict of tokens (at least 1), by the name of a model.") from None
    return check_policies(Policies(default, dict(own), windows))


def check_project(project: Any) -> None:
    """Raise `CannotStart` for an invalid name of a project."""
    if not (isinstance(project, str) and PROJECT_PATTERN.match(project)):
        raise CannotStart("A project must be 1 to 128 characters of A-Za-z0-9._:-.")


@contextmanager
def with_policy_reason() -> Iterator[None]:
    """Add a policy's own message about its parameters to a refusal, since its author calls the library."""
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
    marks: bool = False


def check_arguments(**arguments: Any) -> Arguments:
    """Check arguments by name. Raises `Refused` (`invalid_field`)."""
    return converted(arguments, Arguments)


def check_user_id(user_id: str) -> str:
    """Return the checked id of a user. Raises `Refused`."""
    checked = check_arguments(user_id=user_id).user_id
    if checked is None:
        raise Refused("missing_field", "The field user_id is missing.")
    return checked


def context_options(arguments: Mapping[str, Any]) -> ContextOptions:
    """Return the checked options of a context. Raises `Refused`."""
    unknown = sorted(arguments.keys() - {*ContextOptions.__struct_fields__})
    if unknown:
        raise Refused("invalid_field", f"Unknown option `{unknown[0]}`; it must be one of {CONTEXT_OPTIONS}.")
    fields = plain_json(arguments)
    memory = fields.pop("memory", None)
    options = converted(fields, ContextOptions)
    if not set(options.enrich) <= {*ENRICHERS}:
        raise Refused("invalid_field", f"Each item of enrich must be one of {', '.join(ENRICHERS)}.")
    memory_config = None if memory is None else converted(memory, ContextConfig)
    check_context(memory)
    return msgspec.structs.replace(options, memory=memory_config)


def plain_json(value: Any) -> JsonObject:
    """Return a dict as decoded from JSON. Raises `Refused` for anything else."""
    decoded = json_value(value)
    if not isinstance(decoded, dict):
        raise Refused("invalid_field", "A dict is expected here.")
    return decoded


def json_value(value: Any) -> Any:
    """Return a value as decoded from JSON. Raises `Refused`."""
    return decode_body(json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON of at most 1 MiB. Raises `Refused` for what JSON lacks, such as bytes and NaN."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=dict_of).encode()
        check_frame(text)
    except (TypeError, ValueError, RecursionError):
        raise Refused("invalid_field", "The value cannot be written as JSON.") from None
    except InvalidFrame as error:
        raise Refused(error.code, error.detail) from None
    return text


def dict_of(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError
