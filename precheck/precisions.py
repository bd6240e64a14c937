"""The names of precisions (`PRECISIONS`), what each one does to a run (`Precision`), and the lookup by name (`resolve`).

Names are Lightning's (`lightning.fabric.plugins.precision`). They tell *mixed* (low-precision compute, float32 weights) from *true* (everything
stored low) in one word. Three are added: `bf16-master`, `tf32`, `fp8-e4m3-mixed`. Each recipe of `recipes` is bf16-mixed with its products
quantised, under the name that its framework gives it. This module imports neither torch nor numpy until a precision is put to work.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from precheck import formats, interrupts, recipes

if TYPE_CHECKING:
    import torch

Placement = Literal["mixed", "true"]
Policy = Literal["cuda", "native"]


class PrecisionError(ValueError):
    """The name of a precision is unknown or ambiguous."""


@dataclasses.dataclass(frozen=True, slots=True)
class Precision:
    """The formats in which a run stores and computes.

    Attributes:
        name: As in `precheck.PRECISIONS`: "bf16-mixed".
        compute: The format that results are rounded to.
        param: The format that weights are stored in.
        autocasts: Whether the forward pass runs under torch.autocast.
        scaler: Whether the backward pass goes through a GradScaler.
        master: Whether the optimizer steps on a float32 copy of the weights.
        gemm: The format or recipe that the inputs of matrix products are rounded to, emulated where the device cannot; None: as they are.
        policy: The list of ops that autocast follows on a CPU: "cuda" or "native".
    """

    name: str
    compute: formats.Format
    param: formats.Format
    autocasts: bool = False
    scaler: bool = False
    master: bool = False
    gemm: formats.Format | recipes.Recipe | None = None
    policy: Policy = "cuda"

    @property
    def compute_dtype(self) -> torch.dtype:
        return self.compute.dtype

    @property
    def param_dtype(self) -> torch.dtype:
        return self.param.dtype

    @property
    def roundoff(self) -> float:
        """Unit roundoff of the coarsest format that results pass through."""
        return max(self.compute.unit_roundoff, self.gemm.unit_roundoff if self.gemm else 0.0)

    @property
    def is_low(self) -> bool:
        return self.roundoff > formats.FP32.unit_roundoff

    @property
    def placement(self) -> Placement:
        """Where a run rounds: "mixed" at the ops that autocast chooses, "true" at every stored result."""
        return "mixed" if self.autocasts or self.gemm else "true"

    @contextlib.contextmanager
    def autocast(self, device: str = "cpu") -> Iterator[None]:
        """The context of a forward pass (and loss) under this precision."""
        with interrupts.held(), contextlib.ExitStack() as stack:
            if self.gemm is not None and not _emulating():
                stack.enter_context(self.step(device))
            if self.autocasts:
                import torch

                if device == "cpu":
                    from precheck.torch_support.autocast import cuda_policy_on_cpu, traced_convolutions

                    stack.enter_context(cuda_policy_on_cpu() if self.policy == "cuda" else traced_convolutions())
                stack.enter_context(torch.autocast(device, dtype=self.compute_dtype))
            yield

    @contextlib.contextmanager
    def step(self, device: str = "cpu") -> Iterator[None]:
        """The context of a whole training step; unlike autocast, it spans the backward pass."""
        if self.gemm is None:
            yield
            return
        from precheck.torch_support import emulation

        with interrupts.held(), emulation.gemm_inputs(self.gemm, device, low_only=self.autocasts):
            yield

    def make_scaler(self, device: str = "cpu") -> torch.amp.GradScaler:
        """Returns a GradScaler with torch's defaults. It is disabled, and so does nothing, where the precision needs none."""
        import torch

        return torch.amp.GradScaler(device, enabled=self.scaler)

    def __str__(self) -> str:
        return self.name


def _emulating() -> bool:
    from precheck.torch_support import emulation

    return emulation.active()


