"""Rules that hold for the repository as a whole."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from respsd import __version__

PROJECT = Path(__file__).resolve().parents[1]
MOST_LINES = 400
GENERATED = PROJECT / "clients" / "python" / "respsd_client" / "v1"
SKIPPED = {".git", ".hypothesis", ".venv", "build", "dist", "node_modules"}
TEXT = {".py", ".md", ".toml", ".proto", ".service", ".conf", ".env", ".txt", ".js", ".ts", ".cfg", ".yml", ".mako", ""}
TORCH_FREE = [
    "respsd.cli.main",
    "respsd.settings_loader",
    "respsd.service.server",
    "respsd.experience.recorder",
    "respsd.telemetry.engine_metrics",
    "policy_store",
    "respsd_client",
]


def files(*suffixes: str) -> list[Path]:
    """The project's own files, without environments, caches and generated code."""
    return [
        path
        for path in sorted(PROJECT.rglob("*"))
        if path.is_file()
        and path.suffix in suffixes
        and not any(part in SKIPPED or part.endswith((".egg-info", "cache__", "_cache")) for part in path.parts)
        and GENERATED not in path.parents
        and path.name != "LICENSE"
    ]


def test_no_source_file_is_long() -> None:
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in files(".py", ".proto", ".js", ".ts")
    }
    assert len(lengths) > 50
    assert {str(path): lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_the_top_level_is_as_designed() -> None:
    for name in ("proto/respsd/v1", "daemon/respsd", "policy_store", "clients/python", "systemd", "tests"):
        assert (PROJECT / name).is_dir(), name
    for name in ("README.md", "LICENSE", "pyproject.toml", "constraints.txt", "Makefile", ".ci/run"):
        assert (PROJECT / name).is_file(), name
    assert (PROJECT / ".ci" / "run").stat().st_mode & 0o111


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (PROJECT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_no_file_names_a_place_on_one_machine() -> None:
    places = re.compile(r"(?<![\w.$}])/(work|root)(/|\b)(?!-)")
    found = {
        f"{path.relative_to(PROJECT)}: {match.group()}"
        for path in files(*TEXT)
        if path != Path(__file__).resolve()
        for match in places.finditer(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize("module", TORCH_FREE)
def test_light_modules_do_not_load_torch(module: str) -> None:
    heavy = {"torch", "transformers", "stable_baselines3"}
    program = f"import sys, {module}; print(*sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == ""


def test_the_version_is_the_same_everywhere() -> None:
    declared = re.search(r'^version = "(.+)"$', (PROJECT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert declared[1] == __version__


def test_every_requirement_is_pinned_in_the_constraints() -> None:
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    project = (PROJECT / "pyproject.toml").read_text()
    listed = project[project.index("dependencies = [") : project.index("[project.scripts]")]
    required = {normal(name) for name in re.findall(r'^    "([A-Za-z0-9._-]+)', listed, re.MULTILINE)}
    pinned = re.findall(r"^([A-Za-z0-9._-]+)==", (PROJECT / "constraints.txt").read_text(), re.MULTILINE)
    assert len(required) > 20
    assert required - {normal(name) for name in pinned} == set()


def test_the_license_is_apache_2() -> None:
    text = (PROJECT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_command_is_installed() -> None:
    assert importlib.util.find_spec("respsd") is not None
    run = subprocess.run(
        [Path(sys.executable).parent / "respsd", "--version"], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"respsd {__version__}\n"
