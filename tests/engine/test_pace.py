"""How prompts share steps with running streams: by what steps were seen to take."""

from __future__ import annotations

import pytest

from respsd.engine.pace import PrefillPace

MS = 1_000_000


def pace(chunk: int = 512, step_tokens: int | None = None, slowdown: float = 2.0) -> PrefillPace:
    return PrefillPace(chunk, step_tokens, slowdown)


def test_whole_chunks_while_nothing_runs():
    assert pace(chunk=300).budget(0, 0) == 300


def test_a_step_may_take_so_much_longer_than_usual():
    """80 ms as usual, 5 ms a prompt token: 16 tokens double the step, 8 make it half as long again."""
    for slowdown, expected in ((2.0, 16), (1.5, 8)):
        learnt = pace(slowdown=slowdown)
        learnt.learn(0, 100, 500 * MS)
        learnt.learn(1, 0, 80 * MS)
        assert learnt.budget(1, 1) == expected


def test_several_waiting_prompts_have_a_larger_share_within_a_bound():
    """80 ms as usual, 5 ms a prompt token, half as long again for one prompt: 8 tokens."""
    learnt = pace(slowdown=1.5)
    learnt.learn(0, 100, 500 * MS)
    for sequences in (1, 2):
        learnt.learn(sequences, 0, 80 * MS)
    assert [learnt.budget(1, 1, prompts) for prompts in (1, 2, 3, 30)] == [8, 24, 32, 32]
    assert [learnt.budget(2, 1, prompts) for prompts in (1, 2, 3, 4, 30)] == [8, 16, 24, 32, 32]


def test_a_prompt_tokens_time_is_what_it_adds_to_the_usual_step():
    learnt = pace()
    learnt.learn(2, 0, 100 * MS)
    learnt.learn(2, 10, 140 * MS)
    assert learnt.prompt_ns(10) == 40 * MS
    assert learnt.budget(2, 1) == 25


def test_the_usual_step_is_known_by_the_number_of_sequences():
    learnt = pace()
    learnt.learn(0, 100, 100 * MS)
    learnt.learn(1, 0, 50 * MS)
    learnt.learn(8, 0, 200 * MS)
    assert (learnt.budget(1, 1), learnt.budget(2, 1), learnt.budget(8, 1)) == (50, 50, 200)


def test_a_first_step_beside_a_prompt_is_taken_for_what_the_prompt_leaves_of_it():
    learnt = pace()
    learnt.learn(0, 100, 200 * MS)  # 2 ms a token
    learnt.learn(1, 30, 100 * MS)
    assert learnt.budget(1, 1) == 20  # 40 ms as usual


def test_tokens_of_a_step_are_bounded_trees_included():
    bounded = pace(step_tokens=64)
    bounded.learn(0, 100, MS)
    bounded.learn(2, 0, 1000 * MS)
    assert bounded.budget(2, 16) == 32


@pytest.mark.parametrize(("sequences", "tokens"), [(2, 60), (1, 1)])
def test_a_prompt_always_gets_on(sequences, tokens):
    slow = pace(step_tokens=64)
    slow.learn(1, 0, 1 * MS)
    slow.learn(1, 10, 1000 * MS)
    assert slow.budget(sequences, tokens) == 1


def test_steps_that_took_few_tokens_say_little_of_what_a_token_adds():
    """A step that happened to be slow beside two tokens: 20 ms more, where a token takes 1 ms."""
    learnt = pace()
    learnt.learn(1, 0, 100 * MS)
    for _ in range(20):
        learnt.learn(1, 100, 200 * MS)
    learnt.learn(1, 2, 122 * MS)
    assert learnt.budget(1, 1) == pytest.approx(100, abs=20)


def test_tokens_that_seem_to_add_nothing_are_followed_by_some_more_and_not_by_a_whole_chunk():
    learnt = pace(chunk=512)
    learnt.learn(1, 0, 100 * MS)
    learnt.learn(1, 10, 90 * MS)
    assert learnt.budget(1, 1) == 4 * 32
    learnt.learn(1, 128, 90 * MS)
    learnt.learn(1, 128, 90 * MS)
    assert learnt.budget(1, 1) == 210  # four times the mean of 10, 128 and 128, the newest weighing a fifth: 52.48


def test_means_follow_a_machine_that_changes():
    learnt = pace()
    learnt.learn(0, 100, 100 * MS)
    for _ in range(40):
        learnt.learn(1, 0, 100 * MS)
    assert learnt.budget(1, 1) == pytest.approx(100, abs=1)
    for _ in range(40):
        learnt.learn(1, 0, 300 * MS)
    assert learnt.budget(1, 1) == pytest.approx(300, abs=2)
