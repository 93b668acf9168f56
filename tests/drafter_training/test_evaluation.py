"""tau and agreement, measured with the engine."""

from __future__ import annotations

import pytest
import torch
from support import models

from respsd.bench.questions import QuestionSet
from respsd.control.action import OFF, Action
from respsd.drafter_training.evaluation import agreement_by_depth, evaluate
from respsd.engine.assembly import load_models
from respsd.engine.window import StepMeasure
from respsd.errors import SettingsError

QUESTIONS = QuestionSet("q", ((5, 6, 7), (30, 31, 32, 33)))


def _step(drafted: int, accepted: int, committed: int) -> StepMeasure:
    return StepMeasure(
        applied=Action(4, 2, 1),
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        committed_tokens=committed,
        draft_ns=1,
        verify_ns=1,
        other_ns=1,
        batch_size=1,
    )


def test_agreement_is_conditional_on_the_depths_before() -> None:
    chains = [_step(3, 3, 4), _step(3, 1, 2), _step(3, 0, 1), _step(3, 2, 3)]
    # Depth 1: 3 of 4 right; depth 2: of those three, 2; depth 3: of those two, 1.
    assert agreement_by_depth(chains) == pytest.approx((3 / 4, 2 / 3, 1 / 2))


def test_a_chain_that_a_boundary_cut_says_nothing_about_what_is_behind_it() -> None:
    # Two accepted, then the answer ended: without a bonus token, depth 3 was not judged.
    assert agreement_by_depth([_step(3, 2, 2)]) == (1.0, 1.0)
    assert agreement_by_depth([]) == ()


def test_tau_is_committed_tokens_of_a_step() -> None:
    target, drafter = models.folders()
    loaded = load_models(target, drafter, dtype=torch.float32, device=models.CPU)
    answers: list[int] = []
    (score,) = evaluate(loaded, [QUESTIONS], [Action(8, 2, 2)], 24, lambda: answers.append(1))
    assert len(answers) == 2 * len(QUESTIONS.prompts)
    assert score.tau == score.tokens / score.steps
    assert 1.0 < score.tau <= 4.0
    assert 1 <= len(score.agreement) <= 3
    assert all(0.0 <= share <= 1.0 for share in score.agreement)


def test_there_must_be_something_to_measure() -> None:
    loaded = load_models(models.folders()[0], None, dtype=torch.float32, device=models.CPU)
    with pytest.raises(SettingsError, match="drafter: none is given"):
        evaluate(loaded, [QUESTIONS], [Action(8, 2, 2)], 8)
    loaded = load_models(*models.folders(), dtype=torch.float32, device=models.CPU)
    with pytest.raises(SettingsError, match="'off' drafts nothing"):
        evaluate(loaded, [QUESTIONS], [OFF], 8)
