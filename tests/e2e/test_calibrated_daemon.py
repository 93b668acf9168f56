"""A daemon that measures the machine at its first start, and explores."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path

import pytest
from support.daemons import DaemonProcess, daemon, respsd, tiny_flags

LEARNING = {
    "RESPSD_CALIBRATION__SECONDS": "20",
    "RESPSD_EXPLORATION__SHARE": "1",
    "RESPSD_CONTROL__TOTAL_TOKENS": "4,8,16",
    "RESPSD_CONTROL__DEPTH": "2,3",
    "RESPSD_CONTROL__TOP_K": "2,4",
}
PROMPT = ("the cat sat on", "--max-new-tokens", "40", "--ignore-eos", "-o", "json")


def events(served: DaemonProcess) -> list[str]:
    return [json.loads(line)["event"] for line in served.lines if line.startswith("{")]


def generate(served: DaemonProcess, *flags: str) -> dict[str, object]:
    return json.loads(respsd("generate", *PROMPT, *flags, "--address", served.address))


@pytest.mark.slow
def test_the_first_start_calibrates_before_it_is_ready_and_explorers_run_the_learner(tmp_path: Path) -> None:
    with daemon(tmp_path, *tiny_flags(), environment=LEARNING) as served:
        seen = events(served)
        assert seen.index("calibrating") < seen.index("calibrated") < seen.index("ready")
        explored, kept = generate(served), generate(served, "--no-explore")
        generate(served, "--policy", "champion")
        assert explored["token_ids"] == kept["token_ids"]
        assert served.stop() == 0
    versions = {
        each["version"]: each
        for each in json.loads(respsd("policy", "list", "--state-dir", str(tmp_path), "-o", "json"))
    }
    assert versions[explored["policy_version_first"]]["aliases"] == ["learner"]
    assert "champion" in versions[kept["policy_version_first"]]["aliases"]
    rows = sqlite3.connect(tmp_path / "transitions.db").execute("select arm, log_prob from transitions").fetchall()
    assert {arm for arm, _ in rows} == {"learner", "champion"}
    assert all((log_prob < 0) == (arm == "learner") for arm, log_prob in rows)
    assert min(log_prob for _, log_prob in rows) > math.log(1e-4)

    with daemon(tmp_path, *tiny_flags(), environment=LEARNING) as served:
        assert "calibration_reused" in events(served)
        assert "calibrating" not in events(served)
