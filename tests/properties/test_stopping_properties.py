"""However a step's blocks fall: the cut is plain decoding's, and the texts joined are the final text."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support import tokenizers

from respsd.engine.events import FinishReason
from respsd.engine.request import GenerationRequest, StoppingParams
from respsd.engine.stopping import Cut, StopScanner

EOS = 2
KIND = tokenizers.byte_level()
LETTERS = KIND.encode("ab\n")
EURO = KIND.encode("€")
TOKENS = [EOS, *LETTERS, *EURO, *KIND.encode("the cat")]

stoppings = st.builds(
    StoppingParams,
    max_new_tokens=st.integers(1, 14),
    min_new_tokens=st.integers(0, 4),
    stop_strings=st.lists(st.text(alphabet="ab\n€", min_size=1, max_size=4), max_size=3).map(tuple),
    stop_token_ids=st.lists(st.sampled_from(TOKENS), max_size=1).map(tuple),
    ignore_eos=st.booleans(),
    include_stop=st.booleans(),
)


def plain(tokens: list[int], stopping: StoppingParams) -> Cut:
    """One token at a time over the whole text so far: slow and simple."""
    detokenizer, text = KIND.detokenizer(skip_special_tokens=True), ""
    for count, token in enumerate(tokens, start=1):
        reason = FinishReason.LENGTH if count >= stopping.max_new_tokens else None
        if token in stopping.stop_token_ids:
            reason = FinishReason.STOP_TOKEN
        if token == EOS and not stopping.ignore_eos:
            reason = FinishReason.EOS
        before = len(text)
        if stopping.include_stop or reason in (None, FinishReason.LENGTH):
            text += detokenizer.push(token)
        if reason is not None:
            text += detokenizer.flush()
        found = [
            (at + len(stop), at, stop)
            for stop in stopping.stop_strings
            for at in range(len(text))
            if text.startswith(stop, at) and at + len(stop) > before and count >= stopping.min_new_tokens
        ]
        if found:
            end, start, stop = min(found)
            return Cut(count, text[: end if stopping.include_stop else start], FinishReason.STOP_STRING, stop)
        if reason is not None:
            return Cut(count, text, reason)
    return Cut(len(tokens), text + detokenizer.flush())


@settings(deadline=None)
@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=20), st.lists(st.integers(1, 6)), stoppings)
def test_any_blocks_give_the_plain_cut_and_text(tokens, sizes, stopping):
    scanner = StopScanner(GenerationRequest("r", (1,), stopping), (EOS,), KIND.detokenizer(skip_special_tokens=True))
    rest, kept, text, last = list(tokens), 0, "", None
    for size in [*sizes, *[1] * len(tokens)]:
        if not rest or (last is not None and last.reason is not None):
            break
        block, rest = rest[:size], rest[size:]
        last = scanner.scan(block)
        kept += last.kept
        text += last.text
    assert last is not None
    if last.reason is None:
        text += scanner.close()
    assert replace(last, kept=kept, text=text) == plain(tokens, stopping)


@settings(deadline=None)
@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=20), stoppings)
def test_text_given_out_never_runs_into_a_stop_string(tokens, stopping):
    """What is streamed before the end stays true: it is a beginning of the final text."""
    scanner = StopScanner(GenerationRequest("r", (1,), stopping), (EOS,), KIND.detokenizer(skip_special_tokens=True))
    final, given_out = plain(tokens, stopping).text, ""
    for token in tokens:
        cut = scanner.scan([token])
        given_out += cut.text
        assert final.startswith(given_out)
        if cut.reason is not None:
            break
