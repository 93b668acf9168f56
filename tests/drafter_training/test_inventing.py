"""Inventing prompts with the tiny target: they begin as asked, each comes once, and a kill loses little."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from support import inventors, models, tiny
from support.forked import TRAINING, Forge

from respsd.clock import SystemClock
from respsd.drafter_training import inventing
from respsd.drafter_training.batched_generation import BatchedGenerator, Job
from respsd.drafter_training.inventing import Invented, InventOptions, invent, turn_start
from respsd.drafter_training.line_file import LineFile
from respsd.engine.tokenizer import HfTokenizer
from respsd.errors import CheckpointError, InvalidRequest, TrainingDataError

END = tiny.EOS
OPENINGS = ("the cat sat on", "then the other", "a mat and a hat")
QUICK = {"max_tokens": 16, "slots": 4}


def _invent(output: Path, options: InventOptions, target: Path | None = None) -> Invented:
    return invent(
        output,
        target or inventors.target(),
        options,
        dtype=torch.float32,
        device=models.CPU,
        clock=SystemClock(),
    )


def _prompts(file: Path) -> list[str]:
    documents = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert all(one.keys() == {"source", "prompt"} and one["source"] == "invented" for one in documents)
    return [one["prompt"] for one in documents]


def _ids(text: str) -> list[int]:
    return tiny.tokenizer().encode(text, add_special_tokens=False)


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What the target writes, turn after turn, in place of its own words; just so many turns may be begun."""
    script: list[list[int]] = []

    class Scripted:
        def __init__(self, model: object, **settings: object) -> None:
            self.settings = settings

        def run(self, queue: deque[Job]) -> Iterator[Job]:
            for answer_ids in script:
                job = queue.popleft()
                job.answer_ids = answer_ids
                yield job
            assert not queue, f"{len(queue)} turns more than expected are begun"

    monkeypatch.setattr(inventing, "BatchedGenerator", Scripted)
    return script


def test_prompts_begin_with_the_openings_in_turn_until_there_are_as_many_as_wanted(tmp_path: Path) -> None:
    done = _invent(tmp_path / "p.jsonl", InventOptions(12, OPENINGS, **QUICK))
    prompts = _prompts(tmp_path / "p.jsonl")
    assert (done.prompts, done.prompts_before, len(prompts), len(set(prompts))) == (12, 0, 12, 12)
    assert all(len(prompt) > len(next(each for each in OPENINGS if prompt.startswith(each))) for prompt in prompts)
    begun = Counter(next(each for each in OPENINGS if prompt.startswith(each)) for prompt in prompts)
    assert sum(begun.values()) == 12
    assert min(begun[each] for each in OPENINGS) > 0
    assert done.tokens >= 12


def test_the_target_goes_on_inside_the_users_turn() -> None:
    tokenizer = HfTokenizer.load(inventors.target())
    assert turn_start(tokenizer, "the cat") == _ids("user: the cat")
    assert turn_start(tokenizer, "") == _ids("user: ")


