"""`respsd drafter eval`: what a drafter's proposals earn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli import models
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_table
from respsd.clock import SystemClock
from respsd.control.action import Action

if TYPE_CHECKING:
    from respsd.drafter_training.evaluation import DrafterScore

_DEFAULT_ACTION = "32,5,8"


def evaluate(
    *,
    questions: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="question.jsonl files (repeat).", exists=True, show_default="built-in set"),
    ] = None,
    action: Annotated[list[str] | None, typer.Option(metavar="TT,d,k", help="Tree shapes (repeat).")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Questions of each file.")] = 16,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer at most.")] = 128,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longer questions are left out.")] = 1024,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Answer questions greedily and print tau and how often drafts are right, by depth."""
    actions = [Action.parse(text) for text in action or [_DEFAULT_ACTION]]
    settings = models.model_settings(
        demo=demo, target=target, drafter=drafter, dtype=dtype, device=device, config=config
    )

    from respsd.bench.questions import question_sets
    from respsd.drafter_training import evaluation
    from respsd.telemetry.progress import ProgressReport

    loaded = models.load(settings)
    sets = question_sets(questions or (), loaded.tokenizer, limit=limit, max_prompt_tokens=max_prompt_tokens)
    total = 2 * len(actions) * sum(len(each.prompts) for each in sets)
    with ProgressReport("answers", total, SystemClock()) as progress:
        scores = evaluation.evaluate(loaded, sets, actions, max_new_tokens, progress=lambda: progress.advance(1))
    if output is OutputFormat.JSON:
        print_json({"dtype": loaded.info.dtype, **_summary(scores)})
    else:
        rows = [
            [one.questions, one.action, f"{one.tau:.2f}", _shares(one.agreement), one.tokens, one.steps]
            for one in scores
        ]
        print_table(["questions", "action", "tau", "agreement by depth", "tokens", "steps"], rows)


def _summary(scores: Sequence[DrafterScore]) -> dict[str, object]:
    """The scores, and above them tau and agreement over everything measured."""
    tokens, steps = sum(one.tokens for one in scores), sum(one.steps for one in scores)
    depths = max(len(one.agreement) for one in scores)
    means = []
    for depth in range(depths):
        found = [one.agreement[depth] for one in scores if len(one.agreement) > depth]
        means.append(sum(found) / len(found))
    return {
        "tau": tokens / max(1, steps),
        "agreement": means,
        "tokens": tokens,
        "steps": steps,
        "results": [{**asdict(one), "action": str(one.action)} for one in scores],
    }


def _shares(agreement: Sequence[float]) -> str:
    return " ".join(f"{share:.2f}" for share in agreement)
