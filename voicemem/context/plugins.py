"""The memory policies of a service: the default for its sessions, those of the operator's own, models' windows."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import msgspec

from voicemem.config.memory import PARAMETERS, POLICY_NAME, check_memory, overlay
from voicemem.config.service import Settings
from voicemem.context.policies import MemoryConfig, Policies, Policy
from voicemem.errors import CannotStart, Refused
from voicemem.protocol.explain import describe_error


def load_policies(settings: Settings) -> Policies:
    """Raises `CannotStart` for what cannot be imported, or does not fit together."""
    custom_policies: dict[str, Callable[..., Policy]] = {}
    for text in settings.policies:
        name, policy_class = load_policy(text)
        if name in custom_policies:
            raise CannotStart(f"The policy {name} is given twice.")
        custom_policies[name] = policy_class
    windows = dict(map(parse_model_window, settings.model_windows))
    return check_policies(
        Policies(default_memory_config(settings.memory), custom_policies, windows, settings.llm_model)
    )


def check_policies(policies: Policies) -> Policies:
    """The same, whose default can be used. Raises `CannotStart`."""
    try:
        policies.create_policy(policies.default)
    except Refused as refused:
        raise CannotStart(f"The default memory cannot be used: {with_cause(refused)}") from None
    return policies


def with_cause(refused: Refused) -> str:
    """What was refused and, for authors of policies and for the log only, what the policy said itself."""
    return refused.detail if refused.__cause__ is None else f"{refused.detail[:-1]}: {refused.__cause__}"


def default_memory_config(text: str | None) -> MemoryConfig:
    if text is None:
        return MemoryConfig()
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
        check_memory(given)
        return overlay(MemoryConfig(), msgspec.convert(given, MemoryConfig))
    except msgspec.ValidationError as error:
        raise CannotStart(f"The default memory cannot be used: {describe_error(error, MemoryConfig)}.") from None
    except (msgspec.DecodeError, Refused) as error:
        why = error.detail if isinstance(error, Refused) else "It is no JSON object."
        raise CannotStart(f"The default memory cannot be used: {why}") from None


def load_policy(text: str) -> tuple[str, Callable[..., Policy]]:
    """NAME=MODULE:CLASS, imported."""
    name, _, path = text.partition("=")
    module, _, attribute = path.partition(":")
    if not (name and module and attribute):
        raise CannotStart(f"{text!r} names no policy; write NAME=MODULE:CLASS.")
    check_policy_name(name)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # it is somebody's program, which may do anything
        why = f"{type(error).__name__}: {error}"
        raise CannotStart(f"The policy {name} cannot be imported: {why}.") from None
    check_policy_class(found, path)
    return name, found


def check_policy_name(name: Any) -> None:
    """Raises `CannotStart` for what cannot be the name of a policy of somebody's own."""
    if not (isinstance(name, str) and re.match(POLICY_NAME, name)):
        raise CannotStart(f"{name!r} is no name of a policy; it is a small letter, then up to 63 of a-z0-9_.-")
    if name in PARAMETERS:
        raise CannotStart(f"The policy {name} comes with voicemem; choose another name for your own.")


def check_policy_class(policy_class: Any, called: str) -> None:
    if not (callable(policy_class) and callable(getattr(policy_class, "choose", None))):
        raise CannotStart(f"{called} is no policy: it has no method `choose`.")


def parse_model_window(text: str) -> tuple[str, int]:
    """MODEL=TOKENS."""
    model, _, tokens = text.rpartition("=")
    if not (model and tokens.isdecimal() and int(tokens)):
        raise CannotStart(f"{text!r} is no window of a model; write MODEL=TOKENS, such as my-model=32000.")
    return model, int(tokens)
