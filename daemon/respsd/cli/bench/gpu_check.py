"""`respsd bench gpu-check`: does everything work on this GPU, and how fast is a step?"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli.exit_codes import ExitCode
from respsd.cli.output import print_json, print_message
from respsd.clock import SystemClock
from respsd.errors import SettingsError

if TYPE_CHECKING:
    from respsd.bench.gpu.check import PartResult


def gpu_check(
    *,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A recording of the reference implementation, to compare with.", exists=True),
    ] = None,
    limit: Annotated[float, typer.Option(min=1, help="Seconds after which the rest is left out.")] = 480.0,
    context: Annotated[int, typer.Option(min=16, help="Tokens of context of the steps that are timed.")] = 512,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Small shapes, on the processor where there is no GPU: tests the check.")
    ] = False,
) -> None:
    """Check this GPU and print one JSON document.

    With random weights in the shape of Llama 3.1 8B and of an EAGLE-3 drafter, made on the device: a step's time by
    action, plain decoding, and transformers' generate. With --reference also exact parity with the recording, and
    outputs against plain decoding in float32 and bfloat16. Exits 1 where a part failed.
    """
    import torch

    from respsd.bench.gpu.check import run_gpu_check
    from respsd.bench.gpu.parts import CheckOptions

    has_gpu = torch.cuda.is_available()
    if not has_gpu and not tiny:
        raise SettingsError("gpu-check: torch sees no CUDA device here (--tiny runs the check itself on the processor)")
    options = CheckOptions(
        device="cuda" if has_gpu else "cpu",
        tiny=tiny,
        reference=reference,
        context=min(context, 64) if tiny else context,
        steps=3 if tiny else 20,
        repeats=1 if tiny else 3,
    )
    started = time.monotonic()
    results = run_gpu_check(options, limit, SystemClock(), lambda name: print_message(f"{name}: done"))
    failed = [result.name for result in results if result.status == "failed"]
    print_json(
        {
            "passed": not failed,
            "seconds": time.monotonic() - started,
            "parts": {result.name: _document(result) for result in results},
        }
    )
    raise typer.Exit(ExitCode.FAILED if failed else ExitCode.OK)


def _document(result: PartResult) -> dict[str, object]:
    return {name: value for name, value in asdict(result).items() if name != "name"}
