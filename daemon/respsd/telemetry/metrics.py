"""The Prometheus metrics, as one object that whoever has something to count is given.

Tokens per second of an arm, its drafts' acceptance and the mean number of running requests are queries:

    rate(respsd_generated_tokens_total[5m]) / rate(respsd_decode_seconds_total[5m])
    rate(respsd_spec_accepted_tokens_total[5m]) / rate(respsd_spec_draft_tokens_total[5m])
    avg_over_time(respsd_running_requests[5m])

A controller that cannot make up its mind shows as `rate(respsd_action_switches_total[5m])`: how often sequences go on
under another draft tree, at most once a window.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from respsd.address import split_host_port
from respsd.control.action import Action
from respsd.control.router import CHAMPION
from respsd.engine.api import EngineLoad
from respsd.errors import CannotListen
from respsd.experience.recorder import DropReason, RecorderStatus

NO_REASON = "none"
"""finish_reason of a request that was refused or failed."""
FAULTS = ("INTERNAL", "UNKNOWN")
"""Codes of requests that failed by a fault of the daemon."""
REFUSALS = (
    "queue_requests",
    "queue_tokens",
    "queue_time",
    "in_flight",
    "client_requests",
    "deadline",
    "memory",
    "unavailable",
    "capacity",
)
"""Values of `errors.RespsdError.reason`: engine.max_waiting; admission.max_waiting_tokens, .max_queue_seconds (or a
rate that could not meet it or the deadline), .max_in_flight, .max_client_requests; the caller's deadline; too little
memory in a step; a daemon that starts or stops; any other limit."""
OTHER = "other"
"""Label of actions outside the table: clients may name any, and each label value is a series for ever."""

BETWEEN_ARMS = "between"
"""Arm of a switch that no controller made: a rollout gave the window to another arm, which wants another tree."""

_FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_LENGTH_BUCKETS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
_INTER_TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)


class Metrics:
    """Every metric of the daemon; methods may be called from any thread."""

    def __init__(self, registry: CollectorRegistry, actions: Iterable[Action] = ()) -> None:
        """Register in `registry`; `actions` are those that get a label value of their own."""
        self.registry = registry
        self._actions = frozenset(actions)
        self._requests = Counter(
            "respsd_requests",
            "Requests that ended, by gRPC status code and reason of the end.",
            ["code", "finish_reason"],
            registry=registry,
        )
        for code in FAULTS:
            self._requests.labels(code, NO_REASON)  # 0 is a figure too: a rate needs a beginning
        self._refused = Counter(
            "respsd_requests_refused",
            "Requests that a limit of the daemon's capacity turned away or ended before their first token, by limit.",
            ["reason"],
            registry=registry,
        )
        for reason in REFUSALS:
            self._refused.labels(reason)  # likewise
        self._duration = Histogram(
            "respsd_request_duration_seconds",
            "From a request's arrival to its status.",
            buckets=_REQUEST_BUCKETS,
            registry=registry,
        )
        self._queued = Histogram(
            "respsd_request_queue_seconds",
            "What finished requests waited for the engine.",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self._tokens = Counter(
            "respsd_generated_tokens", "Committed tokens by the arm that chose the trees.", ["arm"], registry=registry
        )
        self._decode_seconds = Counter(
            "respsd_decode_seconds",
            "Sequence-seconds of draft, verify and commit, by arm.",
            ["arm"],
            registry=registry,
        )
        self._first_token = Histogram(
            "respsd_time_to_first_token_seconds",
            "From the request's arrival to its first token.",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self._inter_token = Histogram(
            "respsd_inter_token_latency_seconds",
            "Seconds per token after the first: a step's duration over its committed tokens.",
            buckets=_INTER_TOKEN_BUCKETS,
            registry=registry,
        )
        self._running = Gauge("respsd_running_requests", "Sequences in the engine.", registry=registry)
        self._waiting = Gauge("respsd_queue_depth", "Requests that wait for the engine.", registry=registry)
        self._waiting_tokens = Gauge(
            "respsd_queue_tokens", "Tokens of the waiting requests' prompts and budgets.", registry=registry
        )
        self._oldest = Gauge(
            "respsd_queue_oldest_seconds", "How long the request that came first has waited.", registry=registry
        )
        self._stalled = Gauge(
            "respsd_seconds_since_progress",
            "Age of the engine's last step while there is work; 0 when idle, infinite once it died.",
            registry=registry,
        )
        self._kv_usage = Gauge(
            "respsd_kv_cache_usage_ratio", "Reserved share of the KV cache, 0 to 1.", registry=registry
        )
        self._drafted = Counter("respsd_spec_draft_tokens", "Drafted tokens that were verified.", registry=registry)
        self._accepted = Counter("respsd_spec_accepted_tokens", "Drafted tokens that were kept.", registry=registry)
        self._action_steps = Counter(
            "respsd_action_steps",
            "Steps by the action that they ran; 1, 0, 0 is off.",
            ["tokens", "depth", "topk"],
            registry=registry,
        )
        self._switches = Counter(
            "respsd_action_switches",
            "Windows under another action than the one before in their sequence, by the arm that chose both.",
            ["arm"],
            registry=registry,
        )
        for arm in (CHAMPION, BETWEEN_ARMS):
            self._switches.labels(arm)  # 0 is a figure too
        self._accept_length = Histogram(
            "respsd_spec_accept_length",
            "Committed tokens of a step that drafted.",
            buckets=_LENGTH_BUCKETS,
            registry=registry,
        )
        self._draft_nan = Counter(
            "respsd_draft_nan", "Steps that decoded plainly because the drafter gave NaN or Inf.", registry=registry
        )

    def request_ended(self, code: str, finish_reason: str, seconds: float) -> None:
        """Count a request, by its status code's name and its FinishReason's value, NO_REASON where there is none."""
        self._requests.labels(code, finish_reason).inc()
        self._duration.observe(seconds)

    def request_refused(self, reason: str) -> None:
        """Count a request that a limit of capacity refused or ended, one of REFUSALS."""
        self._refused.labels(reason).inc()

    def waited(self, seconds: float) -> None:
        """Observe what a request waited for the engine."""
        self._queued.observe(seconds)

    def tokens_generated(self, arm: str, tokens: int, decode_seconds: float) -> None:
        """Count committed tokens and the decoding time that they took."""
        self._tokens.labels(arm).inc(tokens)
        self._decode_seconds.labels(arm).inc(decode_seconds)

    def first_token(self, seconds: float) -> None:
        """Observe the time from a request's arrival to its first token."""
        self._first_token.observe(seconds)

    def tokens_followed(self, tokens: int, seconds: float) -> None:
        """Observe a step that committed `tokens` at once, `seconds` after the tokens before them."""
        for _ in range(tokens):
            self._inter_token.observe(seconds / tokens)

    def step_ran(self, action: Action, drafted: int, accepted: int, committed: int) -> None:
        """Count a step and what became of its draft."""
        shape = (action.total_tokens, action.depth, action.top_k) if action in self._actions else (OTHER,) * 3
        self._action_steps.labels(*shape).inc()
        self._drafted.inc(drafted)
        self._accepted.inc(accepted)
        if drafted:
            self._accept_length.observe(committed)

    def action_switched(self, arm: str) -> None:
        """Count a change of a sequence's action; BETWEEN_ARMS where another arm than before made the choice."""
        self._switches.labels(arm).inc()

    def draft_was_nan(self) -> None:
        """Count a step that lost its speculation to a NaN or Inf of the drafter."""
        self._draft_nan.inc()

    def watch_load(self, load: Callable[[], EngineLoad]) -> None:
        """Read running, waiting and KV usage from the engine whenever the metrics are scraped."""
        self._running.set_function(lambda: load().running)
        self._waiting.set_function(lambda: load().waiting)
        self._waiting_tokens.set_function(lambda: load().queue.tokens)
        self._oldest.set_function(lambda: load().queue.oldest_seconds)
        self._kv_usage.set_function(lambda: _usage(load()))
        self._stalled.set_function(lambda: load().seconds_since_progress)

    def watch_process(self) -> None:
        """Let the process tell its memory, processor time and open files at each scrape."""
        ProcessCollector(registry=self.registry)

    def watch_phase(self, phase: Callable[[], str], phases: Sequence[str]) -> None:
        """Read where the daemon stands whenever the metrics are scraped."""
        self.registry.register(_AtScrape(lambda: _phase_metrics(phase(), phases)))

    def watch_log_file(self, file: Path) -> None:
        """Read the size of the experience log's write-ahead file whenever the metrics are scraped."""
        wal = file.with_name(f"{file.name}-wal")
        self.registry.register(_AtScrape(lambda: _wal_metrics(wal)))

    def watch_recorder(self, status: Callable[[], RecorderStatus]) -> None:
        """Read what became of the experience log's rows whenever the metrics are scraped."""
        self.registry.register(_AtScrape(lambda: _recorder_metrics(status())))

    def watch_policies(
        self, serving: Callable[[], Mapping[str, int | None]], states: Callable[[], Mapping[int, str]] = dict
    ) -> None:
        """Read which version each alias serves, None for a built-in one, and in which state versions are, whenever the
        metrics are scraped."""
        self.registry.register(_AtScrape(lambda: _policy_metrics(serving(), states())))


