"""The GPU check: every part in a process of its own that a time limit or a crash may end, and one report of all."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

from respsd.bench.gpu.parts import CheckOptions, Figures, NotPossible, parts
from respsd.clock import Clock
from respsd.telemetry.logging import configure_logging

Status = Literal["passed", "failed", "left out"]

_NS_PER_SECOND = 1e9
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PartResult:
    """What came of one part."""

    name: str
    status: Status
    seconds: float
    figures: Figures
    """Of a part that passed."""
    fault: str | None = None
    """Why it failed or was left out."""


def run_gpu_check(
    options: CheckOptions, limit_seconds: float, clock: Clock, progress: Callable[[str], None] = lambda _: None
) -> list[PartResult]:
    """Run all parts, in order, within the limit; what is not done by then is left out.

    :param progress: told each part's name when it is over
    """
    names = list(parts(options))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, options), name="gpu-check", daemon=True)
    started = previous = clock.monotonic_ns()
    process.start()
    theirs.close()
    results: list[PartResult] = []
    try:
        for name in names:
            left = limit_seconds - (clock.monotonic_ns() - started) / _NS_PER_SECOND
            results.append(_receive(ours, name, left))
            now = clock.monotonic_ns()
            if results[-1].seconds == 0.0:
                results[-1] = _timed(results[-1], (now - previous) / _NS_PER_SECOND)
            previous = now
            progress(name)
    finally:
        ours.close()
        process.join(0 if len(results) < len(names) else _END_SECONDS)
        if process.is_alive():
            process.kill()
    return results


def _receive(pipe: Connection, name: str, left: float) -> PartResult:
    try:
        if not pipe.poll(max(0.0, left)):
            return PartResult(name, "left out", 0.0, {}, "the time was up")
        result = pipe.recv()
    except (EOFError, OSError):
        return PartResult(name, "failed", 0.0, {}, "the process that ran it ended")
    assert isinstance(result, PartResult)
    return result


def _timed(result: PartResult, seconds: float) -> PartResult:
    return PartResult(result.name, result.status, seconds, result.figures, result.fault)


def _serve(pipe: Connection, options: CheckOptions) -> None:
    """In the other process: run the parts and send each one's result; its log leaves standard output to the report."""
    configure_logging("info", "auto")
    for name, part in parts(options).items():
        try:
            pipe.send(PartResult(name, "passed", 0.0, part()))
        except NotPossible as why:
            pipe.send(PartResult(name, "left out", 0.0, {}, str(why)))
        except Exception as fault:  # noqa: BLE001 - the other parts are run all the same
            pipe.send(PartResult(name, "failed", 0.0, {}, f"{type(fault).__name__}: {fault}"))
