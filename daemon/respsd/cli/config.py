"""`respsd config`: the settings, where each comes from, and files that belong to them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli import models
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_table

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from respsd.settings_loader import Key, Loaded

app = typer.Typer(help="Look at the settings and check them.", no_args_is_help=True)

ROLES = ("generate", "read", "admin")


@app.callback()
def config() -> None:
    """Look at the settings and check them."""


@app.command()
def show(
    *,
    origin: Annotated[bool, typer.Option("--origin", help="Also say where each value comes from.")] = False,
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
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print the settings that `respsd serve` would run with, given the same flags."""
    loaded = models.load_with_flags(
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
    rows = _values(loaded)
    if output is OutputFormat.JSON:
        print_json([{"name": name, "value": value, "origin": from_} for name, value, from_ in rows])
    elif origin:
        print_table(("setting", "value", "origin"), rows)
    else:
        print_table(("setting", "value"), [row[:2] for row in rows])


@app.command()
def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="A settings file (TOML), checked by itself.",
            show_default="what `respsd serve` would run with, the environment included",
        ),
    ] = None,
    *,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check the settings, with certificates, tokens and packages that they ask for; exit code 2 where one is wrong."""
    from respsd.settings_files import check_files
    from respsd.settings_loader import load_file, load_with_origins

    loaded = load_with_origins() if file is None else load_file(file)
    check_files(loaded.settings)
    if output is OutputFormat.JSON:
        print_json({"file": None if loaded.file is None else str(loaded.file), "settings": len(loaded.origins)})
    else:
        sys.stdout.write(f"{loaded.file or 'no settings file'}: {len(loaded.origins)} settings, all good\n")


@app.command()
def reference() -> None:
    """Print every setting with its values, default and description, as Markdown."""
    from respsd.settings_reference import markdown

    sys.stdout.write(markdown())


@app.command("new-token")
def new_token(
    name: Annotated[str, typer.Argument(help="Who will use it; named in logs and in the policies' audit.")],
    *,
    roles: Annotated[str, typer.Option("--roles", help=f"Of {', '.join(ROLES)}, with commas between.")] = "generate",
) -> None:
    """Draw a bearer token: it goes to standard output, the line for the token file to standard error."""
    from respsd.cli.output import print_message
    from respsd.service.auth import new_token as draw

    token, line = draw(name, roles)
    print_message(line)
    sys.stdout.write(token + "\n")


@app.command()
def dashboards(
    *, to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where to write them.")] = Path()
) -> None:
    """Write the Grafana board and the Prometheus alert rules."""
    from respsd.telemetry.dashboards import write

    for file in write(to):
        sys.stdout.write(f"{file}\n")


def _values(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Name, value and origin of every setting."""
    from respsd.settings_reference import describe, value_text

    rows = []
    for doc in describe():
        owner: BaseModel = loaded.settings
        for part in doc.key[:-1]:
            owner = getattr(owner, part)
        field: FieldInfo = type(owner).model_fields[doc.key[-1]]
        rows.append((doc.name, value_text(field, getattr(owner, doc.key[-1])), _origin(loaded, doc.key)))
    return rows


def _origin(loaded: Loaded, key: Key) -> str:
    return loaded.origins.get(key, "default")
