"""Runs the service over a built engine: who may call, what is reported, signals, reloads, and word to systemd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import structlog

from respsd.clock import SystemClock
from respsd.control.action import Action
from respsd.engine.api import Engine
from respsd.errors import SettingsError
from respsd.paths import TRANSITIONS
from respsd.process_memory import keep_giving_back
from respsd.service.auth import Access
from respsd.service.calls import CallObserver
from respsd.service.daemon_status import Reports
from respsd.service.lifecycle import serve_until_signalled
from respsd.service.limits import Limits
from respsd.service.phase import Lifecycle, Phase
from respsd.service.server import ServerOptions, ServiceServer
from respsd.service.tls import TlsFiles
from respsd.settings import Settings
from respsd.settings_files import read_tls, read_tokens
from respsd.settings_reload import changes
from respsd.telemetry.call_metrics import CallMetrics
from respsd.telemetry.logging import configure_logging
from respsd.telemetry.metrics import Metrics
from respsd.telemetry.sdnotify import Notifier
from respsd.telemetry.service_manager import StatusLine, say_alive, say_status
from respsd.telemetry.totals import read_totals
from respsd.telemetry.tracing import CallTracer

log = structlog.get_logger(__name__)

_STOP_SECONDS = 30.0
"""Asked of systemd beyond the drain, for closing the log and the engine."""

MakeServer = Callable[..., ServiceServer]
"""ServiceServer with the parts that the daemon has, waiting for those of the service."""


@dataclass(frozen=True, slots=True)
class ServedParts:
    """What the service stands on."""

    engine: Engine
    make_server: MakeServer
    metrics: Metrics
    serving: Callable[[], Mapping[str, int | None]]
    """The version that each alias serves; None for a built-in policy."""
    largest_action: Action
    learning_paused: Callable[[], str | None] = lambda: None
    """Why no policy is trained now."""
    explore: Callable[[float], None] = lambda _share: None
    """Sets the share of explorer requests from now on."""
    rollout: Callable[[], Sequence[str]] = tuple
    """The comparisons of policies that are under way, in words."""
    notices: Callable[[], Sequence[str]] = tuple
    """What was found damaged and put right."""


class Reloader:
    """Takes new settings while the daemon serves: all that can change at once, or nothing where one is wrong."""

    def __init__(
        self,
        settings: Settings,
        reread: Callable[[], Settings],
        server: ServiceServer,
        access: Access,
        tls: TlsFiles | None,
        parts: ServedParts,
    ) -> None:
        self._started_with = settings
        self._settings = settings
        self._reread = reread
        self._server = server
        self._access = access
        self._tls = tls
        self._parts = parts

    @property
    def settings(self) -> Settings:
        """Those that hold now, but for what needs a restart."""
        return self._settings

    async def reload(self) -> None:
        """Read and apply; settings that are wrong change nothing and are logged."""
        try:
            new = await asyncio.to_thread(self._reread)
            tokens = read_tokens(new)
            if self._tls is not None and new.tls.certificate is not None and new.tls.key is not None:
                self._tls.reload(new.tls.certificate, new.tls.key)
        except SettingsError as error:
            log.error("reload_refused", fault=str(error))
            return
        waiting = changes(self._started_with, new).waiting
        done = tuple(name for name in changes(self._settings, new).live if name not in waiting)
        self._access.tokens, self._access.admin_group = tokens, new.auth.admin_group
        self._server.use_limits(limits_of(new, self._parts.largest_action))
        self._parts.explore(new.exploration.share)
        if (new.log.level, new.log.format) != (self._settings.log.level, self._settings.log.format):
            configure_logging(new.log.level, new.log.format)
        self._settings = new
        log.info("reloaded", changed=done, needs_restart=waiting)


async def serve_engine(
    settings: Settings,
    parts: ServedParts,
    notifier: Notifier,
    announce: Callable[[ServiceServer], None],
    reread: Callable[[], Settings] | None = None,
) -> None:
    """Listen, announce, and return when the service was told to stop and has drained.

    Raises SettingsError where a certificate, a token file or a tracing package is wrong, CannotListen where an address
    cannot be had.
    """
    access = Access(read_tokens(settings), settings.auth.admin_group)
    tls = read_tls(settings)
    lifecycle = Lifecycle(lambda phase: _tell_of_stop(phase, reloader.settings, notifier))
    with ExitStack() as stack:
        server = parts.make_server(
            options=ServerOptions(
                listen=settings.listen,
                socket=None if settings.listen.startswith("unix:") else settings.socket_path,
                max_message_bytes=settings.limits.max_message_bytes,
            ),
            limits=limits_of(settings, parts.largest_action),
            access=access,
            tls=tls,
            observers=_observers(settings, parts, stack),
            reports=Reports(
                serving=parts.serving,
                totals=lambda: read_totals(parts.metrics.registry),
                learning_paused=parts.learning_paused,
                rollout=parts.rollout,
                notices=parts.notices,
            ),
            lifecycle=lifecycle,
        )
        reloader = Reloader(settings, reread or (lambda: settings), server, access, tls, parts)
        _watch(parts.metrics, lifecycle, settings)
        await server.start()
        line = StatusLine(f"serving {parts.engine.model.target} at {server.address}", SystemClock())

        def describe() -> str | None:
            if lifecycle.phase in (Phase.DRAINING, Phase.STOPPING):
                return None  # _tell_of_stop has told more
            return line.describe(parts.engine.load(), read_totals(parts.metrics.registry), parts.serving())

        async def reload() -> None:
            notifier.reloading()
            await reloader.reload()
            notifier.ready()

        def begin() -> None:
            announce(server)
            notifier.ready()
            tasks.append(asyncio.create_task(say_status(notifier, describe)))

        tasks = [
            asyncio.create_task(say_alive(notifier, lambda: parts.engine.load().seconds_since_progress)),
            asyncio.create_task(keep_giving_back()),
        ]
        try:
            await serve_until_signalled(server, lambda: reloader.settings.drain_seconds, begin, reload)
        finally:
            for task in tasks:
                task.cancel()


def limits_of(whole: Settings, largest_action: Action) -> Limits:
    """The service's limits out of the settings."""
    settings, admission = whole.limits, whole.admission
    return Limits(
        max_in_flight=admission.max_in_flight,
        max_client_requests=admission.max_client_requests,
        default_max_new_tokens=settings.default_max_new_tokens,
        max_prompt_bytes=settings.max_prompt_bytes,
        max_chat_messages=settings.max_chat_messages,
        max_stop_strings=settings.max_stop_strings,
        max_stop_string_bytes=settings.max_stop_string_bytes,
        max_stop_token_ids=settings.max_stop_token_ids,
        max_logit_bias=settings.max_logit_bias,
        min_temperature=settings.min_temperature,
        max_temperature=settings.max_temperature,
        max_repetition_penalty=settings.max_repetition_penalty,
        max_penalty=settings.max_penalty,
        max_logit_bias_value=settings.max_logit_bias_value,
        max_samples=settings.max_samples,
        max_top_logprobs=settings.max_top_logprobs,
        max_time_limit_seconds=settings.max_time_limit_seconds,
        max_answer_bytes=settings.max_answer_bytes,
        max_policy_name=settings.max_policy_name,
        max_history=settings.max_history,
        max_request_id=settings.max_request_id,
        largest_action=largest_action,
    )


def _observers(settings: Settings, parts: ServedParts, stack: ExitStack) -> list[CallObserver]:
    """Who is told of every call that ended."""
    observers: list[CallObserver] = [CallMetrics(parts.metrics)]
    if settings.tracing.endpoint is not None:
        tracer = CallTracer.to_collector(
            settings.tracing.endpoint,
            target=parts.engine.model.target,
            sample_ratio=settings.tracing.sample_ratio,
        )
        stack.callback(tracer.close)
        observers.append(tracer)
    return observers


def _watch(metrics: Metrics, lifecycle: Lifecycle, settings: Settings) -> None:
    metrics.watch_phase(lambda: lifecycle.phase.value, [phase.value for phase in Phase])
    metrics.watch_log_file(settings.state_dir / TRANSITIONS)
    metrics.watch_process()


def _tell_of_stop(phase: Phase, settings: Settings, notifier: Notifier) -> None:
    if phase is Phase.DRAINING:
        notifier.stopping()
        notifier.extend_timeout(settings.drain_seconds + _STOP_SECONDS)
        notifier.status(f"draining, at most {settings.drain_seconds:.0f} s")
