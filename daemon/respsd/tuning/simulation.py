"""Runs the learning loop on a simulated machine: explorers sample the learner, updates train the next one, and so on.

Rows go through the real writer into a real experience log, updates through the real job into a real policy store; only
the machine is simulated, and the updates run in this process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from policy_store import PolicyStore
from respsd import __version__
from respsd.control.action import EAGLE3, Action
from respsd.control.bootstrap import open_policies
from respsd.control.controller import Controller
from respsd.control.loader import PolicyLoader
from respsd.control.network import PolicyNetwork, log_softmax
from respsd.control.router import BASELINE, LEARNER
from respsd.experience.backlog import Entry
from respsd.experience.database import open_log
from respsd.experience.records import RequestRecord
from respsd.experience.rows import Origin
from respsd.experience.writer import Writer
from respsd.paths import POLICIES, TRANSITIONS
from respsd.settings_learning import LearningSettings
from respsd.tuning.environment import Environment, Machine, ServedWindow
from respsd.tuning.experience import LoggedExperience
from respsd.tuning.update import UpdateContext, update_learner

_ORIGIN = Origin("simulation", "simulation", "simulation", "simulation", "float32", "cpu", "simulation")
_BASELINE_EVERY = 49
"""One request in so many is served by the baseline, which tells its speed."""
_WRITTEN_AT_ONCE = 32
_JUDGED_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What `respsd tune simulate` prints; speeds are true tokens/s, without noise."""

    greedy: float
    """Of the last learner's most probable actions."""
    best_constant: float
    optimum: float
    baseline: float
    first: float
    """Of the first learner sampled, which is nearly uniform."""
    sampled: float
    """Of the last learner sampled at temperature 1."""
    updates: int
    refused: int
    candidates: int
    windows: int
    greedy_over_optimum: float
    best_constant_action: str
    greedy_actions: dict[str, str]
    """By kind of text: the action that was taken most."""
    entropy: float
    drift: dict[str, float]
    """How the mean of each knob under the policy moved from first to last, over its standard deviation in the table."""
    measured: dict[str, float]
    """Mean log tokens/s logged in the first and the last quarter of the requests; the difference's standard error."""


@dataclass(frozen=True, slots=True)
class Progress:
    """After an update."""

    windows: int
    version: int
    greedy: float


