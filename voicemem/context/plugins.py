"""The context policies of a service: the default, the operator's own, and the windows of models."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import msgspec

from voicemem.config.context import PARAMETERS, POLICY_NAME, check_context, overlay
from voicemem.config.service import Settings
from voicemem.context.policies import ContextConfig, Policies, Policy
from voicemem.errors import CannotStart, Refused
from voicemem.protocol.explain import describe_error


def load_policies(settings: Settings) -> Policies:
    """The policies that the settings configure. Raises `CannotStart` if they cannot be imported or used."""
    custom_policies: dict[str, Callable[..., Policy]] = {}
    for text in settings.policies:
        name, policy_class = load_policy(text)
        if name in custom_policies:
            raise CannotStart(f"The policy {name} is defined twice.")
        custom_policies[name] = policy_class
    windows = dict(map(parse_model_window, settings.model_windows))
    return check_policies(
        Policies(default_memory_config(settings.memory), custom_policies, windows, settings.llm_model)
    )


def check_policies(policies: Policies) -> Policies:
    """Check that the default can be used, and return the policies. Raises `CannotStart` if not."""
    try:
        policies.create_policy(policies.default)
    except Refused as refused:
        raise CannotStart(f"The default memory cannot be used: {with_cause(refused)}") from None
    return policies


def with_cause(refused: Refused) -> str:
    """The sentence of a refusal, with what the policy itself said: for policy authors and the log only."""
    return refused.detail if refused.__cause__ is None else f"{refused.detail[:-1]}: {refused.__cause__}"


def default_memory_config(text: str | None) -> ContextConfig:
    """The memory settings for sessions that have none. Raises `CannotStart`."""
    if text is None:
        return ContextConfig()
    try:
        section = msgspec.json.decode(text, type=dict[str, Any])
        check_context(section)
        return overlay(ContextConfig(), msgspec.convert(section, ContextConfig))
    except msgspec.ValidationError as error:
        raise CannotStart(f"The default memory cannot be used: {describe_error(error, ContextConfig)}.") from None
    except (msgspec.DecodeError, Refused) as error:
        why = error.detail if isinstance(error, Refused) else "It must be a JSON object."
        raise CannotStart(f"The default memory cannot be used: {why}") from None


def load_policy(text: str) -> tuple[str, Callable[..., Policy]]:
    """Import the policy NAME=MODULE:CLASS; its name and class. Raises `CannotStart`."""
    name, _, path = text.partition("=")
    module, _, attribute = path.partition(":")
    if not (name and module and attribute):
        raise CannotStart(f"{text!r} does not name a policy; write NAME=MODULE:CLASS.")
    check_policy_name(name)
    try:
        policy_class = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the operator's module may raise anything
        why = f"{type(error).__name__}: {error}"
        raise CannotStart(f"The policy {name} cannot be imported: {why}.") from None
    check_policy_class(policy_class, path)
    return name, policy_class


def check_policy_name(name: Any) -> None:
    """Check the name of a custom policy. Raises `CannotStart`."""
    if not (isinstance(name, str) and re.match(POLICY_NAME, name)):
        raise CannotStart(
            f"{name!r} cannot be the name of a policy: it must be a lower-case letter, then up to 63 of a-z0-9_.-"
        )
    if name in PARAMETERS:
        raise CannotStart(f"The policy {name} comes with voicemem; choose another name for yours.")


def check_policy_class(policy_class: Any, path: str) -> None:
    """Check that a class can be a policy. Raises `CannotStart`; `path` names the class in it."""
    if not (callable(policy_class) and callable(getattr(policy_class, "choose", None))):
        raise CannotStart(f"{path} is not a policy: it has no method `choose`.")


def parse_model_window(text: str) -> tuple[str, int]:
    """Parse MODEL=TOKENS. Raises `CannotStart`."""
    model, _, tokens = text.rpartition("=")
    if not (model and tokens.isdecimal() and int(tokens)):
        raise CannotStart(f"{text!r} is not a model's window; write MODEL=TOKENS, such as my-model=32000.")
    return model, int(tokens)
