"""Opens the policies at start: makes the first versions where there are none, and never fails to serve.

The champion must load, match its published hash and pass its golden check; else last-good serves, else the newest
learned version that has been champion, else the baseline. A version that was never champion is no fallback: the learner
is not necessarily good enough to serve. Such a replacement lasts until the next start and moves no alias.

A learner that cannot serve gives its place up for good: without explorers there is nothing to learn from. The newest
former learner that can serve goes on in its place, else a new one begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import structlog

from policy_store import PolicyStore, StoreError, VersionSummary
from respsd.control.action import EAGLE3, Action, ActionTable
from respsd.control.batch_plan import BatchPlan
from respsd.control.controller import Controller
from respsd.control.loader import PolicyLoader
from respsd.control.manifests import resps_manifest, static_manifest, triple
from respsd.control.network import random_policy_weights
from respsd.control.observation import ObservationSchema
from respsd.control.prior import action_bias, calibrated_log_probs, entropy
from respsd.control.reserve import excess
from respsd.control.router import ALIASES, BASELINE, CHAMPION, LAST_GOOD, LEARNER, NAMED, PolicyRouter
from respsd.control.static import StaticController
from respsd.errors import PolicyRefused, SettingsError, UnknownPolicy

ACTOR = "daemon"
"""Who the audit log says made these changes."""
EAGLE3_ALIAS = "eagle3"
"""Names the constant policy of EAGLE-3's published tree."""
_BLANK = "random weights"
"""Note of a first learner that knows nothing of the machine."""

log = structlog.get_logger(__name__)


def open_policies(
    store: PolicyStore | None,
    table: ActionTable,
    schema: ObservationSchema,
    baseline_action: Action,
    *,
    rng: np.random.Generator,
    code_version: str,
    reserved: Action | None = None,
    champion_temperature: float | None = None,
    exploration_temperature: float = 1.0,
    log_speeds: Sequence[float] | None = None,
    plan: BatchPlan | None = None,
    default: str = CHAMPION,
) -> PolicyRouter:
    """The router over a store's policies.

    :param store: None, or one that fails, leaves the built-in baseline alone to serve (its decisions have no version)
    :param table: the actions of a new learner
    :param baseline_action: the constant that always works; where the stored baseline is another one, for this drafter
        or machine, the alias moves on to it, and the champion with it if it was that baseline
    :param rng: draws the first learner's weights
    :param reserved: the largest action that the engine can run; None takes the largest of table and baseline
    :param champion_temperature: None serves the champion's most probable action; else samples at this temperature
    :param exploration_temperature: at which the learner's actions are drawn
    :param log_speeds: log of the estimated tokens/s of each action of the table, where the first learner starts from;
        without it, from nearly even chances
    :param plan: the calibrated baseline by the number of sequences that share a step
    :param default: the version or alias for requests that name none; where it cannot serve, the champion does

    Raises SettingsError where the baseline is larger than `reserved`, or the default is neither an alias nor stored.
    """
    reserved = reserved or ActionTable(tuple({baseline_action, *table.actions})).largest
    over = excess(baseline_action, reserved)
    if over is not None:
        raise SettingsError(f"baseline action {baseline_action}: {over.knob} is over the engine's limit {over.limit}")
    router = None
    if store is not None:
        try:
            loader = policy_loader(store, schema, reserved, champion_temperature, exploration_temperature)
            baseline = _ensure_baseline(store, baseline_action, code_version)
            _ensure_learner(loader, table, rng, code_version, log_speeds)
            _ensure_eagle3(store, reserved, code_version)
            router = _load_router(loader, baseline_action, baseline, plan)
        except StoreError as fault:
            log.error("policy_store_failed", fault=str(fault), instead=f"built-in baseline {baseline_action}")
    store_works = router is not None
    router = router or _built_in(baseline_action, reserved, plan)
    _use_by_default(router, default, store_works=store_works)
    return router


