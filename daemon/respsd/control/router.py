"""Who chooses the draft trees of a request: its own action, the version or alias that it names, else the default."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from respsd.control.action import Action
from respsd.control.batch_plan import BatchPlan, planned
from respsd.control.controller import Controller, Decision, Vector
from respsd.control.reserve import excess
from respsd.control.static import StaticController
from respsd.engine.request import Speculation
from respsd.errors import InvalidRequest, PolicyRefused, UnknownPolicy

BASELINE, CHAMPION, CANDIDATE, LEARNER, LAST_GOOD = ALIASES = (
    "baseline",
    "champion",
    "candidate",
    "learner",
    "last-good",
)
"""The aliases that the daemon itself moves; each is also the arm of the windows that it chose."""
FIXED, NAMED = "fixed", "named"
"""Arms of decisions that no alias made: the request's own action, a version that it named by number."""
_BASELINE_ARMS = (BASELINE, CHAMPION, LAST_GOOD, NAMED)
"""Under which the baseline's version goes by its plan; a request's own action and EAGLE-3's tree are what they say."""

_NAMED_VERSIONS_KEPT = 8

log = structlog.get_logger(__name__)


class ControllerSource(Protocol):
    """Where a request's controllers come from: asked once a window, so that a swap counts from the next window on."""

    def current(self) -> Controller:
        """The controller for the window that opens now."""
        ...


class RequestRouter(Protocol):
    """What the engine asks who chooses for a request."""

    def check(self, speculation: Speculation) -> None:
        """Raise InvalidRequest, UnknownPolicy or PolicyRefused where `resolve` would; draws and changes nothing."""
        ...

    def resolve(self, speculation: Speculation) -> ControllerSource:
        """Who chooses for a request that starts now; asked once for each."""
        ...


