"""Context policies: which part of the memory the next LLM request shows. All of it is pure.

A policy chooses messages, but never changes, splits or reorders them; the history itself is never shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from voicemem.config.context import PARAMETERS, ContextConfig, given_names, overlay
from voicemem.context.policies.policy import Choice, Policy, Remembered
from voicemem.context.policies.priority import PriorityPolicy
from voicemem.context.policies.recent import FullPolicy, RecentPolicy
from voicemem.context.policies.summary import SummaryPolicy
from voicemem.context.policies.window import WindowPolicy
from voicemem.errors import Refused
from voicemem.llm.tokens import TokenCounter, context_window_of, counter, encoding_of

__all__ = ["Choice", "ContextConfig", "Policies", "Policy", "Remembered"]

BUILT_IN: Mapping[str, Callable[..., Policy]] = {
    "full": FullPolicy,
    "recent": RecentPolicy,
    "window": WindowPolicy,
    "summary": SummaryPolicy,
    "priority": PriorityPolicy,
}
"""The policies that come with voicemem, each with the parameters that it needs to choose."""
SUMMARY_WRITER_PARAMETERS = frozenset({"model", "prompt"})
"""Parameters of `summary` that only the writing of summaries uses."""


class Policies(Struct, frozen=True):
    """The policies of a service: those above and the operator's own, and the default for sessions."""

    default: ContextConfig = ContextConfig()
    custom_policies: Mapping[str, Callable[..., Policy]] = {}
    """By name; created with a session's `memory.parameters`."""
    windows: Mapping[str, int] = {}
    """Tokens of models' contexts; they override the table in `llm.tokens`."""
    default_model: str | None = None
    """The model of the operator's LLM."""

    def resolve(self, memory: ContextConfig) -> ContextConfig:
        """A session's memory settings, over the service's."""
        return overlay(self.default, memory)

    def create_policy(self, memory: ContextConfig) -> Policy | None:
        """The policy that these settings choose; None if they choose none. Raises `Refused`."""
        name = memory.policy
        if name is None:
            return None
        if name in self.custom_policies:
            unknown = sorted(set().union(*PARAMETERS.values()) & given_names(msgspec.structs.asdict(memory)))
            if unknown:
                raise Refused("invalid_field", f"The policy {name} has no `{unknown[0]}`; it takes `parameters`.")
            return make_policy(self.custom_policies[name], name, memory.parameters)
        if name not in BUILT_IN:
            raise Refused("invalid_field", f"The policy must be one of {', '.join(self.names())}.")
        parameters = {key: getattr(memory, key) for key in sorted(PARAMETERS[name] - SUMMARY_WRITER_PARAMETERS)}
        return BUILT_IN[name](**{key: value for key, value in parameters.items() if value is not None})

    def names(self) -> list[str]:
        return [*BUILT_IN, *self.custom_policies]

    def check(self, section: Any) -> None:
        """Check the policy of a section `memory`, and its parameters. Raises `Refused`."""
        if isinstance(section, dict) and section.get("policy") is not None:
            values = {name: value for name, value in section.items() if value is not None}
            self.create_policy(msgspec.convert(values, ContextConfig))

    def window(self, memory: ContextConfig, model: str | None) -> int | None:
        """How many tokens the context of a model holds; None if it is unknown."""
        return memory.context_window or context_window_of(model, self.windows)

    def counter(self, model: str | None) -> TokenCounter:
        """The token counter of a model."""
        return counter(known_encoding(model))


known_encoding = lru_cache(maxsize=1024)(encoding_of)


def make_policy(policy_class: Callable[..., Policy], name: str, parameters: Mapping[str, Any]) -> Policy:
    """Create one of the operator's own policies. Raises `Refused` for parameters that it does not take."""
    try:
        return policy_class(**parameters)
    except (TypeError, ValueError) as error:
        raise Refused("invalid_field", f"The policy {name} does not take these parameters.") from error