def policy_loader(
    store: PolicyStore,
    schema: ObservationSchema,
    reserved: Action,
    champion_temperature: float | None,
    exploration_temperature: float = 1.0,
) -> PolicyLoader:
    """Makes the controllers of stored versions; for the parameters see `open_policies`."""
    temperatures = {LEARNER: exploration_temperature}
    if champion_temperature is not None:
        temperatures[CHAMPION] = champion_temperature
    return PolicyLoader(store, schema, reserved, temperatures)


def _built_in(action: Action, reserved: Action, plan: BatchPlan | None) -> PolicyRouter:
    def load(version: int) -> Controller:
        raise PolicyRefused(version, "the policy store does not work")

    controllers = {alias: StaticController(action, None, alias) for alias in (BASELINE, CHAMPION)}
    return PolicyRouter(controllers, load, reserved, plan=plan)


def _use_by_default(router: PolicyRouter, default: str, *, store_works: bool) -> None:
    try:
        router.use_by_default(default)
    except (PolicyRefused, UnknownPolicy) as fault:
        if store_works and isinstance(fault, UnknownPolicy) and default not in ALIASES:
            raise SettingsError(f"control.policy: {fault}") from fault
        log.error("default_policy_refused", policy=default, fault=str(fault), instead=CHAMPION)


def _ensure_baseline(store: PolicyStore, action: Action, code_version: str) -> int:
    """The version of the baseline, with `baseline` and `champion` pointing where they must."""
    versions = store.list()
    aliases = store.aliases()
    version = _constant(versions, action, aliases.get(BASELINE))
    if version is None:
        draft = static_manifest(action, code_version=code_version, note="baseline")
        version = store.create(draft, actor=ACTOR, reason="the baseline of this machine and drafter")
    previous = aliases.get(BASELINE)
    if previous != version:
        store.set_alias(BASELINE, version, actor=ACTOR, reason=f"the baseline action is {action}")
    follows = aliases.get(CHAMPION) == previous and previous != version and store.flags().pin is None
    if CHAMPION not in aliases or follows:
        store.set_alias(CHAMPION, version, actor=ACTOR, reason="the baseline serves until a policy has proved better")
    return version


def _constant(versions: Sequence[VersionSummary], action: Action, preferred: int | None) -> int | None:
    """A good version that always chooses `action`: the preferred one, else the newest."""
    same = [each.version for each in versions if each.state == "good" and each.action == triple(action)]
    return preferred if preferred in same else max(same, default=None)


def _ensure_eagle3(store: PolicyStore, reserved: Action, code_version: str) -> None:
    """EAGLE-3's published tree by its name, where the engine can run it: what every policy is compared with."""
    if excess(EAGLE3, reserved) is not None or EAGLE3_ALIAS in store.aliases():
        return
    version = _constant(store.list(), EAGLE3, None)
    if version is None:
        draft = static_manifest(EAGLE3, code_version=code_version, note="EAGLE-3's default")
        version = store.create(draft, actor=ACTOR, reason="to compare with")
    store.set_alias(EAGLE3_ALIAS, version, actor=ACTOR, reason=f"EAGLE-3's default action is {EAGLE3}")


def _ensure_learner(
    loader: PolicyLoader,
    table: ActionTable,
    rng: np.random.Generator,
    code_version: str,
    log_speeds: Sequence[float] | None,
) -> None:
    """A learner where there is none that can serve, or where it was made without the estimates that there are now."""
    store = loader.store
    current = store.aliases().get(LEARNER)
    fault = None if current is None else _why_not(loader, current)
    if current is not None and fault is None and (log_speeds is None or not _is_blank(store, current)):
        return
    reason = "the first learner" if fault is None else f"version {current} cannot serve as the learner: {fault}"
    try:
        version = None if fault is None else _former_learner(loader, current, blank_too=log_speeds is None)
        if version is None:
            version = _new_learner(loader, table, rng, code_version, log_speeds, reason)
        store.set_alias(LEARNER, version, actor=ACTOR, reason=reason)
    except StoreError as failure:  # a full disk, for one: what is there can serve all the same
        log.error("learner_not_stored", fault=str(failure))
    else:
        if fault is not None:
            log.warning("learner_replaced", version=current, fault=fault, instead=version)


