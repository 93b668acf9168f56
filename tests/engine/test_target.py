from __future__ import annotations

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from support import models
from transformers import AutoModelForCausalLM

from respsd.engine.kv_cache import SequenceCache
from respsd.engine.target import Rows, Target
from respsd.errors import CheckpointError

PROMPT = [1, 40, 17, 99, 254, 3, 60]
OTHER = [1, 77, 5]


@pytest.fixture(scope="module")
def target():
    return models.target()


@pytest.fixture(scope="module")
def plain():
    """The same checkpoint under transformers' own attention."""
    return AutoModelForCausalLM.from_pretrained(models.folders()[0], dtype=torch.float32)


@torch.inference_mode()
def test_logits_equal_transformers_own(target, plain):
    ours = models.prefill(SequenceCache(target.layout, 32), PROMPT)
    theirs = plain(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(ours.logits, theirs, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_features_are_the_inputs_of_layers_2_half_and_last_but_two(target, plain):
    """`output_hidden_states[i]` is the input of layer i (entry 0 is the embedding)."""
    ours = models.prefill(SequenceCache(target.layout, 32), PROMPT).features
    states = plain(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    layers = plain.config.num_hidden_layers
    assert target.feature_layers == (2, layers // 2, layers - 3) == (2, 4, 5)
    expected = torch.cat([states[i][0] for i in (2, layers // 2, layers - 3)], dim=-1)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_taps_can_be_moved(target, plain):
    target.tap((1, 3, 6))
    try:
        ours = models.prefill(SequenceCache(target.layout, 32), PROMPT).features
    finally:
        target.tap((2, 4, 5))
    states = plain(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(ours, torch.cat([states[i][0] for i in (1, 3, 6)], dim=-1), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_packed_sequences_do_not_see_each_other(target):
    alone = [models.prefill(SequenceCache(target.layout, 32), p) for p in (PROMPT, OTHER)]
    caches = [SequenceCache(target.layout, 32) for _ in range(2)]
    together = target.forward(
        [models.rows(cache, prompt) for cache, prompt in zip(caches, (PROMPT, OTHER), strict=True)]
    )
    for ours, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(ours.logits, expected.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours.features, expected.features, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_only_scored_rows_get_logits(target):
    cache = SequenceCache(target.layout, 32)
    every = models.rows(cache, PROMPT)
    some = Rows(cache, every.tokens, every.positions, every.visible, torch.tensor([1, 6]))
    none = Rows(cache, every.tokens, every.positions, every.visible, torch.tensor([], dtype=torch.int64))
    full = target.forward([every])[0].logits
    torch.testing.assert_close(target.forward([some])[0].logits, full[[1, 6]], atol=1e-5, rtol=1e-5)
    assert target.forward([none])[0].logits.shape == (0, target.vocab_size)


@torch.inference_mode()
def test_each_node_of_a_tree_sees_its_own_path_only(target):
    """A tree's rows equal plain decoding of each root-to-node path."""
    cache = SequenceCache(target.layout, 64)
    models.prefill(cache, PROMPT)
    tokens, parents, depths = [9, 50, 51, 52, 53, 54], [0, 0, 0, 1, 1, 3], [0, 1, 1, 2, 2, 3]
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([node] if node == 0 else [*paths[parent], node])
    visible = torch.zeros((6, 6), dtype=torch.bool)
    for node, path in enumerate(paths):
        visible[node, path] = True
    tree = Rows(cache, torch.tensor(tokens), torch.tensor(depths) + len(PROMPT), visible, torch.arange(6))
    scored = target.forward([tree])[0].logits
    for node, path in enumerate(paths):
        line = PROMPT + [tokens[i] for i in path]
        expected = models.prefill(SequenceCache(target.layout, 64), line).logits[-1]
        torch.testing.assert_close(scored[node], expected, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_long_chunk_takes_the_unfolded_attention_and_agrees(target):
    """Above the folding limit the mask has another shape; the numbers are the same."""
    prompt = [3 + i % 280 for i in range(200)]
    whole = models.prefill(SequenceCache(target.layout, 256), prompt)
    cache = SequenceCache(target.layout, 256)
    for start in range(0, 200, 50):
        last = models.prefill(cache, prompt[start : start + 50])
    torch.testing.assert_close(last.logits[-1], whole.logits[-1], atol=1e-5, rtol=1e-5)


def test_a_context_is_no_longer_than_the_sliding_window(target):
    from respsd.engine.target import _context_length

    config = target.config.__class__(max_position_embeddings=4096)
    assert _context_length(config) == 4096
    config.sliding_window = 1024
    assert _context_length(config) == 1024
    config.use_sliding_window = False
    assert _context_length(config) == 4096


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rotary_scaling_that_depends_on_the_batch_is_refused(tmp_path, rope_type):
    folder = shutil.copytree(models.folders()[0], tmp_path / "target")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 2.0}
    if rope_type == "longrope":
        config["rope_parameters"] |= {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rope_type):
        Target.load(folder, torch.float32, models.CPU)


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        Target.load(tmp_path / "nothing", torch.float32, models.CPU)


@torch.inference_mode()
def test_every_form_of_attention_computes_the_same(monkeypatch):
    """Fused and as plain products, with and without a mask, against the definition in float64."""
    from respsd.engine import attention

    generator = torch.Generator().manual_seed(2)
    query, keys, values = (torch.randn(heads, rows, 8, generator=generator) for heads, rows in ((6, 5), (2, 9), (2, 9)))
    visible = torch.ones(5, 5).tril().bool()
    seen = torch.cat((torch.ones(5, 4).bool(), visible), dim=1)
    grouped = [tensor.double().repeat_interleave(3, 0) for tensor in (keys, values)]
    scores = (query.double() @ grouped[0].transpose(1, 2)) * 0.3
    expected = (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ grouped[1]).transpose(0, 1)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        mask = attention.segment_mask(visible, 4, 3, dtype)
        hidden = (0, 0, 0, mask.shape[-1] - 9)
        padded = query, F.pad(keys, hidden), F.pad(values, hidden)
        for products in (True, False):
            monkeypatch.setattr(attention, "_products_are_faster", lambda _query, _pairs, products=products: products)
            out = attention.attend(*(tensor.to(dtype) for tensor in padded), mask, 0.3)
            torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