class PolicyRouter:
    """Resolves requests to controllers. `resolve` and `swap` may be called from any thread at any time."""

    def __init__(
        self,
        controllers: Mapping[str, Controller],
        load: Callable[[int], Controller],
        reserved: Action,
        refused: Mapping[str, PolicyRefused] | None = None,
        plan: BatchPlan | None = None,
    ) -> None:
        """Start with these aliases.

        :param controllers: by alias; `baseline` and `champion` must be among them
        :param load: makes the controller of a version named by number; raises UnknownPolicy or PolicyRefused
        :param reserved: the largest action that the engine can run
        :param refused: aliases whose version cannot serve, and why; requests that name them get that error
        :param plan: what the baseline's version does where several sequences share a step; None: as for a lone one
        """
        for needed in (BASELINE, CHAMPION):
            if needed not in controllers:
                raise ValueError(f"the router needs a {needed}")
        self._reserved = reserved
        self._load = load
        self._refused = dict(refused or {})
        self._default = CHAMPION
        self._lock = threading.Lock()
        self._named: OrderedDict[int, ControllerSource] = OrderedDict()
        self._faults: dict[int | None, int] = {}
        self.on_fault: Callable[[int | None, Exception], None] = _unwatched
        """Told of each window that the baseline chose because the policy of this version failed; on the engine's
        thread, so it must return at once."""
        self._plan = plan
        self._baseline_version = controllers[BASELINE].version
        self._baseline = planned(controllers[BASELINE], plan)
        self._aliases = {alias: self._guard(controller) for alias, controller in controllers.items()}

    def resolve(self, speculation: Speculation) -> ControllerSource:
        """Who chooses for a request.

        Raises InvalidRequest (an action that the engine cannot run), UnknownPolicy or PolicyRefused.
        """
        if speculation.action is not None:
            if speculation.policy is not None:
                raise InvalidRequest("policy", speculation.policy, "a request has an action or a policy, not both")
            return Pinned(StaticController(self._legal(speculation.action), None, FIXED))
        name = self._by_default() if speculation.policy is None else speculation.policy
        if name in self._aliases:
            return _Alias(self, name)
        if name in self._refused:
            raise self._refused[name]
        if name.isascii() and name.isdecimal() and len(name) < 19:
            return self._version(int(name))
        raise UnknownPolicy(name)

    def check(self, speculation: Speculation) -> None:
        """See `RequestRouter.check`."""
        self.resolve(speculation)

    def swap(self, alias: str, controller: Controller) -> None:
        """Let `controller` serve `alias` from every request's next window on."""
        with self._lock:
            # a new dict by one assignment: a window that opens meanwhile sees the old one or the new one, whole
            self._aliases = {**self._aliases, alias: self._guard(controller)}

    def forget(self, alias: str) -> None:
        """Let an alias that may be without a version name nothing from now on; requests under way with it have the
        champion from their next window on. The baseline and the champion are always somebody."""
        if alias in (BASELINE, CHAMPION):
            raise ValueError(f"the router needs a {alias}")
        with self._lock:
            self._aliases = {name: controller for name, controller in self._aliases.items() if name != alias}
            self._refused.pop(alias, None)

    def forget_named(self) -> None:
        """Load versions that requests name by number anew: one may have been quarantined or deleted."""
        with self._lock:
            self._named = OrderedDict()

    def use_by_default(self, name: str) -> None:
        """Let requests that name no policy have this version or alias; raises UnknownPolicy or PolicyRefused."""
        self.resolve(Speculation(policy=name))
        self._default = name

    @property
    def default(self) -> str:
        """The version or alias for requests that name none."""
        return self._default

    def serving(self) -> dict[str, int | None]:
        """The version that each alias has now; None for one that no store keeps."""
        return {alias: controller.version for alias, controller in self._aliases.items()}

    def controller_or_champion(self, alias: str) -> Controller:
        """The controller that serves an alias now, the champion's where the alias has been forgotten."""
        aliases = self._aliases
        return aliases[alias] if alias in aliases else aliases[CHAMPION]

    def controller(self, alias: str) -> Controller:
        """The controller that serves an alias now; raises UnknownPolicy."""
        try:
            return self._aliases[alias]
        except KeyError:
            raise UnknownPolicy(alias) from None

    def faults(self) -> dict[int | None, int]:
        """Windows that the baseline had to choose because a policy failed, by that policy's version."""
        with self._lock:
            return dict(self._faults)

    def _by_default(self) -> str:
        """The default, the champion where the default is an alias that names nothing now."""
        default = self._default
        forgotten = default in ALIASES and default not in self._aliases and default not in self._refused
        return CHAMPION if forgotten else default

    def _legal(self, action: Action) -> Action:
        over = excess(action.validated(), self._reserved)
        if over is not None:
            raise InvalidRequest(f"action.{over.knob}", over.value, f"memory is reserved for at most {over.limit}")
        return action

    def _version(self, version: int) -> ControllerSource:
        with self._lock:
            named = self._named
            if version in named:
                named.move_to_end(version)  # the most recently used is last
                return named[version]
        source = Pinned(self._guard(self._load(version)))  # reads files, for which no window should have to wait
        with self._lock:
            named[version] = source  # of no use where all were forgotten meanwhile
            if len(named) > _NAMED_VERSIONS_KEPT:
                named.popitem(last=False)
        return source

    def _guard(self, controller: Controller) -> Controller:
        if isinstance(controller, StaticController):
            is_baseline = controller.version == self._baseline_version and controller.arm in _BASELINE_ARMS
            return planned(controller, self._plan) if is_baseline else controller
        return _Guarded(controller, self._baseline, self._reserved, self._count_fault)

    def _count_fault(self, version: int | None, fault: Exception) -> None:
        with self._lock:
            self._faults[version] = self._faults.get(version, 0) + 1
            first = self._faults[version] == 1
        if first:  # a broken policy fails at every window: say it once, count the rest
            log.error("policy_failed", version=version, fault=str(fault), instead="baseline")
        self.on_fault(version, fault)


class Pinned:
    """The same controller for every window."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def current(self) -> Controller:
        return self._controller


class _Alias:
    """Whatever controller the alias has when a window opens; the champion's once the alias is forgotten."""

    def __init__(self, router: PolicyRouter, alias: str) -> None:
        self._router = router
        self._alias = alias

    def current(self) -> Controller:
        return self._router.controller_or_champion(self._alias)


class _Guarded:
    """A policy whose failure costs the window its policy, never the request: the baseline chooses instead."""

    def __init__(
        self,
        inner: Controller,
        baseline: Controller,
        reserved: Action,
        count: Callable[[int | None, Exception], None],
    ) -> None:
        self._inner = inner
        self._baseline = baseline
        self._reserved = reserved
        self._count = count

    @property
    def version(self) -> int | None:
        return self._inner.version

    def choose(self, observation: Vector, uniform: float) -> Decision:
        try:
            return self._checked(self._inner.choose(observation, uniform))
        except Exception as fault:  # noqa: BLE001 - whatever a policy does, the request goes on
            self._count(self._inner.version, fault)
            return self._baseline.choose(observation, uniform)

    def _checked(self, decision: Decision) -> Decision:
        """The decision, where the engine can run it; memory is not reserved for a larger tree."""
        over = excess(decision.action.validated(), self._reserved)
        if over is not None:
            raise InvalidRequest(f"action.{over.knob}", over.value, f"memory is reserved for at most {over.limit}")
        if not math.isfinite(decision.log_prob):
            raise ValueError(f"the action's log-probability is {decision.log_prob}")
        return decision


def _unwatched(version: int | None, fault: Exception) -> None:
    """Nobody wants to know."""
