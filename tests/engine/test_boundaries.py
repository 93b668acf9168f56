"""Where outputs end: whatever a step accepted beyond a boundary is in no token list, text, count or row."""

from __future__ import annotations

import pytest
from support import tiny
from support.engines import LARGEST, Rig, load_tiny, plain, request, running

from respsd.control.action import OFF, Action
from respsd.engine.events import FinishReason
from respsd.errors import InvalidRequest, SettingsError

PROMPT = [1, 40, 17, 99, 254, 3, 60]
ACTIONS = [OFF, Action(4, 1, 2), Action(8, 3, 3), Action(16, 4, 4), Action(60, 7, 10), Action(128, 8, 32)]
ALL_SMALL_SHAPES = [Action(48, depth, top_k) for depth in range(1, 9) for top_k in range(1, 9)]


@pytest.fixture(scope="module")
def rig():
    with running(load_tiny(), persistence=4) as running_rig:
        yield running_rig


@pytest.fixture(scope="module")
def free_run(rig: Rig) -> tuple[int, ...]:
    """What the model says when nothing stops it."""
    return rig.generate(plain(PROMPT, 60)).token_ids


def first_new(tokens: tuple[int, ...], start: int) -> int:
    """An index at or after `start` whose token did not occur before: a boundary at just that place."""
    return next(i for i in range(start, len(tokens)) if tokens[i] not in tokens[:i])


@pytest.mark.parametrize("action", ALL_SMALL_SHAPES, ids=str)
def test_a_stop_token_in_the_middle_of_a_block_ends_the_output_there(rig, free_run, action):
    cut = first_new(free_run, 7)
    completion = rig.generate(request(PROMPT, 60, action=action, stop_token_ids=(free_run[cut],)))
    assert completion.token_ids == free_run[: cut + 1]
    assert completion.finished.reason is FinishReason.STOP_TOKEN
    assert completion.finished.usage.completion_tokens == cut + 1


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_eos_in_the_middle_of_a_block_ends_the_output_there(free_run, action):
    cut = first_new(free_run, 7)
    models = load_tiny()
    models.tokenizer.eos_token_ids = (free_run[cut],)
    with running(models) as rig:
        completion = rig.generate(request(PROMPT, 60, action=action, ignore_eos=False))
        ignored = rig.generate(request(PROMPT, 60, action=action, ignore_eos=True))
    assert completion.token_ids == free_run[: cut + 1]
    assert completion.finished.reason is FinishReason.EOS
    assert ignored.token_ids == free_run


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_a_stop_string_ends_tokens_and_text_at_the_same_place(rig, action):
    free = rig.generate(plain(PROMPT, 60))
    stop = free.text[10:14]
    expected = rig.generate(plain(PROMPT, 60, stop_strings=(stop,)))
    completion = rig.generate(request(PROMPT, 60, action=action, stop_strings=(stop,)))
    assert completion.finished.reason is FinishReason.STOP_STRING
    assert completion.finished.matched_stop == stop
    assert completion.text == free.text[: free.text.index(stop)] == expected.text
    assert completion.token_ids == expected.token_ids
    kept = rig.generate(request(PROMPT, 60, action=action, stop_strings=(stop,), include_stop=True))
    assert kept.text == completion.text + stop


@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_the_budget_is_exact(rig, free_run, action, budget):
    completion = rig.generate(request(PROMPT, budget, action=action))
    assert completion.token_ids == free_run[:budget]
    assert completion.finished.reason is FinishReason.LENGTH
    assert completion.finished.usage.completion_tokens == budget


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_a_stop_before_the_budget_in_one_block_wins(rig, free_run, action):
    cut = first_new(free_run, 3)
    completion = rig.generate(request(PROMPT, cut + 2, action=action, stop_token_ids=(free_run[cut],)))
    assert (len(completion.token_ids), completion.finished.reason) == (cut + 1, FinishReason.STOP_TOKEN)
    at_budget = rig.generate(request(PROMPT, cut, action=action, stop_token_ids=(free_run[cut],)))
    assert (len(at_budget.token_ids), at_budget.finished.reason) == (cut, FinishReason.LENGTH)


@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize("spare", [0, 1, 5])
def test_the_context_can_be_filled_to_its_last_position(rig, action, spare):
    """Trees are clamped near the end, then decoding is plain: no node leaves the buffers or the positions."""
    prompt = [3 + i % 280 for i in range(tiny.CONTEXT - 20)]
    completion = rig.generate(request(prompt, 20 - spare, action=action))
    assert completion.token_ids == rig.generate(plain(prompt, 20 - spare)).token_ids
    assert len(prompt) + len(completion.token_ids) == tiny.CONTEXT - spare


def test_the_drafters_own_position_limit_does_not_bind(rig):
    """The tiny drafter says 64 positions, the target 256 (SafeAILab heads: 2,048 of 131,072)."""
    prompt = [3 + i % 280 for i in range(100)]
    on = rig.generate(request(prompt, 100, action=Action(16, 4, 4)))
    assert on.token_ids == rig.generate(plain(prompt, 100)).token_ids
    assert on.finished.accepted_tokens > 0


def test_more_than_the_context_is_refused_with_the_limit(rig):
    with pytest.raises(InvalidRequest, match=r"max_new_tokens: 50 .* 256 positions"):
        rig.generate(request([5] * 207, 50))
    with pytest.raises(InvalidRequest, match="prompt"):
        rig.generate(request([], 5))


def test_rows_and_counts_describe_the_cut(rig, free_run):
    """Reward counts committed tokens only: what was accepted behind the end is in no row (vLLM 56101)."""
    cut = first_new(free_run, 7)
    rig.sink.transitions.clear()
    completion = rig.generate(request(PROMPT, 60, action=Action(60, 7, 10), stop_token_ids=(free_run[cut],)))
    rows = rig.sink.transitions
    # The first token comes from the prefill, all others from steps.
    assert sum(row.committed_tokens for row in rows) == len(completion.token_ids) - 1
    assert sum(row.accepted_tokens for row in rows) == completion.finished.accepted_tokens
    assert sum(row.steps for row in rows) == completion.finished.steps
    assert completion.finished.accepted_tokens <= len(completion.token_ids) - 1
    assert [row.truncated for row in rows] == [False] * (len(rows) - 1) + [True]


def test_where_memory_holds_less_than_the_context_that_much_is_served():
    tree = LARGEST.depth * LARGEST.top_k
    with running(load_tiny(), kv_tokens=tree + 40) as rig:
        assert rig.engine.model.context_length == 40
        assert len(rig.generate(request(PROMPT, 40 - len(PROMPT))).token_ids) == 40 - len(PROMPT)
        limit = f"need {tree + 41} KV tokens, and the daemon has {tree + 40}"
        with pytest.raises(InvalidRequest, match=limit) as caught:
            rig.engine.check(request(PROMPT, 41 - len(PROMPT)))
    assert (caught.value.field, caught.value.value) == ("stopping.max_new_tokens", 41 - len(PROMPT))
    with pytest.raises(SettingsError, match=r"engine\.kv_tokens"), running(load_tiny(), kv_tokens=tree + 1):
        pass
