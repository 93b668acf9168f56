"""`rollout prove` and `bench loop` with the tiny pair: each starts a daemon of its own and puts it under traffic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemons import tiny_flags

from policy_store import PolicyStore

pytestmark = pytest.mark.slow
SMALL = {
    "RESPSD_CALIBRATION__AT_START": "never",
    "RESPSD_CONTROL__TOTAL_TOKENS": "4,64",
    "RESPSD_CONTROL__DEPTH": "2,7",
    "RESPSD_CONTROL__TOP_K": "2,10",
    "RESPSD_CONTROL__PERSISTENCE": "4",
    "RESPSD_LEARNING__BATCH_SIZE": "8",
    "RESPSD_LEARNING__MIN_NEW_WINDOWS": "16",
    "RESPSD_LEARNING__INTERVAL_SECONDS": "1",
}
QUESTIONS = ["the cat sat on", "the other cat", "on the mat", "that hat", "the mat and then", "sat on that hat"]


def run(*arguments: str) -> dict:
    """One command, with settings that suit so small a model."""
    command = [sys.executable, "-m", "respsd", *arguments, *tiny_flags(), "-o", "json"]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **SMALL}, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "small.jsonl"
    file.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in QUESTIONS))
    return file


def test_the_loop_serves_learns_and_compares_and_a_later_run_goes_on(tmp_path: Path, questions: Path) -> None:
    state = tmp_path / "state"
    command = ("bench", "loop", "--questions", str(questions), "--limit", "2", "--calibration", "1", "--streams", "2")
    command = (*command, "--max-new-tokens", "32", "--state-dir", str(state))
    first = run(*command, "--minutes", "0.2")
    live = first["live"]
    assert live["requests"] > 0
    whole = sum(each["tokens_per_second"] for each in live["slices"]) * live["seconds"] / len(live["slices"])
    assert whole == pytest.approx(live["tokens"])
    assert (live["moves"][0]["event"], live["moves"][0]["to_version"]) == ("promote", 3)
    assert set(first["champion"]) == {"to_eagle3", "to_best_constant", "to_plain"}
    ratio = first["champion"]["to_eagle3"]
    assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert [each["method"] for each in first["comparison"]["results"]] == ["policy:champion", "eagle3", "sweep", "off"]

    again = run(*command, "--minutes", "0")
    assert again["live"]["requests"] == 0
    assert again["live"]["moves"][: len(live["moves"])] == live["moves"]  # it did not begin anew
    with PolicyStore(state / "policies", read_only=True) as store:
        assert again["live"]["champion"] == store.aliases()["champion"]
