"""The systemd files: what systemd itself says of them, and that they fit the daemon."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from respsd.cli.exit_codes import ExitCode
from respsd.settings import Settings
from respsd.settings_loader import load_with_origins

UNITS = Path(__file__).resolve().parents[2] / "systemd"
SERVICE = UNITS / "respsd.service"
MOST_EXPOSED = 2.5
NOTIFY_RELOAD_SINCE = 253
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def systemd_version() -> int:
    match = re.match(r"systemd (\d+)", analyze("--version").stdout)
    assert match is not None
    return int(match[1])


def settings_of(unit: str) -> dict[str, list[str]]:
    """Name to values, in order; a name may stand more than once."""
    found: dict[str, list[str]] = {}
    for line in unit.splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


UNIT = settings_of(SERVICE.read_text())


@needs_systemd
def test_systemd_finds_nothing_wrong() -> None:
    result = analyze("verify", str(SERVICE))
    complaints = [line for line in (result.stdout + result.stderr).splitlines() if str(UNITS) in line]
    if systemd_version() < NOTIFY_RELOAD_SINCE:
        complaints = [
            line for line in complaints if "Failed to parse service type, ignoring: notify-reload" not in line
        ]
    assert result.returncode == 0, result.stderr
    assert complaints == []


@needs_systemd
@pytest.mark.parametrize("with_gpu", [True, False])
def test_the_service_is_little_exposed(tmp_path: Path, with_gpu: bool) -> None:
    shutil.copy(SERVICE, tmp_path)
    if with_gpu:
        shutil.copytree(UNITS / "respsd.service.d", tmp_path / "respsd.service.d")
    result = analyze("security", "--offline=yes", str(tmp_path / "respsd.service"))
    level = re.search(r"Overall exposure level for respsd\.service: ([\d.]+)", result.stdout)
    assert level is not None, result.stderr
    assert float(level[1]) <= MOST_EXPOSED


def test_readiness_reload_and_watchdog_are_the_daemons() -> None:
    assert UNIT["Type"] == ["notify", "notify-reload"]
    assert UNIT["NotifyAccess"] == ["main"]
    assert UNIT["WatchdogSec"] == ["60s"]
    assert UNIT["RestartPreventExitStatus"] == [str(int(ExitCode.USAGE))]


def test_a_drain_is_not_cut_short() -> None:
    assert int(UNIT["TimeoutStopSec"][0].removesuffix("s")) > Settings().drain_seconds + 30


def test_each_protection_that_is_off_says_why() -> None:
    text = SERVICE.read_text()
    reasons = text[text.index("# Off on purpose:") :]
    for name, values in UNIT.items():
        if values == ["no"] or (name, values) == ("ProcSubset", ["all"]):
            assert f"# - {name} " in reasons or f"# - {name}=" in reasons or f"{name} and" in reasons, name


def test_the_gpus_device_files_are_allowed_and_no_more() -> None:
    gpu = settings_of((UNITS / "respsd.service.d" / "gpu.conf").read_text())
    assert gpu["DevicePolicy"] == ["closed"]
    devices = {value.split()[0] for value in gpu["DeviceAllow"]}
    assert {"char-nvidiactl", "char-nvidia-caps", "char-nvidia-frontend", "char-nvidia-uvm"} <= devices
    assert all(device.startswith("char-") for device in devices)


def test_the_files_agree_on_user_and_folders() -> None:
    users = (UNITS / "sysusers.d" / "respsd.conf").read_text()
    folders = (UNITS / "tmpfiles.d" / "respsd.conf").read_text()
    assert UNIT["User"] == UNIT["Group"] == ["respsd"]
    assert "u respsd " in users
    assert {"m respsd video", "m respsd render"} <= set(users.splitlines())
    assert "d /etc/respsd 0750 root respsd -" in folders
    assert UNIT["EnvironmentFile"] == ["-/etc/respsd/respsd.env"]
    for kind in ("StateDirectory", "CacheDirectory", "RuntimeDirectory"):
        assert UNIT[kind] == ["respsd"]


def test_every_line_of_the_environment_file_is_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    lines = (UNITS / "respsd.env").read_text().splitlines()
    variables = dict(re.findall(r"^#?(RESPSD_\w+)=(.*)$", "\n".join(lines), re.MULTILINE))
    assert len(variables) >= 8
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert len(load_with_origins().origins) >= len(variables)


def test_the_suggested_admin_group_is_made_and_told_how_to_reach_the_socket() -> None:
    text = (UNITS / "respsd.env").read_text()
    group = re.search(r"^#RESPSD_AUTH__ADMIN_GROUP=(.+)$", text, re.MULTILINE)
    assert group is not None
    assert f"g {group[1]} -" in (UNITS / "sysusers.d" / "respsd.conf").read_text().splitlines()
    assert UNIT["RuntimeDirectoryMode"] == ["0750"]  # so that being in the admins' group alone is not enough
    assert f"usermod -aG {UNIT['Group'][0]},{group[1]} " in text


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_the_account_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    conf = str(UNITS / "sysusers.d" / "respsd.conf")
    result = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", "--dry-run", conf], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
