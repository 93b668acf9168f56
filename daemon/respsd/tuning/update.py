"""One update of the learner: read, guard, train, judge, store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from stable_baselines3 import PPO

from policy_store import PolicyStore
from policy_store.weights import Weights
from respsd.control.manifests import resps_manifest
from respsd.control.router import BASELINE
from respsd.settings_learning import LearningSettings
from respsd.tuning.baseline_speed import BaselineSpeed, SpeedPoint, fit_baseline_speed
from respsd.tuning.experience import ExperienceSource, Wanted
from respsd.tuning.judging import HeldOut, judge
from respsd.tuning.lineage import Lineage, read_lineage, training_window
from respsd.tuning.off_policy import effective_windows
from respsd.tuning.ppo_update import TrainingFigures, train
from respsd.tuning.report import Refusal, UpdateRefused, UpdateReport
from respsd.tuning.reward import REWARDS
from respsd.tuning.sb3_policy import log_probs, make_ppo, policy_weights, with_critic
from respsd.tuning.statistics import Statistics, express
from respsd.tuning.windows import Floats, Windows

ACTOR = "learner"
"""Who the audit log says made a version."""
_BASELINE_WINDOWS = 4096
"""Windows that the baseline's speed is fitted to, at most."""
_JUDGED_GENERATIONS = 32
_JUDGED_WINDOWS = 4096
"""Held-out windows are compared on as far back as this: no version was trained on them, however old they are."""


@dataclass(frozen=True, slots=True)
class UpdateContext:
    """What an update works with."""

    store: PolicyStore
    experience: ExperienceSource
    settings: LearningSettings
    seed: int
    code_version: str
    calibration: Sequence[SpeedPoint] = ()
    """Calibrated speeds of the baseline, for where it has not served yet."""


def update_learner(context: UpdateContext) -> UpdateReport:
    """Train the next version of the learner and store it; no alias is moved.

    Returns the report of a stored or a refused update. Raises StorageError or StoreError where log or store fail.
    """
    started = time.perf_counter()
    report = UpdateReport(status="refused")
    try:
        lineage = read_lineage(context.store, _JUDGED_GENERATIONS)
        report = replace(report, parent=lineage.version)
        report = _Update(context, lineage, report).run()
    except UpdateRefused as refusal:
        if refusal.report is not None:
            report = refusal.report
        report = replace(report, status="refused", reason=refusal.reason, detail=refusal.detail)
    return replace(report, seconds=time.perf_counter() - started)


