"""Runs functions of fixed shapes: as they are, or recorded as CUDA graphs and replayed.

A function here takes tensors and returns tensors, reads nothing of the host in between, and gives the same when it is
run again on the same inputs, which recording does. Everything else that it touches (weights, KV memory) stays where it
is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import structlog
import torch
from torch import Tensor

log = structlog.get_logger(__name__)

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]

_RUNS_BEFORE_RECORDING = 3
"""Recording takes the time of some steps and memory: shapes that come once or twice, as explorers try them, are run as
they are."""
_MOST_GRAPHS = 64


class Capturer(Protocol):
    """What runs a step's functions."""

    def run(self, key: Hashable, function: Function, inputs: Tensors) -> Tensors:
        """The function's outputs for these inputs; the caller may keep them.

        :param key: names function and shapes: calls with one key differ in the inputs' values alone.
        """
        ...


class Eager:
    """Runs functions as they are, anywhere."""

    def run(self, key: Hashable, function: Function, inputs: Tensors) -> Tensors:  # noqa: ARG002 - the Protocol's
        """See `Capturer.run`."""
        return function(*inputs)


class Recording(Protocol):
    """A recorded function with the memory of its inputs and outputs."""

    @property
    def inputs(self) -> Tensors:
        """Where it reads."""
        ...

    @property
    def outputs(self) -> Tensors:
        """Where it writes; other recordings may, too."""
        ...

    def replay(self) -> None:
        """Run it on what is in `inputs` now."""
        ...


Record = Callable[[Function, Tensors], Recording]


class Recorded:
    """Records the functions that come often, and replays them; the least recently used go where they are too many."""

    def __init__(self, record: Record, most: int = _MOST_GRAPHS) -> None:
        """:param record: makes a recording of a function for inputs like these; `most` recordings are kept."""
        self._record = record
        self._most = most
        self._recordings: OrderedDict[Hashable, Recording] = OrderedDict()
        self._runs: dict[Hashable, int] = {}
        self.recorded = 0
        """Recordings made so far."""
        self.fault: str | None = None
        """Why nothing is recorded any more."""

    def run(self, key: Hashable, function: Function, inputs: Tensors) -> Tensors:
        """See `Capturer.run`."""
        recording = self._recordings.get(key)
        if recording is None:
            recording = self._try_to_record(key, function, inputs)
            if recording is None:
                return function(*inputs)
        self._recordings.move_to_end(key)
        for place, given in zip(recording.inputs, inputs, strict=True):
            place.copy_(given)
        recording.replay()
        # Copies: recordings share memory, and the next one's replay may overwrite what this one gave.
        return tuple(output.clone() for output in recording.outputs)

    def _try_to_record(self, key: Hashable, function: Function, inputs: Tensors) -> Recording | None:
        """A new recording; None where it does not pay yet, or recording has failed before."""
        self._runs[key] = self._runs.get(key, 0) + 1
        if self.fault is not None or self._runs[key] < _RUNS_BEFORE_RECORDING:
            return None
        try:
            recording = self._record(function, inputs)
        except RuntimeError as fault:
            self.fault = str(fault)
            log.error("graph_recording_failed", shapes=str(key), fault=str(fault), instead="static shapes, unrecorded")
            return None
        del self._runs[key]
        self.recorded += 1
        self._recordings[key] = recording
        if len(self._recordings) > self._most:
            self._recordings.popitem(last=False)
        log.info("graph_recorded", shapes=str(key), graphs=len(self._recordings))
        return recording


@dataclass(frozen=True, slots=True)
class CudaRecording:
    """A CUDA graph."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensors
    outputs: Tensors

    def replay(self) -> None:
        """See `Recording.replay`."""
        self.graph.replay()


def cuda_graphs() -> Recorded:
    """Record as CUDA graphs, which share one pool of memory."""
    pool = torch.cuda.graph_pool_handle()

    def record(function: Function, inputs: Tensors) -> Recording:
        kept = tuple(each.clone() for each in inputs)
        # Libraries set themselves up in their first calls, which cannot be recorded.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function(*kept)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the daemon may use CUDA meanwhile; what they do is not recorded.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            outputs = function(*kept)
        return CudaRecording(graph, kept, outputs)

    return Recorded(record)
