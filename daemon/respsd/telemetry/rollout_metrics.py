"""A rollout's state as Prometheus metrics, read whenever they are scraped.

Tokens and seconds by arm are counters of the engine's own metrics: `respsd_generated_tokens_total{arm}` and
`respsd_decode_seconds_total{arm}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from respsd.rollout.guards import Guard
from respsd.rollout.status import SLOWER, RolloutStatus

_REASONS = (SLOWER, *get_args(Guard))


def watch_rollout(registry: CollectorRegistry, status: Callable[[], RolloutStatus]) -> None:
    """Read the rollout's state at every scrape."""
    registry.register(_AtScrape(status))


class _AtScrape(Collector):
    def __init__(self, status: Callable[[], RolloutStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        ratio = GaugeMetricFamily(
            "respsd_rollout_log_ratio",
            "Log of the subject's speed over the control's: mean and confidence bounds.",
            labels=["contest", "bound"],
        )
        pairs = GaugeMetricFamily("respsd_rollout_pairs", "Observations of the running comparison.", labels=["contest"])
        share = GaugeMetricFamily(
            "respsd_rollout_share", "Share of windows that the challenger serves.", labels=["contest"]
        )
        for each in status.rounds:
            for bound, value in (("lower", each.lower), ("mean", each.mean), ("upper", each.upper)):
                ratio.add_metric([each.kind, bound], value)
            pairs.add_metric([each.kind], each.pairs)
            share.add_metric([each.kind], each.share)
        rollbacks = CounterMetricFamily("respsd_rollbacks", "Automatic rollbacks, by reason.", labels=["reason"])
        for reason in _REASONS:  # 0 is a figure too: a rate needs a beginning
            rollbacks.add_metric([reason], status.rollbacks.get(reason, 0))
        yield from (ratio, pairs, share, rollbacks)
        yield CounterMetricFamily("respsd_promotions", "Automatic promotions.", value=status.promotions)
        yield GaugeMetricFamily(
            "respsd_speculation_off", "1 where the champion is plain decoding.", value=float(status.speculation_off)
        )
