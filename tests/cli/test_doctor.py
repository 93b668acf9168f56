from __future__ import annotations

import json

import pytest
from support.daemons import tiny_flags
from support.recordings import CASES, first_cases
from typer.testing import CliRunner

from respsd.bench import lossless
from respsd.bench.lossless import Difference, LosslessReport
from respsd.cli.main import app
from respsd.control.action import Action
from respsd.errors import InvalidRequest


def run(*arguments: str, code: int = 0) -> dict[str, object]:
    result = CliRunner().invoke(app, [*arguments, "-o", "json"], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_lossless_models_pass_with_every_comparison_counted():
    document = run("doctor", "--verify-lossless", "--prompts", "1", "--max-new-tokens", "8", *tiny_flags())
    assert (document["compared"], document["different"], document["differences"]) == (24, 0, [])
    assert document["dtype"] == "float32"


def test_an_unexplained_difference_fails_and_is_printed(monkeypatch):
    found = Difference(0, Action(16, 4, 4), False, position=3, logit_gap=0.5, tolerance=0.0)
    report = LosslessReport("float32", prompts=1, compared=24, differences=(found,))
    monkeypatch.setattr(lossless, "verify_lossless", lambda *args, **kwargs: report)
    document = run("doctor", "--verify-lossless", "--prompts", "1", *tiny_flags(), code=1)
    assert (document["different"], document["unexplained"]) == (1, 1)
    assert document["differences"] == [
        {"prompt": 0, "action": "16,4,4", "sampled": False, "position": 3, "logit_gap": 0.5, "tolerance": 0.0}
    ]


def test_the_reference_recordings_are_matched(reference_dir, tmp_path):
    folder = first_cases(reference_dir / "golden-a", tmp_path / "recording")
    document = run("doctor", "--reference", str(folder))
    assert document["trees"] == {"checked": CASES, "failed": 0, "first_mismatches": []}
    assert document["decodes"] == {"checked": CASES, "failed": 0, "first_mismatches": []}


def test_a_doctor_without_a_check_says_which_there_are():
    with pytest.raises(InvalidRequest, match="--verify-lossless"):
        CliRunner().invoke(app, ["doctor"], catch_exceptions=False)


@pytest.mark.parametrize(("flags", "exact"), [((), True), (("--exact",), True), (("--no-exact",), False)])
def test_the_exact_flag_wins_over_the_environment(monkeypatch, flags, exact):
    asked = []

    def load(settings):
        asked.append(settings.engine.exact)
        raise InvalidRequest("models", "none", "this test loads none")

    monkeypatch.setattr("respsd.cli.models.load", load)
    monkeypatch.setenv("RESPSD_ENGINE__EXACT", "true")
    with pytest.raises(InvalidRequest, match="loads none"):
        CliRunner().invoke(app, ["doctor", "--verify-lossless", *flags], catch_exceptions=False)
    assert asked == [exact]
