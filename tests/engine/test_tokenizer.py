"""The target's tokenizer behind the engine's Protocol: chat, EOS ids, decoding, threads."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import tiny, tokenizers
from transformers import LlamaConfig

from respsd.engine.api import Tokenizer
from respsd.engine.tokenizer import HfTokenizer, model_eos_token_ids
from respsd.errors import CheckpointError, InvalidRequest


@pytest.fixture
def folder(tmp_path):
    """A checkpoint folder as far as its tokenizer goes."""
    tiny.tokenizer().save_pretrained(tmp_path)
    LlamaConfig(eos_token_id=2).save_pretrained(tmp_path)
    return tmp_path


def test_loads_from_a_checkpoint_folder_and_round_trips(folder):
    tokenizer: Tokenizer = HfTokenizer.load(folder)
    text = "the cat sat on Ωmega"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "".join(tokenizer.pieces(tokenizer.encode("the cat"))) == "the cat"


def test_the_beginning_of_sequence_token_is_known_where_there_is_one(folder):
    assert HfTokenizer.load(folder).bos_token_id == 1
    without = tiny.tokenizer()
    without.bos_token = None
    assert HfTokenizer(without).bos_token_id is None


def test_folder_without_a_tokenizer_is_refused(tmp_path):
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="has no readable tokenizer"):
        HfTokenizer.load(tmp_path)


def test_special_tokens_are_left_out_unless_asked_for(folder):
    tokenizer = HfTokenizer.load(folder)
    token_ids = [1, *tokenizer.encode("cat"), 2]
    assert tokenizer.decode(token_ids) == "cat"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "<s>cat</s>"
    assert tokenizer.special_token_ids == {0, 1, 2}


def test_spaces_before_punctuation_are_not_tidied_away(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"clean_up_tokenization_spaces": True}))
    tokenizer = HfTokenizer.load(folder)
    assert tokenizer.decode(tokenizer.encode("the cat , sat .")) == "the cat , sat ."


def test_chat_is_rendered_by_the_models_template(folder):
    tokenizer = HfTokenizer.load(folder)
    assert tokenizer.has_chat_template
    token_ids = tokenizer.render_chat([{"role": "user", "content": "the cat"}])
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "user: the cat\nassistant: "


def test_chat_without_a_template_or_messages_is_refused(folder):
    with pytest.raises(InvalidRequest, match="no chat template") as caught:
        tokenizers.byte_level().render_chat([{"role": "user", "content": "hi"}])
    assert caught.value.field == "prompt.chat.messages"
    assert not tokenizers.byte_level().has_chat_template
    with pytest.raises(InvalidRequest, match="at least one message"):
        HfTokenizer.load(folder).render_chat([])


def test_template_that_refuses_a_role_names_the_field(folder):
    template = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('begin with user') }}{% endif %}ok"
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = HfTokenizer.load(folder)
    assert tokenizer.decode(tokenizer.render_chat([{"role": "user", "content": ""}])) == "ok"
    with pytest.raises(InvalidRequest, match="begin with user") as caught:
        tokenizer.render_chat([{"role": "assistant", "content": ""}])
    assert caught.value.field == "prompt.chat.messages"


def test_what_breaks_in_a_template_is_told_without_its_code(folder):
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] + 1 }}")
    with pytest.raises(InvalidRequest, match="the model's chat template refuses them") as caught:
        HfTokenizer.load(folder).render_chat([{"role": "user", "content": "x"}])
    assert "str" not in str(caught.value)


def test_eos_ids_are_those_of_generation_config_config_and_tokenizer(folder):
    assert HfTokenizer.load(folder).eos_token_ids == (2,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 5]}))
    assert HfTokenizer.load(folder).eos_token_ids == (2, 5, 7)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert model_eos_token_ids(folder, LlamaConfig(eos_token_id=[3, 4])) == (3, 4, 9)
    assert model_eos_token_ids(folder, LlamaConfig(eos_token_id=None)) == (9,)


def test_broken_generation_config_is_refused(folder):
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json.*not readable"):
        HfTokenizer.load(folder)


def test_many_threads_may_use_it_at_once(folder):
    tokenizer = HfTokenizer.load(folder)
    text = "the cat sat on the mat " * 50
    expected = tokenizer.encode(text)

    def work(_: int) -> bool:
        chat = tokenizer.render_chat([{"role": "user", "content": text}])
        return tokenizer.encode(text) == expected and tokenizer.decode(expected) == text and len(chat) > len(expected)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))
