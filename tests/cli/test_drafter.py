"""`respsd drafter`: from prompts to a measured drafter with the tiny target."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import typer
from support import models
from typer.testing import CliRunner, Result

from respsd.cli import drafter
from respsd.errors import InvalidRequest, SettingsError

app = typer.Typer()
app.add_typer(drafter.app, name="drafter")

WORDS = ["cat", "dog", "the cat sat", "a mat", "hat on that", "then", "other", "and", "on", "the"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["drafter", *map(str, arguments)])


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """The commands set up the process's log; tests after these must not write to their closed streams."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def target() -> Path:
    return models.folders()[0]


def test_prompts_become_answers_then_a_drafter_that_is_measured(tmp_path: Path, target: Path) -> None:
    prompts, answers, folder = tmp_path / "p.jsonl", tmp_path / "a.jsonl", tmp_path / "drafter"
    prompts.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in WORDS))
    common = ("--target", target, "--dtype", "float32", "--device", "cpu", "-o", "json")

    lengths = ("--max-new-tokens", 12, "--max-prompt-tokens", 64)
    result = run("collect", prompts, "--to", answers, "--temperature", 0, *lengths, *common)
    assert result.exit_code == 0, result.output
    collected = json.loads(result.stdout)
    assert collected["answers"] == len(WORDS)
    assert collected["skipped"] == {}

    sizes = ("--draft-vocab", 16, "--epochs", 2, "--rows-per-batch", 64, "--held-out", 0.3, "--unrolled-steps", 2)
    result = run("train", answers, "--to", folder, *sizes, *common)
    assert result.exit_code == 0, result.output
    trained = json.loads(result.stdout)
    assert trained["checkpoint"] == str(folder)
    assert len(trained["agreement"]) == 2

    result = run(
        "eval",
        "--drafter",
        folder,
        "--action",
        "6,2,2",
        "--action",
        "4,1,2",
        "--max-new-tokens",
        12,
        "--limit",
        2,
        *common,
    )
    assert result.exit_code == 0, result.output
    measured = json.loads(result.stdout)
    assert [one["action"] for one in measured["results"]] == ["6,2,2", "4,1,2"]
    assert measured["tokens"] == sum(one["tokens"] for one in measured["results"])
    assert measured["tau"] == pytest.approx(measured["tokens"] / measured["steps"])
    assert 1 <= len(measured["agreement"]) <= 3


def test_a_temperature_out_of_range_is_named(tmp_path: Path, target: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    result = run("collect", tmp_path / "p.jsonl", "--to", tmp_path / "a", "--target", target, "--temperature", 3)
    assert isinstance(result.exception, InvalidRequest)
    assert "temperature: 3.0" in str(result.exception)


def test_eval_needs_a_drafter(target: Path) -> None:
    result = run("eval", "--target", target, "--device", "cpu", "--dtype", "float32")
    assert isinstance(result.exception, SettingsError)
    assert "drafter: none is given" in str(result.exception)


def test_an_action_that_is_no_tree_is_refused_before_any_model_is_loaded() -> None:
    result = run("eval", "--action", "nonsense")
    assert isinstance(result.exception, InvalidRequest)