_F = formats
PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("32-true", _F.FP32, _F.FP32),
        Precision("64-true", _F.FP64, _F.FP64),
        Precision("bf16-mixed", _F.BF16, _F.FP32, autocasts=True),
        Precision("bf16-true", _F.BF16, _F.BF16),
        Precision("bf16-master", _F.BF16, _F.BF16, master=True),
        Precision("16-mixed", _F.FP16, _F.FP32, autocasts=True, scaler=True),
        Precision("16-true", _F.FP16, _F.FP16),
        Precision("tf32", _F.FP32, _F.FP32, gemm=_F.TF32),
        Precision("fp8-e4m3-mixed", _F.BF16, _F.FP32, autocasts=True, gemm=_F.E4M3FN),
        *(Precision(name, _F.BF16, _F.FP32, autocasts=True, gemm=recipe) for name, recipe in recipes.RECIPES.items()),
    )
}
ALIASES: dict[str, str] = {
    "bf16": "bf16-mixed", "fp16": "16-mixed", "16": "16-mixed", "fp16-mixed": "16-mixed", "fp16-true": "16-true",
    "fp32": "32-true", "32": "32-true", "no": "32-true", "fp64": "64-true", "64": "64-true",
    "fp8": "fp8-e4m3-mixed", **recipes.ALIASES,
}  # fmt: skip
DIALECTS: dict[str, str] = {
    "mixed_bfloat16": "bf16-mixed", "mixed_float16": "16-mixed", "float32": "32-true", "float64": "64-true",
    "bf16=True": "bf16-mixed", "fp16=True": "16-mixed", "tf32=True": "tf32", "bf16_full_eval": "bf16-true", "fp16_full_eval": "16-true",
}  # fmt: skip
"""Unambiguous words of frameworks: Keras's policies and transformers' TrainingArguments. Those of Lightning and Accelerate are above."""
AMBIGUOUS = {"bfloat16": ("bf16-mixed", "bf16-true"), "float16": ("16-mixed", "16-true"), "half": ("16-mixed", "16-true")}


def resolve(name: object, *, policy: Policy = "cuda") -> Precision:
    """Returns the precision for a name, an alias, a framework's word or a framework's own object.

    Such objects are Lightning's Trainer, an Accelerator, a Keras dtype policy, transformers' TrainingArguments, FSDP2's
    MixedPrecisionPolicy, and recipes of Transformer Engine and torchao. Raises PrecisionError, naming what is accepted, for any other.
    """
    if isinstance(name, Precision):
        return name
    try:
        recipe = recipes.recipe_of(name, recipes.RECIPES)
    except recipes.UnknownOptionError as error:
        raise PrecisionError(str(error)) from error
    if recipe is not None:
        return dataclasses.replace(PRECISIONS[recipe.name], gemm=recipe, policy=policy)
    word = _said(name).strip().removeprefix("torch.")
    if word in AMBIGUOUS:
        mixed, true = AMBIGUOUS[word]
        raise PrecisionError(
            f"precision {name!s} means two things: {mixed} (autocast, float32 weights) and {true} (weights stored low too); "
            f"write --precision={mixed} or --precision={true}, and in code precision=\"{mixed}\" or \"{true}\""
        )
    word = (ALIASES | DIALECTS).get(word, word)
    if word not in PRECISIONS:
        nearest = "; its fp8 is of layers of its own, and nearest to it is DelayedScaling" if word.startswith("transformer-engine") else ""
        wanted = "" if isinstance(name, str) else ', where one name is needed, as in precision="bf16-mixed"'
        raise PrecisionError(f"unknown precision {name!r}{wanted}{nearest}; {_meant(name) or _known()} pytest --help lists all")
    return dataclasses.replace(PRECISIONS[word], policy=policy)


def _meant(name: Any) -> str:
    import difflib

    known = {each.lower(): each for each in [*ALIASES, *PRECISIONS]}
    close = [known[each] for each in difflib.get_close_matches(name.lower(), known, n=1)] if isinstance(name, str) else []
    return f"do you mean {close[0]}?" if close else ""


def _known() -> str:
    return f"known are {', '.join(name for name in PRECISIONS if name not in recipes.RECIPES)}, and recipes such as {next(iter(recipes.RECIPES))};"


def _said(name: Any) -> str:
    """The word for a precision. For a framework's object it is read from the object's attributes."""
    if isinstance(name, str):
        return name
    for attribute in ("precision", "mixed_precision"):  # Lightning's Trainer and plugins; an Accelerator
        if isinstance(getattr(name, attribute, None), str):
            return str(getattr(name, attribute))
    if hasattr(name, "param_dtype") and hasattr(name, "reduce_dtype"):  # FSDP2: the optimizer steps on the shards, which keep their format
        return {"None": "32-true", "torch.float32": "32-true", "torch.bfloat16": "bf16-master"}.get(str(name.param_dtype), repr(name))
    if hasattr(name, "compute_dtype") and hasattr(name, "variable_dtype"):  # a Keras policy
        return str(name.name)
    if hasattr(name, "bf16") and hasattr(name, "fp16"):  # TrainingArguments
        return "bf16" if name.bf16 else "fp16" if name.fp16 else "no"
    return str(name)


def resolve_all(names: str, *, policy: Policy = "cuda") -> tuple[Precision, ...]:
    """Returns the precisions of a comma-separated list, each once, in the order of the list."""
    words = [word for word in names.split(",") if word.strip()]
    if not words:
        raise PrecisionError(f"no precision named in {names!r}; {_known()} pytest --help lists all")
    found: dict[str, Any] = {}
    for word in words:
        precision = resolve(word, policy=policy)
        found.setdefault(precision.name, precision)
    return tuple(found.values())
