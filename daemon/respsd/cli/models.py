"""Flags that name models, shared by the commands that load them in their own process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.errors import SettingsError

if TYPE_CHECKING:
    from respsd.engine.assembly import Models
    from respsd.settings import Settings

DemoOption = Annotated[bool, typer.Option("--demo", help="Use the small demo model (the default target).")]
TargetOption = Annotated[str | None, typer.Option(metavar="DIR_OR_HUB_ID", help="The target.", show_default="demo")]
DrafterOption = Annotated[
    str | None, typer.Option(metavar="DIR_OR_HUB_ID", help="Its EAGLE-3 drafter.", show_default="none: plain decoding")
]
DtypeOption = Annotated[
    str | None, typer.Option(metavar="float32|bfloat16|float16", help="Number format.", show_default="by machine")
]
DeviceOption = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Where to run.", show_default="by machine")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Settings file (TOML).", show_default="/etc/respsd/respsd.toml, if there"),
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
    from respsd.settings import DEMO
    from respsd.settings_loader import load_settings

    if demo and target not in (None, DEMO):
        raise SettingsError(f"target (--target): {target!r} is not allowed together with --demo; give one of them")
    flags = {"target": DEMO if demo else target, "drafter": drafter, "dtype": dtype, "device": device, **others}
    return load_settings(flags, config=config)


def load(settings: Settings) -> Models:
    """Load the models that the settings name, as the daemon does."""
    from respsd.daemon import load_served_models
    from respsd.telemetry.logging import configure_logging

    configure_logging(settings.log.level, settings.log.format)
    return load_served_models(settings)
