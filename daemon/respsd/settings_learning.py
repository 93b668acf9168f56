"""Settings of what the daemon learns from and how: exploration, calibration, the log, updates, rollout, upkeep."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from respsd.settings_section import Positive, Section, Unlimited, numbers


class ExplorationSettings(Section):
    """Requests that try the learner out, so that there is something to learn from."""

    share: float = Field(default=0.1, ge=0, le=1)
    """Share of the requests that leave the choice of trees to the daemon; the learner chooses for these."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature at which the learner's actions are drawn. Rows hold the probabilities that were drawn by, but windows
    drawn at another temperature than 1 are off-policy for PPO."""


class CalibrationSettings(Section):
    """Measuring what draft trees cost and earn here, which decides the baseline and the first learner's start."""

    at_start: Literal["auto", "always", "never"] = "auto"
    """`auto` measures where the state directory has no measurement of these models on this machine yet."""
    seconds: float = Field(default=60.0, ge=1)
    """About how long it takes."""


class RolloutSettings(Section):
    """How candidates are compared with the champion, and the champion with what it must beat."""

    enabled: bool = True
    """Whether candidates are evaluated; without it aliases move by hand only."""
    margin: float = Field(default=0.02, gt=0, lt=0.5)
    """A candidate is promoted once it is certain to be less than this share slower than the champion."""
    alpha: float = Field(default=0.01, gt=0, le=0.2)
    """Probability of rolling back a policy that is not slower, and of promoting one that is slower by the margin."""
    alpha_per_day: float = Field(default=0.05, gt=0, le=0.5)
    """The sum of these probabilities over all evaluations of a day; later ones get less and need more evidence."""
    clip: float = Field(default=0.5, gt=0.05, le=3)
    """Log ratios of speeds are cut to [-clip, clip]."""
    min_pairs: int = Field(default=8, ge=1)
    """Observations (ABBA quads of windows) before a verdict."""
    max_pairs: int = Field(default=1500, ge=1)
    """Observations after which an evaluation ends without a verdict, and the champion stays."""
    shadow_windows: int = Field(default=8, ge=0)
    """Windows at which the candidate is asked and not obeyed, before it serves any."""
    ramp: Annotated[tuple[float, ...], BeforeValidator(numbers), Field(min_length=1)] = (0.01, 0.05, 0.25, 0.5)
    """Shares of windows that the candidate serves, stage by stage."""
    gate_pairs: int = Field(default=1, ge=1)
    """Observations of a stage before the next. One lets a machine with few requests come through the ramp; where there
    are many, more make the ramp slower and cost little."""
    holdout_last_good: float = Field(default=0.05, ge=0, le=0.25)
    """Share of windows that last-good goes on serving, so that the champion stays measured against it."""
    holdout_baseline: float = Field(default=0.015, ge=0, le=0.25)
    """The same for the static baseline."""
    holdout_off: float = Field(default=0.005, ge=0, le=0.25)
    """The same for plain decoding."""
    holdout_pairs: int = Field(default=400, ge=1)
    """Observations after which a holdout's comparison starts afresh, so that it is not judged by old traffic."""
    cooldown_seconds: float = Field(default=600, ge=0)
    """Pause after an automatic rollback before the next candidate is evaluated."""
    rollbacks_per_day: int = Field(default=3, ge=1)
    """Automatic rollbacks within a day that freeze learning."""
    step_time_factor: float = Field(default=3.0, gt=1)
    """A candidate whose steps take more than this times the control's, at a like batch size, is stopped at once,"""
    step_time_steps: int = Field(default=8, ge=1)
    """once so many steps in a row did."""
    policy_milliseconds: float = Field(default=5.0, gt=0)
    """A candidate that takes longer than this to choose is stopped at once,"""
    policy_choices: int = Field(default=3, ge=1)
    """once so many choices in a row did."""

    @model_validator(mode="after")
    def _shares_rise_to_half(self) -> Self:
        if list(self.ramp) != sorted(set(self.ramp)) or not 0 < self.ramp[0] <= self.ramp[-1] <= 0.5:
            raise ValueError(f"ramp: {list(self.ramp)} must be rising shares above 0 and at most 0.5")
        if self.min_pairs > self.max_pairs:
            raise ValueError(f"min_pairs: {self.min_pairs} is over max_pairs, {self.max_pairs}")
        return self


class RecorderSettings(Section):
    """The experience log, transitions.db."""

    enabled: bool = True
    """Whether requests and windows are logged; without it nothing can be learnt."""
    queue_rows: int = Field(default=65536, ge=1)
    """Rows that may wait for the writer; past it whole requests are dropped and counted."""


