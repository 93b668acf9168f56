"""`respsd calibrate` on the tiny pair: what it prints and what it leaves for the daemon."""

from __future__ import annotations

import json

import pytest
from support.daemons import respsd, tiny_flags

TABLE = "[control]\ntotal_tokens = [4, 8, 16]\ndepth = [2, 3]\ntop_k = [2, 4]\n"


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "respsd.toml"
    file.write_text(TABLE)
    return file


def test_without_a_drafter_it_says_what_is_missing(config, tmp_path):
    target = tiny_flags()[1]
    respsd("calibrate", "--target", target, "--config", str(config), "--state-dir", str(tmp_path / "state"), code=1)


@pytest.mark.slow
def test_it_prints_every_action_and_stores_what_the_daemon_will_use(config, tmp_path):
    state = tmp_path / "state"
    flags = (*tiny_flags(), "--config", str(config), "--state-dir", str(state), "--seconds", "2")
    document = json.loads(respsd("calibrate", *flags, "--check", "3", "--check-prompts", "2", "-o", "json"))
    actions = [row["action"] for row in document["actions"]]
    assert {"off", "8,3,4", document["baseline"]} <= set(actions)
    speeds = [row["tokens_per_second"] for row in document["actions"]]
    assert speeds == sorted(speeds, reverse=True)
    assert document["by_sequences"][0] == {"from": 1, "action": document["baseline"]}
    assert document["fit_error"] > 0
    assert len(document["check"]["actions"]) >= 3
    (file,) = (state / "calibrations").iterdir()
    assert str(file) == document["file"]
    assert json.loads(file.read_text())["model"] == document["model"]
