"""`respsd config`: values with their origins, files that are checked, the reference that is committed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from respsd import settings_loader
from respsd.cli import main
from respsd.errors import SettingsError
from respsd.service.auth import Tokens
from respsd.settings import Settings
from respsd.settings_loader import FLAGS
from respsd.settings_reference import describe, markdown

runner = CliRunner()
REFERENCE = Path(settings_loader.__file__).with_name("SETTINGS.md")


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings but a test's own."""
    for name in list(os.environ):
        if name.startswith("RESPSD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(settings_loader, "SYSTEM_FILE", tmp_path / "etc" / "respsd.toml")


def file_with(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "a.toml"
    file.write_text(text)
    return file


def test_origins_are_default_file_variable_and_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = file_with(tmp_path, "[engine]\nmax_running = 2\nmax_waiting = 2\n[control]\ntop_k = [4, 8]\n")
    monkeypatch.setenv("RESPSD_ENGINE__MAX_WAITING", "3")
    result = runner.invoke(main.app, ["config", "show", "--config", str(file), "--dtype", "float16", "-o", "json"])
    assert result.exit_code == 0
    rows = {row["name"]: (row["value"], row["origin"]) for row in json.loads(result.stdout)}
    assert rows["engine.max_running"] == ("2", str(file))
    assert rows["engine.max_waiting"] == ("3", "RESPSD_ENGINE__MAX_WAITING")
    assert rows["dtype"] == ("float16", "--dtype")
    assert rows["target"] == ("demo", "default")
    assert rows["control.top_k"] == ("4,8", str(file))
    assert rows["engine.kv_tokens"] == ("auto", "default")
    assert rows["drafter"] == ("none", "default")
    assert rows["insecure"] == ("false", "default")
    assert len(rows) == len(list(describe()))


def test_the_table_has_origins_only_where_asked() -> None:
    plain = runner.invoke(main.app, ["config", "show"]).stdout
    with_origin = runner.invoke(main.app, ["config", "show", "--origin", "--listen", "[::1]:1"]).stdout
    assert "SETTING" in plain
    assert "default" not in plain.split("\n")[1]
    assert ["listen", "[::1]:1", "--listen"] in [line.split() for line in with_origin.splitlines()]


def test_a_good_file_is_good_and_a_wrong_one_names_each_fault(tmp_path: Path) -> None:
    good = runner.invoke(main.app, ["config", "check", str(file_with(tmp_path, "[engine]\nmax_running = 2\n"))])
    assert (good.exit_code, good.stdout) == (0, f"{tmp_path / 'a.toml'}: 1 settings, all good\n")
    wrong = file_with(tmp_path, "[engine]\nmax_runing = 2\nmax_waiting = -1\n")
    refused = runner.invoke(main.app, ["config", "check", str(wrong)])
    assert isinstance(refused.exception, SettingsError)
    assert "did you mean max_running?" in str(refused.exception)
    assert "engine.max_waiting" in str(refused.exception)


def test_without_a_file_what_serve_would_run_with_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    none = runner.invoke(main.app, ["config", "check"])
    assert (none.exit_code, none.stdout) == (0, "no settings file: 0 settings, all good\n")
    (tmp_path / "etc").mkdir()
    settings_loader.SYSTEM_FILE.write_text("[engine]\nmax_running = 2\n")
    monkeypatch.setenv("RESPSD_ENGINE__MAX_WAITING", "3")
    found = runner.invoke(main.app, ["config", "check", "-o", "json"])
    assert json.loads(found.stdout) == {"file": str(settings_loader.SYSTEM_FILE), "settings": 2}
    monkeypatch.setenv("RESPSD_ENGINE__MAX_WAITING", "-3")
    refused = runner.invoke(main.app, ["config", "check"])
    assert "engine.max_waiting (RESPSD_ENGINE__MAX_WAITING): '-3'" in str(refused.exception)


def test_a_check_leaves_out_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RESPSD_DTYPE", "fp8")
    file = file_with(tmp_path, 'target = "x"\n')
    assert runner.invoke(main.app, ["config", "check", str(file), "-o", "json"]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[auth]\ntokens = "{}/none"', "auth.tokens: .*none cannot be read"),
        ('[tls]\ncertificate = "{}/c"\nkey = "{}/k"', "tls: .* cannot be read"),
        ('[tls]\ncertificate = "{}/c"', "give both certificate and key"),
        ('[tls]\nclient_ca = "{}/c"', "client_ca needs certificate and key"),
        ('listen = "0.0.0.0:7470"', r"other machines reach '0\.0\.0\.0:7470'; set tls\.certificate .*--insecure"),
        ('listen = "gpu7:7470"', "other machines reach 'gpu7:7470'"),
    ],
)
def test_a_check_looks_at_what_the_settings_name(tmp_path: Path, text: str, fault: str) -> None:
    refused = runner.invoke(main.app, ["config", "check", str(file_with(tmp_path, text.replace("{}", str(tmp_path))))])
    with pytest.raises(SettingsError, match=fault):
        raise refused.exception or AssertionError(refused.stdout)


def test_a_check_misses_the_packages_of_tracing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    file = file_with(tmp_path, '[tracing]\nendpoint = "127.0.0.1:4317"\n')
    refused = runner.invoke(main.app, ["config", "check", str(file)])
    assert isinstance(refused.exception, SettingsError)
    assert "install respsd[otel]" in str(refused.exception)


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.9.9.9:1", "unix:/run/x"])
def test_addresses_of_this_machine_need_no_tls(listen: str) -> None:
    assert Settings(listen=listen).listen == listen


def test_a_public_address_needs_tls_or_a_word(tmp_path: Path) -> None:
    assert Settings(listen="0.0.0.0:1", insecure=True).insecure
    tls = {"certificate": tmp_path / "c", "key": tmp_path / "k"}
    assert Settings.model_validate({"listen": "0.0.0.0:1", "tls": tls}).tls.key == tmp_path / "k"


def test_the_committed_reference_is_fresh() -> None:
    assert REFERENCE.read_text() == markdown(), f"run: respsd config reference > {REFERENCE}"
    assert runner.invoke(main.app, ["config", "reference"]).stdout == markdown()


def test_the_reference_says_what_each_setting_takes() -> None:
    rows = {doc.name: doc for doc in describe()}
    assert rows["engine.max_running"].values == "integer, at least 1"
    assert rows["engine.kv_tokens"].values == "integer, at least 1 or `auto`"
    assert rows["control.baseline"].values == "`off` or `TT,d,k` or `auto`"
    assert rows["control.top_k"].values == "list of integers, at least 1, not empty"
    assert rows["log.level"].values == "`debug`, `info`, `warning`, `error`"
    assert rows["control.sampling_temperature"].values == "number, over 0 or `argmax`"
    assert rows["rollout.margin"].values == "number, over 0, under 0.5"
    assert rows["engine.max_running"].variable == "RESPSD_ENGINE__MAX_RUNNING"
    assert (rows["log.level"].is_live, rows["engine.max_running"].is_live) == (True, False)
    assert all(doc.description and doc.values for doc in rows.values())


def test_the_flags_of_serve_are_those_of_show() -> None:
    shown = runner.invoke(main.app, ["config", "show", "--exact", "--recalibrate", "-o", "json"])
    rows = {row["name"]: (row["value"], row["origin"]) for row in json.loads(shown.stdout)}
    assert rows["engine.exact"] == ("true", "--exact")
    assert rows["calibration.at_start"] == ("always", "--recalibrate")
    for flag in FLAGS.values():
        assert flag in runner.invoke(main.app, ["config", "show", "--help"], env={"COLUMNS": "200"}).stdout


def test_every_flag_sets_the_setting_that_the_reference_says() -> None:
    options = runner.invoke(main.app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    names = {doc.key for doc in describe()}
    for key, flag in FLAGS.items():
        assert key in names
        assert flag in options


def test_a_drawn_token_works_with_its_line(tmp_path: Path) -> None:
    result = runner.invoke(main.app, ["config", "new-token", "alice", "--roles", "generate,read"])
    file = tmp_path / "tokens"
    file.write_text(result.stderr)
    file.chmod(0o600)
    caller = Tokens.read(file).find(result.stdout.strip())
    assert caller is not None
    assert (caller.name, caller.roles.words) == ("alice", "generate,read")


def test_board_and_alerts_are_written(tmp_path: Path) -> None:
    result = runner.invoke(main.app, ["config", "dashboards", "--to", str(tmp_path)])
    assert result.stdout.splitlines() == [str(tmp_path / "respsd-board.json"), str(tmp_path / "respsd-alerts.yml")]