class _Update:
    """The steps of one update; `report` grows with them."""

    def __init__(self, context: UpdateContext, lineage: Lineage, report: UpdateReport) -> None:
        self._context = context
        self._settings = context.settings
        self._lineage = lineage
        self._rng = np.random.default_rng(context.seed)
        self.report = report

    def run(self) -> UpdateReport:
        try:
            return self._run()
        except UpdateRefused as refusal:
            refusal.report = self.report  # what is known so far is worth keeping
            raise

    def _run(self) -> UpdateReport:
        newest = self._context.experience.newest()
        windows, left_out = self._read()
        speed = self._baseline_speed()
        self._note(baseline_source=speed.source)

        statistics = self._lineage.statistics.refined(windows.observation)
        weights = express(with_critic(self._lineage.learner.weights, self._rng), self._lineage.statistics, statistics)
        ppo = make_ppo(weights, self._settings, seed=int(self._rng.integers(2**31)))
        windows = self._guarded(ppo, windows, statistics, left_out)

        rewards = self._rewards(windows, speed)
        self._note(mean_reward=float(rewards.mean()))
        figures = train(ppo, windows, statistics.normalise(windows.observation), rewards, self._settings)
        self._check(ppo, figures)

        self._judge(weights, ppo, statistics, speed)
        draft = resps_manifest(
            weights := policy_weights(ppo.policy),
            self._lineage.table,
            self._lineage.schema,
            self._rng,
            hidden_sizes=self._lineage.hidden_sizes,
            normaliser=statistics.normaliser(),
            parent=self._lineage.version,
            training_window=training_window(newest, statistics, replace(self.report, status="stored").to_dict()),
            code_version=self._context.code_version,
            note=f"trained on {len(windows)} windows",
        )
        version = self._context.store.create(draft, weights, actor=ACTOR, reason=draft.note)
        self._note(status="stored", version=version)
        return self.report

    def _read(self) -> tuple[Windows, Counter[str]]:
        """Windows that are new to this lineage and recent enough to learn from, in bounded memory."""
        reading = self._context.experience.read(
            replace(
                self._wanted(held_out=False),
                versions=self._lineage.versions[: self._settings.max_version_lag + 1],
                after=self._lineage.watermark,
                limit=self._settings.max_windows,
            )
        )
        self._note(windows_left_out=dict(reading.left_out))
        self._refuse_few("too_few_windows", len(reading.windows), "new windows")
        return reading.windows, reading.left_out

    def _wanted(self, *, held_out: bool) -> Wanted:
        lineage = self._lineage
        return Wanted(
            schema_fingerprint=lineage.schema.fingerprint,
            width=lineage.schema.width,
            table_fingerprint=lineage.table.fingerprint,
            actions=len(lineage.table),
            versions=lineage.versions,
            held_out=held_out,
            held_out_every=self._settings.held_out_every,
            limit=_JUDGED_WINDOWS,
        )

    def _baseline_speed(self) -> BaselineSpeed:
        experience, baseline = self._context.experience, self._context.store.aliases().get(BASELINE)
        return fit_baseline_speed(
            experience.speeds(baseline if baseline is not None else -1, _BASELINE_WINDOWS),
            self._context.calibration,
            experience.speeds(None, _BASELINE_WINDOWS),
        )

    def _guarded(self, ppo: PPO, windows: Windows, statistics: Statistics, left_out: Counter[str]) -> Windows:
        """Leave out windows that the learner would hardly have chosen so; refuse where too little is left."""
        chosen = log_probs(ppo.policy, statistics.normalise(windows.observation))
        log_ratio = chosen[np.arange(len(windows)), windows.action] - windows.log_prob
        near = np.abs(log_ratio) <= self._settings.max_log_ratio
        left_out["log_ratio"] += int((~near).sum())
        weight: Floats = np.exp(log_ratio[near])
        windows = windows.select(near)
        share = effective_windows(weight) / max(len(windows), 1)
        self._note(windows_left_out=dict(+left_out), windows_used=len(windows), effective_share=share)
        self._refuse_few("off_policy", len(windows), "windows near enough to what the learner would choose")
        if share < self._settings.min_effective_share:
            limit = self._settings.min_effective_share
            raise UpdateRefused("effective_sample_size", f"{share:.2f} of the windows count, under {limit}")
        return windows

    def _refuse_few(self, reason: Refusal, windows: int, what: str) -> None:
        """Statistics, advantages and gradients of less than a minibatch would be noise."""
        if windows < self._settings.batch_size:
            least = self._settings.batch_size
            raise UpdateRefused(
                reason, f"there are {windows} {what}, and a minibatch (learning.batch_size) takes {least}"
            )

    def _rewards(self, windows: Windows, speed: BaselineSpeed) -> Floats:
        baseline = speed.log_speed(windows.context_length, windows.batch_size)
        return REWARDS[self._settings.reward](windows.committed_tokens, windows.seconds, baseline)

    def _check(self, ppo: PPO, figures: TrainingFigures) -> None:
        """Refuse a result that is no policy, or another one than an update may make."""
        self._note(
            kl=figures.kl,
            clip_share=figures.clip_share,
            entropy=figures.entropy,
            explained_variance=figures.explained_variance,
            value_loss=figures.value_loss,
            policy_loss=figures.policy_loss,
        )
        if not figures.finite:
            raise UpdateRefused("loss_not_finite", "a loss is not a number")
        if not all(np.isfinite(tensor).all() for tensor in policy_weights(ppo.policy).values()):
            raise UpdateRefused("weights_not_finite", "a weight is not a number")
        if figures.kl > self._settings.max_kl:
            raise UpdateRefused("kl", f"the policy moved by {figures.kl:.3f} nats, over {self._settings.max_kl}")

    def _judge(self, old: Weights, ppo: PPO, statistics: Statistics, speed: BaselineSpeed) -> None:
        windows = self._context.experience.read(self._wanted(held_out=True)).windows
        held_out = HeldOut(windows, statistics.normalise(windows.observation), self._rewards(windows, speed))
        old_ppo = make_ppo(old, self._settings, seed=0)
        verdict = judge(self._context, held_out, old_ppo.policy, ppo.policy, self._lineage.table, speed, self._rng)
        self._note(
            windows_held_out=len(windows),
            held_out={name: None if e is None else asdict(e) for name, e in verdict.estimates.items()},
            candidate=verdict.candidate,
            candidate_reason=verdict.reason,
        )

    def _note(self, **figures: object) -> None:
        self.report = replace(self.report, **figures)  # type: ignore[arg-type]
