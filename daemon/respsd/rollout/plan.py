"""What the engine's side of a rollout does now: an immutable value that the rollout replaces as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from respsd.rollout.contest import Contest


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Which contests run, and on how much of the traffic."""

    contests: tuple[tuple[Contest, float], ...] = ()
    """With the share of all windows that each one's challenger gets: the candidate, or what a holdout serves."""
    shadow: Contest | None = None
    """Its subject is asked at every window and what it says is not done."""

    @property
    def quad_share(self) -> float:
        """Share of quads that have a contest: in them a challenger has half of the windows."""
        return min(1.0, 2 * sum(share for _, share in self.contests))

    @property
    def all_contests(self) -> tuple[Contest, ...]:
        """The shadowed one with them."""
        shadow = () if self.shadow is None else (self.shadow,)
        return shadow + tuple(contest for contest, _ in self.contests)


NOTHING = Plan()
