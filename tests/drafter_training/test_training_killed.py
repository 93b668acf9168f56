"""Killed with SIGKILL at random moments, `respsd drafter train` ends with the files of an uninterrupted run."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import models, tiny

from respsd.drafter_training.answers import Answer, AnswerFile

KILLS = 2


def _answers(file: Path) -> Path:
    draw = random.Random(5)
    with AnswerFile(file) as out:
        for _ in range(48):
            tokens = [draw.randrange(3, tiny.VOCAB) for _ in range(40)]
            out.append([Answer("random", 0.0, [1, 4, *tokens[:8]], tokens[8:])])
    return file


def _start(answers: Path, folder: Path) -> subprocess.Popen[bytes]:
    options = "--epochs 4 --rows-per-batch 64 --draft-vocab 64 --save-every 4 --evaluate-every 30 --dtype float32"
    command = [sys.executable, "-m", "respsd.cli", "drafter", "train", str(answers), "--to", str(folder)]
    return subprocess.Popen(
        [*command, "--target", str(models.folders()[0]), *options.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _kill_while_it_trains(run: subprocess.Popen[bytes], state: Path, draw: random.Random) -> bool:
    """Wait until this run has saved once more, then kill it a little later; False where it ended before that."""
    before = state.stat().st_mtime_ns if state.exists() else 0
    while run.poll() is None and (not state.exists() or state.stat().st_mtime_ns == before):
        time.sleep(0.005)
    time.sleep(draw.uniform(0.0, 0.1))
    run.send_signal(signal.SIGKILL)
    return run.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_a_run_killed_with_sigkill_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    answers = _answers(tmp_path / "answers.jsonl")
    assert _start(answers, tmp_path / "whole").wait() == 0
    draw = random.Random(1)
    folder = tmp_path / "killed"
    killed = [_kill_while_it_trains(_start(answers, folder), folder / "state.pt", draw) for _ in range(KILLS)]
    assert any(killed)
    assert _start(answers, folder).wait() == 0
    for name in ("curves.json", "model.safetensors", "config.json"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
