"""Measuring a drafter with the real engine: what its drafts earn on questions, and how often it is right by depth.

tau: mean committed tokens of a step, greedy decoding, under one action. Agreement at depth d: of the steps in which
the drafter's most probable tokens at depths before d were all right, the share in which the one at d is, too (1 is the
first drafted token). It is taken from chains, trees with one child a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from respsd.bench.questions import QuestionSet
from respsd.control.action import Action
from respsd.engine.assembly import Models
from respsd.engine.local_run import StepLog, fixed_request, run, running_engine
from respsd.engine.window import StepMeasure
from respsd.errors import SettingsError


@dataclass(frozen=True, slots=True)
class DrafterScore:
    """One action on one question set."""

    questions: str
    action: Action
    tau: float
    agreement: tuple[float, ...]
    """By depth, 1 to the action's depth + 1; shorter where no chain came so far."""
    tokens: int
    """Committed by steps; the first token of an answer comes from the prefill."""
    steps: int


def evaluate(
    models: Models,
    sets: Sequence[QuestionSet],
    actions: Sequence[Action],
    max_new_tokens: int,
    progress: Callable[[], None] = lambda: None,
) -> list[DrafterScore]:
    """Every question set under every action; `progress` is called after each answer (two for a question)."""
    if models.drafter is None:
        raise SettingsError("drafter: none is given, so there is nothing to measure")
    scores = []
    for action in actions:
        if action.is_off:
            raise SettingsError("action: 'off' drafts nothing, so there is nothing to measure")
        chain = Action(action.depth + 2, action.depth, 1)
        for questions in sets:
            steps = _answer(models, questions, action, max_new_tokens, progress)
            chained = _answer(models, questions, chain, max_new_tokens, progress)
            tokens = sum(step.committed_tokens for step in steps)
            scores.append(
                DrafterScore(
                    questions=questions.name,
                    action=action,
                    tau=tokens / max(1, len(steps)),
                    agreement=agreement_by_depth(chained),
                    tokens=tokens,
                    steps=len(steps),
                )
            )
    return scores


def agreement_by_depth(chains: Sequence[StepMeasure]) -> tuple[float, ...]:
    """Conditional agreement from steps that drafted one token a level.

    A chain that a boundary cut counts only as far as it was committed.
    """
    shares: list[float] = []
    depth = 1
    while True:
        reached = [step for step in chains if step.accepted_tokens >= depth - 1 and step.drafted_tokens >= depth]
        # Committed tokens end in the bonus token; without it the answer ended on the path and depth says nothing.
        judged = [step for step in reached if step.committed_tokens >= depth]
        if not judged:
            return tuple(shares)
        shares.append(sum(step.accepted_tokens >= depth for step in judged) / len(judged))
        depth += 1


def _answer(
    models: Models, questions: QuestionSet, action: Action, max_new_tokens: int, progress: Callable[[], None]
) -> list[StepMeasure]:
    steps = StepLog()
    with running_engine(models, action, steps) as engine:
        for prompt in questions.prompts:
            run(engine, fixed_request(prompt, action, max_new_tokens, ignore_eos=False))
            progress()
    return [step for step in steps.steps if not step.applied.is_off]
