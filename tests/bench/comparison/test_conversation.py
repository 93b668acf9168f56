from __future__ import annotations

import pytest
from support.bench_fakes import FakeDecoder, steady

from respsd.bench.comparison.conversation import AnswerRules, ask
from respsd.bench.questions import QuestionSet
from respsd.engine.stub import ByteTokenizer

TOKENIZER = ByteTokenizer()
RULES = AnswerRules(max_new_tokens=8, context_length=500)


def chat(*turns_and_answers: str) -> list[int]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(turns_and_answers)]
    return TOKENIZER.render_chat(messages)


def questions(*turns: tuple[str, ...]) -> QuestionSet:
    return QuestionSet("q", tuple(tuple(chat(each[0])) for each in turns), turns)


def says(text: str) -> FakeDecoder:
    return FakeDecoder(reply=lambda prompt: steady(10.0, len(text), ids=text.encode()))


def test_later_turns_are_asked_with_the_models_own_answers():
    decoder = says("yes")
    result = ask(decoder, TOKENIZER, questions(("one", "two", "three")), (0,), 1, RULES)
    asked = [prompts[0] for _, prompts, _, _ in decoder.journal]
    assert asked == [chat("one"), chat("one", "yes", "two"), chat("one", "yes", "two", "yes", "three")]
    assert [len(turns) for turns in result.answers] == [3]
    assert result.tokens == 9
    assert result.seconds == pytest.approx(3 * (0.5 + 0.2))


def test_questions_run_together_up_to_the_concurrency_and_turn_by_turn():
    decoder = says("a")
    ask(decoder, TOKENIZER, questions(("1",), ("2", "zwei"), ("3",)), (0, 1, 2), 2, RULES)
    assert [len(prompts) for _, prompts, _, _ in decoder.journal] == [2, 1, 1]


def test_a_turn_without_room_for_its_answer_is_not_asked():
    decoder = says("a")
    tight = AnswerRules(max_new_tokens=8, context_length=len(chat("one", "a", "two")) + 7)
    assert len(ask(decoder, TOKENIZER, questions(("one", "two")), (0,), 1, tight).answers[0]) == 1


def test_turns_can_be_limited():
    rules = AnswerRules(8, 500, ignore_eos=True, most_turns=2)
    decoder = says("a")
    ask(decoder, TOKENIZER, questions(("1", "2", "3")), (0,), 1, rules)
    assert [(budget, ignore) for _, _, budget, ignore in decoder.journal] == [(8, True), (8, True)]


def test_prompts_that_came_as_token_ids_have_one_turn():
    decoder = says("a")
    result = ask(decoder, TOKENIZER, QuestionSet("q", ((1, 2), (3,))), (0, 1), 2, RULES)
    assert decoder.journal[0][1] == [[1, 2], [3]]
    assert [len(turns) for turns in result.answers] == [1, 1]
