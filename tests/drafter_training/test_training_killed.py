"""Killed at random moments, `respsd drafter train` goes on and ends with the files of an uninterrupted run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support import models, tiny
from support.forked import TRAINING, Forge, ForkedProcess

from respsd.drafter_training.answers import Answer, AnswerFile

OPTIONS = "--epochs 3 --rows-per-batch 96 --draft-vocab 64 --save-every 2 --evaluate-every 12 --dtype float32"


def _answers(file: Path) -> Path:
    draw = random.Random(5)
    with AnswerFile(file) as out:
        for _ in range(32):
            tokens = [draw.randrange(3, tiny.VOCAB) for _ in range(40)]
            out.append([Answer("random", 0.0, [1, 4, *tokens[:8]], tokens[8:])])
    return file


def _train(forge: Forge, answers: Path, folder: Path, cpu_seconds: float | None = None) -> ForkedProcess:
    flags = ["--target", str(models.folders()[0]), *OPTIONS.split()]
    return forge.run(["drafter", "train", str(answers), "--to", str(folder), *flags], cpu_seconds=cpu_seconds)


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    answers, killed, whole = _answers(tmp_path / "answers.jsonl"), tmp_path / "killed", tmp_path / "whole"
    draw = random.Random(1)
    with Forge(tmp_path, TRAINING) as forge:
        ended = _train(forge, answers, whole).wait()
        assert ended is not None
        assert ended["code"] == 0
        seconds = float(str(ended["cpu_seconds"]))
        # By the processor's time, not the clock's: before it is half through, and then anywhere in the rest.
        assert _train(forge, answers, killed, draw.uniform(0.2, 0.5) * seconds).wait() is None
        _train(forge, answers, killed, draw.uniform(0.2, 0.5) * seconds).wait()
        ended = _train(forge, answers, killed).wait()
        assert ended is not None
        assert ended["code"] == 0
    for name in ("curves.json", "model.safetensors", "config.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
