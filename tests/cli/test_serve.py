from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from respsd.cli.serve import serve
from respsd.errors import SettingsError
from respsd.settings import Settings
from respsd.telemetry import logging as respsd_logging

app = typer.Typer()
app.command()(serve)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What the daemon was started with, and what it would read on SIGHUP; it ends with code 7."""
    started: list[Settings] = []

    def run(settings: Settings, reread: Callable[[], Settings]) -> int:
        started.append(settings)
        started.append(reread())
        return 7

    module = types.ModuleType("respsd.daemon")
    module.serve = run  # type: ignore[attr-defined]  # a module made by hand
    monkeypatch.setitem(sys.modules, "respsd.daemon", module)
    monkeypatch.setattr("respsd.daemon", module, raising=False)
    monkeypatch.setattr(respsd_logging, "configure_logging", lambda level, form: None)
    return started


def test_every_flag_reaches_the_daemon(served: list[Settings], tmp_path: Path) -> None:
    flags = ["--target", "a/b", "--drafter", "c/d", "--listen", "unix:/tmp/s", "--metrics", "127.0.0.1:9"]
    flags += ["--state-dir", str(tmp_path), "--dtype", "bfloat16", "--device", "cpu"]
    result = CliRunner().invoke(app, flags)
    assert result.exit_code == 7
    settings, reread = served
    assert reread == settings
    assert (settings.target, settings.drafter) == ("a/b", "c/d")
    assert (settings.listen, settings.metrics) == ("unix:/tmp/s", "127.0.0.1:9")
    assert (settings.state_dir, settings.dtype, settings.device) == (tmp_path, "bfloat16", "cpu")


def test_the_exact_flag_wins_over_the_file_either_way(served: list[Settings], tmp_path: Path) -> None:
    config = tmp_path / "respsd.toml"
    config.write_text("[engine]\nexact = true\nmax_running = 3\n")
    for flags in ([], ["--exact"], ["--no-exact"]):
        CliRunner().invoke(app, ["--config", str(config), *flags])
    assert [settings.engine.exact for settings in served[::2]] == [True, True, False]
    assert {settings.engine.max_running for settings in served} == {3}


def test_a_machine_is_measured_anew_where_that_is_asked_for(served: list[Settings]) -> None:
    for flags in ([], ["--recalibrate"]):
        CliRunner().invoke(app, flags)
    assert [settings.calibration.at_start for settings in served[::2]] == ["auto", "always"]


def test_demo_is_the_target_whatever_the_file_says(served: list[Settings], tmp_path: Path) -> None:
    config = tmp_path / "respsd.toml"
    config.write_text('target = "a/b"\nlisten = "127.0.0.1:1"\n')
    CliRunner().invoke(app, ["--demo", "--config", str(config)])
    assert (served[0].target, served[0].listen) == ("demo", "127.0.0.1:1")


def test_demo_and_another_target_contradict_each_other(served: list[Settings]) -> None:
    result = CliRunner().invoke(app, ["--demo", "--target", "a/b"])
    assert isinstance(result.exception, SettingsError)
    assert "'a/b' is not allowed together with --demo" in str(result.exception)
    assert served == []
