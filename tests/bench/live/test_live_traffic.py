from __future__ import annotations

import threading

import pytest
from support.serving import ServerThread

from respsd.bench.live.traffic import Traffic
from respsd.engine.stub import StubEngine
from respsd_client import Client, ServiceError

PROMPTS = [[1, 40 + number] for number in range(6)]


def test_every_prompt_once_in_the_prompts_order() -> None:
    with ServerThread(StubEngine()) as server, Client(server.address) as client:
        answered = Traffic(client, PROMPTS, {"max_new_tokens": 3}, streams=4).once()
        alone = [client.generate(prompt, max_new_tokens=3).token_ids for prompt in PROMPTS]
    assert [each.prompt for each in answered] == list(range(6))
    assert [each.token_ids for each in answered] == [tuple(tokens) for tokens in alone]


def test_prompts_come_again_until_it_is_enough() -> None:
    seen = threading.Semaphore(0)
    with ServerThread(StubEngine()) as server, Client(server.address) as client:
        traffic = Traffic(client, PROMPTS, {"max_new_tokens": 2}, streams=1, progress=seen.release)
        most = traffic.until(lambda: False, most=8)
        assert [each.prompt for each in most] == [0, 1, 2, 3, 4, 5, 0, 1]
        assert traffic.until(lambda: True) == []
        asked = [False, False, True]
        assert len(traffic.until(lambda: asked.pop(0))) == 2
    assert sum(seen.acquire(blocking=False) for _ in range(20)) == 10


def test_a_request_that_fails_ends_all_streams() -> None:
    with ServerThread(StubEngine()) as server, Client(server.address) as client:
        traffic = Traffic(client, [[1, 2], [10**9]], {"max_new_tokens": 3}, streams=2)
        with pytest.raises(ServiceError):
            traffic.until(lambda: False)
