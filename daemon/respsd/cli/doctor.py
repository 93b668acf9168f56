"""`respsd doctor`: does this installation decode exactly what it must?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.bench.questions import BUILT_IN_COUNT
from respsd.cli import models
from respsd.cli.exit_codes import ExitCode
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.clock import SystemClock
from respsd.errors import InvalidRequest

if TYPE_CHECKING:
    from respsd.bench.lossless import LosslessReport
    from respsd.bench.reference import Comparison


def doctor(
    *,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Compare with a recording of the reference implementation.", exists=True),
    ] = None,
    verify_lossless: Annotated[
        bool, typer.Option("--verify-lossless", help="Compare a spread of actions with plain decoding.")
    ] = False,
    prompts: Annotated[
        int, typer.Option(min=1, max=BUILT_IN_COUNT, help="Built-in prompts for --verify-lossless.")
    ] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each for --verify-lossless.")] = 64,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    exact: models.ExactOption = None,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check that trees and decodes are exact. Exits 1 where a difference is found that rounding cannot explain.

    Without --reference the checks run on the models that `respsd serve` would serve with the same flags and settings.
    """
    if reference is None and not verify_lossless:
        raise InvalidRequest("doctor", "no check", "choose --reference DIR, --verify-lossless or both")
    document: dict[str, object] = {}
    well = True
    if reference is not None:
        from respsd.bench.reference import compare_with_reference

        trees, decodes = compare_with_reference(reference)
        document |= {"trees": _comparison(trees), "decodes": _comparison(decodes)}
        well = trees.failed == decodes.failed == 0
    if verify_lossless:
        settings = models.model_settings(
            demo=demo,
            target=target,
            drafter=drafter,
            dtype=dtype,
            device=device,
            config=config,
            engine={"exact": exact},
        )
        from respsd.bench.lossless import verify_lossless as compare
        from respsd.bench.questions import built_in
        from respsd.telemetry.progress import ProgressReport

        loaded = models.load(settings)
        if loaded.drafter is None:
            print_message("no drafter: every action decodes plainly, so there is little to verify")
        questions = built_in(loaded.tokenizer, prompts).prompts
        with ProgressReport("prompts", prompts, SystemClock()) as progress:
            report = compare(
                loaded,
                questions,
                max_new_tokens,
                progress=lambda: progress.advance(1),
                shapes=settings.engine.step_shapes,
            )
        document |= _lossless(report)
        well = well and report.unexplained == 0
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        _print(document)
    raise typer.Exit(ExitCode.OK if well else ExitCode.FAILED)


def _comparison(comparison: Comparison) -> dict[str, object]:
    return {"checked": comparison.checked, "failed": comparison.failed, "first_mismatches": list(comparison.first)}


def _lossless(report: LosslessReport) -> dict[str, object]:
    return {
        "dtype": report.dtype,
        "prompts": report.prompts,
        "compared": report.compared,
        "different": len(report.differences),
        "unexplained": report.unexplained,
        "prompts_that_differ": report.prompts_that_differ,
        "differences": [
            {
                "prompt": difference.prompt,
                "action": str(difference.action),
                "sampled": difference.sampled,
                "position": difference.position,
                "logit_gap": difference.logit_gap,
                "tolerance": difference.tolerance,
            }
            for difference in report.differences
        ],
    }


def _print(document: dict[str, object]) -> None:
    plain = {name: value for name, value in document.items() if not isinstance(value, dict | list)}
    nested = {name: value for name, value in document.items() if isinstance(value, dict)}
    rows = list(plain.items())
    rows += [(f"{name}.{key}", value) for name, part in nested.items() for key, value in part.items()]
    print_table(("check", "result"), rows)
    differences = document.get("differences")
    if isinstance(differences, list) and differences:
        print_table(tuple(differences[0]), [tuple(difference.values()) for difference in differences])
