"""Settings of one generation: what the caller asks, what the checkpoint says, the defaults.

`GenerationOptions` is what a caller writes; None means "as the checkpoint says".
`SamplerSettings` is complete and holds the only copy of the reference's defaults; `TokenSettings`
does so for mode "ar". All are frozen and validated when they are made; nothing checks them again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from mlx_diffusiongemma.constraints import CanvasConstraint
from mlx_diffusiongemma.errors import ConfigError
from mlx_diffusiongemma.ranges import Range

DEFAULT_MAX_TOKENS = 2048
_SAMPLER = "EntropyBoundSamplerConfig"
SMALLEST_CANVAS = 16
Mode = Literal["diffusion", "ar", "auto"]
StopRule = Literal["stable-and-confident", "entropy", "plateau"]
SamplerName = Literal["entropy-bound", "argmax", "confidence"]
PresetName = Literal["quality", "balanced", "fast"]


_RANGES = {
    "max_denoising_steps": Range(1, integer=True),
    "entropy_bound": Range(0, exclusive=True),
    "t_min": Range(0),
    # float32 divides logits by it: from a wider range come infinities, or rows of equal numbers.
    "t_max": Range(1e-6, high=10**6, closed=True),
    "stability_threshold": Range(0, integer=True),
    "confidence_threshold": Range(0, exclusive=True),
    "max_tokens": Range(1, integer=True),
    "seed": Range(0, integer=True, high=2**64),
    "min_denoising_steps": Range(1, integer=True),
    "accept_probability": Range(0, exclusive=True, high=1, closed=True),
    "keep_probability": Range(0, high=1, closed=True),
    "canvas_length": Range(SMALLEST_CANVAS, integer=True),
    "deadline_ms": Range(0, exclusive=True),
    "temperature": Range(0),
    "top_p": Range(0, exclusive=True, high=1, closed=True),
    "top_k": Range(0, integer=True),
    "min_p": Range(0, high=1, closed=True),
}
_CHOICES = {
    "mode": get_args(Mode),
    "stop_rule": get_args(StopRule),
    "sampler": get_args(SamplerName),
    "preset": get_args(PresetName),
}
# What a generation_config.json may say; the other settings are this runtime's own.
_CHECKPOINT_SETTINGS = (
    "max_denoising_steps",
    "t_min",
    "t_max",
    "stability_threshold",
    "confidence_threshold",
)


def _check_ranges(settings: "SamplerSettings | TokenSettings | GenerationOptions") -> None:
    for setting in fields(settings):
        value = vars(settings)[setting.name]
        is_unset = value is None and setting.default is None
        if setting.name in _RANGES and not is_unset:
            _RANGES[setting.name].check(setting.name, value)
        if setting.name in _CHOICES and not is_unset and value not in _CHOICES[setting.name]:
            *others, last = map(repr, _CHOICES[setting.name])
            raise ConfigError(
                f"{setting.name} is {value!r}",
                hint=f"{setting.name} must be {', '.join(others)} or {last}",
            )


def _check_temperatures(settings: "SamplerSettings | GenerationOptions") -> None:
    t_min, t_max = settings.t_min, settings.t_max
    if t_min is not None and t_max is not None and t_min >= t_max:
        raise ConfigError(
            f"t_min is {t_min!r} and t_max is {t_max!r}", hint="t_min must be below t_max"
        )


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """How a canvas is denoised, complete.

    Defaults are those of the reference (transformers `DiffusionGemmaGenerationConfig`), which also
    fills keys that a checkpoint's generation_config.json lacks or sets to null. `stop_rule`,
    `sampler` and the three numbers after them are this runtime's own; by default they change
    nothing.

    Attributes:
        max_denoising_steps: most decoder passes over one canvas, 1 or more.
        entropy_bound: nats; joint uncertainty up to which positions are accepted, above 0.
        t_min: temperature that the schedule runs towards, 0 or more.
        t_max: temperature of the first denoising step, 1e-6 to 1e6 and above t_min.
        stability_threshold: how many earlier argmax canvases must equal the present one to stop
            early; 0 asks for none.
        confidence_threshold: nats; a canvas is confident when its mean entropy is below it.
        stop_rule: when a canvas is done, see `stopping`.
        sampler: which tokens go into the next canvas, see `acceptance`.
        min_denoising_steps: decoder passes that no stop rule saves, 1 or more.
        accept_probability, keep_probability: for the sampler "confidence": from which probability
            on a token is accepted, and down to which an accepted one is kept.
    """

    max_denoising_steps: int = 48
    entropy_bound: float = 0.1
    t_min: float = 0.4
    t_max: float = 0.8
    stability_threshold: int = 1
    confidence_threshold: float = 0.005
    stop_rule: StopRule = "stable-and-confident"
    sampler: SamplerName = "entropy-bound"
    min_denoising_steps: int = 1
    accept_probability: float = 0.9
    keep_probability: float = 0.5

    def __post_init__(self) -> None:
        _check_ranges(self)
        _check_temperatures(self)

    @classmethod
    def from_generation_config(cls, values: Mapping[str, Any]) -> "SamplerSettings":
        """Read the keys of a generation_config.json; absent and null keys take the defaults."""
        sampler = values.get("sampler_config")
        sampler = {} if sampler is None else sampler
        known = isinstance(sampler, Mapping) and sampler.get("_cls_name") in (None, _SAMPLER)
        if not known:
            raise ConfigError(
                f"generation_config.json asks for the sampler {sampler!r}",
                hint=f"this runtime implements {_SAMPLER}; remove `sampler_config` to use it",
            )
        given = {name: values.get(name) for name in _CHECKPOINT_SETTINGS}
        given["entropy_bound"] = sampler.get("entropy_bound")
        try:
            return cls(**{name: value for name, value in given.items() if value is not None})
        except ConfigError as error:
            raise ConfigError(f"in generation_config.json {error}", hint=error.hint) from None

    def with_options(self, options: "GenerationOptions") -> "SamplerSettings":
        """These settings, with whatever the caller asked for in their place."""
        return replace(self, **_asked(options, SamplerSettings))


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """How mode "ar" chooses a token, complete. The filters are mlx-lm's.

    Attributes:
        temperature: 0 takes the most probable token; 1 draws as the model says.
        top_p: keep the most probable tokens that together have this probability; 1 keeps all.
        top_k: keep this many of the most probable tokens; 0 keeps all.
        min_p: keep tokens with at least this share of the best one's probability; 0 keeps all.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        _check_ranges(self)

    @classmethod
    def from_options(cls, options: "GenerationOptions") -> "TokenSettings":
        """The defaults, with whatever the caller asked for in their place."""
        return cls(**_asked(options, cls))