class Simulation:
    """One run."""

    def __init__(self, folder: Path, environment: Environment, settings: LearningSettings, seed: int) -> None:
        self._environment, self._settings, self._seed = environment, settings, seed
        self._machine = Machine(environment, seed)
        self._kinds = np.random.default_rng([seed, 1])
        self._store = PolicyStore(folder / POLICIES)
        self._log = folder / TRANSITIONS
        self._writer = Writer(lambda: open_log(self._log), _ORIGIN)
        schema, table = self._machine.schema, environment.table
        rng = np.random.default_rng(seed)
        self._router = open_policies(self._store, table, schema, EAGLE3, rng=rng, code_version=__version__)
        reserved = Action(*(max(a, b) for a, b in zip(_knobs(table.largest), _knobs(EAGLE3), strict=True)))
        self._loader = PolicyLoader(self._store, schema, reserved, {LEARNER: 1.0})
        self._first = self._store.aliases()[LEARNER]
        self._unwritten: list[Entry] = []
        self._log_speeds: list[float] = []
        self._updates = self._refused = self._candidates = 0

    def run(self, windows: int, progress: Callable[[Progress], None] | None = None) -> SimulationResult:
        """Serve that many windows, update as often as the settings say, and measure what was learnt."""
        served = since_update = requests = 0
        while served < windows:
            arm = BASELINE if requests % _BASELINE_EVERY == 0 else LEARNER
            fresh = self._serve(arm, requests)
            served, requests = served + fresh, requests + 1
            since_update += fresh if arm == LEARNER else 0
            if since_update >= self._settings.min_new_windows:
                self._update()
                since_update = 0
                if progress is not None:
                    progress(Progress(served, self._learner, self._greedy()[0]))
        result = self._result(served)
        self._writer.close()
        self._store.close()
        return result

    @property
    def _learner(self) -> int:
        return self._store.aliases()[LEARNER]

    def _serve(self, arm: str, number: int) -> int:
        kind = int(self._kinds.integers(len(self._environment.kinds)))  # whoever serves, or arms would not compare
        served = list(self._machine.serve(kind, lambda: self._router.controller(arm)))
        records = tuple(window.record for window in served)
        if arm == LEARNER:
            tokens = sum(record.committed_tokens for record in records)
            self._log_speeds.append(float(np.log(tokens / sum(r.draft_ns + r.verify_ns for r in records) * 1e9)))
        self._unwritten.append(Entry(_request(number, records[-1].opened_at_ns), records))
        if len(self._unwritten) >= _WRITTEN_AT_ONCE:
            self._flush()
        return len(records)

    def _flush(self) -> None:
        self._writer.write(self._unwritten)
        self._unwritten.clear()

    def _update(self) -> None:
        self._flush()
        seed = int(np.random.default_rng([self._seed, self._updates, self._refused]).integers(2**31))
        report = update_learner(
            UpdateContext(self._store, LoggedExperience(self._log), self._settings, seed, __version__)
        )
        if report.version is None:
            self._refused += 1
            return
        self._updates += 1
        self._candidates += report.candidate
        self._store.set_alias(LEARNER, report.version, actor="simulation", reason="update")
        self._router.swap(LEARNER, self._loader.controller(report.version, LEARNER))

    def _greedy(self) -> tuple[float, dict[str, str]]:
        return self._true_speed(self._loader.controller(self._learner, BASELINE))  # an arm without a temperature

    def _true_speed(self, controller: Controller) -> tuple[float, dict[str, str]]:
        """True tokens/s of a controller on requests of its own, as many of each kind; and its usual actions."""
        machine = Machine(self._environment, seed=1_000_003 + self._seed)
        speeds, actions = [], {}
        for kind, text in enumerate(self._environment.kinds):
            windows: list[ServedWindow] = []
            for _ in range(_JUDGED_REQUESTS // len(self._environment.kinds)):
                windows += machine.serve(kind, lambda: controller)
            tokens = sum(window.record.committed_tokens for window in windows)
            speeds.append(tokens / sum(window.record.committed_tokens / window.true_speed for window in windows))
            taken = [str(window.record.decision.action) for window in windows]
            actions[text.name] = max(set(taken), key=taken.count)
        return self._environment.overall(speeds), actions

    def _result(self, served: int) -> SimulationResult:
        environment = self._environment
        greedy, actions = self._greedy()
        last, last_entropy = self._mean_knobs(self._learner)
        first, _ = self._mean_knobs(self._first)
        spread = np.std([_knobs(action) for action in environment.table], axis=0)
        drift = (last - first) / np.maximum(spread, 1e-9)
        quarter = max(len(self._log_speeds) // 4, 2)
        early, late = np.array(self._log_speeds[:quarter]), np.array(self._log_speeds[-quarter:])
        best = environment.best_constant()
        return SimulationResult(
            greedy=greedy,
            best_constant=environment.constant(best),
            optimum=environment.optimum(),
            baseline=environment.constant(EAGLE3),
            first=self._true_speed(self._loader.controller(self._first, LEARNER))[0],
            sampled=self._true_speed(self._loader.controller(self._learner, LEARNER))[0],
            updates=self._updates,
            refused=self._refused,
            candidates=self._candidates,
            windows=served,
            greedy_over_optimum=greedy / environment.optimum(),
            best_constant_action=str(best),
            greedy_actions=actions,
            entropy=last_entropy,
            drift=dict(zip(("total_tokens", "depth", "top_k"), map(float, drift), strict=True)),
            measured={
                "first_quarter": float(early.mean()),
                "last_quarter": float(late.mean()),
                "standard_error": float(np.sqrt((early.var() + late.var()) / quarter)),
            },
        )

    def _mean_knobs(self, version: int) -> tuple[np.ndarray, float]:
        """Mean total_tokens, depth and top_k under a version, over fresh observations; and its mean entropy."""
        policy = self._store.load(version)
        network = PolicyNetwork(policy.weights, policy.manifest.normaliser)
        machine = Machine(self._environment, seed=2_000_003 + self._seed)
        baseline = self._router.controller(BASELINE)
        log_probs = [
            log_softmax(network.logits(np.frombuffer(window.record.observation, "<f4")))
            for number in range(40)
            for window in machine.serve(number % len(self._environment.kinds), lambda: baseline)
        ]
        probabilities = np.exp(log_probs)
        knobs = np.array([_knobs(action) for action in self._environment.table])
        return (probabilities @ knobs).mean(axis=0), float(-(probabilities * log_probs).sum(axis=1).mean())


def simulate(
    environment: Environment,
    settings: LearningSettings,
    windows: int,
    seed: int,
    progress: Callable[[Progress], None] | None = None,
) -> SimulationResult:
    """Run once in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="respsd-simulation-") as folder:
        return Simulation(Path(folder), environment, settings, seed).run(windows, progress)


def _knobs(action: Action) -> tuple[int, int, int]:
    return (action.total_tokens, action.depth, action.top_k)


def _request(number: int, finished_at_ns: int) -> RequestRecord:
    return RequestRecord(
        request_id=f"simulated-{number}",
        created_at_ns=finished_at_ns,
        finished_at_ns=finished_at_ns,
        prompt_tokens=0,
        completion_tokens=0,
        finish_reason="length",
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        seed=number,
        steps=0,
        drafted_tokens=0,
        accepted_tokens=0,
        queue_ns=0,
        prefill_ns=0,
        decode_ns=0,
        policy_version_first=None,
        policy_version_last=None,
    )
