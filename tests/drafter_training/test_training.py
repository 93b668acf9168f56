"""Training the tiny drafter end to end: it learns, and a killed run ends as an uninterrupted one."""

from __future__ import annotations

import dataclasses
import errno
import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import models, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from respsd.clock import SystemClock
from respsd.drafter_training import run_state
from respsd.drafter_training.answers import Answer, AnswerFile
from respsd.drafter_training.folder_lock import sole_writer
from respsd.drafter_training.optimiser import schedule
from respsd.drafter_training.options import TrainOptions
from respsd.drafter_training.run_state import RunState
from respsd.drafter_training.train_command import Trained, train
from respsd.drafter_training.training import Schedule
from respsd.engine.checkpoint import load_drafter_checkpoint
from respsd.engine.kv_cache import SequenceCache
from respsd.errors import CheckpointError, InvalidRequest, SettingsError, TrainingDataError

OPTIONS = TrainOptions(
    draft_vocab=48, unrolled_steps=3, epochs=4, rows_per_batch=64, warmup=2, held_out=0.25, prompt_weight=0.5
)
SCHEDULE = Schedule(evaluate_every=8, save_every=5)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Greedy continuations of random prompts."""
    draw = random.Random(0)
    file = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    with AnswerFile(file) as out:
        for _ in range(24):
            prompt = [1, 4, *(draw.randrange(3, tiny.VOCAB) for _ in range(draw.randrange(2, 6)))]
            out.append([Answer("random", 0.0, prompt, _greedy(prompt, 16))])
    return file


def _greedy(prompt: list[int], count: int) -> list[int]:
    cache = SequenceCache(models.target().layout, 64)
    out = [int(models.prefill(cache, prompt).logits[-1].argmax())]
    while len(out) < count and out[-1] != tiny.EOS:
        output = models.target().forward([models.rows(cache, out[-1:])])[0]
        cache.commit([0])
        out.append(int(output.logits[0].argmax()))
    return out


class Products(TorchDispatchMode):
    """Notes which number formats are multiplied by which, in matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.formats: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm):
            self.formats |= {each.dtype for each in args if isinstance(each, torch.Tensor)}
        return func(*args, **(kwargs or {}))


