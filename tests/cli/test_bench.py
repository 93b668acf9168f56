"""`respsd bench` and its sub-commands, as a user calls them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog
import torch
from support.daemons import long_flags, tiny_flags
from support.serving import ServerThread
from typer.testing import CliRunner

from respsd.cli.main import app
from respsd.engine.stub import StubEngine
from respsd.errors import InvalidRequest, SettingsError, StorageError


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """The commands set up the process's log; tests after these must not write to their closed streams."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def invoke(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def run(*arguments: object) -> dict:
    return json.loads(invoke(*arguments, "-o", "json"))


SMALL = ("--limit", 2, "--max-new-tokens", 8, "--max-prompt-tokens", 80, *tiny_flags())


def test_every_set_and_method_has_its_figures():
    document = run("--methods", "off,8:3:3", *SMALL)
    off, tree = document["results"]
    assert [(each["questions"], each["method"], each["action"]) for each in (off, tree)] == [
        ("built-in", "off", "off"),
        ("built-in", "8:3:3", "8,3,3"),
    ]
    for row in (off, tree):
        assert row["tokens_per_second"] > 0
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert 0 < row["p"] <= 1
        assert row["equal_outputs"] == 1.0
        assert row["time_to_first_token"]["p50"] > 0
        shares = [row["steps"][f"{part}_share"] for part in ("draft", "verify", "overhead")]
        assert sum(shares) == pytest.approx(1.0)
        assert 0 < row["steps"]["policy_share"] < 1
    assert (off["ratio"], off["tau"], off["pairs"]) == (1.0, 1.0, 2)
    assert tree["tau"] > 1.0
    assert len(tree["steps"]["acceptance"]) == 4
    assert (document["ratio_to"], document["equal_to"]) == ("off", "off")
    assert [(each["method"], each["pairs"]) for each in document["noise"]] == [("off", 2)]


