"""Processors against independent decoders: transformers' own where it has them, formulas by hand where it has not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support import tiny
from support.engines import Rig, load_tiny, request, running
from support.models import folders
from transformers import AutoModelForCausalLM

from respsd.control.action import OFF, Action
from respsd.engine.assembly import load_models
from respsd.engine.request import SamplingParams

PROMPT = [1, 40, 17, 99, 254, 3, 60, 40]
ACTIONS = [OFF, Action(60, 7, 10)]
NEW = 30


@pytest.fixture(scope="module")
def rig():
    with running(load_tiny(), persistence=3) as running_rig:
        yield running_rig


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(folders()[0], dtype=torch.float32)


def by_hand(
    model, params: SamplingParams, *, least: int = 0, prompt: Sequence[int] = PROMPT, ignore_eos: bool = False
) -> tuple[int, ...]:
    """Greedy decoding token by token, each processor spelled out for one token id at a time."""
    output: list[int] = []
    while len(output) < NEW:
        with torch.no_grad():
            row = model(torch.tensor([[*prompt, *output]])).logits[0, -1].tolist()
        for token, value in params.logit_bias.items():
            row[token] += value
        for token in {*prompt, *output}:
            penalty = params.repetition_penalty
            row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
        for token, times in Counter(output).items():
            row[token] -= params.presence_penalty + params.frequency_penalty * times
        if len(output) < least:
            row[tiny.EOS] = float("-inf")
        output.append(max(range(len(row)), key=lambda token: (row[token], -token)))
        if output[-1] == tiny.EOS and not ignore_eos:
            break
    return tuple(output)


@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize("penalty", [0.7, 1.2, 1.8])
def test_repetition_penalty_is_transformers_own(rig: Rig, model, action, penalty):
    model.generation_config.eos_token_id = None
    theirs = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=NEW, do_sample=False, repetition_penalty=penalty, pad_token_id=0
    )
    ours = rig.generate(request(PROMPT, NEW, action=action, sampling=SamplingParams(repetition_penalty=penalty)))
    assert ours.token_ids == tuple(theirs[0, len(PROMPT) :].tolist())


@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(frequency_penalty=0.8),
        SamplingParams(frequency_penalty=-1.5),
        SamplingParams(presence_penalty=2.0),
        SamplingParams(logit_bias={40: 6.0, 17: -100.0}),
        SamplingParams(frequency_penalty=0.3, presence_penalty=0.4, repetition_penalty=1.3, logit_bias={99: 3.0}),
    ],
    ids=["frequency", "negative-frequency", "presence", "bias", "all"],
)
def test_penalties_and_bias_are_the_formulas(rig: Rig, model, action, params):
    ours = rig.generate(request(PROMPT, NEW, action=action, sampling=params, ignore_eos=False))
    assert ours.token_ids == by_hand(model, params)


@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize("least", [1, 6, 11])
def test_min_new_tokens_bars_eos_at_just_those_places(rig: Rig, model, action, least):
    """The model wants EOS everywhere; it comes as token `least`, in the middle of whatever tree is verified."""
    params = SamplingParams(logit_bias={tiny.EOS: 1000.0})
    ours = rig.generate(request(PROMPT, NEW, action=action, sampling=params, ignore_eos=False, min_new_tokens=least))
    assert ours.token_ids == by_hand(model, params, least=least)
    assert len(ours.token_ids) == least + 1
    assert ours.token_ids[-1] == tiny.EOS


STAYS = 248
"""With another seed the tiny target says this token after itself for ever, and the drafter guesses it."""


@pytest.fixture(scope="module")
def repeating(tmp_path_factory):
    """A rig on that target, and the target as transformers runs it."""
    root: Path = tmp_path_factory.mktemp("repeating")
    target = tiny.write_target(root / "target", seed=1)
    drafter = tiny.write_drafter(root / "drafter", target)
    models = load_models(target, drafter, dtype=torch.float32, device=torch.device("cpu"))
    with running(models) as running_rig:
        yield running_rig, AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)


@pytest.mark.parametrize("action", [Action(16, 7, 3), Action(60, 7, 10)], ids=str)
@pytest.mark.parametrize("penalty", [0.1, 0.3, 0.8])
def test_each_drafted_repetition_counts_for_the_next(repeating, action, penalty):
    """The repetitions of one step are on one path: were only those before the step counted, the token would go on."""
    rig, model = repeating
    free = rig.generate(request([1, STAYS], 12, action=action))
    assert set(free.token_ids) == {STAYS}
    assert free.finished.accepted_tokens > free.finished.steps  # whole paths of it
    params = SamplingParams(frequency_penalty=penalty)
    ours = rig.generate(request([1, STAYS], NEW, action=action, sampling=params))
    assert ours.token_ids == by_hand(model, params, prompt=[1, STAYS], ignore_eos=True)
    assert ours.token_ids[:2] == (STAYS, STAYS)
    assert set(ours.token_ids[15:]) != {STAYS}
