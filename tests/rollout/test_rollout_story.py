from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.rollouts import make_rollout
from typer.testing import CliRunner

from policy_store import PolicyStore
from respsd.cli.policy import app
from respsd.control.action import Action
from respsd.control.manifests import static_manifest
from respsd.paths import POLICIES

NOW = 1_796_040_000_000_000_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A store in which a rollout promoted version 2 over 1, and stopped version 3."""
    rig = make_rollout()
    rig.propose()
    rig.observe(0.2, times=60)
    (_, _, intent) = rig.policies.moves[0]
    with PolicyStore(tmp_path / POLICIES, clock=lambda: NOW) as store:
        for number in (4, 8, 16):
            store.create(static_manifest(Action(number, 3, 3), code_version="t", note="n"), actor="update")
        store.set_alias("champion", 1, actor="daemon", reason="the baseline serves first")
        with store.changing(actor=intent.actor, reason=intent.reason, figures=intent.evidence) as change:
            change.move_alias("champion", 2, "promote")
        store.quarantine(3, actor="rollout", reason="version 3 was stopped by a guard (exception): NaN")
    return tmp_path


def test_explain_tells_the_story_in_words_and_numbers(state: Path) -> None:
    result = CliRunner().invoke(app, ["explain", "2", "--state-dir", str(state)])
    assert result.exit_code == 0, result.output
    assert "version 2 was stored, by update" in result.output
    assert "version 2 became the champion in place of version 1, by rollout" in result.output
    assert "pairs" in result.output
    assert "+22.1 %" in result.output  # exp(0.2) - 1
    assert "24.4 against 20.0 tokens/s" in result.output


def test_explain_has_the_figures_for_scripts(state: Path) -> None:
    result = CliRunner().invoke(app, ["explain", "2", "--state-dir", str(state), "-o", "json"])
    document = json.loads(result.output)
    assert document["policy"]["version"] == 2
    assert document["entries"][-1]["figures"]["decision"] == "promote"
    assert len(document["story"]) == len(document["entries"])


@pytest.mark.parametrize("name", ["history.png", "history.html"])
def test_history_draws_a_picture(state: Path, name: str) -> None:
    file = state / name
    result = CliRunner().invoke(app, ["history", "--state-dir", str(state), "--plot", str(file), "-o", "json"])
    assert result.exit_code == 0, result.output
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG" if name.endswith("png") else b"<!doctype html>")
    if name.endswith("html"):
        assert b"promote 1" in data
        assert b"quarantine 3" in data


def test_other_kinds_of_pictures_are_refused_with_the_name(state: Path) -> None:
    result = CliRunner().invoke(app, ["history", "--state-dir", str(state), "--plot", str(state / "history.gif")])
    assert result.exit_code != 0
    assert "history.gif" in str(result.exception)
