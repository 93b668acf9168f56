from __future__ import annotations

import pytest
import torch
from support import models as tiny_models
from support.engines import load_tiny
from transformers import AutoModelForCausalLM

from respsd.bench.comparison.answers import Delivery
from respsd.bench.comparison.arena import ArenaOptions, open_arena
from respsd.bench.comparison.methods import parse_methods
from respsd.bench.comparison.transformers_decoder import Drafting, TransformersDecoder, TransformersModels, _cut
from respsd.bench.comparison.transformers_process import transformers_process
from respsd.control.action import OFF
from respsd.engine.local_run import fixed_request, run, running_engine
from respsd.errors import EngineFault

PROMPTS = [(1, 40, 17, 99, 40, 17), (1, 200)]


def models(**changes) -> TransformersModels:
    given = {"target": tiny_models.folders()[0], "dtype": torch.float32, "device": "cpu", "eos_token_ids": (2,)}
    return TransformersModels(**{**given, **changes})


@pytest.fixture(scope="module")
def decoder() -> TransformersDecoder:
    return TransformersDecoder.load(models())


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, ...]]:
    with running_engine(load_tiny(), OFF) as engine:
        return [run(engine, fixed_request(prompt, OFF, 20)).token_ids for prompt in PROMPTS]


def test_greedy_tokens_are_our_engines_one_at_a_time(decoder, plain):
    for prompt, expected in zip(PROMPTS, plain, strict=True):
        (answer,) = decoder.decode([prompt], 20, ignore_eos=True).answers
        assert answer.token_ids == expected
        assert [delivery.tokens for delivery in answer.deliveries] == [1] * 20
        times = [delivery.seconds for delivery in answer.deliveries]
        assert times == sorted(times)
        assert times[0] > 0


def test_a_padded_batch_gives_every_row_its_own_answer(decoder, plain):
    batch = decoder.decode(PROMPTS, 20, ignore_eos=True)
    assert [answer.token_ids for answer in batch.answers] == plain


def test_prompt_lookup_gives_the_same_tokens_in_fewer_deliveries(decoder, plain):
    batch = decoder.decode(PROMPTS[:1], 20, ignore_eos=True, drafting=Drafting(prompt_lookup_tokens=4))
    assert batch.answers[0].token_ids == plain[0]
    assert sum(delivery.tokens for delivery in batch.answers[0].deliveries) == 20


def test_a_perfect_assistant_has_several_tokens_accepted_at_once(decoder, plain):
    assistant = AutoModelForCausalLM.from_pretrained(tiny_models.folders()[0], dtype=torch.float32)
    target = AutoModelForCausalLM.from_pretrained(tiny_models.folders()[0], dtype=torch.float32)
    assisted = TransformersDecoder(target, (2,), assistant)
    (answer,) = assisted.decode(PROMPTS[:1], 20, ignore_eos=True, drafting=Drafting(assisted=True)).answers
    assert answer.token_ids == plain[0]
    assert max(delivery.tokens for delivery in answer.deliveries) > 1


def test_an_answer_ends_with_its_end_token_and_within_its_budget(decoder, plain):
    end = plain[0][5]
    first = plain[0].index(end)
    other = TransformersDecoder(decoder._model, (end,))
    answers = other.decode(PROMPTS, 20, ignore_eos=False).answers
    assert answers[0].token_ids == plain[0][: first + 1]
    assert len(answers[0].deliveries) == first + 1


def test_what_lies_behind_an_end_in_one_delivery_is_cut():
    answer = _cut(_answer([1, 3, 4], [7, 1, 2, 7, 0, 0, 0, 0]), frozenset({2}), 20)
    assert answer.token_ids == (7, 1, 2)
    assert answer.deliveries == (Delivery(0.0, 1), Delivery(1.0, 2))
    assert _cut(_answer([1, 3], [7, 1, 5, 7]), frozenset({2}), 3).token_ids == (7, 1, 5)


def _answer(tokens, ids):
    from support.bench_fakes import answer

    return answer([float(place) for place in range(len(tokens))], tokens=tokens, ids=ids)


@pytest.mark.slow
def test_every_method_of_an_arena_gives_plain_decodings_tokens(plain):
    methods = parse_methods("transformers,prompt-lookup:4,off,8:3:3")
    options = ArenaOptions(target_folder=tiny_models.folders()[0], most_streams=2)
    with open_arena(load_tiny(), methods, options) as arena:
        for method in methods:
            batch = arena.decoder(method).decode(PROMPTS[:1], 20, ignore_eos=True)
            assert batch.answers[0].token_ids == plain[0], method.name
            assert bool(batch.steps) is not method.is_transformers
        both = arena.decoder(methods[3]).decode(PROMPTS, 20, ignore_eos=True)
        assert [answer.token_ids for answer in both.answers] == plain
        assert max(step.batch_size for step in both.steps) == 2
        assert 0 < both.policy_seconds < both.seconds
        with pytest.raises(EngineFault, match="transformers failed"):
            arena.decoder(methods[0]).decode([(10**6,)], 4, ignore_eos=True)


@pytest.mark.slow
def test_models_that_cannot_be_loaded_there_are_a_fault_here(tmp_path):
    with pytest.raises(EngineFault, match="transformers failed"), transformers_process(models(target=tmp_path)):
        pass