class LearningSettings(Section):
    """Training of the next policy on logged explorer windows."""

    enabled: bool = True
    """Whether updates run by themselves."""
    interval_seconds: float = Field(default=60.0, gt=0)
    """How often it is looked whether there is enough to learn from."""
    min_new_windows: int = Field(default=256, ge=2)
    """New explorer windows that an update waits for (the rollout of PPO; 64 in the Re-SpS paper)."""
    max_windows: int = Field(default=1 << 14, ge=2)
    """Windows that one update reads; of more the newest, which bounds its memory."""
    time_limit_seconds: float = Field(default=300.0, gt=0)
    """An update that takes longer is killed."""
    memory_limit_mib: int = Field(default=2048, ge=256)
    """An update whose process takes more memory is killed."""
    nice: int = Field(default=10, ge=0, le=19)
    """How much the update's process gives way to others."""
    max_version_lag: int = Field(default=4, ge=0)
    """Windows whose action was drawn by a learner more than this many versions ago are left out."""
    max_log_ratio: float = Field(default=0.7, gt=0)
    """Windows whose action has become more or less probable by more than e to this are left out."""
    min_effective_share: float = Field(default=0.5, ge=0, le=1)
    """An update is refused where the effective sample size over the number of windows is lower."""
    max_kl: float = Field(default=0.2, gt=0)
    """An update is refused where the new policy has moved further from the old one, in nats."""
    held_out_every: int = Field(default=5, ge=2)
    """One request in so many is never trained on; new and old policies are compared on it."""
    min_held_out_windows: float = Field(default=20.0, ge=1)
    """Effective held-out windows that a candidate's estimate needs."""
    reward: Literal["log_speed", "relative_speed", "tokens_per_second"] = "log_speed"
    """What a window earns; the first two are relative to the baseline's speed."""
    request_effect: bool = True
    """Take out of a window's reward what the other windows of its request tell about the request."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Of Adam; 3e-4 in the Re-SpS paper."""
    batch_size: int = Field(default=64, ge=2)
    """Windows of a minibatch."""
    epochs: int = Field(default=10, ge=1)
    """Passes over an update's windows."""
    gamma: float = Field(default=0.0, ge=0, le=1)
    """Discount of later windows' rewards; 0 holds an action to account for its own window only."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Of generalised advantage estimation."""
    clip_range: float = Field(default=0.2, gt=0, lt=1)
    """How far probability ratios may move in an update before they stop counting."""
    entropy_coefficient: float = Field(default=0.1, ge=0)
    """Weight of the policy's entropy: how strongly exploration is kept up."""
    value_coefficient: float = Field(default=0.5, ge=0)
    """Weight of the critic's loss."""
    max_gradient_norm: float = Field(default=0.5, gt=0)
    """Gradients are scaled down to this norm."""
    target_kl: float = Field(default=0.05, gt=0)
    """An update's epochs end early once the policy has moved one and a half times as far, in nats."""


class RetentionSettings(Section):
    """What the experience log keeps; the oldest requests go first, each with all its windows."""

    max_age_days: Annotated[Annotated[float, Field(gt=0)] | None, Unlimited] = 30.0
    """Requests that finished longer ago go, or `unlimited`; but not what the next update has yet to read."""
    max_rows: Annotated[Positive | None, Unlimited] = 1_000_000
    """Windows that stay, or `unlimited`; but what the next update has yet to read stays as well."""
    max_bytes: Annotated[Annotated[int, Field(ge=1 << 20)] | None, Unlimited] = 4 << 30
    """Bytes of the file that are in use, or `unlimited`; past it even what the next update has yet to read goes."""
    chunk_rows: int = Field(default=500, ge=1)
    """Rows that one transaction deletes; a single request may have more."""
    interval_seconds: float = Field(default=900.0, gt=0)
    """Time between two looks at the limits."""


class ScheduleSettings(Section):
    """Upkeep of the databases while the daemon runs."""

    backup_hours: Annotated[Annotated[float, Field(gt=0)] | None, Unlimited] = 24.0
    """Time between two backups of registry.db and transitions.db, or `unlimited`: none are made."""
    backup_keep: int = Field(default=3, ge=1)
    """Backups of each file that stay."""
    check_hours: float = Field(default=24.0, gt=0)
    """Time between two looks for damage in the databases."""
    keep_versions: int = Field(default=100, ge=1)
    """Newest policy versions that stay; beside them what an alias points to, the pinned one, and their parents."""
    misfire_grace_seconds: Annotated[Annotated[float, Field(gt=0)] | None, Unlimited] = None
    """How late a run may start, after a suspend for instance; `unlimited`: a run that is due is never lost."""
    recheck_seconds: float = Field(default=30.0, gt=0)
    """How soon an update that had to wait, for windows or for a database, looks again."""
