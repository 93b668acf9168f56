"""The Python client runs on the oldest libraries that it says it runs on, and on the newest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.serving import ServerThread

from respsd.engine.stub import StubEngine

CLIENT = Path(__file__).resolve().parents[2] / "clients" / "python"
PROGRAM = """
import asyncio, sys
from respsd_client import AsyncClient, Client, ServiceError

with Client(sys.argv[1], retries=2) as client:
    stream = client.stream("abc", max_new_tokens=12, seed=2**63 - 1)
    assert "".join(chunk.text for chunk in stream) == stream.result.text
    assert stream.result.completion_tokens == 12
    assert client.generate("abc", max_new_tokens=12, stop="zzz", logit_bias={1: 0.5}).token_ids
    assert client.tokenize("abc", with_pieces=True).pieces
    assert client.model_info().vocab_size and client.list_policies()
    assert client.load().accepting and client.status().phase == "ready"
    try:
        client.generate("x", temperature=-1.0)
    except ServiceError as error:
        assert error.field_violations[0].field == "sampling.temperature"
    endless = client.stream("abc", max_new_tokens=10**6)
    next(endless)
    endless.cancel()

async def main():
    async with AsyncClient(sys.argv[1], retries=2) as client:
        stream = client.stream("abc", max_new_tokens=12)
        assert "".join([chunk.text async for chunk in stream]) == stream.result.text
        assert (await client.generate("abc", max_new_tokens=3)).completion_tokens == 3

asyncio.run(main())
"""


def requirements(end: str) -> list[str]:
    """The client's own, at the lower end of their ranges or at the newest that these allow."""
    declared = re.search(r"dependencies = \[(.+?)\]", (CLIENT / "pyproject.toml").read_text(), re.DOTALL)
    assert declared is not None
    ranges = re.findall(r'"(.+?)"', declared[1])
    return [re.sub(r">=([\d.]+).*", r"~=\1.0", each) if end == "oldest" else each for each in ranges]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["oldest", "newest"])
def test_the_client_runs_on_both_ends_of_its_range(tmp_path: Path, end: str) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=300)
    install = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *requirements(end)]
    try:
        subprocess.run(install, capture_output=True, text=True, timeout=300, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"pip cannot install {requirements(end)}: {error}: {str(error.stderr).strip()[-300:]}")
    environment = {**os.environ, "PYTHONPATH": str(CLIENT)}
    with ServerThread(StubEngine(context_length=10**9)) as server:
        command = [str(python), "-W", "error::DeprecationWarning", "-c", PROGRAM, server.address]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