def _new_learner(
    loader: PolicyLoader,
    table: ActionTable,
    rng: np.random.Generator,
    code_version: str,
    log_speeds: Sequence[float] | None,
    reason: str,
) -> int:
    """The number of a learner that has seen no window yet."""
    schema = loader.schema
    weights = random_policy_weights(schema.width, len(table), rng)
    note = _BLANK
    if log_speeds is not None:
        log_probs = calibrated_log_probs(log_speeds)
        weights["action_net.bias"] = action_bias(log_probs)
        note = f"calibrated start, entropy {entropy(log_probs):.2f} of {math.log(len(table)):.2f} nats"
    draft = resps_manifest(weights, table, schema, rng, code_version=code_version, note=note)
    return loader.store.create(draft, weights, actor=ACTOR, reason=reason)


def _former_learner(loader: PolicyLoader, current: int | None, *, blank_too: bool) -> int | None:
    """The newest version that was the learner once and can be it again, as the parent of a damaged one can, or what
    learnt from the target before the last; None where there is none.

    :param blank_too: also one that knows nothing of the machine
    """
    store = loader.store
    learnt = {entry.to_version for entry in store.audit() if entry.alias == LEARNER} - {current}
    for each in reversed(store.list()):
        if each.version not in learnt or each.state != "good" or (each.note == _BLANK and not blank_too):
            continue
        if _why_not(loader, each.version) is None:
            return each.version
    return None


def _why_not(loader: PolicyLoader, version: int) -> str | None:
    """Why a version cannot serve as the learner; None where it can."""
    try:
        loader.controller(version, LEARNER)
    except PolicyRefused as fault:
        return fault.fault
    except UnknownPolicy as fault:
        return str(fault)
    return None


def _is_blank(store: PolicyStore, version: int) -> bool:
    return any(each.version == version and each.note == _BLANK for each in store.list())


def _load_router(loader: PolicyLoader, baseline_action: Action, baseline: int, plan: BatchPlan | None) -> PolicyRouter:
    # The registry vouches for the baseline's action, so that it serves even where its folder is damaged.
    controllers: dict[str, Controller] = {BASELINE: StaticController(baseline_action, baseline, BASELINE)}
    refused: dict[str, PolicyRefused] = {}
    for alias, version in loader.store.aliases().items():
        if alias in (BASELINE, CHAMPION):
            continue
        try:
            controllers[alias] = loader.controller(version, alias)
        except PolicyRefused as fault:
            log.warning("policy_refused", alias=alias, version=version, fault=fault.fault)
            refused[alias] = fault
    controllers[CHAMPION] = _champion(loader, baseline_action, baseline)
    return PolicyRouter(controllers, lambda version: loader.controller(version, NAMED), loader.reserved, refused, plan)


def _champion(loader: PolicyLoader, baseline_action: Action, baseline: int) -> Controller:
    skipped: set[int] = set()
    for why, version in _champions(loader.store):
        if version == baseline:
            break
        if version in skipped:
            continue
        try:
            controller = loader.controller(version, CHAMPION)
        except (PolicyRefused, UnknownPolicy) as fault:
            log.error("champion_skipped", version=version, was=why, fault=str(fault))
            skipped.add(version)
        else:
            if skipped:
                log.warning("champion_replaced", version=version, was=why)
            return controller
    return StaticController(baseline_action, baseline, CHAMPION)


def _champions(store: PolicyStore) -> Iterator[tuple[str, int]]:
    """Versions that may serve in the champion's place, itself first, and what each was."""
    aliases = store.aliases()
    for alias in (CHAMPION, LAST_GOOD):
        if alias in aliases:
            yield alias, aliases[alias]
    served = {entry.to_version for entry in store.audit() if entry.alias == CHAMPION}
    for each in reversed(store.list()):
        if each.version in served and each.kind == "resps":  # an older constant is no better than the baseline
            yield "former champion", each.version
