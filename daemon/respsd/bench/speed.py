"""Tokens per second of several actions side by side: every question under every action before the next question.

Machines are shared and their speed drifts, so only ratios within one run mean something: for each question the action's
tokens per second over those of the first action, in an order that changes from question to question; then the
geometric mean over the questions with a bootstrap interval.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from respsd.bench.local import Completion, fixed_request, run, running_engine
from respsd.bench.questions import QuestionSet
from respsd.control.action import Action, ActionTable
from respsd.engine.api import Engine
from respsd.engine.assembly import Models

_BOOTSTRAP_SAMPLES = 2000
_INTERVAL = (2.5, 97.5)
"""Percentiles."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One action on one question set; the ratio is to the first action of the run."""

    questions: str
    action: Action
    tokens_per_second: float
    tau: float
    """Mean committed tokens of a step."""
    ratio: float
    ratio_low: float
    ratio_high: float
    equal_outputs: float
    """Share of questions whose tokens are those of the first action."""


def measure(
    models: Models,
    sets: Sequence[QuestionSet],
    actions: Sequence[Action],
    max_new_tokens: int,
    progress: Callable[[], None] = lambda: None,
) -> list[Measurement]:
    """Greedy decoding of every question under every action. `progress` is called after each question."""
    reserved = ActionTable(tuple(dict.fromkeys(actions))).largest
    rng = random.Random(0)
    results: list[Measurement] = []
    with running_engine(models, reserved) as engine:
        for action in actions:  # warm-up: first calls allocate
            run(engine, fixed_request(sets[0].prompts[0], action, min(16, max_new_tokens)))
        for questions in sets:
            rows = []
            for prompt in questions.prompts:
                rows.append(_ask(engine, prompt, actions, max_new_tokens, rng))
                progress()
            results += [_summary(questions.name, rows, index, action) for index, action in enumerate(actions)]
    return results


def _ask(
    engine: Engine, prompt: Sequence[int], actions: Sequence[Action], max_new_tokens: int, rng: random.Random
) -> list[Completion]:
    """One question under every action, in random order; the answers in the actions' order."""
    answers: dict[int, Completion] = {}
    for index in rng.sample(range(len(actions)), len(actions)):
        request = fixed_request(prompt, actions[index], max_new_tokens, ignore_eos=False)
        answers[index] = run(engine, request)
    return [answers[index] for index in range(len(actions))]


def _summary(questions: str, rows: Sequence[Sequence[Completion]], index: int, action: Action) -> Measurement:
    # An answer that ended with its first token had no step to measure.
    rows = [row for row in rows if all(answer.finished.steps for answer in row)]
    mine = [row[index] for row in rows]
    ratios = np.log([row[index].tokens_per_second / row[0].tokens_per_second for row in rows])
    picks = np.random.default_rng(0).integers(len(ratios), size=(_BOOTSTRAP_SAMPLES, len(ratios)))
    low, high = np.exp(np.percentile(ratios[picks].mean(axis=1), _INTERVAL))
    steps = sum(answer.finished.steps for answer in mine)
    committed = sum(len(answer.token_ids) - 1 for answer in mine)
    return Measurement(
        questions=questions,
        action=action,
        tokens_per_second=committed / sum(answer.finished.decode_seconds for answer in mine),
        tau=committed / steps,
        ratio=float(np.exp(ratios.mean())),
        ratio_low=float(low),
        ratio_high=float(high),
        equal_outputs=sum(row[index].token_ids == row[0].token_ids for row in rows) / len(rows),
    )
