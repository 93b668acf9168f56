"""A controller that wants another draft tree each time it is asked gets it once a window, and no token changes.

(ormandj/sglang-glm53-flash-sm120#10: an adaptive controller flipped between two shapes several times a second.)
"""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from support.engines import load_tiny, plain, request, running, static_router

from respsd.control.action import OFF, Action
from respsd.control.controller import Decision, Vector

PROMPT = [1, 40, 17, 99, 254, 3, 60]
SHAPES = (Action(16, 4, 4), OFF, Action(60, 7, 10), Action(4, 1, 2))


class Restless:
    """Never the same twice, as a controller whose measure sits on its threshold."""

    version = 9

    def __init__(self) -> None:
        self.asked = 0

    def choose(self, observation: Vector, uniform: float) -> Decision:
        self.asked += 1
        return Decision(SHAPES[self.asked % len(SHAPES)], 0.0, "champion", policy_version=9)


@pytest.mark.parametrize("persistence", [1, 4, 10])
def test_it_switches_between_windows_only_and_changes_no_token(persistence: int) -> None:
    router = static_router(Action(8, 3, 3))
    restless = Restless()
    router.swap("champion", restless)
    with running(load_tiny(), router, persistence=persistence) as rig:
        completion = rig.generate(request(PROMPT, 120))
        assert completion.token_ids == rig.generate(plain(PROMPT, 120)).token_ids
    rows = [row for row in rig.sink.transitions if row.decision.arm == "champion"]
    steps = [step.applied for arm, step in rig.hooks.steps if arm == "champion"]
    stays = [len(list(stay)) for _, stay in groupby(steps)]
    assert len(rows) == restless.asked > 2
    assert {row.steps for row in rows[:-1]} == {persistence}
    assert all(one.decision.action != other.decision.action for one, other in pairwise(rows))
    assert rig.hooks.switches == [(one.decision, other.decision) for one, other in pairwise(rows)]
    # Within the last tokens trees shrink with what is left of the budget.
    early = len(rows) // 2
    assert stays[:early] == [persistence] * early


def test_who_stays_is_told_of_no_switch() -> None:
    with running(load_tiny(), persistence=2) as rig:
        for action in (None, *SHAPES):  # other requests' shapes are no switch either
            rig.generate(request(PROMPT, 40, action=action))
    assert len(rig.sink.transitions) > 5 * len(SHAPES)
    assert rig.hooks.switches == []
