"""The tiny target as a chat model that can invent prompts: its template ends a user's turn, and it ends turns soon."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

from support import tiny

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@functools.cache
def target() -> Path:
    """The checkpoint's folder, kept until the run ends."""
    folder = tiny.write_target(Path(_directory().name) / "target")
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    file = folder / "generation_config.json"
    ends = [token for token in range(len(tokenizer)) if not tokenizer.decode([token]).isascii()]
    # A fifth of all tokens, none of which the template or an English word needs: a turn is about five tokens long.
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": [tiny.EOS, *ends[::2]]}))
    return folder


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="respsd-inventor-")
