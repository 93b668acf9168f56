"""The rules by which aliases move: what may become champion, what a rollback goes to, what stays as last-good.

One `Championship` lives as long as one transaction of the registry. It loads every version that a change is about to
let serve before it moves the first alias, so that a version which does not load leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import structlog

from policy_store import HistoryQuery, StoreChange
from respsd.control.action import Action
from respsd.control.controller import Controller
from respsd.control.router import BASELINE, CANDIDATE, CHAMPION, LAST_GOOD
from respsd.control.static import StaticController
from respsd.errors import ChangeRefused, Overtaken, PolicyRefused, UnknownPolicy

log = structlog.get_logger(__name__)


class Championship:
    """Who is champion, candidate and last-good, within one change of the registry."""

    def __init__(
        self, change: StoreChange, load: Callable[[int, str], Controller], serving: Mapping[str, int | None]
    ) -> None:
        """Start from the registry as the change finds it.

        :param load: makes the controller of a version for an arm; raises UnknownPolicy or PolicyRefused
        :param serving: the version that each alias has in the router
        """
        self.change = change
        self.swaps: dict[str, Controller] = {}
        """What the router has to serve once the change is through, by alias."""
        self._load = load
        self._serving = serving

    def expect(self, versions: Mapping[str, int | None]) -> None:
        """Refuse a change that was decided for versions of which another has taken the place.

        What counts is what serves: a champion that did not load at the start is not what anybody measured.
        """
        for alias, version in versions.items():
            now = self._serving.get(alias)
            if now != version:
                raise Overtaken(f"the change was decided for version {version} as {alias}, which is version {now} now")

    def promote(self, name: int | str) -> None:
        """Make a version champion, and the champion before it last-good."""
        version = self.change.resolve(name)
        if self._champion() == version:
            if self._serving.get(CHAMPION) != version:  # it did not load at the start, so that another stood in
                self.swaps[CHAMPION] = self._load(version, CHAMPION)
            return
        self._refuse_pinned()
        self.swaps[CHAMPION] = self._load(version, CHAMPION)
        last_good, self.swaps[LAST_GOOD] = self._former(LAST_GOOD, {version})
        self.change.move_alias(CHAMPION, version, "promote")
        self.change.move_alias(LAST_GOOD, last_good)
        self._end_candidacy({version})

    def rollback(self, to: int | str | None) -> None:
        """Bring a former champion back and quarantine the present one, unless it is the baseline."""
        champion = self._champion()
        if champion is None:
            raise ChangeRefused("there is no champion to roll back")
        if to is None:
            target, controller = self._former(CHAMPION, {champion})
        else:
            target = self._former_champion(to)
            controller = self._load(target, CHAMPION)
        if target == champion:
            return
        self._refuse_pinned()
        self.swaps[CHAMPION] = controller
        last_good, self.swaps[LAST_GOOD] = self._former(LAST_GOOD, {champion, target})
        self.change.move_alias(CHAMPION, target, "rollback")
        self.change.move_alias(LAST_GOOD, last_good)
        if champion != self.change.aliases().get(BASELINE):
            self.change.quarantine(champion)
        self._end_candidacy({champion, target})

    def quarantine(self, name: int | str) -> None:
        """Take a version that is neither champion nor baseline out of service for good."""
        version = self.change.resolve(name)
        aliases = self.change.aliases()
        if version == aliases.get(BASELINE):
            raise ChangeRefused(f"version {version} is the baseline, which always has to work")
        if version == aliases.get(CHAMPION):
            raise ChangeRefused(f"version {version} is the champion: roll it back, which quarantines it")
        if version == aliases.get(LAST_GOOD):
            last_good, self.swaps[LAST_GOOD] = self._former(LAST_GOOD, {version, aliases[CHAMPION]})
            self.change.move_alias(LAST_GOOD, last_good)
        self.change.quarantine(version)
        self._end_candidacy({version})

    def pin(self, name: int | str) -> None:
        """Make a version champion where it is not, and pin it."""
        version = self.change.resolve(name)
        self.promote(version)  # refused where another version is pinned
        self.change.pin(version)

    def nominate(self, alias: str, version: int) -> None:
        """Let a version be learner or candidate, unless learning is frozen."""
        freeze = self.change.flags().freeze
        if freeze is not None:
            raise ChangeRefused(frozen(freeze.reason))
        if alias == CANDIDATE and version == self._champion():
            raise ChangeRefused(f"version {version} is the champion already")
        self.swaps[alias] = self._load(version, alias)
        self.change.move_alias(alias, version)

    def propose(self, name: int | str) -> None:
        """Let a person's choice be the candidate; refused where a pin or a freeze would keep it from being tried."""
        version = self.change.resolve(name)
        self._refuse_pinned()
        self.nominate(CANDIDATE, version)

    def _champion(self) -> int | None:
        return self.change.aliases().get(CHAMPION)

    def _refuse_pinned(self) -> None:
        pin = self.change.flags().pin
        if pin is not None:
            why = f" ({pin.reason})" if pin.reason else ""
            raise ChangeRefused(f"version {pin.version} is pinned as the champion by {pin.actor}{why}; unpin it first")

    def _end_candidacy(self, versions: Collection[int]) -> None:
        if self.change.aliases().get(CANDIDATE) in versions:
            self.change.drop_alias(CANDIDATE)

    def _former_champion(self, name: int | str) -> int:
        version = self.change.resolve(name)
        if version not in {*self._champions(), self.change.aliases().get(BASELINE)}:
            raise ChangeRefused(f"version {version} was never champion, so there is no way back to it; promote it")
        return version

    def _former(self, arm: str, leave_out: Collection[int]) -> tuple[int, Controller]:
        """The newest good former champion that loads; the baseline where there is none."""
        good = {each.version for each in self.change.list() if each.state == "good"}
        for version in self._champions():
            if version in good and version not in leave_out:
                try:
                    return version, self._load(version, arm)
                except (PolicyRefused, UnknownPolicy) as fault:
                    log.warning("former_champion_skipped", version=version, fault=str(fault))
        return self._baseline(arm)

    def _champions(self) -> Iterator[int]:
        """Every version that is or was champion and is still there, the most recent first, each once."""
        there = {each.version for each in self.change.list()}
        moves = self.change.history(HistoryQuery(alias=CHAMPION))
        yield from dict.fromkeys(each.to_version for each in reversed(moves) if each.to_version in there)

    def _baseline(self, arm: str) -> tuple[int, Controller]:
        version = self.change.aliases().get(BASELINE)
        if version is None:
            raise ChangeRefused("the store has no baseline yet; start the daemon on it once")
        action = self.change.summary(version).action
        if action is None:
            return version, self._load(version, arm)
        # the registry vouches for its action, so that it serves even where its folder is damaged
        return version, StaticController(Action(*action), version, arm)


def frozen(reason: str) -> str:
    """What is said to whoever wants to learn while learning is frozen."""
    return f"learning is frozen{f' ({reason})' if reason else ''}; unfreeze it first"
