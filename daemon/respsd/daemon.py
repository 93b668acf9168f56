"""The composition root: makes a daemon out of settings, runs it, and takes it down in order."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import socket
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random

import numpy as np
import structlog
import torch
from prometheus_client import CollectorRegistry

from policy_store import PolicyStore
from respsd import __version__
from respsd.calibration.at_start import calibration_at_start
from respsd.calibration.record import Calibration
from respsd.clock import SystemClock
from respsd.control.action import EAGLE3, OFF, Action, ActionTable
from respsd.control.batch_plan import BatchPlan
from respsd.control.bootstrap import open_policies, policy_loader
from respsd.control.catalog import PolicyCatalog
from respsd.control.observation import ObservationSchema
from respsd.control.operator import PolicyOperator
from respsd.control.router import PolicyRouter
from respsd.control.store_opening import open_store
from respsd.control.traffic import Traffic
from respsd.engine.admission import scratch_rows
from respsd.engine.assembly import (
    EngineConfig,
    Models,
    affordable_kv_tokens,
    build_engine,
    load_models,
    step_shapes,
)
from respsd.engine.hooks import HookChain
from respsd.engine.local_run import NoSink, run
from respsd.engine.loop import EngineLoop, LoopLimits
from respsd.engine.queue import QueueLimits
from respsd.engine.request import GenerationRequest, Speculation, StoppingParams
from respsd.engine_identity import engine_hash, settings_hash
from respsd.experience.database import open_log
from respsd.experience.recorder import Recorder, RecorderSettings
from respsd.experience.records import ExperienceSink
from respsd.experience.rows import Origin
from respsd.models.dtype import choose_device, choose_dtype, this_machine, torch_dtype
from respsd.models.named import drafter_folder, target_folder
from respsd.paths import TRANSITIONS
from respsd.process_memory import leave_out_of_garbage_rounds, use_few_heaps
from respsd.rollout.assembly import daemon_rollout
from respsd.rollout.rollout import Rollout
from respsd.scheduling.assembly import DaemonSchedule, Parts
from respsd.scheduling.trainer import calibrated_speeds, daemon_trainer
from respsd.service.server import ServiceServer
from respsd.serving import ServedParts, serve_engine
from respsd.settings import DEMO, Settings
from respsd.settings_files import check_start
from respsd.telemetry.engine_metrics import EngineMetrics
from respsd.telemetry.metrics import Metrics, serve_metrics
from respsd.telemetry.rollout_metrics import watch_rollout
from respsd.telemetry.sdnotify import Notifier
from respsd.telemetry.training_metrics import TrainingMetrics
from respsd.tuning.baseline_speed import SpeedPoint

log = structlog.get_logger(__name__)

_PROJECTION = 64
"""Numbers that features are projected to where the settings leave it open: rows of a few hundred bytes."""
_LOADING_SECONDS = 600.0
"""Asked of systemd, time and again, for a start that may have to fetch a model."""
_CLOSE_SECONDS = 10.0
_WAITING_CACHES = 8
"""Times the KV cache that may wait where the settings leave it open."""
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Daemon:
    """The running parts that the service stands on."""

    settings: Settings
    engine: EngineLoop
    catalog: PolicyCatalog
    reserved: Action
    """Memory is kept for trees of this size; no larger action is taken."""
    metrics: Metrics
    serving: Callable[[], Mapping[str, int | None]]
    """The version that each alias serves."""
    traffic: Traffic
    """Takes requests to learn from."""
    schedule: DaemonSchedule
    """Runs updates and upkeep."""
    operator: PolicyOperator | None
    """Changes the policies; None where the store does not work."""
    rollout: Rollout | None
    """Compares policies on live traffic; None where the store does not work."""
    notices: tuple[str, ...]
    """What was put right at the start."""


def serve(settings: Settings, reread: Callable[[], Settings] | None = None) -> int:
    """Run the daemon until it is told to stop; returns the exit code. Raises RespsdError where it cannot start.

    :param reread: reads the settings again when SIGHUP comes; without it only files that settings name are re-read.
    """
    check_start(settings)
    use_few_heaps()
    notifier = Notifier.from_environment()
    notifier.status("loading models")
    if settings.engine.threads is not None:
        torch.set_num_threads(settings.engine.threads)
    with ExitStack() as stack:
        with notifier.asking_for_time(_LOADING_SECONDS):
            models = load_served_models(settings)
            notifier.status("calibrating")
            daemon = build(settings, models, stack)
            notifier.status("warming up")
            models.make_kernels()
            _warm_up(daemon.engine)
        leave_out_of_garbage_rounds()
        asyncio.run(_serve(daemon, notifier, reread))
    log.info("stopped")
    return 0


def load_served_models(settings: Settings) -> Models:
    """Load target, drafter and tokenizer that the settings name, in the machine's number format."""
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, this_machine(device))
    target, drafter = target_folder(settings), drafter_folder(settings)
    log.info("loading", target=settings.target, drafter=settings.drafter_name, dtype=dtype, device=device)
    models = load_models(
        target,
        drafter,
        dtype=torch_dtype(dtype),
        device=torch.device(device),
        target_name=target.name if settings.target == DEMO else settings.target,
        drafter_name=settings.drafter_name,
        packed_weights=settings.engine.packs_weights,
        exact=settings.engine.exact,
    )
    if models.target.packing is not None:
        log.info("weights_packed", **asdict(models.target.packing))
    return models


