"""The target's tokenizer, behind the engine's Protocol."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import TemplateError
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from respsd.engine.detokenizer import Detokenizer
from respsd.errors import CheckpointError, InvalidRequest

_MESSAGES = "prompt.chat.messages"
"""The request's field."""


class HfTokenizer:
    """A transformers tokenizer as an `api.Tokenizer`.

    Encoding may set padding and truncation of the shared Rust tokenizer, which fails while another thread encodes;
    it is locked. Decoding only reads, so the engine's thread never waits for a client's long prompt.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int] = ()) -> None:
        """:param eos_token_ids: the model's; the tokenizer's own EOS is added."""
        self._tokenizer = tokenizer
        self._encoding = threading.Lock()
        own = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self.eos_token_ids: tuple[int, ...] = tuple(sorted({*eos_token_ids, *own}))
        self.bos_token_id: int | None = None if tokenizer.bos_token_id is None else int(tokenizer.bos_token_id)
        added = tokenizer.added_tokens_decoder
        self.special_token_ids = frozenset(int(token_id) for token_id, token in added.items() if token.special)

    @classmethod
    def load(cls, folder: Path) -> HfTokenizer:
        """The tokenizer of a checkpoint folder; raises CheckpointError."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise CheckpointError(str(folder), f"has no readable tokenizer: {error}") from error
        return cls(tokenizer, model_eos_token_ids(folder, config))

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` can work."""
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the model's tokenizer puts around it by default."""
        with self._encoding:
            return list(self._tokenizer.encode(text))

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of `role`/`content` messages by the model's template, ready for the assistant's answer."""
        if not self.has_chat_template:
            limit = "the model has no chat template; send text or token ids"
            raise InvalidRequest(_MESSAGES, f"{len(messages)} messages", limit)
        if not messages:
            raise InvalidRequest(_MESSAGES, "0 messages", "at least one message is needed")
        conversation = [dict(message) for message in messages]
        try:
            with self._encoding:
                text = self._tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
                return list(self._tokenizer.encode(str(text), add_special_tokens=False))
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            # What a template raises on purpose is for its users; the rest tells of code.
            told = f": {error}" if type(error) is TemplateError else ""
            limit = f"the model's chat template refuses them{told}"
            raise InvalidRequest(_MESSAGES, f"{len(messages)} messages", limit) from error

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids, untidied: spaces before punctuation stay, so that pieces join to the whole."""
        text = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each token's own text, for display; part of a character shows as U+FFFD."""
        return [self.decode([token_id], skip_special_tokens=False) for token_id in token_ids]

    def detokenizer(self, *, skip_special_tokens: bool, follows: Sequence[int] = ()) -> Detokenizer:
        """Incremental decoding for one request. :param follows: tokens whose text the request's text goes on from."""
        return Detokenizer(self, skip_special_tokens=skip_special_tokens, follows=follows)


def model_eos_token_ids(folder: Path, config: PreTrainedConfig) -> tuple[int, ...]:
    """Every id that ends the model's output: generation_config.json's and config.json's, each one id or a list."""
    values: list[int | Sequence[int] | None] = [config.get_text_config().eos_token_id]
    if (folder / "generation_config.json").is_file():  # many checkpoints have none
        try:
            values.append(GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(str(folder / "generation_config.json"), f"is not readable: {error}") from error
    return tuple(sorted({one for value in values for one in ([value] if isinstance(value, int) else value or ())}))
