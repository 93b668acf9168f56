"""Metrics of the learner's updates.

    increase(respsd_train_updates_total[1d])             updates by how they ended, and why not
    respsd_train_ess_ratio, respsd_train_approx_kl       how far the last one moved from what chose its windows

A figure of the last update is NaN where that update did not get so far.
"""

from __future__ import annotations

import math
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from respsd.telemetry.metrics import NO_REASON
from respsd.tuning.report import Failure, Refusal, UpdateReport

_SECONDS = (1, 5, 15, 60, 180, 600, 1800)
_FIGURES = {
    "approx_kl": "Nats that the policy moved by.",
    "ess_ratio": "Effective sample size over windows.",
    "clip_ratio": "Share of probability ratios that were clipped.",
    "entropy": "Nats of the policy's choice.",
    "explained_variance": "Of the rewards, by the critic.",
    "value_loss": "The critic's loss.",
    "policy_loss": "The policy's loss.",
    "mean_reward": "Of the windows.",
}


class TrainingMetrics:
    """Counts updates; may be called from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register in `registry`."""
        self._updates = Counter(
            "respsd_train_updates",
            "Updates of the learner that ran, by how they ended (stored, refused, failed) and why.",
            ["status", "reason"],
            registry=registry,
        )
        self._updates.labels("stored", NO_REASON)
        for status, reasons in (("refused", get_args(Refusal)), ("failed", get_args(Failure))):
            for reason in reasons:  # 0 is a figure too: `increase` does not see a series begin at 1
                self._updates.labels(status, reason)
        self._candidates = Counter(
            "respsd_train_candidates",
            "Updates whose version went on to be compared with the champion.",
            registry=registry,
        )
        self._seconds = Histogram(
            "respsd_train_duration_seconds", "Duration of an update.", buckets=_SECONDS, registry=registry
        )
        self._windows = Counter("respsd_train_windows", "Windows that updates were made of.", registry=registry)
        self._left_out = Counter(
            "respsd_train_windows_left_out", "Windows that updates left out, by reason.", ["reason"], registry=registry
        )
        self._figures = {
            name: Gauge(f"respsd_train_{name}", f"{text} At the last update.", registry=registry)
            for name, text in _FIGURES.items()
        }
        for gauge in self._figures.values():
            gauge.set(math.nan)

    def update_ended(self, report: UpdateReport) -> None:
        """Count an update, whatever became of it."""
        self._updates.labels(report.status, report.reason or NO_REASON).inc()
        self._candidates.inc(report.candidate)
        self._seconds.observe(report.seconds)
        self._windows.inc(report.windows_used)
        for reason, windows in report.windows_left_out.items():
            self._left_out.labels(reason).inc(windows)
        figures = {
            "approx_kl": report.kl,
            "ess_ratio": report.effective_share,
            "clip_ratio": report.clip_share,
            "entropy": report.entropy,
            "explained_variance": report.explained_variance,
            "value_loss": report.value_loss,
            "policy_loss": report.policy_loss,
            "mean_reward": report.mean_reward,
        }
        for name, value in figures.items():
            self._figures[name].set(math.nan if value is None else value)