def _train(
    answers: Path,
    folder: Path,
    options: TrainOptions = OPTIONS,
    target: Path | None = None,
    dtype: torch.dtype = torch.float32,
    **changes: object,
) -> Trained:
    return train(
        [answers],
        folder,
        target or models.folders()[0],
        options,
        dtype=dtype,
        device=models.CPU,
        clock=SystemClock(),
        schedule=SCHEDULE,
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def uninterrupted(answers: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return _train(answers, tmp_path_factory.mktemp("whole"))


def test_the_loss_falls_and_the_curves_are_written(uninterrupted: Trained) -> None:
    history = json.loads((uninterrupted.folder / "curves.json").read_text())
    assert [point["step"] for point in history][-1] == uninterrupted.steps
    assert history[-1]["training_loss"] < 0.8 * history[0]["training_loss"]
    assert len(history[-1]["agreement"]) == OPTIONS.unrolled_steps
    assert (uninterrupted.folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_checkpoint_is_one_that_the_engine_loads(uninterrupted: Trained) -> None:
    checkpoint = load_drafter_checkpoint(
        uninterrupted.folder, target_vocab_size=tiny.VOCAB, target_hidden_size=tiny.HIDDEN
    )
    assert checkpoint.config.draft_vocab_size == OPTIONS.draft_vocab
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {torch.bfloat16}
    tensors = load_file(uninterrupted.folder / "model.safetensors")
    assert int(tensors["t2d"].sum()) == OPTIONS.draft_vocab
    assert torch.equal(torch.arange(48) + tensors["d2t"], tensors["t2d"].nonzero()[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_is_multiplied_in_bfloat16_where_that_is_slow(
    answers: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    """torch's Muon took 60 s a step on a processor that has no such products."""
    with Products() as products:
        _train(answers, tmp_path / "run", dataclasses.replace(OPTIONS, epochs=1), dtype=dtype)
    assert (torch.bfloat16 in products.formats) is (dtype == torch.bfloat16)


@pytest.mark.parametrize("save", [2, 3])
def test_a_killed_run_goes_on_and_ends_as_an_uninterrupted_one(
    answers: Path, uninterrupted: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: int
) -> None:
    saved, steps = RunState.save, []

    def killed(self: RunState, step: int, *rest: object) -> None:
        saved(self, step, *rest)  # type: ignore[arg-type]
        steps.append(step)
        if len(steps) == save:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunState, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            _train(answers, tmp_path)
    assert steps[-1] < uninterrupted.steps
    resumed = _train(answers, tmp_path)
    assert resumed.last == uninterrupted.last
    for name in ("curves.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (uninterrupted.folder / name).read_bytes()


def test_a_full_disk_keeps_the_last_checkpoint(
    answers: Path, uninterrupted: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def refuse_second(_descriptor: int) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    features = tmp_path / "features"
    _train(answers, tmp_path / "other", features=features)  # so that only states are written below
    with monkeypatch.context() as patch:
        patch.setattr(run_state.os, "fsync", refuse_second)
        patch.setattr("respsd.drafter_training.train_command.export_checkpoint", lambda *_: None)
        with pytest.raises(TrainingDataError, match="the last checkpoint stands"):
            _train(answers, tmp_path / "run", features=features)
    assert not (tmp_path / "run" / "state.pt.part").exists()
    assert _train(answers, tmp_path / "run", features=features).last == uninterrupted.last


def test_what_is_written_besides_may_fail_and_no_step_is_lost(
    answers: Path, uninterrupted: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise TrainingDataError("model.safetensors", "cannot be written: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("respsd.drafter_training.train_command.export_checkpoint", full)
        with pytest.raises(TrainingDataError, match="No space left"):
            _train(answers, tmp_path)
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == SCHEDULE.evaluate_every
    assert _train(answers, tmp_path).last == uninterrupted.last


def test_two_runs_do_not_write_to_one_folder(answers: Path, tmp_path: Path) -> None:
    with sole_writer(tmp_path, "run", wait=False), pytest.raises(TrainingDataError, match="by another run"):
        _train(answers, tmp_path)


def test_features_of_a_target_that_was_trained_further_are_made_anew(answers: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(models.folders()[0], target)
    features = tmp_path / "features"
    options = dataclasses.replace(OPTIONS, epochs=0.1)
    _train(answers, tmp_path / "one", options, features=features, target=target)
    made = set(features.glob("*.safetensors"))
    _train(answers, tmp_path / "two", options, features=features, target=target)
    assert set(features.glob("*.safetensors")) == made
    weights = load_file(target / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in weights.items()}, target / "model.safetensors", {"format": "pt"})
    _train(answers, tmp_path / "three", options, features=features, target=target)
    assert len(set(features.glob("*.safetensors"))) == 2 * len(made)


def test_a_drafter_of_another_kind_is_not_trained_on(answers: Path, uninterrupted: Trained, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(uninterrupted.folder, other, ignore=shutil.ignore_patterns("features", "state.pt", ".*"))
    config = json.loads((other / "config.json").read_text())
    for changed, fault in (({"rms_norm_eps": 0.5}, "rms_norm_eps is 0.5"), ({"rope_theta": 77.0}, "rotates by")):
        (other / "config.json").write_text(json.dumps({**config, **changed}))
        with pytest.raises(CheckpointError, match=fault):
            _train(answers, tmp_path / "run", initial=other)


def test_other_settings_do_not_continue_a_run(answers: Path, tmp_path: Path) -> None:
    _train(answers, tmp_path)
    with pytest.raises(SettingsError, match="other settings or data"):
        _train(answers, tmp_path, dataclasses.replace(OPTIONS, seed=1))


def test_a_checkpoint_can_be_trained_on(answers: Path, uninterrupted: Trained, tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, draft_vocab=20, epochs=1, learning_rate=0.0, matrix_learning_rate=0.0)
    again = _train(answers, tmp_path, options, initial=uninterrupted.folder)
    before = load_file(uninterrupted.folder / "model.safetensors")
    after = load_file(again.folder / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, atol=0.0, rtol=0.01)


def test_a_vocabulary_chosen_anew_keeps_the_head_of_known_tokens(
    answers: Path, uninterrupted: Trained, tmp_path: Path
) -> None:
    few = dataclasses.replace(
        OPTIONS, draft_vocab=12, new_vocabulary=True, epochs=1, learning_rate=0.0, matrix_learning_rate=0.0
    )
    first = _train(answers, tmp_path / "few", few, initial=uninterrupted.folder)
    grown = dataclasses.replace(few, draft_vocab=30)
    second = _train(answers, tmp_path / "grown", grown, initial=first.folder)

    def head(folder: Path) -> dict[int, torch.Tensor]:
        loaded = load_drafter_checkpoint(folder, target_vocab_size=tiny.VOCAB, target_hidden_size=tiny.HIDDEN)
        return dict(zip(loaded.draft_to_target.tolist(), loaded.tensors["lm_head.weight"].float(), strict=True))

    target = load_file(models.folders()[0] / "model.safetensors")
    rows = target.get("lm_head.weight", target["model.embed_tokens.weight"])
    trained, kept, regrown = head(uninterrupted.folder), head(first.folder), head(second.folder)
    assert (len(kept), len(regrown)) == (12, 30)
    assert kept.keys() < trained.keys()
    assert kept.keys() < regrown.keys()
    for token, row in regrown.items():
        # Exports are bfloat16.
        torch.testing.assert_close(row, kept.get(token, rows[token].float()), atol=1e-6, rtol=0.01)


def test_lines_that_cannot_be_used_are_counted_and_the_rest_is_trained_on(answers: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsonl"
    lines = answers.read_text().splitlines()
    long = Answer("long", 0.0, [1, 4] * 20, [5, 6])
    damaged.write_text("\n".join([*lines, "", "{torn", json.dumps(dataclasses.asdict(long))]) + "\n")
    done = _train(damaged, tmp_path / "run", dataclasses.replace(OPTIONS, epochs=1), max_tokens=30)
    assert done.skipped.reasons == {"empty": 1, "not JSON": 1, "longer than 30 tokens": 1}


def test_no_usable_answer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(TrainingDataError, match="no usable answer; 1 line skipped"):
        _train(tmp_path / "a.jsonl", tmp_path / "run")


def test_a_vocabulary_larger_than_the_answers_is_an_error(answers: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="draft vocabulary"):
        _train(answers, tmp_path, dataclasses.replace(OPTIONS, draft_vocab=tiny.VOCAB))


def test_key_value_heads_that_do_not_divide_the_heads_are_an_error(answers: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"kv_heads: 3 is not allowed; it must divide the target's {tiny.HEADS}"):
        _train(answers, tmp_path, dataclasses.replace(OPTIONS, kv_heads=3))


def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(InvalidRequest, match=r"unrolled_steps: 0 is not allowed; it must be from 1 to 16"):
        dataclasses.replace(OPTIONS, unrolled_steps=0).validated()
    for name, value in (("held_out", 0.0), ("intermediate_size", -1), ("epochs", float("inf"))):
        with pytest.raises(InvalidRequest, match=f"{name}: {value} is not allowed"):
            dataclasses.replace(OPTIONS, **{name: value}).validated()  # type: ignore[arg-type]


def test_the_learning_rate_rises_then_falls_to_zero() -> None:
    assert [schedule(step, 3, 8) for step in range(9)] == pytest.approx(
        [0.25, 0.5 * 7 / 8, 0.75 * 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0.0]
    )
