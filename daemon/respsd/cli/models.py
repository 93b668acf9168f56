"""Flags that name models, shared by the commands that load them in their own process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.errors import SettingsError

if TYPE_CHECKING:
    from respsd.engine.assembly import Models
    from respsd.settings import Settings
    from respsd.settings_loader import Loaded

DemoOption = Annotated[bool, typer.Option("--demo", help="Use the small demo model (the default target).")]
TargetOption = Annotated[str | None, typer.Option(metavar="DIR_OR_HUB_ID", help="The target.", show_default="demo")]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR_OR_HUB_ID|demo|none",
        help="Its EAGLE-3 drafter; none decodes plainly.",
        show_default="demo for the demo model, else none",
    ),
]
DtypeOption = Annotated[
    str | None, typer.Option(metavar="float32|bfloat16|float16", help="Number format.", show_default="by machine")
]
DeviceOption = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to run.", show_default="by machine")]
RecalibrateOption = Annotated[
    bool, typer.Option("--recalibrate", help="Measure this machine anew, which takes about a minute.")
]
ExactOption = Annotated[
    bool | None,
    typer.Option(
        "--exact/--no-exact",
        help="Have verification and plain decoding agree bit for bit in half precision (engine.exact).",
        show_default="as the settings say",
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT|unix:PATH", help="Where gRPC listens.", show_default="127.0.0.1:7470"),
]
InsecureOption = Annotated[
    bool | None,
    typer.Option("--insecure", help="Listen without TLS where other machines reach it.", show_default="refused"),
]
MetricsOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where Prometheus may scrape.", show_default="nowhere")
]
StateDirOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Experience log and policies.", show_default="XDG state folder")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Settings file (TOML).",
        show_default="/etc/respsd/respsd.toml, else ~/.config/respsd/respsd.toml, if there",
    ),
]


def model_settings(
    *,
    demo: bool,
    target: str | None,
    drafter: str | None,
    dtype: str | None,
    device: str | None,
    config: Path | None,
    **others: object,
) -> Settings:
    """The daemon's own settings with these flags over them, so that a command sees what `serve` would serve.

    :param others: further settings by name; None means that the flag was not given.
    """
    return load_with_flags(
        demo=demo, target=target, drafter=drafter, dtype=dtype, device=device, config=config, **others
    ).settings


def load_with_flags(
    *,
    demo: bool,
    target: str | None,
    drafter: str | None,
    dtype: str | None,
    device: str | None,
    config: Path | None,
    **others: object,
) -> Loaded:
    """`model_settings` with the origin of each setting."""
    from respsd.settings import DEMO
    from respsd.settings_loader import load_with_origins

    if demo and target not in (None, DEMO):
        raise SettingsError(f"target (--target): {target!r} is not allowed together with --demo; give one of them")
    flags = {"target": DEMO if demo else target, "drafter": drafter, "dtype": dtype, "device": device, **others}
    return load_with_origins(flags, config=config)


def section_flags(*, exact: bool | None, recalibrate: bool) -> dict[str, object]:
    """The settings that these flags of `respsd serve` set."""
    return {"engine": {"exact": exact}, "calibration": {"at_start": "always" if recalibrate else None}}


def serve_flags(
    *,
    demo: bool,
    target: str | None,
    drafter: str | None,
    dtype: str | None,
    device: str | None,
    config: Path | None,
) -> list[str]:
    """The same flags for a `respsd serve` of its own."""
    given = {"--target": target, "--drafter": drafter, "--dtype": dtype, "--device": device, "--config": config}
    return [
        *(["--demo"] if demo else []),
        *(str(part) for flag in given.items() if flag[1] is not None for part in flag),
    ]


def load(settings: Settings) -> Models:
    """Load the models that the settings name, as the daemon does."""
    from respsd.daemon import load_served_models
    from respsd.telemetry.logging import configure_logging

    configure_logging(settings.log.level, settings.log.format)
    return load_served_models(settings)