def build(settings: Settings, models: Models, stack: ExitStack) -> Daemon:
    """Open store and log, build and start the engine; `stack` closes them, the last opened first."""
    table = settings.control.table()
    calibration = calibration_at_start(settings, models, SystemClock())
    baseline = settings.control.baseline or _default_baseline(models, calibration, table)
    plan = BatchPlan(((1, baseline),))  # as the settings say, whatever the number of sequences
    if settings.control.baseline is None and calibration is not None:
        plan = calibration.plan(table, settings.engine.max_running)
    reserved = ActionTable(tuple({baseline, *table.actions})).largest
    schema = ObservationSchema(
        feature_width=models.schema_features,
        projection=settings.control.observation_projection or _PROJECTION,
    )
    store, notices = open_store(settings.state_dir, stack)
    router = open_policies(
        store,
        table,
        schema,
        baseline,
        rng=np.random.default_rng(),
        code_version=__version__,
        reserved=reserved,
        champion_temperature=settings.control.sampling_temperature,
        exploration_temperature=settings.exploration.temperature,
        log_speeds=None if calibration is None else [calibration.model.log_speed(action) for action in table],
        plan=plan,
        default=settings.control.policy,
    )
    registry = CollectorRegistry()
    metrics = Metrics(registry, (*table, EAGLE3))
    operator = _operator(settings, store, router, schema, reserved)
    rollout = _rollout(settings, models, store, operator, router)
    watching = EngineMetrics(metrics)
    traffic = Traffic(
        router, settings.exploration.share, Random().random, trial=None if rollout is None else rollout.enrol
    )
    sink = _open_sink(settings, models, metrics, stack)
    config = _engine_config(settings, models, reserved)
    engine = build_engine(
        models,
        traffic,
        schema,
        sink,
        config,
        uniform=Random().random,  # seeded by the system
        clock=SystemClock(),
        hooks=watching if rollout is None else HookChain(watching, rollout.trials),
    )
    log.info(
        "engine",
        shapes=step_shapes(models, config),
        kv_tokens=config.kv_tokens,
        context_length=engine.model.context_length,  # the model's, or what of it the KV budget holds
    )
    engine.start()
    stack.callback(engine.stop)
    if rollout is not None:
        watch_rollout(registry, rollout.status)
        rollout.start()
        stack.callback(rollout.close)
    metrics.watch_load(engine.load)
    if settings.metrics is not None:
        stack.callback(serve_metrics(settings.metrics, registry).close)
    catalog = PolicyCatalog(store, settings.state_dir / TRANSITIONS)
    metrics.watch_policies(router.serving, catalog.states)
    speeds = calibrated_speeds(calibration, plan.at, settings.engine.max_running)
    schedule = _schedule(settings, store, sink, metrics, operator, rollout, speeds)
    schedule.start()
    stack.callback(schedule.stop, _CLOSE_SECONDS)
    return Daemon(
        settings, engine, catalog, reserved, metrics, router.serving, traffic, schedule, operator, rollout, notices
    )


async def _serve(daemon: Daemon, notifier: Notifier, reread: Callable[[], Settings] | None) -> None:
    parts = ServedParts(
        engine=daemon.engine,
        make_server=partial(ServiceServer, daemon.engine, daemon.catalog, operator=daemon.operator),
        metrics=daemon.metrics,
        serving=daemon.serving,
        largest_action=daemon.reserved,
        learning_paused=daemon.schedule.paused,
        explore=daemon.traffic.explore,
        rollout=partial(_describe, daemon.rollout),
        notices=partial(_notices, daemon),
    )
    await serve_engine(daemon.settings, parts, notifier, lambda server: _announce(daemon, server.address), reread)


