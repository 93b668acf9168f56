from __future__ import annotations

import pytest

from respsd.bench.live.standing import inverse
from respsd.bench.paired import paired_ratio


def test_the_inverse_is_the_ratio_of_the_exchanged_pairs() -> None:
    mine, theirs = [2.0, 3.0, 2.5, 4.0, 3.3, 2.2], [1.0, 2.0, 1.0, 2.2, 3.0, 1.9]
    found, direct = inverse(paired_ratio(theirs, mine)), paired_ratio(mine, theirs)
    assert found is not None
    for name in ("ratio", "low", "high", "p", "geometric_mean", "confidence", "pairs"):
        assert getattr(found, name) == pytest.approx(getattr(direct, name)), name
    assert inverse(None) is None
