"""Whether a new learner may stand as candidate: its value on held-out requests against the champion's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from stable_baselines3.common.policies import ActorCriticPolicy

from policy_store import StoredPolicy, StoreError
from respsd.control.action import Action, ActionTable
from respsd.control.network import PolicyNetwork
from respsd.control.router import CHAMPION
from respsd.tuning.baseline_speed import BaselineSpeed
from respsd.tuning.off_policy import Estimate, estimate
from respsd.tuning.reward import REWARDS
from respsd.tuning.sb3_policy import Observations, log_probs
from respsd.tuning.windows import Floats, Integers, Windows

if TYPE_CHECKING:
    from respsd.tuning.update import UpdateContext

_CHAMPION_WINDOWS = 4096
_LARGEST_WEIGHT = 50.0
"""Importance weights are cut here: a little bias towards the log's policies keeps single windows from deciding."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Windows [n] that no version was trained on, with normalised observations and rewards."""

    windows: Windows
    observations: Observations
    rewards: Floats


@dataclass(frozen=True, slots=True)
class Verdict:
    """The estimates, and what follows."""

    estimates: Mapping[str, Estimate | None]
    candidate: bool
    reason: str


def judge(
    context: UpdateContext,
    held_out: HeldOut,
    old: ActorCriticPolicy,
    new: ActorCriticPolicy,
    table: ActionTable,
    speed: BaselineSpeed,
    rng: np.random.Generator,
) -> Verdict:
    """Compare the policies as they would serve: the new one and the champion by their most probable action."""
    old_log_probs, new_log_probs = log_probs(old, held_out.observations), log_probs(new, held_out.observations)
    greedy = new_log_probs.argmax(axis=1)
    estimates = {
        "old": _of_weight(held_out, _sampled(held_out, old_log_probs), rng),
        "new": _of_weight(held_out, _sampled(held_out, new_log_probs), rng),
        "new_greedy": _of_weight(held_out, _constant_choice(held_out, greedy), rng),
        "champion": _champion(context, held_out, table, speed, rng),
    }
    candidate, reason = _compare(estimates["new_greedy"], estimates["champion"], context.settings.min_held_out_windows)
    return Verdict(estimates, candidate, reason)


def _compare(new: Estimate | None, champion: Estimate | None, needed: float) -> tuple[bool, str]:
    effective = 0.0 if new is None else new.effective_windows
    if new is None or effective < needed:
        return False, f"{effective:.0f} effective held-out windows, under {needed:.0f}"
    if champion is None:
        return False, "nothing in the log tells the champion's value"
    if new.mean < champion.mean:
        return False, f"estimated {new.mean:.3f}, under the champion's {champion.mean:.3f}"
    return True, f"estimated {new.mean:.3f}, not below the champion's {champion.mean:.3f}"


def _champion(
    context: UpdateContext, held_out: HeldOut, table: ActionTable, speed: BaselineSpeed, rng: np.random.Generator
) -> Estimate | None:
    """From the champion's own windows where there are enough, else from the held-out ones."""
    version = context.store.aliases().get(CHAMPION)
    if version is None:
        return None
    rows = context.experience.speeds(version, _CHAMPION_WINDOWS)
    if len(rows) >= context.settings.min_held_out_windows:
        baseline = speed.log_speed(rows.context_length, rows.batch_size)
        rewards = REWARDS[context.settings.reward](rows.committed_tokens, rows.seconds, baseline)
        return estimate(rows.steps.astype(np.float64), rewards, rows.lane, rng)
    try:
        choice = _choices(context.store.load(version), held_out.windows.observation, table)
    except StoreError:
        return None
    return None if choice is None else _of_weight(held_out, _constant_choice(held_out, choice), rng)


def _choices(policy: StoredPolicy, observations: Observations, table: ActionTable) -> Integers | None:
    """The champion's actions [n] in the learner's table; None where the tables differ, or its action is not there."""
    manifest = policy.manifest
    if manifest.action is not None:
        action = Action(*manifest.action)
        return np.full(len(observations), table.index(action)) if action in table.actions else None
    if ActionTable(tuple(Action(*triple) for triple in manifest.action_table)).fingerprint != table.fingerprint:
        return None
    network = PolicyNetwork(policy.weights, manifest.normaliser)
    return np.array([int(network.logits(observation).argmax()) for observation in observations], np.int64)


def _sampled(held_out: HeldOut, policy_log_probs: Floats) -> Floats:
    """Importance weights [n] of a policy that is sampled at temperature 1."""
    windows = held_out.windows
    if not len(windows):
        return np.zeros(0)
    log_ratio = policy_log_probs[np.arange(len(windows)), windows.action] - windows.log_prob
    weight: Floats = np.exp(np.minimum(log_ratio, np.log(_LARGEST_WEIGHT)))
    return weight


def _constant_choice(held_out: HeldOut, choice: Integers) -> Floats:
    """Importance weights [n] of a policy that takes `choice` [n] with certainty."""
    windows = held_out.windows
    weight: Floats = np.minimum(np.exp(-windows.log_prob), _LARGEST_WEIGHT) * (windows.action == choice)
    return weight


def _of_weight(held_out: HeldOut, weight: Floats, rng: np.random.Generator) -> Estimate | None:
    steps = held_out.windows.steps
    return estimate(weight * steps / max(int(steps.max(initial=1)), 1), held_out.rewards, held_out.windows.lane, rng)
