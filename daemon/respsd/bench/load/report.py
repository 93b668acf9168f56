"""What a daemon did under load: throughput, goodput, latencies, refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from respsd.bench.load.sending import OK, LoadRun, Outcome
from respsd.bench.percentiles import Percentiles


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a request must keep to count as good (service level objectives), in seconds; None asks nothing."""

    first_token: float | None = None
    per_token: float | None = None
    """Mean, after the first delivery."""
    whole: float | None = None

    def met_by(self, outcome: Outcome) -> bool:
        """Whether the request was answered, and in time."""
        first = outcome.time_to_first_token
        return (
            outcome.code == OK
            and first is not None
            and (self.first_token is None or first <= self.first_token)
            and (self.per_token is None or outcome.seconds_per_token <= self.per_token)
            and (self.whole is None or outcome.seconds <= self.whole)
        )


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One rate."""

    offered: float
    """Requests a second that were to arrive."""
    requests: int
    answered: float
    """Requests a second that were answered whole, from the start to the last end."""
    goodput: float
    """Requests a second that were answered within the objectives."""
    good_share: float
    """Of all requests."""
    tokens_per_second: float
    """Of all streams."""
    refusals: Mapping[str, int]
    """Requests that were not answered whole, by gRPC status code."""
    time_to_first_token: Percentiles | None
    inter_token_latency: Percentiles | None
    """Between two deliveries of a stream."""
    whole: Percentiles | None
    """From when an answered request was due to its end."""
    most_in_flight: int
    latest_send: float
    """How late the sender itself was at worst; above some milliseconds it is the bottleneck."""


def load_row(run: LoadRun, objectives: Objectives) -> LoadRow:
    """Sum up; latencies are those of answered requests."""
    answered = [outcome for outcome in run.outcomes if outcome.code == OK]
    good = sum(objectives.met_by(outcome) for outcome in run.outcomes)
    return LoadRow(
        offered=run.rate,
        requests=len(run.outcomes),
        answered=len(answered) / run.seconds,
        goodput=good / run.seconds,
        good_share=good / len(run.outcomes),
        tokens_per_second=sum(outcome.tokens for outcome in run.outcomes) / run.seconds,
        refusals=dict(Counter(outcome.code for outcome in run.outcomes if outcome.code != OK)),
        time_to_first_token=Percentiles.of([each for o in answered if (each := o.time_to_first_token) is not None]),
        inter_token_latency=Percentiles.of([gap for outcome in answered for gap in outcome.gaps]),
        whole=Percentiles.of([outcome.seconds for outcome in answered]),
        most_in_flight=run.most_in_flight,
        latest_send=max(outcome.sent - outcome.due for outcome in run.outcomes),
    )


def load_document(row: LoadRow) -> dict[str, object]:
    """As JSON; durations are in seconds."""
    return dict(asdict(row))
