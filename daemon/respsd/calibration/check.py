"""Compares predicted speeds with measured ones, on prompts that calibration did not see, all actions interleaved."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from respsd.calibration.prompts import encoded_prompts, unseen_prompts
from respsd.calibration.record import Calibration
from respsd.control.action import EAGLE3, OFF, Action, ActionTable
from respsd.engine.assembly import Models
from respsd.engine.local_run import Completion, fixed_request, run, running_engine

_NEW_TOKENS = 64


@dataclass(frozen=True, slots=True)
class CheckedAction:
    """One action: what was predicted and what was measured."""

    action: str
    predicted_ratio: float
    """Tokens per second over those of `off`: the level of speed drifts with the load of the machine."""
    ratio: float
    """Measured; geometric mean over the prompts."""
    ratio_error: float
    """Standard error of the logarithm of `ratio`."""
    predicted_tau: float
    tau: float
    tokens_per_second: float
    """Measured."""


@dataclass(frozen=True, slots=True)
class Check:
    """How predictions did."""

    actions: tuple[CheckedAction, ...]
    """The fastest prediction first."""
    rank_correlation: float
    """Spearman's, of predicted and measured ratios."""
    error: float
    """Root mean square of the log of predicted over measured ratio, `off` left out."""


def compare(models: Models, calibration: Calibration, table: ActionTable, count: int, prompts: int) -> Check:
    """Measure the baseline, `off`, EAGLE-3's default and `count` actions from all over the table."""
    ranked = sorted(table, key=calibration.model.log_speed, reverse=True)
    spread = [ranked[round(place)] for place in np.linspace(0, len(ranked) - 1, count)]
    eagle3 = [EAGLE3] if calibration.covers(EAGLE3) else []
    actions = list(dict.fromkeys([OFF, calibration.baseline(table), *eagle3, *spread]))
    asked = encoded_prompts(models.tokenizer, unseen_prompts(prompts))
    rows = _measure(models, asked, actions)
    context = float(np.mean([len(prompt) for prompt in asked]) + _NEW_TOKENS / 2)
    checked = [_checked(calibration, rows, number, action, context) for number, action in enumerate(actions)]
    predicted = np.log([each.predicted_ratio for each in checked])
    measured = np.log([each.ratio for each in checked])
    return Check(
        actions=tuple(sorted(checked, key=lambda each: each.predicted_ratio, reverse=True)),
        rank_correlation=float(spearmanr(predicted, measured).statistic),
        error=float(np.sqrt(np.mean(np.square(predicted - measured)[1:]))),
    )


def _measure(models: Models, prompts: Sequence[Sequence[int]], actions: Sequence[Action]) -> list[list[Completion]]:
    """[prompts][actions]: every prompt under every action in random order, before the next prompt."""
    rng = random.Random(0)
    rows = []
    with running_engine(models, ActionTable(tuple(actions)).largest) as engine:
        for action in actions:  # warm-up
            run(engine, fixed_request(prompts[0], action, 8))
        for prompt in prompts:
            answers: dict[int, Completion] = {}
            for number in rng.sample(range(len(actions)), len(actions)):
                answers[number] = run(engine, fixed_request(prompt, actions[number], _NEW_TOKENS))
            rows.append([answers[number] for number in range(len(actions))])
    return rows


def _checked(
    calibration: Calibration, rows: Sequence[Sequence[Completion]], number: int, action: Action, context: float
) -> CheckedAction:
    model = calibration.model
    logs = np.array([math.log(row[number].tokens_per_second / row[0].tokens_per_second) for row in rows])
    mine = [row[number] for row in rows]
    committed = sum(len(each.token_ids) - 1 for each in mine)
    return CheckedAction(
        action=str(action),
        predicted_ratio=model.tokens_per_second(action, context) / model.tokens_per_second(OFF, context),
        ratio=math.exp(float(logs.mean())),
        ratio_error=float(logs.std(ddof=1) / math.sqrt(len(logs))) if len(logs) > 1 else 0.0,
        predicted_tau=model.acceptance.of(action),
        tau=committed / sum(each.finished.steps for each in mine),
        tokens_per_second=committed / sum(each.finished.decode_seconds for each in mine),
    )
