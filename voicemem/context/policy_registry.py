"""The policies of a service: the built-in ones and the operator's own, how they are loaded, and the default."""

import importlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from voicemem.config.context import PARAMETERS, POLICY_NAME, ContextConfig, check_whole_context, given_names, overlay
from voicemem.config.service import Settings
from voicemem.context.policies import FullPolicy, Policy, PriorityPolicy, RecentPolicy, WindowPolicy
from voicemem.context.summary_policy import SummaryPolicy
from voicemem.errors import CannotStart, Refused
from voicemem.llm.tokens import TokenCounter, context_window_of, counter, encoding_of
from voicemem.protocol.explanations import describe_error

BUILT_IN: Mapping[str, Callable[..., Policy]] = {
    "full": FullPolicy,
    "recent": RecentPolicy,
    "window": WindowPolicy,
    "summary": SummaryPolicy,
    "priority": PriorityPolicy,
}
"""The policies that come with voicemem; each takes its own parameters."""
SUMMARY_WRITER_PARAMETERS = frozenset({"model", "prompt"})
"""Parameters of `summary` that only the writing of summaries uses."""


class Policies(Struct, frozen=True):
    """The policies of a service, with the operator's own and the default for sessions."""

    default: ContextConfig = ContextConfig()
    custom_policies: Mapping[str, Callable[..., Policy]] = {}
    """Classes by name, created with a session's `memory.parameters`."""
    windows: Mapping[str, int] = {}
    """The sizes of models' contexts in tokens; they override the table in `llm.tokens`."""
    default_model: str | None = None

    def resolve(self, memory: ContextConfig) -> ContextConfig:
        """Return a session's memory settings over the service's."""
        return overlay(self.default, memory)

    def create_policy(self, memory: ContextConfig) -> Policy | None:
        """Create the policy that these settings name; None if they name none. Raises `Refused`."""
        name = memory.policy
        if name is None:
            return None
        if name in self.custom_policies:
            unknown = sorted(set().union(*PARAMETERS.values()) & given_names(msgspec.structs.asdict(memory)))
            if unknown:
                raise Refused("invalid_field", f"The policy {name} has no `{unknown[0]}`; it takes `parameters`.")
            try:
                return self.custom_policies[name](**memory.parameters)
            except (TypeError, ValueError) as error:
                raise Refused("invalid_field", f"The policy {name} does not take these parameters.") from error
        if name not in BUILT_IN:
            names = ", ".join([*BUILT_IN, *self.custom_policies])
            raise Refused("invalid_field", f"The policy must be one of {names}.")
        parameters = {key: getattr(memory, key) for key in sorted(PARAMETERS[name] - SUMMARY_WRITER_PARAMETERS)}
        return BUILT_IN[name](**{key: value for key, value in parameters.items() if value is not None})

    def check(self, section: Any) -> None:
        """Check the policy of a section `memory` and its parameters. Raises `Refused`."""
        if isinstance(section, dict) and section.get("policy") is not None:
            values = {name: value for name, value in section.items() if value is not None}
            self.create_policy(msgspec.convert(values, ContextConfig))

    def window(self, memory: ContextConfig, model: str | None) -> int | None:
        """Return the size of a model's context in tokens; None if unknown."""
        if memory.context_window or model is None:
            return memory.context_window
        return context_window_of(model, self.windows)

    def counter(self, model: str | None) -> TokenCounter:
        return counter(known_encoding(model))


known_encoding = lru_cache(maxsize=1024)(encoding_of)


def load_policies(settings: Settings) -> Policies:
    """Load the policies that the settings configure. Raises `CannotStart` if they cannot be imported or used."""
    custom_policies: dict[str, Callable[..., Policy]] = {}
    for text in settings.policies:
        name, policy_class = load_policy(text)
        if name in custom_policies:
            raise CannotStart(f"The policy {name} is defined twice.")
        custom_policies[name] = policy_class
    windows: dict[str, int] = {}
    for text in settings.model_windows:
        model, _, tokens = text.rpartition("=")
        if not (model and tokens.isdecimal() and int(tokens)):
            raise CannotStart(f"{text!r} is not a model's window; write MODEL=TOKENS, such as my-model=32000.")
        windows[model] = int(tokens)
    called = "--context (VOICEMEM_MEMORY)"
    default = default_memory_config(settings.memory, called)
    return check_policies(Policies(default, custom_policies, windows, settings.llm_model), called)


def check_policies(policies: Policies, called: str = "`memory`") -> Policies:
    """Return the policies if their default can be used. Raises `CannotStart`, which names it `called`."""
    try:
        policies.create_policy(policies.default)
    except Refused as refused:
        raise CannotStart(f"{called} cannot be used: {with_cause(refused)}") from None
    return policies


def with_cause(refused: Refused) -> str:
    """Return the sentence of a refusal with the policy's own message, only for policy authors and the log."""
    return refused.detail if refused.__cause__ is None else f"{refused.detail[:-1]}: {refused.__cause__}"


def default_memory_config(text: str | None, called: str = "`memory`") -> ContextConfig:
    """Return the memory settings for sessions that have none. Raises `CannotStart`."""
    if text is None:
        return ContextConfig()
    try:
        section = msgspec.json.decode(text, type=dict[str, Any])
        check_whole_context(section)
        return overlay(ContextConfig(), msgspec.convert(section, ContextConfig))
    except msgspec.ValidationError as error:
        raise CannotStart(f"{called} cannot be used: {describe_error(error, ContextConfig)}.") from None
    except Refused as refused:
        raise CannotStart(f"{called} cannot be used: {refused.detail}") from None
    except msgspec.DecodeError:
        example = '{"policy": "window", "max_tokens": 4000}'
        raise CannotStart(f"{called} must be a JSON object, such as {example}.") from None


def load_policy(text: str) -> tuple[str, Callable[..., Policy]]:
    """Import the policy NAME=MODULE:CLASS. Return its name and class. Raises `CannotStart`."""
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
    """Check that a class can be a policy. Raises `CannotStart`, which names it `path`."""
    if not (callable(policy_class) and callable(getattr(policy_class, "choose", None))):
        raise CannotStart(f"{path} is not a policy: it has no method `choose`.")
