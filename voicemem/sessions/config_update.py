"""A `session.update` on its way to the journal: its patch is checked, and its secrets are kept apart."""

from __future__ import annotations

from voicemem.config.secrets import SECRETS, SessionPatch
from voicemem.config.session import validate_config
from voicemem.protocol.codec import ENCODER, DecodedEvent
from voicemem.protocol.events import SessionUpdate, update_patch
from voicemem.protocol.strict_json import JSON_DECODER


class ConfigUpdate(DecodedEvent, frozen=True):
    """A `session.update` that is valid. Its secrets stand in `patch`, and not in `payload`."""

    patch: SessionPatch


def validated_update(event: SessionUpdate, payload: bytes) -> ConfigUpdate:
    """Check the patch of an update, and take its secrets out of the payload. Raises `Refused` (`invalid_field`)."""
    patch = validate_config(update_patch(event))
    values = JSON_DECODER.decode(payload)  # written again in any case: a doubled key could hide a secret
    for section, key in SECRETS:
        if isinstance(values.get(section), dict):
            values[section].pop(key, None)
    return ConfigUpdate(event, ENCODER.encode(values), patch)