def _asked(options: "GenerationOptions", of: type) -> dict[str, Any]:
    """What the caller asked of the settings in the dataclass `of`."""
    values = {field.name: vars(options)[field.name] for field in fields(of)}
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """What a caller may ask of one generation. None means: as the checkpoint says.

    Attributes:
        max_tokens: most tokens to write, exactly; the answer may end earlier.
        mode: "diffusion" writes canvas after canvas; "ar" token after token, from the same
            weights. Settings that only the other one reads are refused. "auto" takes the one
            that should be faster for `max_tokens`, by times measured on this machine.
        temperature, top_p, top_k, min_p: see `TokenSettings`; for mode "ar".
        max_denoising_steps, entropy_bound, t_min, t_max, stability_threshold,
            confidence_threshold, stop_rule, sampler, min_denoising_steps, accept_probability,
            keep_probability: see `SamplerSettings`.
        preset: settings by one name, see `presets`; those that are given beside it come first.
        canvas_length: positions of a canvas, for answers that are known to be short; at most the
            checkpoint's own, which is what None means.
        shrink_canvas: cut a canvas behind its end token once two steps agree where that is.
        fast_self_conditioning: tell a step about the likeliest tokens of the one before, where
            that is certainly enough, and about all of them elsewhere; see docs/dial.md.
        deadline_ms: milliseconds that one canvas may take: at most as many steps as fit, by the
            measured time of a step. None sets no limit.
        seed: same seed, same text on the same machine and versions; None draws one, which
            `stats.seed` reports.
        stop: strings that end the answer; none of their text is returned.
        thinking: let the model think first, where its chat template can ask for it; None is
            the template's own default.
        retry_empty: denoise the first canvas once more, from new noise, when it says nothing at
            all; False takes the empty answer.
        constraint: what the answer may hold, whatever the model says; None is any text.
        chat_template: render the prompt with the checkpoint's chat template; False sends it as
            it is.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    mode: Mode = "diffusion"
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_denoising_steps: int | None = None
    entropy_bound: float | None = None
    t_min: float | None = None
    t_max: float | None = None
    stability_threshold: int | None = None
    confidence_threshold: float | None = None
    stop_rule: StopRule | None = None
    sampler: SamplerName | None = None
    min_denoising_steps: int | None = None
    accept_probability: float | None = None
    keep_probability: float | None = None
    preset: PresetName | None = None
    canvas_length: int | None = None
    shrink_canvas: bool = False
    fast_self_conditioning: bool = False
    deadline_ms: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    thinking: bool | None = None
    chat_template: bool = True
    retry_empty: bool = True
    constraint: CanvasConstraint | None = None

    def __post_init__(self) -> None:
        _check_ranges(self)
        _check_temperatures(self)
        self._check_mode()
        self._check_constraint()
        is_one = isinstance(self.stop, str) or not isinstance(self.stop, Iterable)
        stop = (self.stop,) if is_one else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise ConfigError(f"stop is {self.stop!r}", hint="stop must be strings with some text")
        object.__setattr__(self, "stop", stop)
        if self.thinking not in (None, True, False):
            raise ConfigError(
                f"thinking is {self.thinking!r}", hint="thinking must be True, False or None"
            )
        for name in "chat_template", "retry_empty", "shrink_canvas", "fast_self_conditioning":
            value = vars(self)[name]
            if value not in (True, False):
                raise ConfigError(f"{name} is {value!r}", hint=f"{name} must be True or False")

    def _check_mode(self) -> None:
        if self.mode == "auto":
            return
        unread = _asked(self, SamplerSettings if self.mode == "ar" else TokenSettings)
        if self.mode == "ar":
            for name in (
                *("preset", "canvas_length", "deadline_ms"),
                *("shrink_canvas", "fast_self_conditioning"),
            ):
                if vars(self)[name]:
                    unread[name] = vars(self)[name]
        reader = "diffusion" if self.mode == "ar" else "ar"
        for name, value in unread.items():
            raise ConfigError(
                f"{name} is {value!r} and mode is {self.mode!r}",
                hint=f"only mode {reader!r} or 'auto' reads {name}",
            )

    def _check_constraint(self) -> None:
        if self.constraint is None:
            return
        if not isinstance(self.constraint, CanvasConstraint):
            raise ConfigError(
                f"constraint is {self.constraint!r}", hint="give a CanvasConstraint, or None"
            )
        for name, value in ("mode", "diffusion"), ("shrink_canvas", False), ("thinking", None):
            if vars(self)[name] not in (value, False):
                raise ConfigError(
                    f"a constraint is given and {name} is {vars(self)[name]!r}",
                    hint=f"the whole answer follows the constraint: leave {name} out",
                )
