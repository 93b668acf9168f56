"""The composition root: makes a daemon out of settings, runs it, and takes it down in order."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import shutil
import socket
import sys
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random

import numpy as np
import structlog
import torch
from prometheus_client import CollectorRegistry

from policy_store import PolicyStore, StoreError
from respsd import __version__
from respsd.bench.local import NoSink, run
from respsd.clock import SystemClock
from respsd.control.action import EAGLE3, OFF, Action, ActionTable
from respsd.control.bootstrap import open_policies
from respsd.control.catalog import PolicyCatalog, PolicySummary
from respsd.control.observation import ObservationSchema
from respsd.engine.assembly import EngineConfig, Models, affordable_kv_tokens, build_engine, load_models
from respsd.engine.loop import EngineLoop, LoopLimits
from respsd.engine.request import GenerationRequest, StoppingParams
from respsd.experience.database import open_log
from respsd.experience.recorder import Recorder, RecorderSettings
from respsd.experience.records import ExperienceSink
from respsd.experience.rows import Origin
from respsd.models.demo import demo_model
from respsd.models.dtype import choose_device, choose_dtype, this_machine, torch_dtype
from respsd.models.target import resolve_checkpoint
from respsd.paths import POLICIES, TRANSITIONS
from respsd.service.lifecycle import serve_until_signalled
from respsd.service.limits import Limits
from respsd.service.server import ServerOptions, ServiceServer
from respsd.settings import DEMO, Settings
from respsd.telemetry.engine_metrics import EngineMetrics
from respsd.telemetry.metrics import Metrics, serve_metrics
from respsd.telemetry.sdnotify import Notifier

log = structlog.get_logger(__name__)

_PROJECTION = 64
"""Numbers that features are projected to where the settings leave it open: rows of a few hundred bytes."""
_LOADING_SECONDS = 600.0
"""Asked of systemd for a start, which may have to fetch a model."""
_CLOSE_SECONDS = 10.0
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Daemon:
    """The running parts that the service stands on."""

    settings: Settings
    engine: EngineLoop
    catalog: PolicyCatalog | _EmptyCatalog
    reserved: Action
    """Memory is kept for trees of this size; no larger action is taken."""


def serve(settings: Settings) -> int:
    """Run the daemon until it is told to stop; returns the exit code. Raises RespsdError where it cannot start."""
    notifier = Notifier.from_environment()
    notifier.extend_timeout(_LOADING_SECONDS)
    notifier.status("loading models")
    if settings.engine.threads is not None:
        torch.set_num_threads(settings.engine.threads)
    with ExitStack() as stack:
        daemon = build(settings, load_served_models(settings), stack)
        notifier.status("warming up")
        _warm_up(daemon.engine)
        asyncio.run(_serve(daemon, notifier))
    log.info("stopped")
    return 0


def load_served_models(settings: Settings) -> Models:
    """Load target, drafter and tokenizer that the settings name, in the machine's number format."""
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, this_machine(device))
    is_demo = settings.target == DEMO
    target = demo_model(settings.demo_source) if is_demo else resolve_checkpoint(settings.target)
    drafter = None if settings.drafter is None else resolve_checkpoint(settings.drafter)
    log.info("loading", target=settings.target, drafter=settings.drafter, dtype=dtype, device=device)
    return load_models(
        target,
        drafter,
        dtype=torch_dtype(dtype),
        device=torch.device(device),
        target_name=target.name if is_demo else settings.target,
        drafter_name=settings.drafter,
    )


def build(settings: Settings, models: Models, stack: ExitStack) -> Daemon:
    """Open store and log, build and start the engine; `stack` closes them, the last opened first."""
    table = settings.control.table()
    baseline = settings.control.baseline or _default_baseline(models)
    reserved = ActionTable(tuple({baseline, *table.actions})).largest
    schema = ObservationSchema(
        feature_width=models.schema_features,
        projection=settings.control.observation_projection or _PROJECTION,
    )
    store = _open_store(settings, stack)
    router = open_policies(
        store,
        table,
        schema,
        baseline,
        rng=np.random.default_rng(),
        code_version=__version__,
        reserved=reserved,
        champion_temperature=settings.control.sampling_temperature,
        default=settings.control.policy,
    )
    registry = CollectorRegistry()
    metrics = Metrics(registry, (*table, EAGLE3))
    engine = build_engine(
        models,
        router,
        schema,
        _open_sink(settings, models, metrics, stack),
        _engine_config(settings, models, reserved),
        uniform=Random().random,  # seeded by the system
        clock=SystemClock(),
        hooks=EngineMetrics(metrics),
    )
    engine.start()
    stack.callback(engine.stop)
    metrics.watch_load(engine.load)
    metrics.watch_policies(router.serving)
    if settings.metrics is not None:
        stack.callback(serve_metrics(settings.metrics, registry).close)
    catalog = PolicyCatalog(store, settings.state_dir / TRANSITIONS) if store else _EmptyCatalog()
    return Daemon(settings, engine, catalog, reserved)


