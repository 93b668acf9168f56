"""`respsd drafter`: make a drafter for a target (collect, train) and measure it (eval)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli import models
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.clock import SystemClock
from respsd.control.action import Action
from respsd.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

    from respsd.drafter_training.evaluation import DrafterScore
    from respsd.settings import Settings

app = typer.Typer(name="drafter", help="Make an EAGLE-3 drafter for a model, and measure it.", no_args_is_help=True)

_DEFAULT_ACTION = "32,5,8"


@app.command("collect")
def collect(
    prompts: Annotated[list[Path], typer.Argument(help="Files (jsonl, .gz too) of `prompt`, `turns` or `messages`.")],
    output: Annotated[Path, typer.Option("--to", help="Answer file; appended to, so the same command resumes.")],
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Answer each prompt at this temperature; repeat. Default 0, 0.7, 1.")
    ] = None,
    answered: Annotated[
        list[Path] | None, typer.Option(help="Another answer file whose answers count as done.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop at this many answers in the file.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Leave longer prompts out.")] = 512,
    batch: Annotated[int, typer.Option(min=1, help="Answers generated at once.")] = 128,
    seed: int = 0,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    format_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Have the target answer prompts; its answers are what a drafter trains on."""
    from respsd.drafter_training import collecting

    temperatures = tuple(temperature or (0.0, 0.7, 1.0))
    for value in temperatures:
        if not 0 <= value <= 2:
            raise InvalidRequest("temperature", value, "it must be from 0 to 2")
    settings = models.model_settings(demo=demo, target=target, drafter=None, dtype=dtype, device=device, config=config)
    target_folder, torch_device, torch_dtype = _training_models(settings)
    done = collecting.collect(
        prompts,
        output,
        target_folder,
        collecting.CollectOptions(temperatures, max_new_tokens, max_prompt_tokens, limit, batch, seed),
        dtype=torch_dtype,
        device=torch_device,
        clock=SystemClock(),
        answered=answered or (),
    )
    print_message(done.skipped.describe())
    figures = {"answers": done.answers, "tokens": done.tokens, "answers_before": done.answers_before}
    if format_ is OutputFormat.JSON:
        print_json({**figures, "skipped": dict(done.skipped.reasons)})
    else:
        print_table(list(figures), [list(figures.values())])


@app.command("train")
def train(
    answers: Annotated[list[Path], typer.Argument(help="Answer files of `respsd drafter collect`.")],
    output: Annotated[Path, typer.Option("--to", help="Folder of the checkpoint; the same command resumes.")],
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    features: Annotated[
        Path | None, typer.Option(help="Folder for the target's features, which runs may share. Default: in --to.")
    ] = None,
    initial: Annotated[Path | None, typer.Option("--from", help="Drafter checkpoint to begin with.")] = None,
    max_tokens: Annotated[int, typer.Option(min=8, help="Leave longer prompts with answers out.")] = 2048,
    draft_vocab: Annotated[int, typer.Option(help="Tokens that the drafter can propose.")] = 8192,
    intermediate_size: Annotated[int | None, typer.Option(help="Width of its MLP. Default: the target's.")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key-value heads of its attention. Default: the target's.")
    ] = None,
    unrolled_steps: Annotated[int, typer.Option(help="Tokens ahead that are trained for.")] = 4,
    step_decay: float = 0.8,
    epochs: Annotated[float, typer.Option(help="Passes over the answers.")] = 2.5,
    rows_per_batch: Annotated[int, typer.Option(help="Predicted tokens of a batch; memory grows with it.")] = 2048,
    matrix_learning_rate: Annotated[float, typer.Option(help="Muon's, for the layer's matrices.")] = 1e-2,
    learning_rate: Annotated[float, typer.Option(help="AdamW's, for norms and head.")] = 3e-3,
    weight_decay: float = 0.0,
    warmup: Annotated[int, typer.Option(help="Steps over which the learning rates rise.")] = 40,
    gradient_clip: float = 1.0,
    prompt_weight: Annotated[float, typer.Option(help="What predictions inside prompts count beside 1.")] = 0.5,
    held_out: Annotated[float, typer.Option(help="Share of the prompts kept for evaluation.")] = 0.03,
    evaluate_every: Annotated[int, typer.Option(min=1)] = 100,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints to resume from.")] = 50,
    seed: int = 0,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    format_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Train a drafter on answers; after a kill the same command goes on from the last checkpoint."""
    from respsd.drafter_training import train_command
    from respsd.drafter_training.options import TrainOptions
    from respsd.drafter_training.training import Schedule

    settings = models.model_settings(demo=demo, target=target, drafter=None, dtype=dtype, device=device, config=config)
    target_folder, torch_device, torch_dtype = _training_models(settings)
    options = TrainOptions(
        draft_vocab=draft_vocab,
        intermediate_size=intermediate_size,
        kv_heads=kv_heads,
        unrolled_steps=unrolled_steps,
        step_decay=step_decay,
        epochs=epochs,
        rows_per_batch=rows_per_batch,
        matrix_learning_rate=matrix_learning_rate,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        warmup=warmup,
        gradient_clip=gradient_clip,
        prompt_weight=prompt_weight,
        held_out=held_out,
        seed=seed,
    )
    done = train_command.train(
        answers,
        output,
        target_folder,
        options,
        dtype=torch_dtype,
        device=torch_device,
        clock=SystemClock(),
        features=features,
        schedule=Schedule(evaluate_every, save_every),
        initial=initial,
        max_tokens=max_tokens,
    )
    print_message(done.skipped.describe())
    figures = {
        "checkpoint": str(done.folder),
        "parameters": done.parameters,
        "steps": done.steps,
        "held_out_loss": round(done.last.held_out_loss, 4),
        "draft_coverage": round(done.draft_coverage, 4),
    }
    agreement = [round(share, 4) for share in done.last.agreement]
    if format_ is OutputFormat.JSON:
        print_json({**figures, "agreement": agreement, "skipped": dict(done.skipped.reasons)})
    else:
        print_table([*figures, "agreement"], [[*figures.values(), " ".join(map(str, agreement))]])


@app.command("eval")
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


def _training_models(settings: Settings) -> tuple[Path, torch.device, torch.dtype]:
    """The target's folder, device and dtype, as the daemon would choose them; sets the log up, too."""
    import torch

    from respsd.models.demo import demo_model
    from respsd.models.dtype import choose_device, choose_dtype, this_machine, torch_dtype
    from respsd.models.target import resolve_checkpoint
    from respsd.settings import DEMO
    from respsd.telemetry.logging import configure_logging

    configure_logging(settings.log.level, settings.log.format)
    device = choose_device(settings.device)
    is_demo = settings.target == DEMO
    folder = demo_model(settings.demo_source) if is_demo else resolve_checkpoint(settings.target)
    return folder, torch.device(device), torch_dtype(choose_dtype(settings.dtype, this_machine(device)))
