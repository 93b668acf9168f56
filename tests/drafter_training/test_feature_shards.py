"""Target features on disk: what the engine's target computes, made once, whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from support import models, tiny

from respsd.clock import SystemClock
from respsd.drafter_training import feature_shards, target_features
from respsd.drafter_training.answers import Answer
from respsd.drafter_training.feature_shards import FeatureShard
from respsd.drafter_training.target_features import FeatureExtractor, cache_features, open_shards
from respsd.engine.kv_cache import SequenceCache
from respsd.errors import CheckpointError, TrainingDataError

ANSWERS = [
    Answer("a", 0.0, [5, 6, 7], [8, 9, tiny.EOS]),
    Answer("b", 1.0, [10, 11], [12, 13, 14, 15, 16, 17]),
    Answer("c", 0.0, [20], [21, 22]),
]


def _cache(folder: Path, answers: list[Answer] = ANSWERS) -> list[Path]:
    return cache_features(
        answers,
        len(answers),
        folder,
        models.folders()[0],
        dtype=torch.float32,
        device=models.CPU,
        eos_token_ids=(tiny.EOS,),
        clock=SystemClock(),
    )


def test_features_are_those_that_the_engine_drafts_from(tmp_path: Path) -> None:
    (shard,) = open_shards(_cache(tmp_path))
    assert len(shard.places) == len(ANSWERS)
    for place, answer in zip(shard.places, ANSWERS, strict=True):
        rows = shard.read(place)
        tokens = answer.prompt_ids + answer.answer_ids
        expected = models.prefill(SequenceCache(models.target().layout, 32), tokens)
        assert rows.tokens.tolist() == tokens
        assert rows.answer_start == len(answer.prompt_ids)
        torch.testing.assert_close(rows.taps, expected.features, atol=1e-5, rtol=1e-5)
        assert torch.equal(rows.best, expected.logits.argmax(dim=-1))


def test_behind_an_end_of_text_token_nothing_is_predicted(tmp_path: Path) -> None:
    (shard,) = open_shards(_cache(tmp_path))
    assert [place.label_end - place.length for place in shard.places] == [-1, 0, 0]


def test_equal_prompts_have_equal_digests_whatever_the_temperature(tmp_path: Path) -> None:
    again = Answer("a", 1.0, ANSWERS[0].prompt_ids, [9, 9])
    (shard,) = open_shards(_cache(tmp_path, [*ANSWERS, again]))
    digests = [place.prompt_digest for place in shard.places]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


def test_shards_that_exist_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_features, "_SHARD_ANSWERS", 2)
    files = _cache(tmp_path)
    stamps = [file.stat().st_mtime_ns for file in files]
    extracted: list[int] = []
    run = FeatureExtractor.run

    def counted(self: FeatureExtractor, answers: list[Answer]) -> object:
        extracted.append(len(answers))
        return run(self, answers)

    monkeypatch.setattr(FeatureExtractor, "run", counted)
    assert _cache(tmp_path) == files
    assert extracted == []
    grown = _cache(tmp_path, [*ANSWERS, Answer("d", 0.0, [30], [31, 32])])
    assert sum(extracted) == 2
    assert grown[0] == files[0]
    assert files[0].stat().st_mtime_ns == stamps[0]


def test_a_full_disk_leaves_no_half_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(feature_shards.os, "fsync", refuse)
        with pytest.raises(TrainingDataError, match="No space left on device; what was written before is kept"):
            _cache(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [".features.lock"]
    assert len(_cache(tmp_path)) == 1


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    (file,) = _cache(tmp_path)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(TrainingDataError, match=r"is no feature shard .* delete it"):
        FeatureShard(file, 0)


def test_a_target_that_caps_its_logits_is_refused() -> None:
    extractor = FeatureExtractor.load(models.folders()[0], torch.float32, models.CPU, (tiny.EOS,))
    model = extractor._model
    forward = model.forward

    def capped(*args: object, **kwargs: object) -> object:
        output = forward(*args, **kwargs)
        output.logits = 3.0 * torch.tanh(output.logits / 3.0)
        return output

    model.forward = capped
    with pytest.raises(CheckpointError, match="caps its logits"):
        extractor.run(ANSWERS)
