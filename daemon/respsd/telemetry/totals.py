"""What was counted since the start, read back from the metrics for those who ask over gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry


@dataclass(frozen=True, slots=True)
class ArmTotals:
    """What one arm generated."""

    tokens: int = 0
    decode_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters; the difference of two readings is what happened between them."""

    arms: Mapping[str, ArmTotals] = field(default_factory=dict)
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    actions: Mapping[str, int] = field(default_factory=dict)
    """Steps, by action."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests that ended, by the codes that there were."""
    action_switches: int = 0
    """Windows that went on under another action than the one before in their sequence."""


def read_totals(registry: CollectorRegistry) -> Totals:
    """Read the counters now."""
    samples = [sample for metric in registry.collect() for sample in metric.samples]

    def by(name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Sums of a metric's samples by the labels."""
        sums: dict[tuple[str, ...], float] = {}
        for sample in samples:
            if sample.name == name:
                key = tuple(sample.labels[label] for label in labels)
                sums[key] = sums.get(key, 0.0) + sample.value
        return sums

    seconds = by("respsd_decode_seconds_total", "arm")
    return Totals(
        arms={
            key[0]: ArmTotals(int(tokens), seconds.get(key, 0.0))
            for key, tokens in by("respsd_generated_tokens_total", "arm").items()
        },
        drafted_tokens=int(by("respsd_spec_draft_tokens_total").get((), 0)),
        accepted_tokens=int(by("respsd_spec_accepted_tokens_total").get((), 0)),
        actions={
            _action(*key): int(steps)
            for key, steps in by("respsd_action_steps_total", "tokens", "depth", "topk").items()
        },
        requests={key[0]: int(count) for key, count in by("respsd_requests_total", "code").items() if count},
        action_switches=int(by("respsd_action_switches_total").get((), 0)),
    )


def _action(tokens: str, depth: str, top_k: str) -> str:
    return tokens if not tokens.isdecimal() else "off" if tokens == "1" else f"{tokens},{depth},{top_k}"
