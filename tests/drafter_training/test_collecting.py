"""Collecting with the tiny target: answers are the target's own, in a balanced order, and a kill loses little."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import structlog
import torch
from support import models, tiny

from respsd.clock import SystemClock
from respsd.drafter_training import collecting
from respsd.drafter_training.answers import Answer, AnswerFile, read_answers
from respsd.drafter_training.batched_generation import Job
from respsd.drafter_training.collecting import Collected, CollectOptions, balanced, by_length_in_windows, collect
from respsd.drafter_training.prompts import Conversation, Skipped
from respsd.errors import InvalidRequest, TrainingDataError

WORDS = ["cat", "dog", "the cat sat", "a mat", "hat on that", "then", "other", "and", "on", "the"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{word}?", "source": word[:1]}) + "\n" for word in WORDS))
    return file


def _options(temperatures: tuple[float, ...] = (0.0,), **changes: int) -> CollectOptions:
    """Settings whose prompts fit the tiny target."""
    return CollectOptions(temperatures=temperatures, max_prompt_tokens=64, **changes)


def _collect(prompts: Path, output: Path, options: CollectOptions, answered: tuple[Path, ...] = ()) -> Collected:
    return collect(
        [prompts],
        output,
        models.folders()[0],
        options,
        dtype=torch.float32,
        device=models.CPU,
        clock=SystemClock(),
        answered=answered,
    )


def _answers(file: Path) -> list[Answer]:
    skipped = Skipped()
    answers = list(read_answers(file, skipped))
    assert skipped.total == 0
    return answers


def _plain_greedy(prompt: list[int], limit: int) -> list[int]:
    """One sequence, one token at a time, through the engine's target."""
    out: list[int] = []
    target = models.target()
    from respsd.engine.kv_cache import SequenceCache

    while len(out) < limit and (not out or out[-1] != tiny.EOS):
        cache = SequenceCache(target.layout, tiny.CONTEXT)
        out.append(int(models.prefill(cache, prompt + out).logits[-1].argmax()))
    return out


def test_greedy_answers_equal_plain_decoding_whatever_shares_the_batch(prompts: Path, tmp_path: Path) -> None:
    options = _options(temperatures=(0.0,), max_new_tokens=12, slots=3)
    done = _collect(prompts, tmp_path / "a.jsonl", options)
    answers = _answers(tmp_path / "a.jsonl")
    assert done.answers == len(answers) == len(WORDS)
    assert done.tokens == sum(len(answer.answer_ids) for answer in answers)
    for answer in answers:
        assert answer.answer_ids == _plain_greedy(answer.prompt_ids, 12)


def test_every_prompt_is_answered_at_every_temperature_once(prompts: Path, tmp_path: Path) -> None:
    _collect(prompts, tmp_path / "a.jsonl", _options(temperatures=(0.0, 0.0, 1.0), max_new_tokens=4))
    answers = _answers(tmp_path / "a.jsonl")
    assert Counter(answer.temperature for answer in answers) == {0.0: len(WORDS), 1.0: len(WORDS)}
    assert len({answer.key for answer in answers}) == len(answers)


def test_a_killed_run_goes_on_where_its_file_ends(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "a.jsonl"
    options = _options(temperatures=(0.0,), max_new_tokens=6, slots=2)
    monkeypatch.setattr(collecting, "_APPEND_AT", 2)
    append, calls = AnswerFile.append, []

    def killed_at_third(self: AnswerFile, answers: list[Answer]) -> None:
        calls.append(len(answers))
        if len(calls) == 3:
            raise KeyboardInterrupt
        append(self, answers)

    with monkeypatch.context() as patch:
        patch.setattr(AnswerFile, "append", killed_at_third)
        with pytest.raises(KeyboardInterrupt):
            _collect(prompts, output, options)
    first = _answers(output)
    assert len(first) == 4
    done = _collect(prompts, output, options)
    assert (done.answers_before, done.answers) == (4, len(WORDS) - 4)
    whole = _answers(output)
    assert whole[:4] == first
    assert len({answer.key for answer in whole}) == len(whole) == len(WORDS)
    assert _collect(prompts, output, options).answers == 0


def test_answers_of_other_files_count_as_done(prompts: Path, tmp_path: Path) -> None:
    options = _options(temperatures=(0.0,), max_new_tokens=4, limit=4)
    assert _collect(prompts, tmp_path / "a.jsonl", options).answers == 4
    rest = _options(temperatures=(0.0,), max_new_tokens=4)
    assert _collect(prompts, tmp_path / "b.jsonl", rest, (tmp_path / "a.jsonl",)).answers == len(WORDS) - 4


def test_later_turns_follow_the_answers_to_earlier_ones_also_after_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"turns": ["the cat", "the hat"]}) + "\n")
    options = _options(temperatures=(0.0,), max_new_tokens=5)
    _collect(file, tmp_path / "whole.jsonl", options)
    first, second = _answers(tmp_path / "whole.jsonl")
    text = tiny.tokenizer().decode(first.answer_ids, skip_special_tokens=True)
    messages = [
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "the hat"},
    ]
    rendered = tiny.tokenizer().apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert second.prompt_ids == tiny.tokenizer().encode(str(rendered), add_special_tokens=False)
    with AnswerFile(tmp_path / "half.jsonl") as half:
        half.append([first])
    assert _collect(file, tmp_path / "half.jsonl", options).answers == 1
    assert _answers(tmp_path / "half.jsonl") == [first, second]


