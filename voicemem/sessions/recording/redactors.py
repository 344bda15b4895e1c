"""The rules of redaction that the settings name, with the operator's own."""

from __future__ import annotations

import importlib

from voicemem.config.service import OWN_REDACTION, Settings
from voicemem.errors import CannotStart
from voicemem.redaction.rules import Finder, Rules, rules_of


def load_rules(settings: Settings) -> Rules | None:
    """What is to be redacted; None for nothing. Raises `CannotStart` if an own rule cannot be imported."""
    if not settings.redact:
        return None
    own = [name for name in settings.redact if OWN_REDACTION.fullmatch(name)]
    return rules_of([name for name in settings.redact if name not in own], map(load_finder, own))


def load_finder(path: str) -> Finder:
    """Import MODULE:FUNCTION, and try it. Raises `CannotStart`."""
    module, _, name = path.partition(":")
    try:
        finder: Finder = getattr(importlib.import_module(module), name)
        spans = [(int(start), int(end)) for start, end in finder("")]
    except Exception as error:  # the operator's module may raise anything
        why = f"{type(error).__name__}: {error}"
        raise CannotStart(f"The redaction {path} cannot be used: {why}.") from None
    if spans:
        raise CannotStart(f"The redaction {path} cannot be used: it finds something in an empty text.")
    return finder
