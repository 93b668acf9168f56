from __future__ import annotations

import pytest
import torch
from support.recordings import CASES, first_cases

from respsd.bench.gpu import parts as gpu_parts
from respsd.bench.gpu.check import run_gpu_check
from respsd.bench.gpu.parts import CheckOptions, NotPossible, parts
from respsd.bench.gpu.synthetic import LLAMA_8B, TINY, fitting, make_synthetic
from respsd.clock import SystemClock
from respsd.control.action import OFF, Action
from respsd.engine.local_run import fixed_request, run, running_engine
from respsd.errors import EngineFault

TINY_CHECK = CheckOptions(device="cpu", tiny=True, context=32, steps=2, repeats=1)


def test_the_shape_is_llama_3_1_8bs():
    total = LLAMA_8B.layers * LLAMA_8B.layer_parameters + 2 * LLAMA_8B.vocab * LLAMA_8B.hidden
    assert total == pytest.approx(8.03e9, rel=0.01)


def test_a_small_gpu_gets_fewer_layers():
    gibibyte = 1 << 30
    assert fitting(LLAMA_8B, torch.bfloat16, 140 * gibibyte) == LLAMA_8B
    assert 4 < fitting(LLAMA_8B, torch.bfloat16, 16 * gibibyte).layers < 32
    assert fitting(LLAMA_8B, torch.bfloat16, 0).layers == 4


def test_synthetic_models_decode_losslessly_and_transformers_shares_their_weights():
    made = make_synthetic(TINY, torch.float32, torch.device("cpu"))
    prompt = [3, 5, 8, 13, 21]
    tree = Action(16, 4, 4)
    with running_engine(made.models, tree) as engine:
        plain = run(engine, fixed_request(prompt, OFF, 16)).token_ids
        assert run(engine, fixed_request(prompt, tree, 16)).token_ids == plain
    output = made.plain.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=16, pad_token_id=0)
    assert tuple(output[0, len(prompt) :].tolist()) == plain
    assert made.plain.lm_head.weight.data_ptr() == made.models.target._model.lm_head.weight.data_ptr()


def test_without_a_recording_parity_is_left_out():
    with pytest.raises(NotPossible, match="--reference"):
        parts(TINY_CHECK)["parity"]()


def test_steps_are_timed_for_every_action_beside_transformers():
    figures = parts(TINY_CHECK)["steps"]()
    for shapes in ("dynamic", "static"):
        actions = figures[shapes]["actions"]
        assert [each["action"] for each in actions] == [str(action) for action in gpu_parts.ACTIONS]
        assert actions[0]["tau_to_break_even"] == 1.0
        assert all(each["step_ms"] > 0 for each in actions)
    assert figures["transformers_token_ms"] > 0


def test_fixed_shapes_give_what_steps_give_as_they_come():
    figures = parts(TINY_CHECK)["shapes"]()
    # Greedy and sampled, four actions: one prompt alone, two together.
    assert figures == {"compared": 2 * 4 * (1 + 2), "shapes": ["dynamic", "static"]}


@pytest.mark.slow
def test_parity_and_losslessness_on_the_recording(reference_dir, tmp_path):
    folder = first_cases(reference_dir / "golden-a", tmp_path / "recording")
    check = parts(CheckOptions(device="cpu", tiny=True, reference=folder))
    assert check["parity"]() == {"trees": CASES, "decodes": CASES}
    exact, half = check["lossless_float32"](), check["lossless_bfloat16"]()
    for shapes in ("dynamic", "static"):
        assert (exact[shapes]["compared"], exact[shapes]["different"]) == (12, 0)
        assert half[shapes]["compared"] == 6


def test_a_recording_that_differs_fails_its_part(monkeypatch, tmp_path):
    from respsd.bench.reference import Comparison

    monkeypatch.setattr(
        gpu_parts, "compare_with_reference", lambda *_: (Comparison(2, 1, ("tree 1",)), Comparison(2, 0, ()))
    )
    with pytest.raises(EngineFault, match="1 of 2 differ"):
        parts(CheckOptions(device="cpu", tiny=True, reference=tmp_path))["parity"]()


@pytest.mark.slow
def test_the_whole_check_reports_every_part():
    told: list[str] = []
    results = run_gpu_check(TINY_CHECK, 400.0, SystemClock(), told.append)
    assert {result.name: result.status for result in results} == {
        "machine": "passed",
        "parity": "left out",
        "shapes": "passed",
        "lossless_float32": "left out",
        "lossless_bfloat16": "left out",
        "steps": "passed",
        "streams": "passed",
    }
    assert told == [result.name for result in results]
    assert len(results[-1].figures["static"]) == 6


@pytest.mark.slow
def test_what_is_not_done_in_time_is_left_out():
    results = run_gpu_check(TINY_CHECK, 0.01, SystemClock())
    assert {(result.status, result.fault) for result in results} == {("left out", "the time was up")}
