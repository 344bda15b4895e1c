"""Memory policies: what of the memory the next LLM call gets to see. All of it is pure.

A policy chooses messages and never changes, splits or reorders them; nothing here shortens the history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from voicemem.config.memory import PARAMETERS, MemoryConfig, given_names, overlay
from voicemem.context.policies.policy import Choice, Policy, Remembered
from voicemem.context.policies.priority import PriorityPolicy
from voicemem.context.policies.recent import FullPolicy, RecentPolicy
from voicemem.context.policies.summary import SummaryPolicy
from voicemem.context.policies.window import WindowPolicy
from voicemem.errors import Refused
from voicemem.llm.tokens import TokenCounter, context_window_of, counter, encoding_of

__all__ = ["Choice", "MemoryConfig", "Policies", "Policy", "Remembered"]

BUILT_IN: Mapping[str, Callable[..., Policy]] = {
    "full": FullPolicy,
    "recent": RecentPolicy,
    "window": WindowPolicy,
    "summary": SummaryPolicy,
    "priority": PriorityPolicy,
}
"""The policies that come with voicemem; each takes those of its parameters that choosing needs."""
SUMMARY_WRITER_PARAMETERS = frozenset({"model", "prompt"})


class Policies(Struct, frozen=True):
    """The policies of a service: its own besides those above, and what holds for sessions that say nothing."""

    default: MemoryConfig = MemoryConfig()
    custom_policies: Mapping[str, Callable[..., Policy]] = {}
    """By name; each is made with a session's `memory.parameters`."""
    windows: Mapping[str, int] = {}
    """Tokens of models' contexts, where the table of `models` does not know better."""
    default_model: str | None = None
    """Of the LLM that sessions without one of their own call."""

    def resolve(self, memory: MemoryConfig) -> MemoryConfig:
        """A session's memory settings, over those of the service."""
        return overlay(self.default, memory)

    def create_policy(self, memory: MemoryConfig) -> Policy | None:
        """The policy of these settings; None when none is chosen. Raises `Refused`."""
        name = memory.policy
        if name is None:
            return None
        if name in self.custom_policies:
            unknown = sorted(set().union(*PARAMETERS.values()) & given_names(msgspec.structs.asdict(memory)))
            if unknown:
                raise Refused("invalid_field", f"The policy {name} has no `{unknown[0]}`; give it `parameters`.")
            return make_policy(self.custom_policies[name], name, memory.parameters)
        if name not in BUILT_IN:
            raise Refused("invalid_field", f"There is no policy of this name; there are {', '.join(self.names())}.")
        wanted = PARAMETERS[name] - SUMMARY_WRITER_PARAMETERS
        given = {key: getattr(memory, key) for key in sorted(wanted)}
        return BUILT_IN[name](**{key: value for key, value in given.items() if value is not None})

    def names(self) -> list[str]:
        return [*BUILT_IN, *self.custom_policies]

    def check(self, given: Any) -> None:
        """Refuse a section `memory` whose policy there is not, or that its policy cannot take. Raises `Refused`."""
        if isinstance(given, dict) and given.get("policy") is not None:
            values = {name: value for name, value in given.items() if value is not None}
            self.create_policy(msgspec.convert(values, MemoryConfig))

    def window(self, memory: MemoryConfig, model: str | None) -> int | None:
        return memory.context_window or context_window_of(model, self.windows)

    def counter(self, model: str | None) -> TokenCounter:
        """How the tokens of a model are counted."""
        return counter(known_encoding(model))


known_encoding = lru_cache(maxsize=1024)(encoding_of)


def make_policy(kind: Callable[..., Policy], name: str, parameters: Mapping[str, Any]) -> Policy:
    """A policy of the operator's own. Raises `Refused` for parameters that it does not take."""
    try:
        return kind(**parameters)
    except (TypeError, ValueError) as error:
        raise Refused("invalid_field", f"The policy {name} does not take these parameters.") from error