def _describe(rollout: Rollout | None) -> list[str]:
    return [] if rollout is None else rollout.status().describe()


def _notices(daemon: Daemon) -> list[str]:
    aside = daemon.schedule.log_set_aside()
    return [*daemon.notices, *([] if aside is None else [f"a damaged experience log was set aside as {aside}"])]


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
        speculation=Speculation(exploration_opt_out=True),
    )
    run(engine, request)


def _default_baseline(models: Models, calibration: Calibration | None, table: ActionTable) -> Action:
    """The best constant of the calibration, or one that is safe where there is none.

    On processors a verify's time grows with its tokens, so trees are small; on GPUs EAGLE-3's own default.
    """
    if models.drafter is None:
        return OFF
    if calibration is not None:
        return calibration.baseline(table)
    return Action(16, 4, 4) if models.target.layout.device.type == "cpu" else EAGLE3


def _operator(
    settings: Settings, store: PolicyStore | None, router: PolicyRouter, schema: ObservationSchema, reserved: Action
) -> PolicyOperator | None:
    if store is None:
        return None
    temperatures = settings.control.sampling_temperature, settings.exploration.temperature
    return PolicyOperator(store, policy_loader(store, schema, reserved, *temperatures), router, SystemClock())


def _rollout(
    settings: Settings,
    models: Models,
    store: PolicyStore | None,
    operator: PolicyOperator | None,
    router: PolicyRouter,
) -> Rollout | None:
    if store is None or operator is None:
        return None
    return daemon_rollout(settings, store, operator, router, engine_hash(settings, models.info), SystemClock())


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
        engine_config_hash=settings_hash(settings),
    )
    recorder = Recorder(
        lambda: open_log(path), origin, settings=RecorderSettings(queue_rows=settings.recorder.queue_rows)
    )
    metrics.watch_recorder(recorder.status)
    stack.callback(recorder.close, _CLOSE_SECONDS)
    return recorder


def _schedule(
    settings: Settings,
    store: PolicyStore | None,
    sink: ExperienceSink,
    metrics: Metrics,
    operator: PolicyOperator | None,
    rollout: Rollout | None,
    speeds: Sequence[SpeedPoint],
) -> DaemonSchedule:
    """The daemon's jobs; without a store there is nothing to train."""
    clock = SystemClock()
    recorder = sink if isinstance(sink, Recorder) else None
    trainer = None
    if store is not None and operator is not None:
        observe = TrainingMetrics(metrics.registry).update_ended
        evaluating = (lambda: False) if rollout is None else (lambda: rollout.status().is_evaluating)
        trainer = daemon_trainer(settings, store, operator, clock, lambda: speeds, observe, evaluating)
    schedule = DaemonSchedule(settings, Parts(store, recorder, metrics.registry, clock, trainer))
    if operator is not None:
        operator.train = schedule.train_now
    return schedule


def _engine_config(settings: Settings, models: Models, reserved: Action) -> EngineConfig:
    whole_contexts = settings.engine.max_running * (models.target.context_length + scratch_rows(reserved))
    kv_tokens = settings.engine.kv_tokens or min(whole_contexts, affordable_kv_tokens(*models.kv_layouts))
    return EngineConfig(
        reserved=reserved,
        persistence=settings.control.persistence,
        kv_tokens=kv_tokens,
        shapes=settings.engine.step_shapes,
        limits=replace(loop_limits(settings), queue=_queue_limits(settings, kv_tokens)),
    )


def loop_limits(settings: Settings) -> LoopLimits:
    """What a step of the engine takes on, as the settings say; the queue in front of it is the daemon's own."""
    return LoopLimits(
        max_running=settings.engine.max_running,
        prefill_chunk=settings.engine.prefill_chunk,
        step_tokens=settings.engine.step_tokens,
        prefill_slowdown=settings.engine.prefill_slowdown,
    )


def _queue_limits(settings: Settings, kv_tokens: int) -> QueueLimits:
    admission = settings.admission
    return QueueLimits(
        max_requests=settings.engine.max_waiting,
        max_tokens=admission.max_waiting_tokens or _WAITING_CACHES * kv_tokens,
        max_seconds=admission.max_queue_seconds,
        head_start_seconds=admission.priority_head_start,
        refuse_hopeless=admission.refuse_hopeless,
    )
