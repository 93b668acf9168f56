from __future__ import annotations

import numpy as np
import pytest

from respsd.control.linear import matvec


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 3125), (64, 3126), (128, 12_288), (300_000, 2)])
def test_pieces_add_up_to_the_product(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal(shape).astype(np.float32)
    vector = rng.standard_normal(shape[1]).astype(np.float32)
    product = matvec(matrix, vector)
    assert product.dtype == np.float32
    assert product == pytest.approx(matrix.astype(np.float64) @ vector, abs=1e-3)
