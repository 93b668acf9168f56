"""The stub engine keeps the Engine contract, so what passes over it says something about the real one."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from respsd.control.action import OFF, Action
from respsd.engine.events import EngineEvent, FinishReason, RequestFailed, RequestFinished, TokensCommitted
from respsd.engine.request import GenerationRequest, SamplingParams, Speculation, StoppingParams
from respsd.engine.stub import EOS, StubEngine, spell
from respsd.errors import EngineFault, EngineUnavailable, InvalidRequest, Overloaded, UnknownPolicy


@dataclass
class Run:
    """What one request was told."""

    token_ids: list[int]
    text: str
    end: RequestFinished | RequestFailed
    chunks: int

    @property
    def finished(self) -> RequestFinished:
        """The end, which must not be a fault."""
        assert isinstance(self.end, RequestFinished)
        return self.end


class Inbox:
    """Takes a request's events."""

    def __init__(self) -> None:
        self.events: queue.Queue[EngineEvent] = queue.Queue()

    def run(self) -> Run:
        """Read to the end."""
        chunks: list[TokensCommitted] = []
        while isinstance(event := self.events.get(timeout=60), TokensCommitted):
            chunks.append(event)
        ids = [token for chunk in chunks for token in chunk.token_ids]
        return Run(ids, "".join(chunk.text for chunk in chunks), event, len(chunks))


def ask(
    prompt: str = "prompt",
    max_new_tokens: int = 16,
    *,
    request_id: str = "r",
    sampling: SamplingParams | None = None,
    speculation: Speculation | None = None,
    clamped: bool = False,
    **stopping: object,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=tuple(prompt.encode()),
        stopping=StoppingParams(max_new_tokens, **stopping),  # type: ignore[arg-type]
        sampling=sampling or SamplingParams(),
        speculation=speculation or Speculation(),
        clamped_to_context=clamped,
    )


@pytest.fixture
def make() -> Iterator[Callable[..., StubEngine]]:
    """Makes started engines that end with the test."""
    engines: list[StubEngine] = []

    def start(**options: object) -> StubEngine:
        engine = StubEngine(**options)  # type: ignore[arg-type]
        engine.start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.stop()


def run(engine: StubEngine, request: GenerationRequest) -> Run:
    inbox = Inbox()
    engine.submit(request, inbox.events.put)
    return inbox.run()


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.8, seed=seed)


def test_output_is_decided_by_prompt_and_position(make):
    engine = make()
    first, again, other = (run(engine, ask(prompt)) for prompt in ("a", "a", "b"))
    assert first.token_ids == again.token_ids != other.token_ids
    assert len(first.token_ids) == 16


def test_seed_matters_only_when_sampling(make):
    engine = make()
    greedy = [run(engine, ask(sampling=SamplingParams(seed=seed))).text for seed in (1, 2)]
    drawn = [run(engine, ask(sampling=sampled(seed))).text for seed in (1, 2, 1)]
    assert greedy[0] == greedy[1]
    assert drawn[0] == drawn[2] != drawn[1]


def test_steps_drafts_and_accepted_tokens_are_counted_without_the_prefill(make):
    # 1 token of the prefill, then 4 + 4 + 1: the last step is cut after its first drafted token
    finished = run(make(tokens_per_step=4), ask(max_new_tokens=10)).finished
    assert (finished.steps, finished.drafted_tokens, finished.accepted_tokens) == (3, 9, 7)
    assert finished.usage.completion_tokens == 10


def test_off_commits_one_token_a_step_and_no_policy_chose_it(make):
    off = run(make(), ask(max_new_tokens=5, speculation=Speculation(action=OFF)))
    assert (off.finished.steps, off.finished.drafted_tokens) == (4, 0)
    assert off.finished.policy_version_first is None
    assert off.chunks == 5


def test_eos_ends_in_the_middle_of_a_step_and_counts(make):
    done = run(make(next_token=spell("abc"), tokens_per_step=8), ask())
    assert done.token_ids == [*b"abc", EOS]
    assert done.text == "abc"
    assert done.finished.reason is FinishReason.EOS


def test_ignored_eos_goes_on_to_the_budget(make):
    done = run(make(next_token=spell("abc")), ask(max_new_tokens=7, ignore_eos=True))
    assert done.text == "abcabc"
    assert done.finished.reason is FinishReason.LENGTH


def test_min_new_tokens_bars_eos_and_stop_tokens(make):
    done = run(make(next_token=spell("ab")), ask(min_new_tokens=5, stop_token_ids=(ord("b"),)))
    assert done.text == "a  a "  # b and EOS came as spaces; the sixth token may be EOS
    assert len(done.token_ids) == 6
    assert done.finished.reason is FinishReason.EOS


def test_stop_string_across_two_steps_is_found_and_left_out(make):
    done = run(make(next_token=spell("one two three"), tokens_per_step=2), ask(stop_strings=("two",)))
    assert done.text == "one "
    assert bytes(done.token_ids) == b"one two"
    assert (done.finished.reason, done.finished.matched_stop) == (FinishReason.STOP_STRING, "two")


def test_stop_string_can_be_kept(make):
    done = run(make(next_token=spell("one two three")), ask(stop_strings=("two",), include_stop=True))
    assert done.text == "one two"


def test_text_that_may_begin_a_stop_string_is_held_back_until_it_does_not(make):
    engine = make(next_token=spell("ab!"), tokens_per_step=1)
    inbox = Inbox()
    engine.submit(ask(stop_strings=("abc",)), inbox.events.put)
    texts = [inbox.events.get(timeout=60).text for _ in range(3)]
    assert texts == ["", "", "ab!"]


