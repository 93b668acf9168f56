"""`respsd drafter train`: answers to a drafter's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from respsd.cli import models
from respsd.cli.drafter.target import training_target
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.clock import SystemClock


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
    new_vocabulary: Annotated[
        bool,
        typer.Option("--new-vocabulary", help="With --from: choose those tokens anew; known ones keep their rows."),
    ] = False,
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
    target_folder, torch_device, torch_dtype = training_target(settings)
    options = TrainOptions(
        draft_vocab=draft_vocab,
        new_vocabulary=new_vocabulary,
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
