"""A simulated machine that serves texts of several kinds: the best action depends on the kind, the optimum is known.

    tokens of a step  = 1 + q + q**2 + ... + q**levels            levels = depth + 1 drafted levels
    q                 = 1 - (1 - ceiling) * width**-breadth       width  = min(top_k, (total_tokens - 1) / levels)
    time of a step    = (base + levels * (level + branch * top_k) + token * total_tokens) * (1 + context / doubling)

A kind of text is (ceiling, breadth): how well a single guess does, and how much more guesses a level add. Times are
multiplied by log-normal noise, one factor per request and one per step; accepted tokens are drawn. Policies see what
the daemon shows them, features and signals of the real builders, and never the kind itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np

from respsd.control.action import Action, ActionTable
from respsd.control.controller import Controller, Vector
from respsd.control.observation import BLOCKS, ObservationBuilder, ObservationSchema
from respsd.control.signals import SignalTracker
from respsd.engine.window import StepMeasure, Window
from respsd.experience.records import TransitionRecord

HIDDEN = 32
"""Width of a block of simulated features."""
_CONTEXT_LIMIT = 8192


@dataclass(frozen=True, slots=True)
class TextKind:
    """How predictable a kind of text is to the drafter."""

    name: str
    ceiling: float
    """Acceptance of a level of one token."""
    breadth: float
    """How fast the rest shrinks as a level gets wider."""

    def acceptance(self, action: Action) -> float:
        """Probability that a drafted level holds the target's token, given that the level above does."""
        width = max(min(action.top_k, (action.total_tokens - 1) / _levels(action)), 1.0) if not action.is_off else 1.0
        return float(1 - (1 - self.ceiling) * width**-self.breadth)

    def tokens(self, action: Action) -> float:
        """Expected tokens of a step."""
        acceptance = self.acceptance(action)
        return 1 + sum(acceptance**level for level in range(1, _levels(action) + 1))


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Milliseconds of a step's parts. The defaults are those of a GPU: wide trees are cheap, levels are not."""

    base: float = 25.0
    level: float = 2.0
    branch: float = 0.02
    token: float = 0.05
    context_doubling: float = 8192.0
    """Tokens of context at which a step takes twice as long."""

    def milliseconds(self, action: Action, context_length: int) -> tuple[float, float]:
        """Of drafting and of the rest."""
        scale = 1 + context_length / self.context_doubling
        draft = _levels(action) * (self.level + self.branch * action.top_k)
        return draft * scale, (self.base + self.token * action.total_tokens) * scale


PREDICTABLE = TextKind("predictable", 0.95, 0.0)
SURPRISING = TextKind("surprising", 0.02, 0.5)


@dataclass(frozen=True)
class Environment:
    """The machine and its traffic; kinds are equally frequent."""

    table: ActionTable
    kinds: tuple[TextKind, ...] = (PREDICTABLE, SURPRISING)
    costs: StepCosts = StepCosts()
    request_sigma: float = 0.35
    step_sigma: float = 0.1
    persistence: int = 10
    mean_tokens: int = 300
    """Of a request's budget."""
    only: Action | None = None
    """Whatever is chosen, this action is run: there is nothing to learn."""

    def tokens_per_second(self, kind: TextKind, action: Action, context_length: int = 0) -> float:
        """Without noise."""
        action = self.only or action
        return 1000 * kind.tokens(action) / sum(self.costs.milliseconds(action, context_length))

    def overall(self, speeds: Sequence[float]) -> float:
        """Tokens/s over traffic with equally many tokens of each kind, from a speed for each kind."""
        return len(speeds) / sum(1 / speed for speed in speeds)

    def optimum(self) -> float:
        """Tokens/s of the best action of the table for each kind, at an empty context."""
        return self.overall([max(self.tokens_per_second(kind, action) for action in self.table) for kind in self.kinds])

    def constant(self, action: Action) -> float:
        """Tokens/s of one action for every text."""
        return self.overall([self.tokens_per_second(kind, action) for kind in self.kinds])

    def best_constant(self) -> Action:
        """The action that serves all texts best."""
        return max(self.table, key=self.constant)


