from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from respsd.control.action import EAGLE3, OFF, Action
from respsd.control.signals import LEVELS, SIGNAL_NAMES, SIGNALS_WIDTH, SignalTracker

TREE = Action(4, 2, 2)


def named(tracker: SignalTracker, context: int = 255, limit: int = 1024, batch: float = 1, temperature: float = 0.0):
    vector = tracker.vector(context, limit, batch, temperature)
    assert vector.shape == (SIGNALS_WIDTH,)
    assert vector.dtype == np.float32
    return dict(zip(SIGNAL_NAMES, vector.tolist(), strict=True))


def test_names_are_unique() -> None:
    assert len(set(SIGNAL_NAMES)) == SIGNALS_WIDTH


def test_before_the_first_step_only_the_request_is_known() -> None:
    signals = named(SignalTracker(), context=255, limit=1024, batch=4, temperature=0.7)
    known = {
        **{f"acceptance_{level}": 0.5 for level in range(1, LEVELS + 1)},
        "context_log": 0.5,
        "context_share": pytest.approx(255 / 1024),
        "batch_size": pytest.approx(2 / 7),
        "temperature": pytest.approx(0.7),
        "first_window": 1.0,
    }
    assert signals == {name: known.get(name, 0.0) for name in SIGNAL_NAMES}


def test_the_last_tree_is_seen_by_level() -> None:
    tracker = SignalTracker()
    tracker.observe_step(TREE, [-9.0], [1], 1.0, 0)
    tracker.observe_step(TREE, [-2.0, -1.0, -4.0, -3.0, -30.0], [1, 1, 2, 2, 3], 2.5, 1)
    signals = named(tracker)
    assert [signals[f"best_log_prob_{level}"] for level in (1, 2, 3)] == pytest.approx([-1 / 20, -3 / 20, -1.0])
    assert all(signals[f"best_log_prob_{level}"] == -1.0 for level in range(4, LEVELS + 1))
    assert signals["tree_known"] == 1.0
    assert signals["root_entropy"] == pytest.approx(0.25)
    assert signals["first_window"] == 0.0


def test_committed_tokens_are_averaged_with_the_bonus_token() -> None:
    tracker = SignalTracker()
    for accepted in (2, 0, 1):
        tracker.observe_step(TREE, [-1.0], [1], 1.0, accepted)
    signals = named(tracker)
    ema = 3 + 0.1 * (1 - 3)  # starts at the first step's 3
    ema += 0.1 * (2 - ema)
    assert signals["committed_ema"] == pytest.approx(ema / 10)
    assert signals["committed_mean"] == pytest.approx((3 + 1 + 2) / 3 / 10)


def test_acceptance_counts_only_levels_that_the_tree_could_reach() -> None:
    tracker = SignalTracker()
    tracker.observe_step(TREE, [-1.0, -2.0, -3.0], [1, 2, 3], 1.0, 2)  # levels 1 to 3
    signals = named(tracker)
    assert [signals[f"acceptance_{level}"] for level in (1, 2, 3, 4)] == pytest.approx([0.55, 0.55, 0.45, 0.5])


def test_a_plain_step_leaves_acceptance_alone_and_shows_no_tree() -> None:
    tracker = SignalTracker()
    tracker.observe_step(TREE, [-1.0], [1], 1.0, 3)
    tracker.observe_step(OFF, [], [], math.nan, 0)
    signals = named(tracker)
    assert signals["acceptance_1"] == pytest.approx(0.55)
    assert signals["tree_known"] == signals["root_entropy"] == signals["best_log_prob_1"] == 0.0
    assert (signals["last_off"], signals["last_total_tokens"], signals["last_depth"], signals["last_top_k"]) == (
        1,
        0,
        0,
        0,
    )


def test_the_last_action_is_scaled_to_one() -> None:
    tracker = SignalTracker()
    tracker.observe_step(Action(128, 8, 32), [-1.0], [1], 1.0, 0)
    signals = named(tracker)
    assert [signals[name] for name in ("last_total_tokens", "last_depth", "last_top_k", "last_off")] == [1, 1, 1, 0]


def test_numpy_arrays_do_as_well_as_lists() -> None:
    log_probs, depths = [-1.5, -0.5, -2.0], [1, 1, 2]
    of_lists, of_arrays = SignalTracker(), SignalTracker()
    of_lists.observe_step(TREE, log_probs, depths, 1.0, 1)
    of_arrays.observe_step(TREE, np.array(log_probs, np.float32), np.array(depths), 1.0, 1)  # type: ignore[arg-type]
    assert named(of_lists) == named(of_arrays)


def test_levels_beyond_the_ninth_are_left_out() -> None:
    tracker = SignalTracker()
    tracker.observe_step(Action(60, 20, 2), [-1.0] * 21, list(range(1, 22)), 1.0, 21)
    assert named(tracker)["best_log_prob_9"] == pytest.approx(-1 / 20)


number = st.floats(allow_nan=True, allow_infinity=True, width=32)
steps = st.lists(
    st.tuples(st.sampled_from([OFF, TREE, EAGLE3]), st.lists(number, max_size=8), number, st.integers(0, 9)), max_size=5
)


@given(steps, st.integers(0, 100_000), st.integers(1, 100_000), st.integers(1, 512))
def test_signals_are_always_finite_and_of_order_one(
    history: list[tuple[Action, list[float], float, int]], context: int, limit: int, batch: int
) -> None:
    tracker = SignalTracker()
    for action, log_probs, entropy, accepted in history:
        finite_entropy = entropy if not math.isfinite(entropy) else min(abs(entropy), 12.0)
        depths = [1 + number % 9 for number in range(len(log_probs))]
        tracker.observe_step(action, log_probs, depths, finite_entropy, accepted)
    vector = tracker.vector(min(context, limit), limit, batch, 1.0)
    assert np.isfinite(vector).all()
    assert np.abs(vector).max() <= 1.5
