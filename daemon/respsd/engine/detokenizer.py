"""Text of a token stream, piece by piece: nothing is shown before it is certain, nothing is decoded twice.

Each token is decoded together with the few before it, since tokenizers drop a leading space at the start of a text
and spread a character's bytes over several tokens. Text that ends in U+FFFD may be a character whose last bytes are
still to come, so it waits. (`tokenizers.decoders.DecodeStream` is not used: it has no end of stream, so it swallows
unfinished bytes there, and it holds everything back while broken bytes keep coming.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
_LONGEST_CHARACTER = 4
"""Bytes of a UTF-8 character; a token holds at least one."""


class TextDecoder(Protocol):
    """The tokenizer's part that a detokenizer needs."""

    @property
    def special_token_ids(self) -> Collection[int]:
        """Ids that `skip_special_tokens` leaves out."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        ...


class Detokenizer:
    """One request's text, token by token.

    The pieces of all tokens and of `flush`, joined, are what the tokenizer decodes from all ids at once. (With one
    exception that is on purpose: byte-fallback tokenizers spoil a whole run of byte tokens if its last character is
    broken, the complete characters before it too. Those have been shown by then, and stay.)
    """

    def __init__(self, decoder: TextDecoder, *, skip_special_tokens: bool, follows: Sequence[int] = ()) -> None:
        """:param follows: tokens before the first, whose text is not given out but decides how the first one reads."""
        self._decoder = decoder
        self._skip_special = skip_special_tokens
        self._skipped = frozenset(decoder.special_token_ids) if skip_special_tokens else frozenset[int]()
        self._context = list(follows[-_LONGEST_CHARACTER:])  # shown tokens before the pending ones
        self._pending: list[int] = []  # tokens whose text is not wholly shown
        while self._context and self._text(self._context).endswith(REPLACEMENT):  # the next token may end a character
            self._pending.insert(0, self._context.pop())
        self._context_text = self._text(self._context) if self._context else ""
        self._followed = self._text(self._context + self._pending)[len(self._context_text) :] if self._pending else ""
        """How the pending tokens read before the first one, until it is known whether they stay so."""
        self._shown = len(self._followed)  # characters of the pending tokens' text that are shown

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; often the token's own, sometimes less or more."""
        if token_id in self._skipped:
            return ""
        self._pending.append(token_id)
        text = self._text(self._context + self._pending)[len(self._context_text) :]
        certain = text.rstrip(REPLACEMENT)
        if self._followed and certain:
            if not certain.startswith(self._followed):
                self._shown = 0  # a character that the prompt began is whole now, and comes whole
            self._followed = ""
        if not text.endswith(REPLACEMENT):
            return self._show(text, len(self._pending)) if text else ""
        piece = certain[self._shown :]
        self._shown = max(self._shown, len(certain))
        if len(self._pending) > _LONGEST_CHARACTER:
            piece += self._give_up(text)
        return piece

    def flush(self) -> str:
        """What was held back, unfinished bytes as U+FFFD; the end of the stream."""
        if not self._pending:
            return ""
        text = self._text(self._context + self._pending)[len(self._context_text) :]
        return self._show(text, len(self._pending))

    def _give_up(self, text: str) -> str:
        """Show the start of a run of broken bytes, which no later byte can mend; keeps the work per token bounded.

        At most the last three tokens can belong to a character that is still unfinished, and a cut between tokens
        is between characters where both sides decode to what they are in the whole.
        """
        count = len(self._pending)
        for cut in range(count - _LONGEST_CHARACTER + 1, count):
            head = self._text(self._context + self._pending[:cut])[len(self._context_text) :]
            if head + self._text(self._pending[cut:]) == text:
                return self._show(head, cut)
        return ""

    def _show(self, text: str, tokens: int) -> str:
        """Move the first pending tokens, whose text this is, to the context; returns what of it is new."""
        piece = text[self._shown :]
        self._shown = max(0, self._shown - len(text))
        self._context, self._pending = self._pending[:tokens], self._pending[tokens:]
        self._context_text = self._text(self._context)
        return piece

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(token_ids, skip_special_tokens=self._skip_special)
