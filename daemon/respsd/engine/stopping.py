"""Where a request's output ends: the earliest of EOS, stop token, stop string, budget and context end, in token order.

Tokens come in blocks of any size (a step commits several), but are judged one at a time, so the cut is where plain
decoding would have stopped. Where two ends fall on the same token, a stop string counts before EOS or a stop token, and
these before the budget: the most telling reason wins, and the text never runs past a stop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from respsd.engine.events import FinishReason
from respsd.engine.request import GenerationRequest


class TokenText(Protocol):
    """One request's text, token by token; `detokenizer.Detokenizer` is the real one."""

    def push(self, token_id: int) -> str:
        """The text that became certain with this token."""
        ...

    def flush(self) -> str:
        """What was held back; the end of the stream."""
        ...


@dataclass(frozen=True, slots=True)
class Cut:
    """What remains of a block of tokens, and why it ends there if it does."""

    kept: int
    """Tokens to commit, the one that ended the output included."""
    text: str
    """Text that is now certain; the texts of all cuts, joined, are the output's text."""
    reason: FinishReason | None = None
    matched_stop: str | None = None


@dataclass(frozen=True, slots=True)
class _Match:
    stop: str
    start: int
    end: int


class StopScanner:
    """Scans one request's new tokens; the only judge of where its output ends.

    A token that ends the output by its id (EOS, stop token) counts as a token and adds no text, unless the request
    keeps its stops. A stop string that is complete before `min_new_tokens` does not end the output and is plain text;
    EOS and stop tokens are not sampled before then.
    """

    def __init__(self, request: GenerationRequest, eos_token_ids: Collection[int], text: TokenText) -> None:
        stopping = request.stopping
        self._text = text
        self._eos = frozenset() if stopping.ignore_eos else frozenset(eos_token_ids)
        self._stop_tokens = frozenset(stopping.stop_token_ids)
        self._stop_strings = tuple(stop for stop in stopping.stop_strings if stop)
        self._min_new_tokens = stopping.min_new_tokens
        self._budget = stopping.max_new_tokens
        self._budget_reason = FinishReason.CONTEXT if request.clamped_to_context else FinishReason.LENGTH
        self._include_stop = stopping.include_stop
        self._count = 0
        self._ended = False
        self._held = ""  # the output's last characters, a possible beginning of a stop string: not given out

    def scan(self, tokens: Sequence[int]) -> Cut:
        """Cut a block of new tokens at the first end in it. After an end there is nothing more to scan."""
        pieces = []
        for kept, token in enumerate(tokens, start=1):
            reason = self._reason(token)
            is_stop = reason in (FinishReason.EOS, FinishReason.STOP_TOKEN)
            text = "" if is_stop and not self._include_stop else self._text.push(token)
            if reason is not None:
                text += self._text.flush()
            match = self._find_stop(text)
            if match is not None:
                end = match.end if self._include_stop else match.start
                pieces.append((self._held + text)[:end])
                self._ended = True
                return Cut(kept, "".join(pieces), FinishReason.STOP_STRING, match.stop)
            pieces.append(self._give(text))
            if reason is not None:
                pieces.append(self._held)
                self._ended = True
                return Cut(kept, "".join(pieces), reason)
        return Cut(len(tokens), "".join(pieces))

    def close(self) -> str:
        """End an output that reached no boundary (cancelled) and return the text held back; after an end, nothing."""
        if self._ended:
            return ""
        self._ended = True
        return self._held + self._text.flush()

    def _reason(self, token: int) -> FinishReason | None:
        self._count += 1
        if token in self._eos:
            return FinishReason.EOS
        if token in self._stop_tokens:
            return FinishReason.STOP_TOKEN
        return self._budget_reason if self._count >= self._budget else None

    def _find_stop(self, text: str) -> _Match | None:
        """The stop string that is complete first with this text; the longest where several are at once.

        A match may start in the held text, and never before it; it must end in the new text, since one that lies in
        the held text alone was completed by an earlier token, before min_new_tokens.
        """
        if not self._stop_strings or not text or self._count < self._min_new_tokens:
            return None
        window, held = self._held + text, len(self._held)
        matches = []
        for stop in self._stop_strings:
            start = window.find(stop, max(0, held - len(stop) + 1))
            if start >= 0:
                matches.append(_Match(stop, start, start + len(stop)))
        return min(matches, key=lambda match: (match.end, match.start), default=None)

    def _give(self, text: str) -> str:
        """Add text to the output and return what can be given out: all but a possible beginning of a stop string."""
        window = self._held + text
        longest = max((_overlap(window, stop) for stop in self._stop_strings), default=0)
        cut = len(window) - longest
        self._held = window[cut:]
        return window[:cut]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, the whole of it left out."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
