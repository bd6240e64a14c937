"""The shadow of every model in suites/models is that model in float32: results bit for bit, gradients to 1e-6, trained weights to 2e-6.

Under tf32, which rounds a float32 model's products, it is that model in float64, but for what the model itself computes in float32.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from beside import off, same, seen, shadow_now
from torch import nn

import precheck
from precheck.observe.containers import tensors
from precheck.observe.run import trains_recurrent
from precheck.precisions import resolve

sys.path.append(str(Path(__file__).parents[1] / "models"))
from registry import NEEDS, case

MODES = ("bf16", "fp16", "bf16-true", "fp16-true", "fp8-e4m3-mixed", "tf32")
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "64": torch.float64}
EMULATED = ("fp8-e4m3-mixed", "tf32")
GRADIENTS, WEIGHTS = 1e-6, 2e-6
"""AdamW divides by a root of the gradients' squares: where a weight's gradient is near eps its step doubles the error."""
OWN = 1e-6
"""What a model's own casts to float32 (norms, softmax, losses) do to its results in float64: a few roundings of 6e-8."""
ZERO = 1e-12
"""A gradient that small beside the others is zero (a key's bias): float64's rounding, the same in float32 only because the programs are."""
SHORT, SHORTER = 24, 4
SEEDS = 8  # tried until no decision flips, after which the two programs would not be the same


class Smooth(nn.Module):
    """A residual block without the kinks that a ResNet's thousands of activations are sure to meet."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.block
        hidden = nn.functional.gelu(inner.bn1(inner.conv1(x)))
        return nn.functional.gelu(inner.bn2(inner.conv2(hidden)) + inner.shortcut(x))


def smooth(model: Any) -> nn.Module:
    conv, norm, _, pool, *blocks = model
    rest = (Smooth(each) if hasattr(each, "conv1") else each for each in blocks)
    return nn.Sequential(conv, norm, nn.GELU(), nn.AvgPool2d(pool.kernel_size), *rest)


def stepped(it: Any, mode: str) -> dict[str, dict[str, torch.Tensor]]:
    """One training step, and what it leaves."""
    torch.manual_seed(0)
    model, inputs, low = it.model, it.inputs, FORMATS.get(mode.removesuffix("-true"), torch.float32)
    if mode.endswith("-true"):
        model.to(low)
        inputs = inputs.to(low) if isinstance(inputs, torch.Tensor) and inputs.is_floating_point() else inputs
    trainer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=mode == "fp16")
    with torch.autocast("cpu", dtype=low) if mode in ("bf16", "fp16") else contextlib.nullcontext():
        out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        loss = it.loss(out)
    scaler.scale(loss).backward()
    scaler.unscale_(trainer)
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    scaler.step(trainer)
    results = {place: each for place, each in tensors(out) if each.is_floating_point()} | {"loss": loss}
    return {"results": results, "gradients": gradients, "weights": {name: each for name, each in model.state_dict().items() if continuous(each)}}


def continuous(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point()


def built(name: str, mode: str, seed: int) -> Any:
    it = case(name, seed)
    if name == "resnet":
        it.model = smooth(it.model)
    if name == "mixtral":  # fewer tokens, fewer decisions
        it.inputs = {key: value[:1, :SHORTER] if mode.startswith("fp8") else value[:, :SHORT] for key, value in it.inputs.items()}
        if mode == "tf32":
            it.model.set_experts_implementation("eager")  # torch's grouped product has no float64
    if name == "moe" and mode.startswith("fp8"):
        it.inputs, it.loss = it.inputs[:1, :SHORTER], lambda out: out.float().square().mean()
    return it


def policy(mode: str) -> str | None:
    return mode if mode in EMULATED else None


def skip_where_torch_has_no_kernel(name: str, mode: str) -> None:
    """On a processor without AVX-512 torch raises for an LSTM under autocast, and computes it otherwise in bfloat16 than in float32."""
    low = torch.float16 if mode.startswith("fp16") else torch.bfloat16
    if name == "lstm" and mode != "tf32" and not trains_recurrent(low):
        pytest.skip(f"oneDNN has no LSTM in {low} for this processor")


def watched(name: str, mode: str, seed: int) -> tuple[dict[str, dict[str, torch.Tensor]], precheck.Report]:
    it = built(name, mode, seed)
    with precheck.watch(it.model, precision=policy(mode)) as report:
        left = stepped(it, mode)
        shadow = shadow_now()
        shadows = {kind: {place: seen(each, shadow) for place, each in these.items()} for kind, these in left.items()}
    return shadows, report


@pytest.mark.filterwarnings("ignore::UserWarning")  # transformers: a mask and is_causal both given
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [name for name in NEEDS if name != "sentence_encoder"])
def test_the_shadow_is_the_model_in_float32(name: str, mode: str) -> None:
    skip_where_torch_has_no_kernel(name, mode)
    for seed in range(SEEDS):
        shadows, report = watched(name, mode, seed)
        if not any(row.flips for row in report.ops):
            break
    else:
        pytest.fail(f"decisions flipped under all of {SEEDS} seeds")
    assert report.facts["opaque"] == {}
    truth = stepped(built(name, mode, seed), "64-true" if mode == "tf32" else "32")
    own = OWN if mode == "tf32" else 0.0
    aimless = {name for name, each in truth["gradients"].items() if each.norm() < ZERO * max(map(torch.norm, truth["gradients"].values()))}
    for kind, within in (("results", own), ("gradients", GRADIENTS), ("weights", WEIGHTS + 2 * own)):
        assert shadows[kind].keys() == truth[kind].keys()
        for place in shadows[kind].keys() - (aimless if mode == "tf32" else set()):
            shadow = shadows[kind][place]
            assert same(shadow, truth[kind][place]) or off(shadow, truth[kind][place]) <= within, f"{kind} {place} of seed {seed}"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name in NEEDS for mode in MODES if name != "sentence_encoder" or mode in ("bf16", "bf16-true")]
)
def test_watching_changes_no_bit(name: str, mode: str) -> None:
    """The trained sentence encoder takes seconds, so once under autocast and once cast to bfloat16. Its layers are those of the others."""
    skip_where_torch_has_no_kernel(name, mode)
    it, twin = built(name, mode, 0), built(name, mode, 0)
    with precheck.watch(it.model, precision=policy(mode)):
        ran = stepped(it, mode)
    with resolve(mode).autocast() if mode in EMULATED else contextlib.nullcontext():
        plain = stepped(twin, mode)
    for kind, tensors_of in plain.items():
        assert ran[kind].keys() == tensors_of.keys()
        for place, each in tensors_of.items():
            assert same(ran[kind][place], each), f"{kind} {place}"
