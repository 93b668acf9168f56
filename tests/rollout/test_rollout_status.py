"""What `respsd status` says of the comparisons that are under way."""

from __future__ import annotations

import math

import pytest

from respsd.rollout.contest import Kind
from respsd.rollout.status import RolloutStatus, RoundStatus


def comparison(kind: Kind, subject: int | None, control: int | None, stage: int = 1) -> RoundStatus:
    return RoundStatus(kind, subject, control, stage, 0.05, 12, 0.0, math.log(0.9), math.log(1.25), 0.01)


@pytest.mark.parametrize(
    ("round_", "words"),
    [
        (comparison("candidate", 4, 1), "candidate: version 4 against 1, 5.0% of windows, 12 pairs, 1.000x (0.900 to"),
        (comparison("candidate", 4, 1, stage=0), "candidate: version 4 against 1, in the shadow"),
        (comparison("off", 4, None), "off: version 4 against plain decoding, 5.0%"),
        (comparison("baseline", 4, None), "baseline: version 4 against built-in, 5.0%"),
    ],
)
def test_a_comparison_names_both_sides(round_: RoundStatus, words: str) -> None:
    assert round_.describe().startswith(words)


def test_only_a_candidates_comparison_is_an_evaluation() -> None:
    assert RolloutStatus((comparison("off", 4, None), comparison("candidate", 5, 4, stage=0))).is_evaluating
    assert not RolloutStatus((comparison("off", 4, None),), waiting="cooling down").is_evaluating


def test_what_holds_the_candidate_back_is_a_line_of_its_own() -> None:
    status = RolloutStatus((comparison("off", 4, None),), waiting="cooling down")
    assert len(status.describe()) == 2
    assert status.describe()[1] == "the candidate waits: cooling down"
