"""What an update says of itself becomes counters, and figures of the last one."""

from __future__ import annotations

import math
import threading
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry

from respsd.errors import UpdateFailed
from respsd.scheduling.spawned_update import SpawnedUpdate
from respsd.telemetry.training_metrics import TrainingMetrics
from respsd.tuning.report import Failure, Refusal, UpdateReport


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"respsd_train_{name}", labels)


def test_updates_are_counted_by_end_and_figures_are_the_last_ones(registry: CollectorRegistry) -> None:
    metrics = TrainingMetrics(registry)
    assert value(registry, "updates_total", status="stored", reason="none") == 0
    assert math.isnan(value(registry, "approx_kl") or 0.0)
    metrics.update_ended(
        UpdateReport(
            "stored", version=4, candidate=True, windows_used=300, windows_left_out={"stale": 7}, kl=0.01,
            effective_share=0.8, seconds=12.0,
        )
    )  # fmt: skip
    metrics.update_ended(UpdateReport("refused", reason="kl", windows_used=20, kl=0.3, seconds=3.0))
    assert value(registry, "updates_total", status="stored", reason="none") == 1
    assert value(registry, "updates_total", status="refused", reason="kl") == 1
    assert value(registry, "candidates_total") == 1
    assert value(registry, "windows_total") == 320
    assert value(registry, "windows_left_out_total", reason="stale") == 7
    assert value(registry, "duration_seconds_sum") == 15.0
    assert value(registry, "approx_kl") == 0.3
    assert math.isnan(value(registry, "ess_ratio") or 0.0)


def test_the_first_of_every_kind_of_end_is_an_increase(registry: CollectorRegistry) -> None:
    """An increase is told from a series' earlier value: the first failure would go unseen where there is none."""
    TrainingMetrics(registry)
    for status, reasons in (("failed", get_args(Failure)), ("refused", get_args(Refusal))):
        assert [value(registry, "updates_total", status=status, reason=reason) for reason in reasons] == [
            0 for _ in reasons
        ]
    assert {"crashed", "time_limit", "error"} <= set(get_args(Failure))


def test_the_scheduled_update_tells_of_every_end() -> None:
    class Trainer:
        def __init__(self, report: UpdateReport) -> None:
            self.report = report

        def run(self) -> UpdateReport:
            return self.report

        def cancel(self) -> None:
            raise AssertionError("nobody asked")

    seen: list[UpdateReport] = []
    reports = [UpdateReport("stored", version=2), UpdateReport("failed", reason="crashed")]
    SpawnedUpdate(Trainer(reports[0]), lambda: 5, seen.append).run(threading.Event())
    with pytest.raises(UpdateFailed, match="crashed"):
        SpawnedUpdate(Trainer(reports[1]), lambda: 5, seen.append).run(threading.Event())
    assert seen == reports
