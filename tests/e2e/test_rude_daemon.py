"""What clients must not be able to do to the whole daemon: bad input, leaving in every way, and going on for ever."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import tiny
from support.daemons import STILL, daemon, long_flags
from support.models import LONG_CONTEXT
from support.soak_clients import DOOMED

from respsd_client import Client, ServiceError

PROMPT = "the cat sat on"
ENDLESS = {"max_new_tokens": 50_000, "ignore_eos": True}
"""Minutes of work for the tiny pair."""
DRAIN_SECONDS = 6
SETTINGS = {**STILL, "RESPSD_DRAIN_SECONDS": str(DRAIN_SECONDS), "RESPSD_ENGINE__KV_TOKENS": "400000"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    with daemon(tmp_path_factory.mktemp("state"), *long_flags(), environment=SETTINGS) as running:
        yield running


def becomes_idle(client: Client, seconds: float = 60.0) -> float:
    """Seconds until no sequence and no KV cache is in use."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        load = client.load()
        if load.running == load.waiting == load.kv_tokens_reserved == 0:
            return time.monotonic() - began
    raise AssertionError(load)


def test_bad_input_is_refused_by_name_while_another_stream_goes_on(served) -> None:
    """vllm-project/vllm#7283, #7632, #6521: one of these took the whole engine down."""
    whole = [5] * LONG_CONTEXT
    bad: list[tuple[str, dict[str, object]]] = [
        (r"prompt\.text", {"prompt": ""}),
        (r"prompt\.token_ids", {"prompt": []}),
        (rf"prompt.*{tiny.VOCAB - 1}", {"prompt": [tiny.VOCAB]}),
        (r"stopping\.max_new_tokens: 0", {"prompt": PROMPT, "max_new_tokens": 0}),
        (rf"prompt: .*{LONG_CONTEXT}", {"prompt": whole}),
        (rf"prompt: .*{LONG_CONTEXT + 1} tokens", {"prompt": [*whole, 5]}),
        (r"stopping\.max_new_tokens: 2 .* 1\b", {"prompt": whole[1:], "max_new_tokens": 2}),
    ]
    options = {"max_new_tokens": 60, "ignore_eos": True}
    with Client(served.address) as client:
        expected = client.generate(PROMPT, **options).token_ids
        stream, endless = client.stream(PROMPT, **options), client.stream(PROMPT, **ENDLESS)
        next(endless)
        for message, arguments in bad:
            with pytest.raises(ServiceError, match=message) as caught:
                client.generate(**arguments)  # type: ignore[arg-type]
            assert caught.value.code.name == "INVALID_ARGUMENT"
        assert tuple(token for chunk in stream for token in chunk.token_ids) == expected
        assert next(endless).token_ids
        endless.cancel()
        becomes_idle(client)


def test_whoever_leaves_frees_the_engine_at_once(served) -> None:
    """kapitan-ai/orchard#59, vllm-project/vllm#9428: cancel after the first chunk, kill -9, a deadline."""

    def cancel(client: Client) -> None:
        with client.stream(PROMPT, **ENDLESS) as stream:
            next(stream)

    def die(client: Client) -> None:
        with subprocess.Popen([sys.executable, "-c", DOOMED, served.address], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.kill()

    def run_out(client: Client) -> None:
        with pytest.raises(ServiceError, match="DEADLINE_EXCEEDED"):
            client.generate(PROMPT, timeout=0.5, **ENDLESS)

    ways: list[Callable[[Client], None]] = [cancel, die, run_out]
    with Client(served.address) as client:
        for leave in ways:
            idle_after = []
            for _ in range(3):
                leave(client)
                idle_after.append(becomes_idle(client))
            assert min(idle_after) < 5.0, leave.__name__  # of minutes; the machine may do other things besides


def test_sigterm_lets_the_short_stream_finish_and_ends_the_endless_one_at_the_limit(tmp_path: Path) -> None:
    with daemon(tmp_path, *long_flags(), environment=SETTINGS) as served, Client(served.address) as client:
        endless, short = client.stream(PROMPT, **ENDLESS), client.stream(PROMPT, max_new_tokens=20, ignore_eos=True)
        next(endless)
        next(short)
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        ended: dict[str, float] = {}
        reader = threading.Thread(target=lambda: ended.update(short=_read(short) or time.monotonic() - began))
        reader.start()
        with pytest.raises(ServiceError) as caught:
            _read(endless)
        ended["endless"] = time.monotonic() - began
        reader.join()
        assert short.result.completion_tokens == 20
        assert caught.value.code.name == "UNAVAILABLE"
        assert ended["endless"] > DRAIN_SECONDS - 0.5
        assert served.wait() == 0
    assert not any("Traceback" in line for line in served.lines)


def _read(stream) -> None:
    for _ in stream:
        pass
