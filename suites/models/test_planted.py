"""Bugs that shipped, planted into the healthy models of this suite: each must fail and name its module, its mended twin must not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import moe
import pytest
import torch
from case import Case
from registry import case
from torch import nn
from torch.nn import functional

import precheck


class Rotary(nn.Module):
    """A rotary table from positions in the model's own dtype (huggingface/transformers#25681, EleutherAI/gpt-neox#1306)."""

    def __init__(self, healthy: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("inv_freq", healthy.inv_freq.clone())

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].to(self.dtype) * self.inv_freq.to(self.dtype)
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotary(*, mended: bool) -> Case:
    it = case("llama")
    it.model.model.rotary_emb = Rotary(it.model.model.rotary_emb, torch.float32 if mended else torch.bfloat16)
    return it


class HalfNorm(nn.Module):
    """An RMS norm that squares in float16: 256^2 is 65536, and float16 ends at 65504 (huggingface/transformers#9295)."""

    def __init__(self, healthy: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.eps, self.dtype = healthy.weight, healthy.variance_epsilon, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            values = x.to(self.dtype)
            scale = torch.rsqrt((values * values).mean(-1, keepdim=True) + self.eps)
            return (self.weight * (values * scale).to(x.dtype)).to(x.dtype)


def norm(*, mended: bool) -> Case:
    it = case("llama")
    with torch.no_grad():
        it.model.model.embed_tokens.weight.mul_(1000)  # massive activations, as trained models have them; the norm makes them harmless
    layer = it.model.model.layers[0]
    layer.input_layernorm = HalfNorm(layer.input_layernorm, torch.float32 if mended else torch.float16)
    return it


class Attention(nn.Module):
    """Attention whose logits are neither scaled nor shifted before exp, and normalised in the dtype that autocast left."""

    def __init__(self, healthy: nn.Module, *, mended: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = healthy.q_proj, healthy.k_proj, healthy.v_proj, healthy.o_proj
        self.mended = mended

    def forward(self, x: torch.Tensor, *args: object, **kwargs: object) -> tuple[torch.Tensor, None]:
        q, k, v = (project(x).unflatten(-1, (4, -1)).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj))
        if self.mended:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            weights = (q @ k.transpose(-1, -2)).exp().to(v.dtype)
            mixed = (weights / weights.sum(-1, keepdim=True).to(v.dtype)) @ v
        return self.o_proj(mixed.transpose(1, 2).flatten(-2)), None


def softmax(*, mended: bool) -> Case:
    it = case("vit")
    attention = it.model.vit.layers[1].attention
    with torch.no_grad():  # trained heads are sharp: these have logits of up to 20 before scaling, and e^11.1 is float16's end
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.mul_(10)
    it.model.vit.layers[1].attention = Attention(attention, mended=mended)
    return it


class LowRouter(moe.Router):
    """A router in bfloat16 to the end: logits, probabilities, and the count of each expert's tokens, which stops at 256
    (vllm-project/vllm#14027, pytorch/torchtitan#2389)."""

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.autocast(tokens.device.type, enabled=False):
            probabilities = functional.linear(tokens.bfloat16(), self.gate.weight.bfloat16(), self.gate.bias.bfloat16()).softmax(-1)
        weight, choice = probabilities.max(-1)
        return weight, choice, probabilities

    def places(self, choice: torch.Tensor, experts: int) -> torch.Tensor:
        chosen = functional.one_hot(choice, experts).bfloat16()
        with torch.autocast(choice.device.type, enabled=False):
            return ((chosen.cumsum(0) * chosen).sum(-1) - 1).long()


def router(*, mended: bool) -> Case:
    return moe.build(router=moe.Router if mended else LowRouter)


@dataclasses.dataclass(frozen=True)
class Planted:
    """A bug, where it shows, and what must be said of it."""

    make: Callable[..., Case]
    precisions: tuple[str, ...]
    rule: str
    module: str
    message: str


BUGS = {
    "rotary": Planted(rotary, ("bf16-mixed", "bf16-true"), "accumulated-drift", "model.rotary_emb", "output of model.rotary_emb[0]: off by "),
    "norm": Planted(norm, ("16-mixed",), "accumulated-drift", "model.layers.0.input_layernorm", "output of model.layers.0.input_layernorm: "),
    "softmax": Planted(softmax, ("16-mixed", "16-true"), "overflow", "vit.layers.1.attention", "output of vit.layers.1.attention"),
    "router": Planted(router, ("bf16-mixed", "bf16-true", "16-mixed"), "decision-flip", "mixture", "decisions"),
}
RUNS = [(name, precision) for name, bug in BUGS.items() for precision in bug.precisions]


def measured(it: Case, precision: str) -> precheck.Report:
    return precheck.measure(it.model, it.inputs, precision=precision, loss=it.loss)


@pytest.mark.parametrize(("name", "precision"), RUNS)
def test_a_planted_bug_fails_and_is_named(name: str, precision: str) -> None:
    bug = BUGS[name]
    report = measured(bug.make(mended=False), precision)
    found = [finding for finding in report.errors if finding.rule == bug.rule]
    assert found, report.summary()
    assert found[0].module.startswith(bug.module), report.summary()
    found[0].message.index(bug.message)
    found[0].message.index(precision)
    with pytest.raises(precheck.PrecisionFailure, match="cure: "):
        report.raise_for_errors()


@pytest.mark.parametrize(("name", "precision"), RUNS)
def test_its_mended_twin_passes(name: str, precision: str) -> None:
    report = measured(BUGS[name].make(mended=True), precision)
    assert report.errors == [], report.summary()
