"""When requests arrive: a Poisson process, drawn beforehand so that the daemon's answers cannot change it."""

from __future__ import annotations

import random
from itertools import accumulate

from respsd.errors import InvalidRequest


def poisson_arrivals(rate: float, requests: int, rng: random.Random) -> tuple[float, ...]:
    """Seconds from the start at which each request arrives, ascending. :param rate: requests a second"""
    return tuple(accumulate(rng.expovariate(rate) for _ in range(requests)))


def parse_rates(text: str) -> list[float]:
    """Read `0.5,1,2`, requests a second; raises InvalidRequest."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise InvalidRequest("rate", text, "write positive numbers of requests a second like 0.5,1,2")
    return rates