def test_every_turn_that_is_begun_may_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short turns end first: a run that stopped at its last prompt would keep those and lose the long ones."""
    finished: list[Job] = []
    left: list[int] = []

    class Watched(BatchedGenerator):
        def run(self, queue: deque[Job]) -> Iterator[Job]:
            for job in super().run(queue):
                finished.append(job)
                yield job
            left.append(len(queue))

    monkeypatch.setattr(inventing, "BatchedGenerator", Watched)
    done = _invent(tmp_path / "p.jsonl", InventOptions(9, OPENINGS[:1], max_tokens=24, slots=9))
    assert left == [0]
    assert len(finished) == done.prompts + done.skipped.total
    ended = [job.answer_ids for job in finished if len(job.answer_ids) < 24 and min(job.answer_ids[:-1], default=0) > 2]
    longest = OPENINGS[0] + tiny.tokenizer().decode(max(ended, key=len)[:-1])
    assert any(prompt.startswith(longest.rstrip(" \ufffd")) for prompt in _prompts(tmp_path / "p.jsonl"))


def test_unusable_turns_are_counted_and_replaced_by_as_many_more(says: list[list[int]], tmp_path: Path) -> None:
    cut = _ids("thé")[:-1]
    says += [
        [END],
        [*_ids("  "), END],
        [*_ids(" mat"), END],
        [*_ids(" mat"), END],
        [*_ids(" hat"), 1, *_ids("a"), END],
        [*_ids(" and that"), *_ids(" hat")],
        [*_ids(" "), *cut, END],
    ]
    done = _invent(tmp_path / "p.jsonl", InventOptions(2, OPENINGS[:1], max_tokens=16))
    assert _prompts(tmp_path / "p.jsonl") == ["the cat sat on mat", "the cat sat on th"]
    assert done.skipped.reasons == {
        "without a word of its own": 2,
        "invented before": 1,
        "with special tokens": 1,
        "not ended after 16 tokens": 1,
    }
    assert done.tokens == sum(map(len, says))


def test_short_prompts_are_left_out(says: list[list[int]], tmp_path: Path) -> None:
    says += [[*_ids("hat on a mat"[:length]), END] for length in (11, 12)]
    done = _invent(tmp_path / "p.jsonl", InventOptions(1, max_tokens=16))
    assert _prompts(tmp_path / "p.jsonl") == ["hat on a mat"]
    assert done.skipped.reasons == {"shorter than 12 characters": 1}


def test_unfinished_turns_are_kept_on_request_without_half_a_character(says: list[list[int]], tmp_path: Path) -> None:
    says += [_ids(" and thé")[:-1], _ids(" and a hat")]
    done = _invent(tmp_path / "p.jsonl", InventOptions(2, OPENINGS[:1], max_tokens=16, keep_unfinished=True))
    assert _prompts(tmp_path / "p.jsonl") == ["the cat sat on and th", "the cat sat on and a hat"]
    assert done.skipped.total == 0


def test_what_the_file_holds_already_is_not_invented_again(says: list[list[int]], tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    before = [{"prompt": "the cat sat on mat"}, {"prompt": "the cat sat on mat"}, {"turns": ["a hat", "another"]}]
    file.write_text("".join(json.dumps(one) + "\n" for one in before) + "nonsense\n")
    says += [[*_ids(" mat"), END], [*_ids(" hat"), END]]
    done = _invent(file, InventOptions(3, OPENINGS[:1], max_tokens=16))
    assert (done.prompts, done.prompts_before) == (1, 2)
    assert done.skipped.reasons == {"invented before": 1}
    assert json.loads(file.read_text().splitlines()[-1])["prompt"] == "the cat sat on hat"


def test_a_killed_run_goes_on_where_its_file_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "p.jsonl"
    options = InventOptions(8, OPENINGS, **QUICK)
    monkeypatch.setattr(inventing, "_APPEND_AT", 2)
    append, calls = LineFile.append_lines, []

    def killed_at_third(self: LineFile, lines: Sequence[str]) -> None:
        calls.append(len(lines))
        if len(calls) == 3:
            raise KeyboardInterrupt
        append(self, lines)

    with monkeypatch.context() as patch:
        patch.setattr(LineFile, "append_lines", killed_at_third)
        with pytest.raises(KeyboardInterrupt):
            _invent(output, options)
    first = _prompts(output)
    assert len(first) == 4
    with output.open("a") as torn:
        torn.write('{"source": "invented", "pro')
    done = _invent(output, options)
    assert (done.prompts_before, done.prompts) == (4, 4)
    whole = _prompts(output)
    assert whole[:4] == first
    assert len(set(whole)) == len(whole) == 8

    monkeypatch.setattr(inventing, "load_generation_model", None)  # a file that is full needs no model
    assert _invent(output, options).prompts == 0
    assert _prompts(output) == whole


@pytest.mark.slow
def test_a_run_that_is_killed_at_once_leaves_whole_lines_and_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "p.jsonl"
    flags = ["--to", output, "--count", 200, "--opening", "the cat sat on", "--max-tokens", 24, "--batch", 8]
    arguments = ["drafter", "invent", *flags, "--target", inventors.target(), "--dtype", "float32", "--device", "cpu"]
    with Forge(tmp_path, TRAINING) as forge:
        run = forge.run(list(map(str, arguments)))
        while run.is_alive and not (output.exists() and output.stat().st_size):
            time.sleep(0.005)
        run.kill()
        first = _prompts(output)
        assert first
        ended = forge.run(list(map(str, arguments))).wait()
    assert ended is not None
    assert ended["code"] == 0
    whole = _prompts(output)
    assert whole[: len(first)] == first
    assert len(set(whole)) == len(whole) == 200


def test_a_hopeless_opening_comes_to_an_end_and_keeps_what_it_gave(tmp_path: Path) -> None:
    output = tmp_path / "p.jsonl"
    options = InventOptions(3, OPENINGS[:1], temperature=0.01, max_tokens=3, keep_unfinished=True, slots=76)
    with pytest.raises(TrainingDataError, match=r"only [012] of 3 prompts after 76 tries; 7[456] turns skipped"):
        _invent(output, options)
    assert len(_prompts(output)) < 3


def test_a_file_that_cannot_be_written_is_an_error_before_any_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventing, "load_generation_model", None)
    with pytest.raises(TrainingDataError, match="cannot be appended to: it is no file"):
        _invent(tmp_path, InventOptions(1))


class Template:
    """A chat template of token ids: letters of the turn between these."""

    eos_token_ids = (END,)

    def __init__(self, before: list[int], after: list[int]) -> None:
        self._before, self._after = before, after

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return [*self._before, *map(ord, messages[0]["content"]), *self._after]

    def decode(self, token_ids: Sequence[int]) -> str:
        raise AssertionError


def test_a_turn_starts_behind_whatever_the_template_puts_before_it() -> None:
    assert turn_start(Template([9, END, 8], [END, 7]), "a") == [9, END, 8, ord("a")]
    assert turn_start(Template([9], [END, 7]), "") == [9]


@pytest.mark.parametrize(("before", "after"), [([9], [7]), ([9, END, 8], [7]), ([END], [])])
@pytest.mark.parametrize("opening", ["", "a"])
def test_a_template_that_does_not_end_a_users_turn_is_refused(
    before: list[int], after: list[int], opening: str
) -> None:
    with pytest.raises(CheckpointError, match="does not end a user's turn with an end token"):
        turn_start(Template(before, after), opening)


def test_a_target_that_cannot_invent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="chat template: does not end a user's turn with an end token"):
        _invent(tmp_path / "p.jsonl", InventOptions(1), models.folders()[0])
    monkeypatch.setattr(HfTokenizer, "has_chat_template", False)
    with pytest.raises(CheckpointError, match=r"target: has no chat template"):
        _invent(tmp_path / "p.jsonl", InventOptions(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (InventOptions(0), "count: 0 is not allowed; it must be at least 1"),
        (InventOptions(1, temperature=0.0), "temperature: 0.0 is not allowed; it must be above 0 and at most 2"),
        (InventOptions(1, temperature=2.1), "temperature: 2.1 "),
        (InventOptions(1, temperature=float("nan")), "temperature: nan "),
        (InventOptions(1, max_tokens=0), "max_tokens: 0 "),
        (InventOptions(1, slots=0), "batch: 0 "),
        (InventOptions(1, seed=-1), "seed: -1 "),
        (InventOptions(1, seed=1 << 32), "seed: 4294967296 is not allowed; it must be from 0 to 4294967295"),
        (InventOptions(1, ()), "opening: () "),
        (InventOptions(1, ("fine", "\udcff")), r"opening: '\\udcff' is not allowed; it must be valid UTF-8"),
    ],
)
def test_options_out_of_range_are_named(tmp_path: Path, options: InventOptions, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message.replace("(", r"\(").replace(")", r"\)")):
        _invent(tmp_path / "p.jsonl", options)
    assert not (tmp_path / "p.jsonl").exists()


def test_turns_that_the_context_cannot_hold_are_refused(tmp_path: Path) -> None:
    longest = len(_ids("user: the cat")) + tiny.CONTEXT
    with pytest.raises(InvalidRequest, match=rf"opening \+ max_tokens: {longest} .* holds {tiny.CONTEXT}"):
        _invent(tmp_path / "p.jsonl", InventOptions(1, ("a", "the cat"), max_tokens=tiny.CONTEXT))
