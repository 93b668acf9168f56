"""How long drafting took on a device that works while the host goes on: the host's clock would book it to whatever
waits for the device next."""

from __future__ import annotations

import torch


class DraftTime:
    """Marks on a CUDA device's own time line; reading them costs no waiting once a step's results are there."""

    def __init__(self) -> None:
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def begin(self) -> None:
        """Drafting is about to be launched."""
        self._begin.record()

    def end(self) -> None:
        """Drafting is launched."""
        self._end.record()

    def ns(self) -> int:
        """What it took; waits for its end."""
        self._end.synchronize()
        return int(self._begin.elapsed_time(self._end) * 1e6)
