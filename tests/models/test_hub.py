from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

PROGRAM = "from respsd.models.hub import check_reachable; check_reachable('owner/model', None)"


def ask(endpoint: str, **more: str) -> str:
    """Ask in a process of its own, since the client reads its environment once; return the last line of its error."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1", **more}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    return run.stderr.splitlines()[-1]


@pytest.fixture
def silent_server():
    """A port that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_hub_that_refuses_is_unavailable_at_once() -> None:
    with socket.socket() as unused:  # bound and not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        assert ask(f"http://127.0.0.1:{unused.getsockname()[1]}").startswith("ConnectionError: ConnectError")


@pytest.mark.slow
def test_a_hub_that_never_answers_is_given_up(silent_server: str) -> None:
    assert ask(silent_server).startswith("ConnectionError: ReadTimeout")


def test_offline_mode_is_respected(silent_server: str) -> None:
    assert ask(silent_server, HF_HUB_OFFLINE="1").startswith("ConnectionError: OfflineModeIsEnabled")
