from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from support.rollouts import make_rollout

from respsd.telemetry.rollout_metrics import watch_rollout


def test_the_running_comparison_and_what_came_of_others_is_scraped() -> None:
    rig = make_rollout(cooldown_seconds=0)
    registry = CollectorRegistry()
    watch_rollout(registry, rig.rollout.status)
    rig.propose()
    rig.trip()
    rig.propose(8)
    rig.observe(0.1, times=2)
    text = generate_latest(registry).decode()
    assert 'respsd_rollbacks_total{reason="exception"} 1.0' in text
    assert 'respsd_rollbacks_total{reason="slower"} 0.0' in text  # a rate needs a beginning
    assert 'respsd_rollout_pairs{contest="candidate"} 2.0' in text
    assert 'respsd_rollout_share{contest="candidate"} 0.5' in text
    assert 'respsd_rollout_log_ratio{bound="mean",contest="candidate"} 0.1' in text
    assert "respsd_speculation_off 0.0" in text
