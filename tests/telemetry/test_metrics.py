from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry

from respsd import errors
from respsd.control.action import OFF, Action
from respsd.control.controller import Decision
from respsd.engine.api import EngineLoad, QueueLoad
from respsd.engine.events import FinishReason, RequestFinished, Usage
from respsd.engine.hooks import HookChain
from respsd.engine.window import StepMeasure
from respsd.errors import CannotListen
from respsd.experience.recorder import RecorderStatus
from respsd.service.calls import Call
from respsd.service.event_stream import EventStream
from respsd.telemetry.call_metrics import CallMetrics
from respsd.telemetry.engine_metrics import EngineMetrics
from respsd.telemetry.metrics import FAULTS, REFUSALS, Metrics, serve_metrics
from respsd.telemetry.totals import ArmTotals, Totals, read_totals

SMALL = Action(4, 1, 2)
ARMS = ("champion", "between", "learner")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry, [OFF, SMALL])


def test_tokens_and_seconds_add_up_by_arm(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.tokens_generated("champion", 3, 0.5)
    metrics.tokens_generated("champion", 2, 0.25)
    metrics.tokens_generated("baseline", 1, 1.0)
    assert registry.get_sample_value("respsd_generated_tokens_total", {"arm": "champion"}) == 5
    assert registry.get_sample_value("respsd_decode_seconds_total", {"arm": "champion"}) == 0.75
    assert registry.get_sample_value("respsd_generated_tokens_total", {"arm": "baseline"}) == 1


def test_switches_of_the_champion_and_between_arms_begin_at_0(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.action_switched("champion")
    by_arm = {arm: registry.get_sample_value("respsd_action_switches_total", {"arm": arm}) for arm in ARMS}
    assert by_arm == {"champion": 1, "between": 0, "learner": None}


def test_actions_outside_the_table_share_a_label(registry: CollectorRegistry, metrics: Metrics) -> None:
    for action in (SMALL, SMALL, OFF, Action(5, 1, 4), Action(6, 1, 5)):
        metrics.step_ran(action, drafted=3, accepted=1, committed=2)

    def steps(tokens: str, depth: str, topk: str) -> float | None:
        labels = {"tokens": tokens, "depth": depth, "topk": topk}
        return registry.get_sample_value("respsd_action_steps_total", labels)

    assert steps("4", "1", "2") == 2
    assert steps("1", "0", "0") == 1
    assert steps("other", "other", "other") == 2
    assert steps("5", "1", "4") is None
    assert registry.get_sample_value("respsd_spec_draft_tokens_total") == 15
    assert registry.get_sample_value("respsd_spec_accepted_tokens_total") == 5


def test_the_length_of_steps_that_drafted_is_observed(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.step_ran(SMALL, drafted=3, accepted=1, committed=2)
    metrics.step_ran(SMALL, drafted=3, accepted=3, committed=4)
    metrics.step_ran(OFF, drafted=0, accepted=0, committed=1)
    assert registry.get_sample_value("respsd_spec_accept_length_sum") == 6
    assert registry.get_sample_value("respsd_spec_accept_length_count") == 2


def test_a_step_of_three_tokens_is_three_latencies(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.tokens_followed(3, 0.06)
    assert registry.get_sample_value("respsd_inter_token_latency_seconds_count") == 3
    assert registry.get_sample_value("respsd_inter_token_latency_seconds_sum") == pytest.approx(0.06)
    assert registry.get_sample_value("respsd_inter_token_latency_seconds_bucket", {"le": "0.02"}) == 3
    assert registry.get_sample_value("respsd_inter_token_latency_seconds_bucket", {"le": "0.01"}) == 0


def test_the_load_is_read_at_each_scrape(registry: CollectorRegistry, metrics: Metrics) -> None:
    loads = {"now": EngineLoad(2, 5, 250, 1000, 7.5, queue=QueueLoad(tokens=70, oldest_seconds=1.5))}
    metrics.watch_load(lambda: loads["now"])
    assert registry.get_sample_value("respsd_running_requests") == 2
    assert registry.get_sample_value("respsd_queue_depth") == 5
    assert registry.get_sample_value("respsd_queue_tokens") == 70
    assert registry.get_sample_value("respsd_queue_oldest_seconds") == 1.5
    assert registry.get_sample_value("respsd_kv_cache_usage_ratio") == 0.25
    assert registry.get_sample_value("respsd_seconds_since_progress") == 7.5
    loads["now"] = EngineLoad(0, 0, 0, 0, 0.0)
    assert registry.get_sample_value("respsd_running_requests") == 0
    assert registry.get_sample_value("respsd_kv_cache_usage_ratio") == 0


def test_an_arm_has_one_policy_at_a_time(registry: CollectorRegistry, metrics: Metrics) -> None:
    serving: dict[str, int | None] = {"champion": 1, "baseline": None}
    states = {1: "good", 2: "good"}
    metrics.watch_policies(lambda: serving, lambda: states)
    serving["champion"] = 2
    states[2] = "quarantined"
    serving["learner"] = 7  # the store does not know it
    labels = [s.labels for m in registry.collect() if m.name == "respsd_policy_info" for s in m.samples]
    assert labels == [
        {"arm": "champion", "version": "2", "state": "quarantined"},
        {"arm": "baseline", "version": "built-in", "state": "built-in"},
        {"arm": "learner", "version": "7", "state": "unknown"},
    ]


def test_what_happens_in_the_engine_is_counted(registry: CollectorRegistry, metrics: Metrics) -> None:
    hooks = EngineMetrics(metrics)
    hooks.after_prefill(0.3)
    hooks.after_step(
        "champion",
        StepMeasure(
            applied=SMALL, drafted_tokens=3, accepted_tokens=1, committed_tokens=2,
            draft_ns=10_000_000, verify_ns=25_000_000, other_ns=5_000_000, batch_size=1,
        ),
    )  # fmt: skip
    hooks.drafter_fault()
    hooks.after_request(RequestFinished(FinishReason.EOS, Usage(1, 3), 0, 1, 3, 1, None, None, queue_seconds=0.2))
    expected = {
        ("respsd_time_to_first_token_seconds_sum",): 0.3,
        ("respsd_generated_tokens_total", "arm", "champion"): 2,
        ("respsd_decode_seconds_total", "arm", "champion"): 0.04,
        ("respsd_inter_token_latency_seconds_count",): 2,
        ("respsd_inter_token_latency_seconds_sum",): 0.04,
        ("respsd_spec_accept_length_sum",): 2,
        ("respsd_request_queue_seconds_sum",): 0.2,
        ("respsd_spec_draft_tokens_total",): 3,
        ("respsd_spec_accepted_tokens_total",): 1,
        ("respsd_draft_nan_total",): 1,
    }
    for (name, *label), value in expected.items():
        labels = {label[0]: label[1]} if label else {}
        assert registry.get_sample_value(name, labels) == pytest.approx(value), name


def test_switches_are_counted_by_the_arm_that_chose_both_actions(registry: CollectorRegistry, metrics: Metrics) -> None:
    hooks = HookChain(EngineMetrics(metrics))
    champion, other = Decision(SMALL, 0.0, "champion", 1), Decision(OFF, 0.0, "champion", 1)
    hooks.after_switch(champion, other)
    hooks.after_switch(other, champion)
    hooks.after_switch(champion, Decision(OFF, -0.5, "learner", 2))
    assert registry.get_sample_value("respsd_action_switches_total", {"arm": "champion"}) == 2
    assert registry.get_sample_value("respsd_action_switches_total", {"arm": "between"}) == 1
    assert read_totals(registry).action_switches == 3


def finished_call(method: str, code: grpc.StatusCode, reason: FinishReason | None) -> Call:
    """A call that is over; with a reason where the engine finished its request."""
    call = Call(f"/respsd.v1.GenerationService/{method}", "id", code=code)
    if reason is not None:
        call.events = EventStream(asyncio.new_event_loop(), lambda: None)
        call.events._take(call.events._samples[0], RequestFinished(reason, Usage(1, 3), 0, 1, 3, 1, None, None))
    return call


def test_requests_are_counted_by_code_and_reason(registry: CollectorRegistry, metrics: Metrics) -> None:
    observer = CallMetrics(metrics)
    observer.call_ended(finished_call("Generate", grpc.StatusCode.OK, FinishReason.EOS))
    observer.call_ended(finished_call("GenerateStream", grpc.StatusCode.OK, FinishReason.EOS))
    observer.call_ended(finished_call("Generate", grpc.StatusCode.INVALID_ARGUMENT, None))
    observer.call_ended(finished_call("Generate", grpc.StatusCode.DEADLINE_EXCEEDED, None))
    observer.call_ended(finished_call("GetModelInfo", grpc.StatusCode.OK, None))

    def requests(code: str, reason: str) -> float | None:
        return registry.get_sample_value("respsd_requests_total", {"code": code, "finish_reason": reason})

    assert requests("OK", "eos") == 2
    assert requests("INVALID_ARGUMENT", "none") == 1
    assert requests("DEADLINE_EXCEEDED", "cancelled") == 1
    assert requests("OK", "none") is None
    assert [requests(code, "none") for code in FAULTS] == [0, 0]
    observer.call_ended(finished_call("Generate", grpc.StatusCode.INTERNAL, None))
    assert requests("INTERNAL", "none") == 1
    assert registry.get_sample_value("respsd_request_duration_seconds_count") == 5


def test_refusals_are_counted_by_limit(registry: CollectorRegistry, metrics: Metrics) -> None:
    observer = CallMetrics(metrics)

    def refused(reason: str) -> float | None:
        return registry.get_sample_value("respsd_requests_refused_total", {"reason": reason})

    assert [refused(reason) for reason in REFUSALS] == [0] * len(REFUSALS)
    for reason in ("queue_tokens", "queue_tokens", "memory"):
        call = finished_call("Generate", grpc.StatusCode.RESOURCE_EXHAUSTED, None)
        call.refusal = reason
        observer.call_ended(call)
    observer.call_ended(finished_call("Generate", grpc.StatusCode.OK, FinishReason.EOS))
    assert {reason: refused(reason) for reason in REFUSALS if refused(reason)} == {"queue_tokens": 2, "memory": 1}


def test_every_reason_of_an_error_has_its_label() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RespsdError)]
    assert {kind.reason for kind in kinds} - {None} <= set(REFUSALS)


def test_totals_are_read_back_from_the_counters(registry: CollectorRegistry, metrics: Metrics) -> None:
    assert read_totals(registry) == Totals()
    metrics.tokens_generated("champion", 3, 0.5)
    for action in (SMALL, OFF, Action(6, 1, 5)):
        metrics.step_ran(action, drafted=3, accepted=1, committed=2)
    metrics.request_ended("OK", "eos", 1.0)
    metrics.request_ended("OK", "length", 1.0)
    assert read_totals(registry) == Totals(
        arms={"champion": ArmTotals(3, 0.5)},
        drafted_tokens=9,
        accepted_tokens=3,
        actions={"4,1,2": 1, "off": 1, "other": 1},
        requests={"OK": 2},
    )


def test_the_phase_and_the_logs_size_are_read_at_each_scrape(
    registry: CollectorRegistry, metrics: Metrics, tmp_path: Path
) -> None:
    metrics.watch_phase(lambda: "ready", ["ready", "draining"])
    metrics.watch_log_file(tmp_path / "transitions.db")
    assert registry.get_sample_value("respsd_phase", {"phase": "ready"}) == 1
    assert registry.get_sample_value("respsd_phase", {"phase": "draining"}) == 0
    assert registry.get_sample_value("respsd_db_wal_bytes") == 0
    (tmp_path / "transitions.db-wal").write_bytes(b"12345")
    assert registry.get_sample_value("respsd_db_wal_bytes") == 5


def test_rows_written_and_dropped_are_counted(registry: CollectorRegistry, metrics: Metrics) -> None:
    status = RecorderStatus("ok", None, None, None, 0, 2, 7, {"queue_full": 1}, {"queue_full": 3})
    metrics.watch_recorder(lambda: status)
    assert registry.get_sample_value("respsd_transitions_written_total") == 7
    assert registry.get_sample_value("respsd_transitions_dropped_total", {"reason": "queue_full"}) == 3
    assert registry.get_sample_value("respsd_transitions_dropped_total", {"reason": "invalid"}) == 0


def test_the_endpoint_answers_until_it_is_closed(registry: CollectorRegistry, metrics: Metrics) -> None:
    metrics.request_ended("OK", "eos", 1.0)
    server = serve_metrics("127.0.0.1:0", registry)
    url = f"http://127.0.0.1:{server.port}/metrics"
    with urllib.request.urlopen(url) as answer:
        assert b'respsd_requests_total{code="OK",finish_reason="eos"} 1.0' in answer.read()
    with pytest.raises(CannotListen, match=r"metrics: cannot listen at 127\.0\.0\.1:\d+: Address already in use"):
        serve_metrics(f"127.0.0.1:{server.port}", registry)
    server.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)