def test_characters_of_several_bytes_come_whole(make):
    engine = make(next_token=spell("é€😀"), tokens_per_step=1)
    inbox = Inbox()
    engine.submit(ask(), inbox.events.put)
    texts = [inbox.events.get(timeout=60).text for _ in range(10)]
    assert texts == ["", "é", "", "", "€", "", "", "", "😀", ""]


def test_context_end_and_budget_are_told_apart(make):
    engine = make(context_length=8)
    assert run(engine, ask("1234", 4)).finished.reason is FinishReason.LENGTH
    assert run(engine, ask("1234", 4, clamped=True)).finished.reason is FinishReason.CONTEXT


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(alphabet="ab😀\n", max_size=12),
    stops=st.lists(st.text(alphabet="ab😀\n", min_size=1, max_size=3), max_size=2),
    budget=st.integers(1, 20),
    width=st.integers(2, 9),
)
def test_how_many_tokens_a_step_commits_changes_nothing_but_steps(text, stops, budget, width):
    results = []
    for tokens_per_step in (1, width):
        engine = StubEngine(next_token=spell(text), tokens_per_step=tokens_per_step)
        engine.start()
        done = run(engine, ask(max_new_tokens=budget, stop_strings=tuple(stops)))
        engine.stop()
        results.append((done.token_ids, done.text, done.finished.reason, done.finished.matched_stop))
    assert results[0] == results[1]


def test_cancel_ends_a_request_within_one_step(make):
    engine = make(tokens_per_step=2)
    engine.gate.close()
    inbox = Inbox()
    engine.submit(ask(max_new_tokens=1000), inbox.events.put)
    engine.gate.allow(2)  # the prefill and one step
    assert len(inbox.events.get(timeout=60).token_ids + inbox.events.get(timeout=60).token_ids) == 3
    engine.cancel("r")
    engine.gate.allow(1)
    end = inbox.events.get(timeout=60)
    assert isinstance(end, RequestFinished)
    assert (end.reason, end.usage.completion_tokens) == (FinishReason.CANCELLED, 3)
    assert (engine.load().running, engine.load().waiting) == (0, 0)


def test_cancelling_an_unknown_request_touches_none_that_comes_later(make):
    engine = make()
    engine.cancel("r")
    assert run(engine, ask()).finished.reason is FinishReason.LENGTH


def test_full_queue_refuses_with_its_limit(make):
    engine = make(max_running=1, max_waiting=2)
    engine.gate.close()
    for number in range(2):
        engine.submit(ask(request_id=str(number)), Inbox().events.put)
    with pytest.raises(Overloaded, match="2 of 2"):
        engine.submit(ask(request_id="one too many"), Inbox().events.put)


def test_fault_ends_its_own_request_only(make):
    def before_step(request: GenerationRequest, step: int) -> None:
        if request.request_id == "faulty" and step == 2:
            raise ValueError("a broken kernel")

    engine = make(before_step=before_step)
    faulty = run(engine, ask(request_id="faulty"))
    assert isinstance(faulty.end, RequestFailed)
    assert isinstance(faulty.end.error, EngineFault)
    assert len(faulty.token_ids) == 5  # the prefill's and one step's
    assert run(engine, ask(request_id="fine")).finished.reason is FinishReason.LENGTH


def test_what_can_never_run_is_refused(make):
    engine = make(context_length=8)
    with pytest.raises(InvalidRequest, match="context has 8"):
        engine.submit(ask("1234", 5), Inbox().events.put)
    with pytest.raises(UnknownPolicy, match="'nobody'"):
        engine.submit(ask("x", 1, speculation=Speculation(policy="nobody")), Inbox().events.put)


def test_policy_versions_of_the_first_and_last_window_are_reported(make):
    engine = make(tokens_per_step=1)
    engine.gate.close()
    inbox = Inbox()
    engine.submit(ask(max_new_tokens=4), inbox.events.put)
    engine.gate.allow(2)
    for _ in range(2):
        inbox.events.get(timeout=60)
    engine.champion = 2
    engine.gate.open()
    finished = inbox.run().finished
    assert (finished.policy_version_first, finished.policy_version_last) == (1, 2)
    named = run(engine, ask(speculation=Speculation(policy="baseline"))).finished
    assert (named.policy_version_first, named.policy_version_last) == (1, 1)
    fixed = run(engine, ask(speculation=Speculation(action=Action(16, 4, 4)))).finished
    assert fixed.policy_version_first is None


def test_load_ages_while_a_step_is_held_up_and_not_when_idle(make):
    now = [100.0]
    engine = make(clock=lambda: now[0])
    now[0] += 50
    assert engine.load().seconds_since_progress == 0
    engine.gate.close()
    inbox = Inbox()
    engine.submit(ask(), inbox.events.put)
    now[0] += 7
    assert engine.load().seconds_since_progress == 7
    engine.gate.open()
    inbox.run()


def test_requests_are_refused_unless_it_runs_and_stop_fails_what_is_left():
    engine = StubEngine()
    with pytest.raises(EngineUnavailable):
        engine.submit(ask(), Inbox().events.put)
    engine.start()
    engine.gate.close()
    inbox = Inbox()
    engine.submit(ask(max_new_tokens=4000), inbox.events.put)
    engine.stop()
    engine.stop()
    end = inbox.run().end
    assert isinstance(end, RequestFailed)
    assert isinstance(end.error, EngineUnavailable)
    with pytest.raises(EngineUnavailable):
        engine.submit(ask(), Inbox().events.put)