def test_conversations_that_begin_alike_are_all_answered_each_answer_once(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    turns = [["cat", "dog", "on"], ["cat", "the"], ["cat", "dog", "and"], ["cat"]]
    file.write_text("".join(json.dumps({"turns": each}) + "\n" for each in turns))
    with structlog.testing.capture_logs() as lines:
        done = _collect(file, tmp_path / "a.jsonl", _options(temperatures=(0.0, 0.0), max_new_tokens=3))
    assert [line["to_do"] for line in lines if line["event"] == "collecting"] == [5]
    answers = _answers(tmp_path / "a.jsonl")
    assert done.answers == len(answers) == len({answer.key for answer in answers}) == 5
    assert _collect(file, tmp_path / "a.jsonl", _options(max_new_tokens=3)).answers == 0


def test_a_prompt_longer_than_the_limit_is_skipped_and_counted(prompts: Path, tmp_path: Path) -> None:
    with prompts.open("a") as out:
        out.write(json.dumps({"prompt": "long " * 40}) + "\n")
    options = CollectOptions(temperatures=(0.0, 1.0), max_new_tokens=4, max_prompt_tokens=40)
    done = _collect(prompts, tmp_path / "a.jsonl", options)
    assert done.skipped.reasons == {"longer than 40 tokens": 1}
    assert done.answers == 2 * len(WORDS)


def test_a_prompt_that_the_template_refuses_is_skipped_and_counted(prompts: Path, tmp_path: Path) -> None:
    with prompts.open("a") as file:
        file.write(json.dumps({"prompt": "half a character \ud800"}) + "\n")  # JSON can say it, Unicode cannot
    done = _collect(prompts, tmp_path / "a.jsonl", _options(temperatures=(0.0, 0.7), max_new_tokens=2))
    assert done.answers == 2 * len(WORDS)
    assert done.skipped.describe() == "1 line skipped (1 refused by the target's chat template)"


def test_answers_that_the_context_cannot_hold_are_refused(prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"max_prompt_tokens . max_new_tokens: 300 .* {tiny.CONTEXT}"):
        _collect(prompts, tmp_path / "a.jsonl", CollectOptions(max_prompt_tokens=100, max_new_tokens=200))


def test_a_file_without_a_usable_prompt_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("\n{}\n")
    with pytest.raises(TrainingDataError, match=r"no usable prompt; 2 lines skipped"):
        _collect(tmp_path / "p.jsonl", tmp_path / "a.jsonl", _options())


def test_sampled_answers_differ_from_greedy_ones_and_repeat_with_the_seed(prompts: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        _collect(prompts, tmp_path / name, _options(temperatures=(1.5,), max_new_tokens=20, seed=3))
    first = _answers(tmp_path / "a")
    assert first == _answers(tmp_path / "b")
    assert any(answer.answer_ids != _plain_greedy(answer.prompt_ids, 20) for answer in first)


def test_every_beginning_of_the_order_is_balanced_by_source() -> None:
    conversations = [Conversation("large", (), (str(i),)) for i in range(400)]
    conversations += [Conversation("small", (), (str(i),)) for i in range(100)]
    order = balanced(conversations, seed=0)
    assert sorted(map(repr, order)) == sorted(map(repr, conversations))
    # Square roots 20 and 10: two to one until the small source is used up.
    assert Counter(one.source for one in order[:150]) == pytest.approx({"large": 100, "small": 50}, abs=1)


def test_windows_go_up_and_down_in_length() -> None:
    jobs = [Job([0] * length, 0.0, 0) for length in (3, 1, 2, 1, 3, 2, 5)]
    assert [len(job.prompt_ids) for job in by_length_in_windows(jobs, 3)] == [1, 2, 3, 3, 2, 1, 5]
