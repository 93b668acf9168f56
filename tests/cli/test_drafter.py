"""`respsd drafter`: from prompts to a measured drafter with the tiny target."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import typer
from support import inventors, models
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


def test_prompts_are_invented_until_there_are_as_many_as_wanted(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    openings = ("--opening", "the cat sat on", "--opening", "then the other")
    model = ("--target", inventors.target(), "--dtype", "float32", "--device", "cpu")
    options = ("--to", prompts, *openings, "--max-tokens", 8, "--keep-unfinished", "--batch", 4, *model)
    result = run("invent", "--count", 6, *options, "-o", "json")
    assert result.exit_code == 0, result.output
    invented = json.loads(result.stdout)
    lines = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    assert (invented["prompts"], invented["prompts_before"], len(lines)) == (6, 0, 6)
    assert all(line.startswith(("the cat sat on", "then the other")) for line in lines)

    result = run("invent", "--count", 5, *options)
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == ["PROMPTS", "TOKENS", "PROMPTS_BEFORE", "0", "0", "6"]
    assert "no turn skipped" in result.stderr


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--count", 0, "count: 0 "),
        ("--temperature", 0, "temperature: 0.0 "),
        ("--temperature", 2.5, "temperature: 2.5 "),
        ("--max-tokens", 0, "max_tokens: 0 "),
        ("--batch", 0, "batch: 0 "),
        ("--seed", -1, "seed: -1 "),
    ],
)
def test_a_bad_option_of_invent_is_named_before_anything_is_done(
    tmp_path: Path, flag: str, value: float, message: str
) -> None:
    result = run("invent", "--to", tmp_path / "p.jsonl", "--target", tmp_path, "--count", 1, flag, value)
    assert isinstance(result.exception, InvalidRequest)
    assert message in str(result.exception)
    assert not (tmp_path / "p.jsonl").exists()


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