class _AtScrape(Collector):
    """Metrics whose values someone else keeps."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


def _recorder_metrics(status: RecorderStatus) -> Iterator[Metric]:
    yield CounterMetricFamily("respsd_transitions_written", "Windows in the experience log.", value=status.written_rows)
    dropped = CounterMetricFamily(
        "respsd_transitions_dropped", "Windows that the log did not get, by reason.", labels=["reason"]
    )
    for reason in get_args(DropReason):  # 0 is a figure too: a rate needs a beginning
        dropped.add_metric([reason], status.dropped_rows.get(reason, 0))
    yield dropped


def _phase_metrics(now: str, phases: Sequence[str]) -> Iterator[Metric]:
    states = GaugeMetricFamily("respsd_phase", "1 for the phase that the daemon is in.", labels=["phase"])
    for phase in phases:
        states.add_metric([phase], phase == now)
    yield states


def _wal_metrics(wal: Path) -> Iterator[Metric]:
    size = wal.stat().st_size if wal.exists() else 0
    yield GaugeMetricFamily("respsd_db_wal_bytes", "Size of the experience log's write-ahead file.", value=size)


def _policy_metrics(serving: Mapping[str, int | None], states: Mapping[int, str]) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "respsd_policy_info",
        "1 for the policy version that an arm runs now, and its state in the store: good or quarantined; built-in; "
        "unknown where the store does not tell.",
        labels=["arm", "version", "state"],
    )
    for arm, version in serving.items():
        named = ["built-in", "built-in"] if version is None else [str(version), states.get(version, "unknown")]
        info.add_metric([arm, *named], 1)
    yield info


def _usage(load: EngineLoad) -> float:
    return load.kv_tokens_reserved / load.kv_tokens_total if load.kv_tokens_total else 0.0


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A running endpoint."""

    host: str
    port: int
    _server: WSGIServer
    _thread: threading.Thread

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(address: str, registry: CollectorRegistry) -> MetricsServer:
    """Answer GET /metrics at HOST:PORT from a thread of its own; port 0 takes a free one.

    Raises CannotListen where it cannot listen there.
    """
    host, port = split_host_port(address)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise CannotListen("metrics", address, error.strerror or str(error)) from error
    return MetricsServer(host, server.server_port, server, thread)
