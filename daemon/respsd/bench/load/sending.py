"""Load on a running daemon: requests arrive on schedule, whether or not those before them are answered.

The loop is open: a slow daemon does not slow the arrivals down, as clients that wait for each other would. Every
latency counts from the moment at which the request was due, so that one that was sent late is charged for it too
(otherwise the worst moments would be measured least: coordinated omission).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from respsd_client import AsyncClient, GenerateOptions, Prompt, ServiceError

OK = "OK"


@dataclass(slots=True)
class Outcome:
    """One request; times are seconds since the run's start."""

    due: float
    sent: float = 0.0
    ended: float = 0.0
    code: str = OK
    """gRPC status code; OK where the output is complete."""
    deliveries: list[tuple[float, int]] = field(default_factory=list)
    """When tokens came, and how many."""

    @property
    def tokens(self) -> int:
        """That came, also where the request failed later."""
        return sum(count for _, count in self.deliveries)

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from when the request was due; None where no token came."""
        return self.deliveries[0][0] - self.due if self.deliveries else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between deliveries."""
        return [later[0] - earlier[0] for earlier, later in zip(self.deliveries, self.deliveries[1:], strict=False)]

    @property
    def seconds_per_token(self) -> float:
        """Mean time of a token after the first delivery; 0 where there is none."""
        rest = self.tokens - self.deliveries[0][1] if self.deliveries else 0
        return (self.deliveries[-1][0] - self.deliveries[0][0]) / rest if rest else 0.0

    @property
    def seconds(self) -> float:
        """From when it was due to its end."""
        return self.ended - self.due


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What came of the requests of one rate."""

    rate: float
    outcomes: tuple[Outcome, ...]
    most_in_flight: int

    @property
    def seconds(self) -> float:
        """From the start to the end of the last request."""
        return max(outcome.ended for outcome in self.outcomes)


async def run_load(
    client: AsyncClient,
    prompts: Sequence[Prompt],
    rate: float,
    arrivals: Sequence[float],
    options: GenerateOptions,
    *,
    timeout: float,
    progress: Callable[[], None] = lambda: None,
) -> LoadRun:
    """Send a request at each arrival and wait for all of them.

    :param prompts: taken in turn
    :param rate: that the arrivals were drawn for
    :param timeout: seconds from when a request is due; one that takes longer ends with DEADLINE_EXCEEDED
    :param progress: called after each request
    """
    clock = asyncio.get_running_loop().time
    started = clock()
    in_flight = most = 0

    async def request(prompt: Prompt, outcome: Outcome) -> None:
        nonlocal in_flight, most
        await asyncio.sleep(started + outcome.due - clock())
        in_flight += 1
        most = max(most, in_flight)
        outcome.sent = clock() - started
        left = max(0.0, outcome.due + timeout - outcome.sent)
        try:
            async with client.stream(prompt, timeout=left, **options) as stream:
                async for chunk in stream:
                    if chunk.token_ids:
                        outcome.deliveries.append((clock() - started, len(chunk.token_ids)))
        except ServiceError as error:
            outcome.code = error.code.name
        outcome.ended = clock() - started
        in_flight -= 1
        progress()

    outcomes = tuple(Outcome(due) for due in arrivals)
    async with asyncio.TaskGroup() as group:
        for number, outcome in enumerate(outcomes):
            group.create_task(request(prompts[number % len(prompts)], outcome))
    return LoadRun(rate, outcomes, most)