async def _serve(daemon: Daemon, notifier: Notifier) -> None:
    settings = daemon.settings
    server = ServiceServer(
        daemon.engine,
        daemon.catalog,
        options=ServerOptions(listen=settings.listen, max_message_bytes=settings.limits.max_message_bytes),
        limits=Limits(
            default_max_new_tokens=settings.limits.default_max_new_tokens,
            max_prompt_bytes=settings.limits.max_prompt_bytes,
            max_stop_strings=settings.limits.max_stop_strings,
            max_stop_string_bytes=settings.limits.max_stop_string_bytes,
            max_stop_token_ids=settings.limits.max_stop_token_ids,
            max_logit_bias=settings.limits.max_logit_bias,
            largest_action=daemon.reserved,
        ),
    )
    await server.start()

    def announce() -> None:
        _announce(daemon, server.address)
        notifier.ready()
        notifier.status(f"serving {daemon.engine.model.target} at {server.address}")

    watchdog = asyncio.create_task(_say_alive(daemon, notifier))
    try:
        await serve_until_signalled(server, settings.drain_seconds, announce)
    finally:
        notifier.stopping()
        watchdog.cancel()


async def _say_alive(daemon: Daemon, notifier: Notifier) -> None:
    """Tell systemd's watchdog that the engine moves or is idle; silence has it restart a wedged daemon."""
    if notifier.watchdog_seconds is None:
        return
    while True:
        if daemon.engine.load().seconds_since_progress < notifier.watchdog_seconds:
            notifier.alive()
        await asyncio.sleep(notifier.watchdog_seconds / 2)


def _announce(daemon: Daemon, address: str) -> None:
    model, versions = daemon.engine.model, {v.version: v.aliases for v in daemon.catalog.list_policies()}
    command = _client_command(address, chat=daemon.engine.tokenizer.has_chat_template)
    log.info(
        "ready",
        address=address,
        model=model.target,
        drafter=model.drafter,
        dtype=model.dtype,
        device=model.device,
        policy_versions=versions,
        version=__version__,
    )
    sys.stdout.write(f"\nServing {model.target} ({model.dtype}, {model.device}). Try in another terminal:\n\n")
    sys.stdout.write(f"    {command}\n\n")
    sys.stdout.flush()


def _client_command(address: str, *, chat: bool) -> str:
    """A command that can be pasted as it is, found by a shell that knows nothing of this virtual environment."""
    program = "respsd" if shutil.which("respsd") else sys.argv[0]
    flags = ["--address", address, *(["--chat"] if chat else [])]
    return shlex.join([program, "generate", *flags, "Why is the sky blue?"])


def _warm_up(engine: EngineLoop) -> None:
    """One generation by the default policy: the first calls of a process are slow, and a broken model shows here."""
    prompt = engine.tokenizer.encode("Hello") or [engine.model.eos_token_ids[0] if engine.model.eos_token_ids else 0]
    request = GenerationRequest(
        request_id="warm-up",
        prompt_ids=tuple(prompt),
        stopping=StoppingParams(max_new_tokens=_WARM_UP_TOKENS, ignore_eos=True),
        learning_opt_out=True,
    )
    run(engine, request)


def _default_baseline(models: Models) -> Action:
    """A constant that is safe until the machine is calibrated.

    On processors a verify's time grows with its tokens, so trees are small; on GPUs EAGLE-3's own default.
    """
    if models.drafter is None:
        return OFF
    return Action(16, 4, 4) if models.target.layout.device.type == "cpu" else EAGLE3


def _open_store(settings: Settings, stack: ExitStack) -> PolicyStore | None:
    """The policy store; None where it cannot be opened, since the built-in baseline serves without one."""
    try:
        store = PolicyStore(settings.state_dir / POLICIES)
    except StoreError as fault:
        log.error("policy_store_failed", fault=str(fault))
        return None
    stack.callback(store.close)
    return store


def _open_sink(settings: Settings, models: Models, metrics: Metrics, stack: ExitStack) -> ExperienceSink:
    if not settings.recorder.enabled:
        return NoSink()
    path = settings.state_dir / TRANSITIONS
    origin = Origin(
        host=socket.gethostname(),
        instance_id=uuid.uuid4().hex,
        target=models.info.target,
        drafter=models.info.drafter,
        dtype=models.info.dtype,
        device=models.info.device,
        engine_config_hash=_config_hash(settings),
    )
    recorder = Recorder(
        lambda: open_log(path), origin, settings=RecorderSettings(queue_rows=settings.recorder.queue_rows)
    )
    metrics.watch_recorder(recorder.status)
    stack.callback(recorder.close, _CLOSE_SECONDS)
    return recorder


def _engine_config(settings: Settings, models: Models, reserved: Action) -> EngineConfig:
    whole_contexts = settings.engine.max_running * (models.target.context_length + reserved.total_tokens)
    return EngineConfig(
        reserved=reserved,
        persistence=settings.control.persistence,
        kv_tokens=settings.engine.kv_tokens or min(whole_contexts, affordable_kv_tokens(models.target.layout)),
        limits=LoopLimits(
            max_running=settings.engine.max_running,
            max_waiting=settings.engine.max_waiting,
            prefill_chunk=settings.engine.prefill_chunk,
        ),
    )


def _config_hash(settings: Settings) -> str:
    """Rows of daemons whose engines differ in speed are not comparable."""
    text = settings.engine.model_dump_json() + settings.control.model_dump_json()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _EmptyCatalog:
    """Without a store there is nothing to list."""

    def list_policies(self) -> Sequence[PolicySummary]:
        """No version."""
        return ()
