"""Admission: what callers may begin and store, decided in one place for every way in (docs/limits.md).

Names of producers are decided when a producer is opened or restored, quotas in the transaction of what they bound.
"""

from voicemem.errors import Refused

OWN_PRODUCERS = frozenset({"agora.rest", "api", "gateway"})
OWN_SUFFIXES = (".hooks", ".observer")
"""Of the names of dialects: producers of inbound webhooks and of observed calls."""


def is_own_producer(name: str) -> bool:
    """Return whether the service itself journals under a name what arrives otherwise than as a producer's events.

    Such events have no seq, so a caller who could number events under the name would have the service's refused.
    """
    return name in OWN_PRODUCERS or name.endswith(OWN_SUFFIXES)


def check_producer(name: str) -> str:
    """Return the name of a caller's producer. Raises `Refused` (`invalid_field`) for one of the service's own."""
    if is_own_producer(name):
        raise Refused("invalid_field", f"The producer name {name} is reserved for the service; use another one.")
    return name
