"""A `session.update` on its way to the journal: its patch is validated, and its secrets are taken out."""

from __future__ import annotations

from voicemem.config.secrets import SECRETS, SessionPatch
from voicemem.config.session import validate_config
from voicemem.protocol.codec import ENCODER, DecodedEvent
from voicemem.protocol.events import SessionUpdate, update_patch
from voicemem.protocol.strict_json import JSON_DECODER


class ConfigUpdate(DecodedEvent, frozen=True):
    """A valid `session.update`. Its secrets are in `patch`, and not in `payload`."""

    patch: SessionPatch


def validated_update(event: SessionUpdate, payload: bytes) -> ConfigUpdate:
    """Validate the patch of an update, and take its secrets out of the payload. Raises `Refused` (`invalid_field`)."""
    patch = validate_config(update_patch(event))
    values = JSON_DECODER.decode(payload)  # always encoded again, since a doubled key could hide a secret
    for section, key in SECRETS:
        if isinstance(values.get(section), dict):
            values[section].pop(key, None)
    return ConfigUpdate(event, ENCODER.encode(values), patch)
