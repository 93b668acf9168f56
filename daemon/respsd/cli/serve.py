"""`respsd serve`: run the daemon in the foreground."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from respsd.cli import models
from respsd.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from respsd.settings import Settings


def serve(
    *,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    listen: models.ListenOption = None,
    insecure: models.InsecureOption = None,
    metrics: models.MetricsOption = None,
    state_dir: models.StateDirOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    exact: models.ExactOption = None,
    recalibrate: models.RecalibrateOption = False,
    config: models.ConfigOption = None,
) -> None:
    """Serve a model over gRPC until SIGTERM or Ctrl-C.

    Every setting can also stand in the settings file or in RESPSD_* environment variables; flags win over both.
    """
    from respsd.telemetry.logging import configure_logging

    def read() -> Settings:
        """The settings as they are now: files and variables may have changed since the start."""
        return models.model_settings(
            demo=demo,
            target=target,
            drafter=drafter,
            dtype=dtype,
            device=device,
            config=config,
            listen=listen,
            insecure=insecure,
            metrics=metrics,
            state_dir=state_dir,
            **models.section_flags(exact=exact, recalibrate=recalibrate),
        )

    settings = read()
    configure_logging(settings.log.level, settings.log.format)
    with _hang_ups_wait(), _told_to_stop_it_stops():
        from respsd.daemon import serve as run  # loads the models' libraries, which takes seconds

        raise typer.Exit(run(settings, read))


@contextmanager
def _hang_ups_wait() -> Iterator[None]:
    """Keep a SIGHUP that comes while the daemon loads, which nobody listens for then and which would end it.

    The service takes it once it listens. Threads that begin meanwhile inherit this and never see one.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _told_to_stop_it_stops() -> Iterator[None]:
    """End at once, and in order, at a SIGTERM that comes while the daemon loads; the service has its own way later.

    Without a handler the signal would end it as a fault, and as a container's first process it would not hear it.
    """

    def stop(_number: int, _frame: object) -> None:
        os._exit(ExitCode.OK)  # no answer and no row is under way, and a thread that loads would hold an exit up

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
