"""How many examples property tests try: chosen by --hypothesis-profile, or by TESTS_HYPOTHESIS_PROFILE."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PROFILES = {"quick": 10, "sample": 15, "default": 100, "thorough": 1000}
"""`make quick`, `make test`, `make test-all` and `make soak` try so many."""
CHOSEN = os.environ.get("TESTS_HYPOTHESIS_PROFILE") or "default"


def register() -> None:
    """No example has a deadline: the machine may be busy.

    Only `thorough` draws other examples each time: a change that is checked must not fail for what another one broke.
    `make soak` looks for the rest.
    """
    for name, count in PROFILES.items():
        settings.register_profile(
            name,
            max_examples=count,
            deadline=None,
            derandomize=name != "thorough",
            print_blob=True,
            suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        )
    settings.load_profile(CHOSEN)


def examples(fraction: float, least: int = 5) -> settings:
    """For a test whose examples are slow: this part of the profile's number, but not fewer than the least."""
    return settings(max_examples=max(least, round(settings().max_examples * fraction)))


def seeds(count: int) -> range:
    """For a test that draws from `random` itself: so many under the default profile, one at the least."""
    return range(1, 1 + max(1, settings().max_examples * count // PROFILES["default"]))


def is_thorough() -> bool:
    """Whether the examples may take hours."""
    return settings().max_examples >= PROFILES["thorough"]
