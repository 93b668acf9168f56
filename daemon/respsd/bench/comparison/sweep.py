"""The best constant action, found on a calibration part of the questions that is not measured afterwards.

Coarse to fine: one action for each total_tokens of the table and `off`; then, again and again, the best one against
its neighbours (one notch more or less in one knob) until none is faster. Within a round an action that is clearly
behind after some blocks is not measured further.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from respsd.bench.comparison.answers import Decoder
from respsd.bench.comparison.conversation import AnswerRules, ask
from respsd.bench.comparison.speed import speed
from respsd.bench.questions import QuestionSet
from respsd.control.action import OFF, Action, ActionTable
from respsd.engine.api import Tokenizer
from respsd.errors import InvalidRequest

_BLOCKS_BEFORE_DROPPING = 2
_DROPPED_BELOW = 0.8
"""Of the speed of the best in the round."""
_MOST_ROUNDS = 6

Block = tuple[QuestionSet, tuple[int, ...]]
Measure = Callable[[Action, Block], float | None]
"""Tokens per second of one block under one action; None where the answers were too short to tell."""


@dataclass(frozen=True, slots=True)
class SweepRound:
    """What one round measured: speeds relative to the round's best, over the blocks that each action answered."""

    relative_speeds: tuple[tuple[Action, float], ...]
    """Fastest first; one that was dropped has what it had reached."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """How the best constant action was found."""

    concurrency: int
    best: Action
    rounds: tuple[SweepRound, ...]


def split_for_calibration(sets: Sequence[QuestionSet], wanted: int) -> tuple[list[QuestionSet], list[QuestionSet]]:
    """Take about `wanted` questions from the ends of the sets: the sets to measure, and those to calibrate on.

    Raises InvalidRequest where a set would be left empty.
    """
    each = math.ceil(wanted / len(sets))
    too_short = next((one for one in sets if len(one.prompts) <= each), None)
    if too_short is not None:
        limit = f"set {too_short.name!r} has {len(too_short.prompts)} questions, and some must be left to measure"
        raise InvalidRequest("calibration", wanted, limit)
    return [one.part(slice(None, -each)) for one in sets], [one.part(slice(-each, None)) for one in sets]


def measure_with(
    decoder: Callable[[Action], Decoder], tokenizer: Tokenizer, rules: AnswerRules, concurrency: int
) -> Measure:
    """Measure by asking; only first turns."""
    short = replace(rules, most_turns=1)

    def measure(action: Action, block: Block) -> float | None:
        questions, numbers = block
        result = ask(decoder(action), tokenizer, questions, numbers, concurrency, short)
        return speed(result, concurrency)

    return measure


def sweep(
    table: ActionTable, blocks: Sequence[Block], concurrency: int, measure: Measure, rng: random.Random
) -> SweepReport:
    """Search the table. :param blocks: each as many questions as run at the same time."""
    measured: set[Action] = set()
    rounds: list[SweepRound] = []
    candidates = coarse(table)
    best = candidates[0]
    while len(rounds) < _MOST_ROUNDS:
        measured |= set(candidates)
        rounds.append(_race(candidates, blocks, measure, rng))
        before, best = best, rounds[-1].relative_speeds[0][0]
        fresh = [action for action in neighbours(best, table) if action not in measured]
        if not fresh or (len(rounds) > 1 and best == before):
            break
        candidates = [best, *fresh]
    return SweepReport(concurrency, best, tuple(rounds))


def coarse(table: ActionTable) -> list[Action]:
    """`off`, where the table has it, and for each total_tokens the tree nearest to a balanced one.

    Balanced: as deep as the tokens have powers of two, and as wide as their root.
    """
    chosen = [OFF] if OFF in table.actions else []
    trees = [action for action in table if not action.is_off]
    for total in sorted({action.total_tokens for action in trees}):
        same = [action for action in trees if action.total_tokens == total]
        chosen.append(min(same, key=lambda action: (_distance(action), action)))
    return chosen


def neighbours(action: Action, table: ActionTable) -> list[Action]:
    """The table's actions that differ by one notch in one knob; those of `off` are the smallest trees."""
    trees = [each for each in table if not each.is_off]
    if action.is_off:
        fewest = min((each.total_tokens for each in trees), default=0)
        return [each for each in trees if each.total_tokens == fewest]
    found = [OFF] if OFF in table.actions else []
    for knob in ("total_tokens", "depth", "top_k"):
        notches = sorted({getattr(each, knob) for each in trees})
        place = notches.index(getattr(action, knob))
        for next_place in (place - 1, place + 1):
            if 0 <= next_place < len(notches):
                moved = replace(action, **{knob: notches[next_place]})
                found += [moved] if moved in table.actions else []
    return found


def _distance(action: Action) -> float:
    depth, top_k = math.log2(action.total_tokens), math.sqrt(action.total_tokens)
    return abs(action.depth - depth) + abs(math.log2(action.top_k / top_k))


def _race(actions: Sequence[Action], blocks: Iterable[Block], measure: Measure, rng: random.Random) -> SweepRound:
    running = list(actions)
    logs: dict[Action, list[float]] = {action: [] for action in actions}
    relative: dict[Action, float] = {}
    for number, block in enumerate(blocks, start=1):
        speeds = {action: measure(action, block) for action in rng.sample(running, len(running))}
        if any(found is None for found in speeds.values()):
            continue
        for action, found in speeds.items():
            logs[action].append(math.log(found or 1.0))
        means = {action: sum(logs[action]) / len(logs[action]) for action in running}
        top = max(means.values())
        relative |= {action: math.exp(means[action] - top) for action in running}
        if number >= _BLOCKS_BEFORE_DROPPING:
            running = [action for action in running if relative[action] >= _DROPPED_BELOW]
    if not relative:
        raise InvalidRequest("calibration", len(actions), "every answer to its questions was one token long")
    order = sorted(relative, key=lambda action: (action in running, relative[action]), reverse=True)
    return SweepRound(tuple((action, relative[action]) for action in order))
