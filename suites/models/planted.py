"""Bugs that shipped, planted into the healthy models of this suite. Each comes mended too, and then is the same function in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import moe
import torch
from case import Case, built
from registry import case
from torch import nn
from torch.nn import functional


class Rotary(nn.Module):
    """A rotary table from positions in a low format: bfloat16 has no whole number between 256 and 258 (transformers#28685,
    gpt-neox#1003)."""

    def __init__(self, healthy: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("inv_freq", healthy.inv_freq.clone())

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(x.device.type, enabled=False):  # as transformers' own does
            angles = position_ids[..., None].to(self.dtype) * self.inv_freq.to(self.dtype)
            angles = torch.cat([angles, angles], -1)
            return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotary(*, mended: bool) -> Case:
    it = case("llama")
    it.model.model.rotary_emb = Rotary(it.model.model.rotary_emb, torch.float32 if mended else torch.bfloat16)
    return it


class HalfNorm(nn.Module):
    """An RMS norm that squares in float16, which ends at 65504: from 256 on, the square is Inf, its inverse root 0, and the row silently
    nothing but zeros (pytorch#133085)."""

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
    it.model.model.norm = HalfNorm(it.model.model.norm, torch.float32 if mended else torch.float16)
    return it


class Attention(nn.Module):
    """Attention written out, on the projections of a healthy one, with a softmax of the logits given."""

    def __init__(self, healthy: nn.Module, weights: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = healthy.q_proj, healthy.k_proj, healthy.v_proj, healthy.o_proj
        self.weights = weights

    def forward(self, x: torch.Tensor, *args: object, **kwargs: object) -> tuple[torch.Tensor, None]:
        q, k, v = (project(x).unflatten(-1, (4, -1)).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj((self.weights(q, k).to(v.dtype) @ v).transpose(1, 2).flatten(-2)), None


def unshifted(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Softmax without its maximum taken off, stored low (sentence-transformers#2774): e^11.1 is float16's end."""
    weights = (q @ k.transpose(-1, -2)).exp().to(q.dtype)
    return weights / weights.sum(-1, keepdim=True).to(q.dtype)


def shifted(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2)).softmax(-1)


def scaled_after(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Logits scaled when they have overflowed already (ultralytics#24990, pytorch#119131)."""
    return ((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5).softmax(-1)


def scaled_before(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return ((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)).softmax(-1)


def _sharp(weights: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], sharper: float) -> Case:
    """A vision transformer whose last attention has queries and keys that many times as large: trained heads are sharp."""
    it = case("vit")
    attention = it.model.vit.layers[1].attention
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.mul_(sharper)
    it.model.vit.layers[1].attention = Attention(attention, weights)
    return it


def softmax(*, mended: bool) -> Case:
    return _sharp(shifted if mended else unshifted, 10)  # logits up to 46


def logits(*, mended: bool) -> Case:
    return _sharp(scaled_before if mended else scaled_after, 600)  # logits up to 166 000, and a quarter of that once scaled


class LowRouter(moe.Router):
    """A router in bfloat16 to the end: logits, probabilities, and the count of each expert's tokens, which beyond 256 knows only every
    other number (vllm#14027, torchtitan#2389)."""

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.autocast(tokens.device.type, enabled=False):
            probabilities = functional.linear(tokens.bfloat16(), self.gate.weight.bfloat16(), self.gate.bias.bfloat16()).softmax(-1)
        weight, choice = probabilities.max(-1)
        return weight, choice, probabilities

    def places(self, choice: torch.Tensor, experts: int) -> torch.Tensor:
        chosen = functional.one_hot(choice, experts).bfloat16()
        with torch.autocast(choice.device.type, enabled=False):
            return ((chosen.cumsum(0) * chosen).sum(-1) - 1).long()


class Slots(moe.Experts):
    """Dispatch as GShard has it (arXiv 2006.16668, algorithm 1): a token goes to the slot that its place names, so that two with one
    place become their sum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weight, choice, probabilities = self.router(tokens)
        place = self.router.places(choice, len(self.experts))
        self.aux_loss = len(self.experts) * probabilities.float().mean(0).square().sum()
        kept = torch.nonzero(place < self.capacity).squeeze(-1)
        slot = (choice * self.capacity + place)[kept]
        slots = tokens.new_zeros(len(self.experts) * self.capacity, x.shape[-1]).index_add(0, slot, tokens[kept])
        done = torch.cat([expert(part) for expert, part in zip(self.experts, slots.split(self.capacity), strict=True)])
        mixed = (done[slot] * weight[kept, None].to(done.dtype)).to(tokens.dtype)
        return torch.zeros_like(tokens).index_add(0, kept, mixed).reshape(x.shape)


def router(*, mended: bool) -> Case:
    it = moe.build(router=moe.Router if mended else LowRouter)
    healthy = it.model.mixture
    it.model.mixture = built(0, lambda: Slots(32, 2, 600, healthy.router))
    with torch.no_grad():
        healthy.router.gate.weight.mul_(10)  # decided, as a trained router is, and experts that matter beside the residual stream
        for expert, known in zip(it.model.mixture.experts, healthy.experts, strict=True):
            expert.load_state_dict(known.state_dict())
            expert[-1].weight.mul_(20)
    return it


@dataclasses.dataclass(frozen=True)
class Planted:
    """A bug, the precisions under which it bites, and what must be said of it first."""

    make: Callable[..., Case]
    precisions: tuple[str, ...]
    rule: str
    module: str
    message: str


ATTENTION = "vit.layers.1.attention"
BUGS = {
    "rotary": Planted(
        rotary, ("bf16-mixed", "bf16-true", "16-mixed"), "accumulated-drift", "model.rotary_emb", "output of model.rotary_emb[0]: off by "
    ),
    "norm": Planted(norm, ("16-mixed", "bf16-mixed", "bf16-true"), "accumulated-drift", "model.norm", "output of model.norm: off by "),
    "softmax": Planted(softmax, ("16-mixed", "16-true"), "overflow", ATTENTION, f"output of {ATTENTION}"),
    "logits": Planted(logits, ("16-mixed", "16-true"), "overflow", ATTENTION, f"output of {ATTENTION}"),
    "router": Planted(router, ("bf16-mixed", "bf16-true", "16-mixed"), "decision-flip", "mixture", "in mixture: "),
}  # fmt: skip
