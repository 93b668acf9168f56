"""The real daemon with the real demo model, as the README's first command starts it."""

from __future__ import annotations

import json
import subprocess

import pytest
from support.daemons import daemon, respsd

from respsd_client import Client

pytestmark = [pytest.mark.demo, pytest.mark.slow]


@pytest.fixture(scope="module")
def served(demo_model_dir, tmp_path_factory):
    with daemon(tmp_path_factory.mktemp("demo-state"), "--demo") as running:
        yield running


def test_it_answers_a_question_in_english(served):
    """One that the model is sure of: of France's capital it has two first words within a step of bfloat16."""
    text = respsd(
        "generate", "--address", served.address, "--chat", "What is the capital of Japan?", "--max-new-tokens", "32"
    )
    assert "Tokyo" in text


def test_a_chat_ends_by_itself_with_its_usage(served):
    arguments = ("--chat", "Say hello.", "--max-new-tokens", "60", "-o", "json")
    document = json.loads(respsd("generate", "--address", served.address, *arguments))
    assert document["finish_reason"] == "eos"
    assert document["usage"]["completion_tokens"] == len(document["token_ids"])
    assert "<|im_end|>" not in document["text"]


def test_the_seed_repeats_a_sample(served):
    with Client(served.address) as client:
        options = {"max_new_tokens": 24, "temperature": 0.9, "top_p": 0.95, "seed": 3}
        first, second = (client.generate("Once upon a time", **options) for _ in range(2))
        assert first.text == second.text
        assert client.generate("Once upon a time", **{**options, "seed": 4}).text != first.text


def test_the_printed_client_command_works_as_it_is(demo_model_dir, tmp_path):
    with daemon(tmp_path, "--demo") as served:
        served.stop()
        assert served.process.stdout is not None
        printed = [line.strip() for line in served.process.stdout if " generate " in line]
    assert len(printed) == 1
    assert served.address in printed[0]
    check = subprocess.run(["sh", "-nc", printed[0]], check=False)
    assert check.returncode == 0
