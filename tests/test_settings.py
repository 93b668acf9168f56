from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest
from support.forbidden import forbid

from respsd import settings_loader
from respsd.control.action import OFF, Action
from respsd.errors import SettingsError
from respsd.settings import Settings
from respsd.settings_loader import load_settings, section_of


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings but a test's own: no RESPSD_* variables, no files in the usual places."""
    for name in list(os.environ):
        if name.startswith("RESPSD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(settings_loader, "SYSTEM_FILE", tmp_path / "etc" / "respsd.toml")


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_without_any_source_the_defaults_hold() -> None:
    settings = load_settings()
    assert settings == Settings()
    assert (settings.target, settings.drafter, settings.listen) == ("demo", None, "127.0.0.1:7470")
    assert (settings.control.policy, settings.control.persistence) == ("champion", 10)
    assert (settings.limits.default_max_new_tokens, settings.engine.kv_tokens) == (1024, None)


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['target = "file"', 'drafter = "file"', 'dtype = "float16"']
    lines += ["[engine]", "max_running = 2", "max_waiting = 2", "threads = 2"]
    config = write(tmp_path / "a.toml", "\n".join(lines))
    monkeypatch.setenv("RESPSD_DRAFTER", "environment")
    monkeypatch.setenv("RESPSD_DTYPE", "bfloat16")
    monkeypatch.setenv("RESPSD_ENGINE__MAX_WAITING", "3")
    monkeypatch.setenv("RESPSD_ENGINE__THREADS", "3")
    settings = load_settings({"dtype": "float32", "listen": None, "engine": {"threads": 4}}, config=config)
    assert (settings.target, settings.drafter, settings.dtype) == ("file", "environment", "float32")
    assert settings.listen == "127.0.0.1:7470"
    engine = settings.engine
    assert (engine.max_running, engine.max_waiting, engine.threads, engine.prefill_chunk) == (2, 3, 4, 512)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "demo"),
        ({"drafter": "none"}, None),
        ({"drafter": "/heads/mine"}, "/heads/mine"),
        ({"target": "/models/mine"}, None),
        ({"target": "/models/mine", "drafter": "/heads/mine"}, "/heads/mine"),
    ],
)
def test_the_demo_model_has_its_own_drafter_and_any_other_target_the_one_that_is_named(
    settings: dict[str, str], name: str | None
) -> None:
    assert load_settings(settings).drafter_name == name


def test_the_systems_file_is_read_before_the_users(tmp_path: Path) -> None:
    write(tmp_path / "config" / "respsd" / "respsd.toml", 'target = "user"')
    assert load_settings().target == "user"
    write(tmp_path / "etc" / "respsd.toml", 'target = "system"')
    assert load_settings().target == "system"


def test_a_systems_file_that_this_user_may_not_look_at_is_none_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path / "config" / "respsd" / "respsd.toml", 'target = "user"')
    write(tmp_path / "etc" / "respsd.toml", 'target = "system"')
    forbid(monkeypatch, tmp_path / "etc")
    assert load_settings().target == "user"


def test_an_empty_variable_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESPSD_METRICS", "")
    assert load_settings().metrics is None


def test_auto_and_argmax_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESPSD_ENGINE__KV_TOKENS", "auto")
    monkeypatch.setenv("RESPSD_CONTROL__SAMPLING_TEMPERATURE", "argmax")
    monkeypatch.setenv("RESPSD_CONTROL__BASELINE", "auto")
    settings = load_settings()
    assert settings.engine.kv_tokens is None
    assert settings.control.sampling_temperature is None
    assert settings.control.baseline is None


def test_the_action_table_comes_from_the_knobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RESPSD_CONTROL__TOTAL_TOKENS", "4,8")
    monkeypatch.setenv("RESPSD_CONTROL__BASELINE", "8,4,2")
    config = write(tmp_path / "a.toml", "[control]\ndepth = [3, 4]\ntop_k = [2]\n")
    control = load_settings(config=config).control
    assert control.table().actions == (OFF, Action(4, 3, 2), Action(4, 4, 2), Action(8, 4, 2))
    assert control.baseline == Action(8, 4, 2)


