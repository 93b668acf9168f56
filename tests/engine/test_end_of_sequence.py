"""EOS wherever it stands in a verified block, for every small shape of draft tree (huggingface/transformers#47912)."""

from __future__ import annotations

import pytest
from support.engines import Rig, load_tiny, plain, request, running

from respsd.control.action import Action
from respsd.engine.events import FinishReason

PROMPT = [1, 40, 17, 99, 254, 3, 60]
SHAPES = [Action(48, depth, top_k) for depth in range(1, 9) for top_k in range(1, 9)]


@pytest.fixture(scope="module")
def rig():
    with running(load_tiny(), persistence=4) as running_rig:
        yield running_rig


def test_eos_at_any_place_of_a_block_cuts_tokens_counts_and_rows_there(rig: Rig):
    free_run = rig.generate(plain(PROMPT, 40)).token_ids
    # Tokens that greedy decoding gives there for the first time: each becomes the model's EOS in its turn.
    cuts = [at for at in range(7, len(free_run)) if free_run[at] not in free_run[:at]][:4]
    places = set()
    for number, shape in enumerate(SHAPES):
        cut = cuts[number % len(cuts)]
        rig.models.tokenizer.eos_token_ids = (free_run[cut],)
        rig.sink.transitions.clear()
        rig.hooks.steps.clear()
        completion = rig.generate(request(PROMPT, 40, action=shape, ignore_eos=False))
        assert completion.token_ids == free_run[: cut + 1], shape
        assert completion.finished.reason is FinishReason.EOS, shape
        assert completion.finished.usage.completion_tokens == cut + 1, shape
        # The first token comes from the prompt's forward pass; the reward sees no token behind the end.
        assert sum(row.committed_tokens for row in rig.sink.transitions) == cut, shape
        assert rig.sink.transitions[-1].truncated, shape
        places.add(rig.hooks.steps[-1][1].committed_tokens)
    assert len(cuts) == 4
    assert len(places) > 1  # EOS was not always at the same place of its block
