"""The Node client's own tests, run by node against servers of this process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import Authority
from support.engines import load_tiny, running
from support.serving import ServerThread

from respsd.engine.loop import EngineLoop
from respsd.engine.stub import StubEngine
from respsd.service.auth import Access, Tokens
from respsd.service.tls import TlsFiles

PROJECT = Path(__file__).resolve().parents[2]
SOURCE = PROJECT / "clients" / "node"
INSTALL_SECONDS = 180
SECRET = "a-secret-of-many-letters"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built copy of the package, with its dependencies: those of the checkout, or freshly installed ones."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    copy = tmp_path_factory.mktemp("node") / "client"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("node_modules", "dist", "build"))
    if (SOURCE / "node_modules" / "typescript").is_dir():
        (copy / "node_modules").symlink_to(SOURCE / "node_modules")
    else:
        _install(copy)
    built = _run(["npm", "run", "build"], copy, RESPSD_PROTO=str(PROJECT / "proto"))
    assert built.returncode == 0, built.stdout + built.stderr
    return copy


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server that takes anybody, one over a model, and one that wants TLS and a token."""
    folder = tmp_path_factory.mktemp("secrets")
    authority = Authority(folder)
    pair = authority.issue("server")
    tokens = folder / "tokens"
    tokens.write_text(f"alice generate,read {SECRET}\n")
    tokens.chmod(0o600)
    secured = {"tls": TlsFiles(pair.certificate, pair.key), "access": Access(Tokens.read(tokens))}
    with (
        ServerThread(StubEngine(context_length=10**9)) as plain,
        ServerThread(StubEngine(), **secured) as secure,
        running(load_tiny()) as rig,
        ServerThread(_Started(rig.engine)) as model,  # type: ignore[arg-type]
    ):
        yield {
            "ADDRESS": plain.address,
            "MODEL_ADDRESS": model.address,
            "SECURE_ADDRESS": secure.address,
            "CA": str(authority.file),
            "TOKEN": SECRET,
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in (SOURCE / "test").glob("*.test.ts")))
def test_the_node_clients_own_tests_pass(package: Path, addresses: dict[str, str], name: str) -> None:
    result = _run(["node", "--test", f"dist/test/{name.removesuffix('.ts')}.js"], package, **addresses)
    assert result.returncode == 0, result.stdout + result.stderr
    declared = len(re.findall(r"^test\(", (SOURCE / "test" / name).read_text(), re.MULTILINE))
    assert f"# pass {declared}\n" in result.stdout


@pytest.mark.slow
def test_the_readmes_example_is_under_ten_lines_and_runs(package: Path, addresses: dict[str, str]) -> None:
    example = re.search(r"```js\n(.+?)```", (SOURCE / "README.md").read_text(), re.DOTALL)
    assert example is not None
    assert len(example[1].splitlines()) < 10
    program = (
        example[1].replace("127.0.0.1:7470", addresses["ADDRESS"]).replace('"respsd-client"', '"./dist/src/index.js"')
    )
    (package / "example.mjs").write_text(program)
    result = _run(["node", "example.mjs"], package)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


class _Started:
    """An engine that others start and stop."""

    def __init__(self, engine: EngineLoop) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return (lambda: None) if name in ("start", "stop") else getattr(self._engine, name)


def _install(folder: Path) -> None:
    try:
        done = _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm ci in clients/node took more than {INSTALL_SECONDS} seconds")
    if done.returncode:
        pytest.skip(f"npm ci in clients/node failed: {done.stderr.strip()[-300:]}")


def _run(command: list[str], folder: Path, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RESPSD_")} | variables
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
