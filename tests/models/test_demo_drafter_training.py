"""`train.sh` of the demo model's drafter: its commands are the command line's, in an order that makes a drafter."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import typer
from safetensors import safe_open
from support import inventors
from typer.core import TyperGroup
from typer.testing import CliRunner

from respsd.cli import drafter
from respsd.models.demo import demo_drafter

SCRIPT = demo_drafter() / "train.sh"
GENERATING = [["invent", "invent"], ["collect", "collect", "collect", "quote"]]
"""Steps of which some run at once, sorted."""
TRAINING = ["train", "train", "eval"]
_RECORDER = """#!/usr/bin/env bash
call=$(printf '%s\\037' "$@")
printf '%s\\036' "$call" >>"$RECORD"
[[ $2 != "${HANG:-}" ]] || sleep 60
[[ $2 != "${FAIL:-}" ]]
"""
SHORTENED = {
    "invent": "--count 12 --max-tokens 16 --opening then",
    "collect": "--max-new-tokens 16 --max-prompt-tokens 64",
    "train": "--draft-vocab 64 --kv-heads 2 --intermediate-size 32 --rows-per-batch 64 --held-out 0.3",
    "eval": "--limit 1 --max-new-tokens 8",
}
"""A later value of an option counts, so these make the script's commands small."""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Prompts and work, with names that need care."""
    prompts = tmp_path / "my prompts"
    prompts.mkdir()
    (prompts / "a b.jsonl").write_text('{"prompt": "the cat sat on"}\n')
    (prompts / "notes.txt").write_text("no prompts")
    return prompts, tmp_path / "my work"


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    """The commands set up the process's log; tests after these must not write to their closed streams."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def _train(tmp_path: Path, *arguments: object, fail: str = "") -> tuple[int, str, list[list[str]]]:
    """Exit status, standard error, and the arguments that `respsd` was called with."""
    command, environment = [SCRIPT, *map(str, arguments)], _environment(tmp_path, FAIL=fail)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stderr, _calls(tmp_path)


def _environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """One in which `respsd` only writes down how it is called."""
    program, record = tmp_path / "bin" / "respsd", tmp_path / "record"
    program.parent.mkdir(exist_ok=True)
    program.write_text(_RECORDER)
    program.chmod(0o755)
    record.write_text("")
    return {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "RECORD": str(record), **more}


def _calls(tmp_path: Path) -> list[list[str]]:
    return [call.split("\037")[:-1] for call in (tmp_path / "record").read_text().split("\036")[:-1]]


def test_every_command_and_option_exists_and_takes_its_value(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    questions = tmp_path / "my questions.jsonl"
    questions.write_text("")
    status, _, calls = _train(tmp_path, *folders, questions)
    assert status == 0
    assert {call[0] for call in calls} == {"drafter"}
    steps = [call[1] for call in calls]
    assert [sorted(steps[:2]), sorted(steps[2:6])] == GENERATING
    assert steps[6:] == TRAINING
    group = typer.main.get_command(drafter.app)
    assert isinstance(group, TyperGroup)
    for _, step, *arguments in calls:
        assert "--demo" in arguments
        group.commands[step].make_context(step, [*arguments])  # raises where one is not known
    assert calls[-1][calls[-1].index("--questions") + 1] == str(questions)


def test_a_step_that_fails_ends_the_run(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    status, _, calls = _train(tmp_path, *folders, fail="collect")
    assert status != 0
    assert {call[1] for call in calls} == {"invent", "collect"}


def test_no_command_outlives_it(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    environment = _environment(tmp_path, HANG="invent")
    with subprocess.Popen([SCRIPT, *folders], env=environment, stdout=subprocess.PIPE) as script:
        assert script.stdout is not None
        while len(_calls(tmp_path)) < 2:
            time.sleep(0.01)
        script.terminate()
        assert script.wait() == 128 + signal.SIGTERM
        assert script.stdout.read() == b""  # ends when nobody holds the other end any more
    assert len(_calls(tmp_path)) == 2


def test_what_it_needs_is_said(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    status, error, calls = _train(tmp_path, folders[0])
    assert (status, calls) == (2, [])
    assert "PROMPTS WORK [QUESTIONS...]" in error
    status, error, calls = _train(tmp_path, tmp_path / "nowhere", folders[1])
    assert (status, calls) == (2, [])
    assert "there is no prompt file" in error
    status, error, calls = _train(tmp_path, *folders, tmp_path / "nothing.jsonl")
    assert (status, calls) == (2, [])
    assert "nothing.jsonl cannot be read" in error


@pytest.mark.slow
@pytest.mark.usefixtures("_logging_as_before")
def test_its_commands_make_a_drafter_and_can_be_repeated(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    work = folders[1]
    _, _, calls = _train(tmp_path, *folders)
    tiny = f"--target {inventors.target()} --dtype float32 --device cpu".split()
    for _ in range(2):
        for _, step, *arguments in calls:
            if step == "quote":  # the tiny target writes no sentences
                (work / "quoting.jsonl").write_text('{"prompt": "the other cat sat"}\n')
                continue
            given = [argument for argument in arguments if argument != "--demo"]
            result = CliRunner().invoke(drafter.app, [step, *given, *SHORTENED[step].split(), *tiny])
            assert result.exit_code == 0, result.output
        lines = {file.name: file.read_text().splitlines() for file in work.glob("*.jsonl")}
        invented = lines["invented.jsonl"] + lines["opened.jsonl"]
        assert len(invented) == 24
        assert len(lines["answers-given.jsonl"]) == 2  # at two temperatures
        assert len(lines["answers-invented.jsonl"]) == 2 * len(set(invented))
        assert len(lines["summaries.jsonl"]) == 1
    with safe_open(work / "drafter" / "model.safetensors", "pt") as tensors:
        assert tensors.get_slice("lm_head.weight").get_shape()[0] <= 64
