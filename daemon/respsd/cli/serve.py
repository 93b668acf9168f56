"""`respsd serve`: run the daemon in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from respsd.cli import models


def serve(
    *,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|unix:PATH", help="Where gRPC listens.", show_default="127.0.0.1:7470"),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where Prometheus may scrape.", show_default="nowhere")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Experience log and policies.", show_default="XDG state folder")
    ] = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
) -> None:
    """Serve a model over gRPC until SIGTERM or Ctrl-C.

    Every setting can also stand in the settings file or in RESPSD_* environment variables; flags win over both.
    """
    from respsd.telemetry.logging import configure_logging

    settings = models.model_settings(
        demo=demo,
        target=target,
        drafter=drafter,
        dtype=dtype,
        device=device,
        config=config,
        listen=listen,
        metrics=metrics,
        state_dir=state_dir,
    )
    configure_logging(settings.log.level, settings.log.format)
    from respsd.daemon import serve as run  # loads the models' libraries, which takes seconds

    raise typer.Exit(run(settings))
