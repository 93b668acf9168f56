"""Memory that runs out in the middle of a step: how it shows, and what has to be undone (see `fitting`)."""

from __future__ import annotations

import traceback
from types import TracebackType

import structlog
import torch

from respsd.engine.sequence import Sequence
from respsd.errors import EngineFault, OutOfMemory

log = structlog.get_logger(__name__)

_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "alloc_failed")
"""What torch's allocators and the libraries below them say where they raise a plain RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the machine's or the device's memory was too little."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, OutOfMemory)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


def is_device_lost(error: BaseException) -> bool:
    """Whether the device takes no more work from this process, after an assertion or an illegal access on it, say.

    Every later call would fail likewise: the process has to start anew.
    """
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


def forget_frames(error: BaseException) -> None:
    """Let go of what the frames of a failure hold: its traceback would keep their tensors."""
    traceback.clear_frames(error.__traceback__)


class Alone:
    """Around one sequence's own part of a step: a fault of the model in it, or too little memory, ends it alone."""

    __slots__ = ("_sequence",)

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence

    def __enter__(self) -> None:
        return

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if isinstance(error, EngineFault):
            self._sequence.fail(error)
            return True
        if error is None or not is_out_of_memory(error):
            return False
        log.warning("out_of_memory", requests=[self._sequence.request.request_id], error=str(error))
        forget_frames(error)
        self._sequence.fail(OutOfMemory())
        return True


class Undo:
    """What a step changes in a sequence before it commits anything, as it was before the step."""

    def __init__(self, sequence: Sequence) -> None:
        """Note it; the rows of the caches behind their lengths are scratch and need no note."""
        self._sequence = sequence
        pending = sequence.pending
        self._tokens, self._token_count = pending.tokens, len(pending.tokens)
        self._features, self._feature_count = pending.features, len(pending.features)
        self._drafted_rows = sequence.draft_cache.length if sequence.draft_cache is not None else 0

    def restore(self) -> None:
        """Put it back."""
        pending = self._sequence.pending
        pending.tokens = self._tokens[: self._token_count]
        pending.features = self._features[: self._feature_count]
        if self._sequence.draft_cache is not None:
            self._sequence.draft_cache.length = self._drafted_rows
