"""`respsd drafter train` takes no more memory for more data: features are read from disk a batch at a time."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import models, tiny

from respsd.drafter_training.answers import Answer, AnswerFile

TOKENS = 120
FEW, MANY = 60, 1500
SLACK_KB = 24_000
TRAIN = (sys.executable, "-m", "respsd", "drafter", "train")


def _answers(file: Path, count: int) -> Path:
    draw = random.Random(3)
    drawn = [[draw.randrange(3, tiny.VOCAB) for _ in range(TOKENS)] for _ in range(count)]
    with AnswerFile(file) as out:
        out.append([Answer("random", 0.0, [1, 4, *tokens[:8]], tokens[8:]) for tokens in drawn])
    return file


def _peak_anonymous_kb(answers: Path, folder: Path, epochs: float) -> int:
    """Highest anonymous memory of a run: mapped pages of feature files are the page cache's, which gives them up."""
    options = (
        f"--epochs {epochs} --rows-per-batch 256 --draft-vocab 64 --evaluate-every 1000 --held-out 0.1 --dtype float32"
    )
    run = subprocess.Popen(
        [*TRAIN, str(answers), "--to", str(folder), "--target", str(models.folders()[0]), *options.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    peak = 0
    while run.poll() is None:
        found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{run.pid}/status").read_text())
        peak = max(peak, int(found[1]) if found else 0)
        time.sleep(0.01)
    assert run.stderr is not None
    assert run.returncode == 0, run.stderr.read().decode()
    return peak


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc")
def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    few = _peak_anonymous_kb(_answers(tmp_path / "few.jsonl", FEW), tmp_path / "few", MANY / FEW / 10)
    many = _peak_anonymous_kb(_answers(tmp_path / "many.jsonl", MANY), tmp_path / "many", 1 / 10)
    features = sum(file.stat().st_size for file in (tmp_path / "many" / "features").iterdir())
    assert features > 3 * SLACK_KB * 1000, "too little data to tell"
    assert many < few + SLACK_KB
