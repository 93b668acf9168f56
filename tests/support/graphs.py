"""Recordings without CUDA: they play a function on the memory of its recorded inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from respsd.engine.static.capture import Function, Recording, Tensors


@dataclass
class FakeGraph:
    """Runs the function on the recorded inputs' memory, and writes into the recorded outputs', as a graph does."""

    function: Function
    inputs: Tensors
    outputs: Tensors
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        for place, output in zip(self.outputs, self.function(*self.inputs), strict=True):
            place.copy_(output)


@dataclass
class Machine:
    """Makes fake graphs. Those with outputs of the same shapes share their memory, as CUDA's do where it is free."""

    graphs: list[FakeGraph] = field(default_factory=list)
    broken: bool = False
    memory: dict[object, Tensors] = field(default_factory=dict)

    def record(self, function: Function, inputs: Tensors) -> Recording:
        if self.broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        kept = tuple(each.clone() for each in inputs)
        outputs = tuple(torch.empty_like(output) for output in function(*kept))
        outputs = self.memory.setdefault(tuple((each.shape, each.dtype) for each in outputs), outputs)
        self.graphs.append(FakeGraph(function, kept, outputs))
        return self.graphs[-1]
