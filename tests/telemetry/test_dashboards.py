"""Board and alerts ask for metrics that the daemon has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from respsd.engine.api import EngineLoad
from respsd.errors import SettingsError
from respsd.experience.recorder import RecorderStatus
from respsd.rollout.status import RolloutStatus, RoundStatus
from respsd.telemetry import dashboards
from respsd.telemetry.metrics import Metrics
from respsd.telemetry.rollout_metrics import watch_rollout
from respsd.telemetry.scheduling_metrics import SchedulingMetrics
from respsd.telemetry.training_metrics import TrainingMetrics

BOARD = json.loads(dashboards.read("respsd-board.json"))
ALERTS = [rule for group in yaml.safe_load(dashboards.read("respsd-alerts.yml"))["groups"] for rule in group["rules"]]
BOARD_EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [*BOARD_EXPRESSIONS, *(rule["expr"] for rule in ALERTS)]
NAME = re.compile(r"\b(?:respsd|process)_[a-z_]+")
LABELS = re.compile(r"\b(respsd_[a-z_]+)\{([^}]*)\}")
OF_THE_SCRAPE = {"job", "instance", "le"}
OF_LEARNING = {"respsd_rollbacks_total", "respsd_learning_paused", "respsd_train_updates_total"}
ROUND = RoundStatus("candidate", 7, 5, 1, 0.5, pairs=2, mean=0.1, lower=-0.1, upper=0.3, alpha=0.05)


@pytest.fixture(scope="module")
def samples() -> dict[str, set[str]]:
    """Every sample's name and labels, as the daemon exposes them."""
    metrics = Metrics(CollectorRegistry())
    metrics.watch_load(lambda: EngineLoad(0, 0, 0, 1, 0.0))
    metrics.watch_policies(lambda: {"champion": 1})
    metrics.watch_recorder(lambda: RecorderStatus("ok", None, None, None, 0, 0, 0, {}, {"queue_full": 0}))
    metrics.watch_phase(lambda: "ready", ["ready"])
    metrics.watch_log_file(Path("transitions.db"))
    metrics.watch_process()
    TrainingMetrics(metrics.registry)
    SchedulingMetrics(metrics.registry)
    watch_rollout(metrics.registry, lambda: RolloutStatus(rounds=(ROUND,)))
    metrics.request_ended("OK", "eos", 1.0)
    metrics.tokens_generated("champion", 1, 1.0)
    metrics.action_switched("champion")
    from respsd.control.action import OFF

    metrics.step_ran(OFF, 0, 0, 1)
    found: dict[str, set[str]] = {}
    for metric in metrics.registry.collect():
        for sample in metric.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_there_is_something_to_look_at() -> None:
    assert len(BOARD_EXPRESSIONS) > 20
    assert len(ALERTS) >= 8


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_that_is_asked_for_exists(expression: str, samples: dict[str, set[str]]) -> None:
    names = set(NAME.findall(expression))
    assert names - set(samples) == set()
    assert names or expression.startswith("up{")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_label_that_is_asked_for_exists(expression: str, samples: dict[str, set[str]]) -> None:
    names = set(NAME.findall(expression))
    known = OF_THE_SCRAPE.union(*(samples[name] for name in names)) if names else OF_THE_SCRAPE
    for name, matchers in LABELS.findall(expression):
        asked = set(re.findall(r"(\w+)\s*=?[=~!]", matchers))
        assert asked <= samples[name] | OF_THE_SCRAPE, name
    for grouping in re.findall(r"by \(([^)]*)\)", expression):
        assert {label.strip() for label in grouping.split(",")} <= known


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_parentheses_and_braces_close(expression: str) -> None:
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_learning_is_looked_at_and_watched() -> None:
    on_board, alerting = (
        {name for expression in some for name in NAME.findall(expression)}
        for some in (BOARD_EXPRESSIONS, [rule["expr"] for rule in ALERTS])
    )
    assert {*OF_LEARNING, "respsd_rollout_log_ratio"} <= on_board
    assert alerting >= OF_LEARNING


def test_panels_have_titles_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for panel in BOARD["panels"]:
        assert panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells


def test_alerts_say_what_is_wrong_and_how_bad_it_is() -> None:
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)


def test_the_files_are_written_where_one_asks(tmp_path: Path) -> None:
    written = list(dashboards.write(tmp_path / "new"))
    assert [file.name for file in written] == ["respsd-board.json", "respsd-alerts.yml"]
    assert json.loads(written[0].read_text()) == BOARD
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be written"):
        list(dashboards.write(tmp_path / "file"))