@dataclass(frozen=True, slots=True)
class ServedWindow:
    """A window as logged, and the speed that its action has without noise."""

    record: TransitionRecord
    true_speed: float
    """At an empty context, so that it compares with `Environment.optimum`."""


class Machine:
    """Serves simulated requests as the daemon would: windows of `persistence` steps, one question to the controller."""

    def __init__(self, environment: Environment, seed: int) -> None:
        self.environment = environment
        self.schema = ObservationSchema(BLOCKS * HIDDEN)
        self._builder = ObservationBuilder(self.schema)
        self._random = Random(seed)
        self._noise = np.random.default_rng(seed)
        centres = np.random.default_rng(0)  # what the kinds look like is the same for all seeds
        self._centres = [centres.standard_normal(self.schema.feature_width) for _ in environment.kinds]
        self._clock_ns = 1_800_000_000_000_000_000

    def serve(self, kind: int, choose: Callable[[], Controller]) -> Iterator[ServedWindow]:
        """One request, window by window; `choose` says who decides when a window opens."""
        environment, text = self.environment, self.environment.kinds[kind]
        signals = SignalTracker()
        left = max(round(self._random.expovariate(1 / environment.mean_tokens)), 1)
        context = self._random.randint(20, 1000)
        pace = self._random.gauss(0, environment.request_sigma)
        number = 0
        while left > 0:
            observation = self._builder.build(self._features(kind), signals.vector(context, _CONTEXT_LIMIT, 1.0, 0.0))
            decision = choose().choose(observation, self._random.random())
            window = Window(number, self._clock_ns, observation, decision, context)
            committed = self._run(window, text, environment.only or decision.action, signals, context, left, pace)
            record = window.close(self.schema.fingerprint, truncated=window.steps < environment.persistence)
            assert record is not None
            yield ServedWindow(record, environment.tokens_per_second(text, decision.action))
            left, context, number = left - committed, context + committed, number + 1

    def _run(
        self,
        window: Window,
        text: TextKind,
        action: Action,
        signals: SignalTracker,
        context: int,
        left: int,
        pace: float,
    ) -> int:
        """The steps of a window; returns the tokens that it committed."""
        acceptance, levels = text.acceptance(action), _levels(action)
        costs = self.environment.costs.milliseconds(action, context)
        log_probs, depths = self._tree(acceptance, levels)
        committed = 0
        for _ in range(self.environment.persistence):
            accepted = 0
            while accepted < levels and self._random.random() < acceptance:
                accepted += 1
            tokens = min(accepted + 1, left - committed)
            draft, rest = (_noisy(part, pace + self._random.gauss(0, self.environment.step_sigma)) for part in costs)
            window.add(StepMeasure(action, action.total_tokens - 1, tokens - 1, tokens, draft, rest, 0, 1))
            signals.observe_step(action, log_probs, depths, 2.0 * (1 - acceptance), tokens - 1)
            committed += tokens
            self._clock_ns += draft + rest
            if committed == left:
                break
        return committed

    def _features(self, kind: int) -> Vector:
        noise = self._noise.standard_normal(self.schema.feature_width)
        features: Vector = (self._centres[kind] + noise).astype(np.float32)
        return features

    def _tree(self, acceptance: float, levels: int) -> tuple[list[float], list[int]]:
        """Log-probabilities and levels of the best node of each level, as a drafter might give them."""
        sure = np.log(max(acceptance, 1e-3)) + self._random.gauss(0, 0.3)
        return [sure * level for level in range(1, levels + 1)], list(range(1, levels + 1))


@lru_cache(maxsize=4096)
def _levels(action: Action) -> int:
    """Drafted levels."""
    return 0 if action.is_off else action.depth + 1


def _noisy(milliseconds: float, log_factor: float) -> int:
    return int(1e6 * milliseconds * np.exp(log_factor))
