"""transformers in a process of its own, so that it and our engine do not slow each other down.

OpenMP keeps a pool of workers for every thread that ever computed, and puts workers to sleep between operations once
they outnumber the processors: two decoders in one process would both be measured slower than either is alone.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from respsd.bench.comparison.answers import Batch, TokenIds
from respsd.bench.comparison.transformers_decoder import PLAIN, Drafting, TransformersDecoder, TransformersModels
from respsd.errors import EngineFault

_END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Task:
    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    ignore_eos: bool
    drafting: Drafting


@dataclass(frozen=True, slots=True)
class _Fault:
    text: str


class TransformersProcess:
    """The calling side of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def decode(
        self, prompts: Sequence[TokenIds], max_new_tokens: int, *, ignore_eos: bool, drafting: Drafting = PLAIN
    ) -> Batch:
        """See `TransformersDecoder.decode`; raises EngineFault where it failed there."""
        self._pipe.send(_Task(tuple(tuple(prompt) for prompt in prompts), max_new_tokens, ignore_eos, drafting))
        return self._receive()

    def wait_until_loaded(self) -> None:
        """Return once the models are there; raises EngineFault where they could not be loaded."""
        self._receive()

    def _receive(self) -> Batch:
        try:
            reply = self._pipe.recv()
        except EOFError as error:
            raise EngineFault("the process that runs transformers ended") from error
        if isinstance(reply, _Fault):
            raise EngineFault(f"transformers failed: {reply.text}")
        assert isinstance(reply, Batch)
        return reply


@dataclass(frozen=True, slots=True)
class TransformersMethod:
    """A Decoder: one way of drafting in the other process."""

    process: TransformersProcess
    drafting: Drafting

    def decode(self, prompts: Sequence[TokenIds], max_new_tokens: int, *, ignore_eos: bool) -> Batch:
        """See `Decoder.decode`."""
        return self.process.decode(prompts, max_new_tokens, ignore_eos=ignore_eos, drafting=self.drafting)


@contextmanager
def transformers_process(models: TransformersModels) -> Iterator[TransformersProcess]:
    """Start the process and load the models in it; it ends with the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, models, torch.get_num_threads()), name="transformers", daemon=True
    )
    process.start()
    theirs.close()
    try:
        decoder = TransformersProcess(ours)
        decoder.wait_until_loaded()
        yield decoder
    finally:
        ours.close()
        process.join(_END_SECONDS)
        if process.is_alive():
            process.kill()


def _serve(pipe: Connection, models: TransformersModels, threads: int) -> None:
    """The other side: load, say so with an empty batch, and answer tasks until the pipe is closed."""
    torch.set_num_threads(threads)
    try:
        decoder = TransformersDecoder.load(models)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side has to know
        pipe.send(_Fault(f"{type(error).__name__}: {error}"))
        return
    pipe.send(Batch(()))
    while True:
        try:
            task: _Task = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(
                decoder.decode(task.prompts, task.max_new_tokens, ignore_eos=task.ignore_eos, drafting=task.drafting)
            )
        except Exception as error:  # noqa: BLE001 - likewise
            pipe.send(_Fault(f"{type(error).__name__}: {error}"))