def test_knobs_that_make_no_table_are_refused() -> None:
    knobs = {"total_tokens": [128], "depth": [1], "top_k": [2], "with_off": False}
    with pytest.raises(SettingsError, match=r"control.*the knobs make no table"):
        load_settings({"control": knobs})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("RESPSD_TARGE", "x", r"RESPSD_TARGE: there is no such setting; did you mean target\?"),
        ("RESPSD_ENGINE__MAX_RUNING", "4", r"engine\.max_runing \(RESPSD_ENGINE__MAX_RUNING\).*mean max_running\?"),
        ("RESPSD_ENGINE__QQ", "4", "known are max_running, max_waiting"),
        ("RESPSD_ENGINE", "{}", "RESPSD_ENGINE: write RESPSD_SECTION__NAME"),
        ("RESPSD_TARGET__NAME", "x", "RESPSD_TARGET__NAME: write"),
        ("RESPSD_ENGINE__MAX_RUNNING", "0", r"max_running \(RESPSD_ENGINE__MAX_RUNNING\): '0' .* equal to 1"),
        ("RESPSD_CONTROL__BASELINE", "4,4", r"control\.baseline .*'4,4' is not allowed; write 'off' or three"),
        ("RESPSD_LISTEN", "7470", r"listen \(RESPSD_LISTEN\): '7470' is not allowed; write HOST:PORT"),
        ("RESPSD_DTYPE", "fp8", r"dtype \(RESPSD_DTYPE\): 'fp8' .*'auto', 'float32'"),
        ("RESPSD_CONTROL__TOP_K", "4,x", r"control\.top_k\.1 \(RESPSD_CONTROL__TOP_K\): 'x'"),
        (
            "RESPSD_DRAIN_SECONDS",
            "inf",
            r"drain_seconds \(RESPSD_DRAIN_SECONDS\): 'inf' .*; input should be a finite num",
        ),
    ],
)
def test_a_refusal_names_key_source_value_and_limit(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=message):
        load_settings()


def test_a_refused_value_of_a_file_names_the_file(tmp_path: Path) -> None:
    config = write(tmp_path / "a.toml", "[limits]\nmax_stop_strings = -1\n[engin]\nthreads = 1\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(config=config)
    assert f"limits.max_stop_strings ({config}): -1 is not allowed" in str(caught.value)
    assert "engin: there is no such setting; did you mean engine?" in str(caught.value)


def numbers_of(model: type[pydantic.BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a setting takes a number with a fraction."""
    for name, field in model.model_fields.items():
        if (section := section_of(field)) is not None:
            yield from numbers_of(section, (*above, name))
        elif "float" in str(field.annotation):
            yield (*above, name)


@pytest.mark.parametrize("key", list(numbers_of(Settings)), ids=".".join)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_number_is_infinite_or_none(key: tuple[str, ...], value: float) -> None:
    given: object = [value] if key[-1] == "ramp" else value
    for name in reversed(key):
        given = {name: given}
    assert isinstance(given, dict)
    with pytest.raises(SettingsError, match=rf"{'.'.join(key)}.*: (-?inf|nan) is not allowed; input should be"):
        load_settings(given)


def test_a_least_temperature_over_the_greatest_is_refused(tmp_path: Path) -> None:
    config = write(tmp_path / "a.toml", "[limits]\nmin_temperature = 0.5\nmax_temperature = 0.25\n")
    with pytest.raises(SettingsError, match=r"limits\.min_temperature: 0\.5 is over limits\.max_temperature, 0\.25"):
        load_settings(config=config)


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESPSD_ADDRESS", "127.0.0.1:1")
    for name in ("RESPSD_TOKEN", "RESPSD_CA", "RESPSD_CERTIFICATE", "RESPSD_KEY"):
        monkeypatch.setenv(name, "a-file")
    monkeypatch.setenv("RESPSD_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("RESPSD_SERVICE_PORT_GRPC", "7470")
    monkeypatch.setenv("RESPSD_PORT", "tcp://10.0.0.1:7470")
    monkeypatch.setenv("RESPSD_PORT_7470_TCP_ADDR", "10.0.0.1")
    assert load_settings() == Settings()


def test_a_file_that_is_missing_or_no_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml: the settings file cannot be read: No such file"):
        load_settings(config=tmp_path / "none.toml")
    with pytest.raises(SettingsError, match="this is not TOML"):
        load_settings(config=write(tmp_path / "a.toml", "target demo"))


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(pydantic.ValidationError):
        settings.target = "other"
    with pytest.raises(pydantic.ValidationError):
        settings.engine.max_running = 3


def test_every_setting_is_described() -> None:
    sections = [Settings, *(type(value) for _, value in Settings() if isinstance(value, pydantic.BaseModel))]
    assert len(sections) >= 9
    for section in sections:
        for name, field in section.model_fields.items():
            assert field.description or issubclass(type(field.default), pydantic.BaseModel), name


@pytest.mark.parametrize(
    ("given", "shapes"),
    [(None, None), ("auto", None), ("static", "static"), ("graphs", "graphs"), ("dynamic", "dynamic")],
)
def test_auto_leaves_the_shapes_of_steps_to_the_device(
    monkeypatch: pytest.MonkeyPatch, given: str | None, shapes: str | None
) -> None:
    if given is not None:
        monkeypatch.setenv("RESPSD_ENGINE__SHAPES", given)
    assert load_settings().engine.step_shapes == shapes