def test_files_are_measured_apart_and_together(tmp_path):
    for name in ("one", "two"):
        lines = [json.dumps({"turns": [f"{name} {number}", "and then?"]}) for number in range(2)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = [flag for name in ("one", "two") for flag in ("--questions", tmp_path / f"{name}.jsonl")]
    document = run("--methods", "off", "--no-null-check", *files, *SMALL)
    assert [(row["questions"], row["answers"]) for row in document["results"]] == [("one", 4), ("two", 4)]
    assert [(row["questions"], row["answers"]) for row in document["overall"]] == [("all", 8)]
    assert document["noise"] == []
    once = run("--methods", "off", "--no-null-check", "--turns", 1, *files, *SMALL)
    assert [row["answers"] for row in once["results"]] == [2, 2]


@pytest.mark.slow
def test_the_best_constant_action_is_found_and_then_measured_on_other_questions(tmp_path):
    config = tmp_path / "respsd.toml"
    config.write_text("[control]\ntotal_tokens = [8, 16]\ndepth = [3, 4]\ntop_k = [3, 4]\n")
    flags = ("--methods", "off,sweep", "--calibration", 2, "--turns", 1, "--config", config)
    document = run(*flags, *SMALL)
    (sweep,) = document["sweep"]
    assert document["results"][1]["action"] == sweep["best"]
    assert {row["answers"] for row in document["results"]} == {2}
    assert len(sweep["rounds"][0]) == 3


@pytest.mark.slow
def test_streams_are_compared_with_one_stream_and_drawn(tmp_path):
    plot = tmp_path / "bench.html"
    flags = ("--methods", "transformers,off,prompt-lookup", "--concurrency", "1,2", "--ignore-eos", "--plot", plot)
    document = run(*flags, *SMALL)
    cells = [(row["method"], row["concurrency"]) for row in document["results"]]
    methods = ("transformers", "off", "prompt-lookup")
    assert cells == [*((method, 1) for method in methods), ("transformers", 2), ("off", 2)]
    assert document["skipped"] == [{"method": "prompt-lookup", "concurrency": 2}]
    assert document["results"][0]["steps"] is None
    assert document["results"][4]["ratio_to_one_stream"]["ratio"] > 0
    assert {row["equal_outputs"] for row in document["results"]} == {1.0}
    assert "<svg" in plot.read_text()


def test_people_get_a_table_and_what_it_means():
    text = invoke("--methods", "off,8:3:3", *SMALL)
    assert text.splitlines()[0].split()[:3] == ["QUESTIONS", "METHOD", "STREAMS"]
    assert "noise: off against itself" in text
    assert "accepted at depth 1, 2, ... by 8:3:3" in text


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("--methods", "warp"), InvalidRequest, "warp"),
        (("--concurrency", "0"), InvalidRequest, "concurrency"),
        (("--plot", "x.gif"), InvalidRequest, "png"),
        (("--plot", "nowhere/x.png"), InvalidRequest, "folder"),
        (("--methods", "policy:3", "--state-dir", "nothing"), StorageError, "state-dir"),
        (("--methods", "calibrated", "--state-dir", "nothing"), InvalidRequest, "respsd calibrate"),
        (("scaling", "--contexts", "x"), InvalidRequest, "contexts"),
        (("serve", "--rate", "0"), InvalidRequest, "rate"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_anything_runs(arguments, error, words):
    flags = tiny_flags() if arguments[0] == "--methods" else ()
    with pytest.raises(error, match=words):
        invoke(*arguments, *flags)


def test_flags_before_a_sub_command_are_refused():
    result = CliRunner().invoke(app, ["bench", "--limit", "3", "serve"])
    assert result.exit_code == 2
    assert "--limit" in result.output


def test_scaling_prints_points_and_lines(tmp_path):
    flags = ("--actions", "off,8:3:3", "--contexts", "16,32", "--streams", "1,2", "--steps", 2, "--repeats", 1)
    document = run("scaling", *flags, "--plot", tmp_path / "s.png", *tiny_flags())
    points = [(each["action"], each["context"], each["streams"]) for each in document["results"]]
    expected = [(action, *at) for action in ("off", "8,3,3") for at in ((16, 1), (32, 1), (16, 2))]
    assert sorted(points) == sorted(expected)
    assert {(line["action"], line["over"]) for line in document["growth"]} == {
        (action, over) for action in ("off", "8,3,3") for over in ("context", "streams")
    }
    assert (tmp_path / "s.png").is_file()


def test_scaling_without_a_drafter_has_no_trees():
    target = tiny_flags()[:2]
    with pytest.raises(InvalidRequest, match="--drafter"):
        invoke("scaling", "--actions", "8:3:3", *target, "--dtype", "float32")


def test_latency_prints_every_phase_of_every_action():
    flags = ("--actions", "off,8:3:3", "--streams", 2, "--context", 8, "--arriving", 60, "--steps", 3, "--repeats", 1)
    document = run("latency", *flags, *long_flags())
    assert [each["action"] for each in document["results"]] == ["off", "8,3,3"]
    for each in document["results"]:
        assert each["p99_over_p50"] == each["steady"]["times"]["p99"] / each["steady"]["times"]["p50"]
        assert each["delay"] == each["arriving"]["times"]["p99"] / each["steady"]["times"]["p50"]
        assert each["joining"]["count"] > 0


def test_a_daemon_is_put_under_load(tmp_path):
    with ServerThread(StubEngine()) as server:
        document = run(
            "serve",
            *("--address", server.address, "--rate", "50,200", "--requests", 6, "--max-new-tokens", 5),
            *("--first-token-ms", 60_000, "--plot", tmp_path / "l.png"),
        )
    assert [row["offered"] for row in document["results"]] == [50.0, 200.0]
    for row in document["results"]:
        assert (row["requests"], row["good_share"], row["refusals"]) == (6, 1.0, {})
        assert row["goodput"] == row["answered"] > 0
    assert (tmp_path / "l.png").is_file()


def test_load_on_nothing_says_so():
    assert invoke("serve", "--address", "127.0.0.1:1", "--timeout", 60, code=3) == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_check_says_that_there_is_no_gpu():
    with pytest.raises(SettingsError, match="no CUDA device"):
        invoke("gpu-check")


@pytest.mark.slow
def test_the_gpu_check_prints_one_document():
    document = json.loads(invoke("gpu-check", "--tiny"))
    assert document["passed"] is True
    assert document["parts"]["steps"]["status"] == "passed"
    assert document["parts"]["parity"]["status"] == "left out"
