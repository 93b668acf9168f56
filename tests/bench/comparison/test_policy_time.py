from __future__ import annotations

import numpy as np

from respsd.bench.comparison import policy_time
from respsd.bench.comparison.policy_time import PolicyTime, TimedRouter
from respsd.control.action import Action
from respsd.control.router import BASELINE, CHAMPION, PolicyRouter
from respsd.control.static import StaticController
from respsd.engine.request import Speculation


def test_time_from_a_steps_beginning_to_each_choice_is_the_policys(monkeypatch):
    clock = iter([100, 130, 150, 1000, 1005])
    monkeypatch.setattr(policy_time.time, "perf_counter_ns", lambda: next(clock))
    arms = {arm: StaticController(Action(8, 3, 3), 1, arm) for arm in (BASELINE, CHAMPION)}
    spent = PolicyTime()
    router = TimedRouter(PolicyRouter(arms, lambda _: arms[BASELINE], Action(8, 3, 3)), spent)
    controller = router.resolve(Speculation()).current()
    spent.before_batch()  # 100
    controller.choose(np.zeros(1, np.float32), 0.0)  # 130
    decision = controller.choose(np.zeros(1, np.float32), 0.0)  # 150: the second window of the step
    spent.before_batch()  # 1000
    controller.choose(np.zeros(1, np.float32), 0.0)  # 1005
    assert spent.seconds == 55e-9
    assert (decision.action, decision.arm, controller.version) == (Action(8, 3, 3), CHAMPION, 1)
    spent.clear()
    assert spent.seconds == 0.0
