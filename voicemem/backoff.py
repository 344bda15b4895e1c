"""Delays between attempts."""


def exponential_s(attempt: int, first_s: float, longest_s: float) -> float:
    """The delay after an attempt, counted from 0: `first_s`, doubled each time, at most `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(attempt, 60))  # beyond 2**1023 a float would overflow


def spread(delay_s: float, random: float, low: float, high: float) -> float:
    """A delay times a factor between `low` and `high`, so that many callers do not return at the same moment.

    `random` is a number in [0, 1).
    """
    return delay_s * (low + (high - low) * random)
