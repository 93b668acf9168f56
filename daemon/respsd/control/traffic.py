"""Which requests serve to learn from: explorers for the learner, trials of a rollout; the rest is the router's.

Only a request that leaves the choice to the daemon and has not opted out can be one. It is drawn once, when the request
starts, and holds to its end, so that an explorer's whole trajectory is of one policy version.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from respsd.control.router import LEARNER, ControllerSource, Pinned, PolicyRouter
from respsd.engine.request import Speculation
from respsd.errors import UnknownPolicy

Trial = Callable[[], ControllerSource | None]
"""A rollout that may take the request which starts now; None leaves it to the default policy."""

log = structlog.get_logger(__name__)


class Traffic:
    """The engine's `RequestRouter` while it learns. Requests start on the engine's thread alone."""

    def __init__(
        self, router: PolicyRouter, share: float, uniform: Callable[[], float], trial: Trial | None = None
    ) -> None:
        """Stand before `router`.

        :param share: probability that a request that may be one becomes an explorer
        :param uniform: draws from [0, 1)
        :param trial: asked for requests that are no explorers
        """
        self.share = share
        """May be changed at any time, from any thread: it counts from the next request on."""
        self.trial = trial
        """Likewise."""
        self._router = router
        self._uniform = uniform
        self._learner_missing = False

    def explore(self, share: float) -> None:
        """Change the share of explorers."""
        self.share = share

    def check(self, speculation: Speculation) -> None:
        """See `RequestRouter.check`."""
        self._router.check(speculation)

    def resolve(self, speculation: Speculation) -> ControllerSource:
        """Who chooses for a request that starts now; see `RequestRouter.resolve`."""
        if speculation.action is None and speculation.policy is None and not speculation.exploration_opt_out:
            # Drawn whatever comes of it, so that one request's fate does not shift the draws of those behind it.
            source = self._explorer() if self._uniform() < self.share else None
            source = source or self._trial()
            if source is not None:
                return source
        return self._router.resolve(speculation)

    def _trial(self) -> ControllerSource | None:
        if self.trial is None:
            return None
        try:
            return self.trial()
        except Exception as fault:  # noqa: BLE001 - a rollout that fails must not fail the request
            log.error("trial_failed", fault=str(fault), instead="the default policy")
            return None

    def _explorer(self) -> ControllerSource | None:
        """The learner as it is now, sampled at the exploration temperature; None where no learner can serve."""
        try:
            learner = self._router.controller(LEARNER)
        except UnknownPolicy:
            if not self._learner_missing:  # at every request it would drown the log
                log.warning("no_exploration", detail="there is no learner that can serve", instead="the default policy")
            self._learner_missing = True
            return None
        self._learner_missing = False
        return Pinned(learner)
