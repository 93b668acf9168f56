"""Where the loop's champion stands: a comparison with the champion as its first method, read the other way round."""

from __future__ import annotations

from dataclasses import dataclass, replace

from respsd.bench.comparison.methods import parse_methods
from respsd.bench.comparison.run import BenchResult
from respsd.bench.paired import PairedRatio

CHAMPION, EAGLE3, BEST_CONSTANT, PLAIN = "policy:champion", "eagle3", "sweep", "off"
METHODS = tuple(parse_methods(",".join((CHAMPION, EAGLE3, BEST_CONSTANT, PLAIN))))


@dataclass(frozen=True, slots=True)
class Standing:
    """The champion's speed over that of the others, paired by question over all sets; None where nothing was paired."""

    to_eagle3: PairedRatio | None
    to_best_constant: PairedRatio | None
    to_plain: PairedRatio | None


def standing(result: BenchResult) -> Standing:
    """Of a comparison of METHODS."""
    last = result.rows[-1].questions  # over all sets, or of the only one
    ratios = {row.method: row.ratio for row in result.rows if row.questions == last}
    return Standing(inverse(ratios[EAGLE3]), inverse(ratios[BEST_CONSTANT]), inverse(ratios[PLAIN]))


def inverse(ratio: PairedRatio | None) -> PairedRatio | None:
    """The same pairs with the sides exchanged."""
    if ratio is None:
        return None
    return replace(
        ratio,
        ratio=1 / ratio.ratio,
        low=1 / ratio.high,
        high=1 / ratio.low,
        geometric_mean=1 / ratio.geometric_mean,
    )
