"""A tenth batch, second part: flexible attention, forces, scans in logarithms, mixers by spectra, chains of tensors, adapters, caches.

Faults as such rewrites have them: a mask that shows too much, a force that is detached, states one step late, a transform that is normed on one side.
"""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_tenth import SPEECH, Only, spoken
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

W, HEADS, SIZE, LENGTH = 24, 3, 8, 7


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Biased(nn.Module):
    """Attention whose scores get a bias by distance. `kind`: written out, or torch's flexible attention."""

    def __init__(self, kind: str = "written", late: int = 0, unscaled: bool = False) -> None:
        super().__init__()
        self.kind, self.late, self.unscaled = kind, late, unscaled
        self.qkv, self.out, self.slopes = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Parameter(torch.tensor([0.5, 0.25, 0.1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2).contiguous() for part in self.qkv(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        if self.kind == "flex":

            def score(value: torch.Tensor, b: torch.Tensor, h: torch.Tensor, t: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
                return torch.where(t + self.late >= u, value - self.slopes[h] * (t - u).abs(), -math.inf)

            made = flex_attention(q, k, v, score_mod=score, scale=1.0 if self.unscaled else None)
        else:
            far = (place[:, None] - place).abs() * self.slopes[:, None, None]
            scores = ((q @ k.mT).float() / math.sqrt(SIZE) - far).masked_fill(place[:, None] < place, -math.inf)
            made = scores.softmax(-1).to(v.dtype) @ v
        return self.out(made.transpose(1, 2).flatten(2))  # type: ignore[union-attr]


class Forces(nn.Module):
    """An energy of points and the forces on them. `kind`: what makes the forces."""

    def __init__(self, kind: str = "autograd") -> None:
        super().__init__()
        self.kind, self.inside, self.middle, self.out = kind, nn.Linear(6, W), nn.Linear(W, W), nn.Linear(W, 1)

    def energy(self, places: torch.Tensor) -> torch.Tensor:
        far = (places[..., :, None, :] - places[..., None, :, :]).square().sum(-1)
        waves = torch.exp(-(far[..., None] - torch.arange(6) * 0.7).square()) * (1 - torch.eye(places.shape[-2]))[..., None]
        return self.out(F.silu(self.middle(F.silu(self.inside(waves.sum(-2).to(places.dtype)))))).sum((-1, -2))

    def forward(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.kind == "func":
            made, energy = torch.func.vmap(torch.func.grad_and_value(self.energy))(places)
            return energy, -made
        with torch.enable_grad():
            places = places.requires_grad_() if places.is_leaf else places
            energy = self.energy(places)
            made = torch.autograd.grad(energy.sum(), places, create_graph=self.kind != "detached", retain_graph=True)[0]
        return energy, made if self.kind == "signed" else -made


class Minimal(nn.Module):
    """A recurrence whose gates see the inputs alone. `kind`: step by step, or all steps at once in logarithms."""

    def __init__(self, kind: str = "loop", begun: bool = True, shifted: bool = False) -> None:
        super().__init__()
        self.kind, self.begun, self.shifted = kind, begun, shifted
        self.gate, self.inside, self.out, self.first = nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, W), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z, made = self.gate(x).float(), self.inside(x).float()
        new, state = torch.where(made >= 0, made + 0.5, made.sigmoid()), self.first.float().exp().expand(len(x), W)
        if self.kind == "loop":
            states = []
            for place in range(x.shape[1]):
                now = z[:, place].sigmoid()
                state = (1 - now) * state + now * new[:, place]
                states.append(state)
            return self.out(torch.stack(states, 1).to(x.dtype))
        logs = torch.where(made >= 0, (made.relu() + 0.5).log(), -F.softplus(-made))
        kept = F.pad(-F.softplus(z).cumsum(1), (0, 0, 1, 0))
        first = self.first.float().expand(len(x), 1, W)
        terms = torch.cat([first if self.begun else first - 50, -F.softplus(-z) + logs], 1)
        states = (kept + (terms - kept).logcumsumexp(1)).exp()
        return self.out((states[:, :-1] if self.shifted else states[:, 1:]).to(x.dtype))


class Mixer(nn.Module):
    """A mixer of pixels by one filter as large as the picture. `kind`: by a transform, or by a sum over all places."""

    def __init__(self, kind: str = "sum", norm: str = "backward", flipped: bool = False) -> None:
        super().__init__()
        self.kind, self.norm, self.flipped = kind, norm, flipped
        self.before, self.filter, self.after = nn.Conv2d(3, 6, 1), nn.Parameter(torch.zeros(6, 5, 4)), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        if self.kind == "sum":
            made = sum(self.filter[:, i, j, None, None].float() * x.float().roll((i, j), (-2, -1)) for i in range(5) for j in range(4))
        else:
            spectrum = torch.fft.rfft2(self.filter.float())
            product = torch.fft.rfft2(x.float(), norm=self.norm) * (spectrum.conj() if self.flipped else spectrum)
            made = torch.fft.irfft2(product, s=(5, 4))
        return self.after(F.gelu(made).to(x.dtype))  # type: ignore[arg-type]


class Chain(nn.Module):
    """A product with a matrix that is a chain of three small tensors. `kind`: one by one, or the whole matrix first."""

    def __init__(self, kind: str = "chain", swapped: bool = False) -> None:
        super().__init__()
        self.kind, self.swapped = kind, swapped
        self.a, self.b, self.c = (nn.Parameter(torch.zeros(*form)) for form in ((3, 3, 4), (4, 2, 2, 4), (4, 4, 4)))
        self.norm, self.head = nn.LayerNorm(W), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "chain":
            parts = torch.einsum("...ijk,ipr->...jkpr", x.unflatten(-1, (3, 2, 4)), self.a)
            parts = torch.einsum("...jkpr,rjqs->...kpqs", parts, self.b)
            x = x + torch.einsum("...kpqs,skt->...pqt", parts, self.c).flatten(-3)
        else:
            form = "rqjs" if self.swapped else "rjqs"
            whole = torch.einsum(f"ipr,{form},skt->ijkpqt", self.a, self.b, self.c).reshape(W, W)
            x = x + x @ whole
        return self.head(self.norm(x))


def pair(model: nn.Module, other: nn.Module, *shape: int, std: float = 0.3, **given: Any) -> Made:
    torch.manual_seed(0)
    spread(model, std)
    other.load_state_dict(model.state_dict())
    return model, other, numbers(*shape), {**MEAN, **given}


def flexible(**ways: Any) -> Made:
    """Torch's flexible attention has no backward pass on a CPU, so nothing is trained."""
    model, other, x, _ = pair(Biased().requires_grad_(False), Biased("flex", **ways).requires_grad_(False), 2, LENGTH, W)
    return model, other, x, {}


def forces(kind: str) -> Made:
    return pair(Forces(), Forces(kind), 3, 5, 3, loss=lambda out: out[0].float().mean() + out[1].float().square().mean())


def compiled(shifted: bool) -> Made:
    model, other, x, given = pair(Minimal(), Minimal("logs" if shifted else "loop", shifted=shifted), 2, LENGTH, W)
    return model, torch.compile(other), x, given


def adapted(factor: float = 1.0, left: str = "") -> Made:
    """A model with adapters beside itself with the adapters merged. `factor`: of the adapters' own scale. `left`: a module that is not merged."""
    import peft
    import transformers

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = spread(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SPEECH)), 0.2)
        model = spread(peft.get_peft_model(net, peft.LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "v_proj", "down_proj"])), 0.2)
        merged = copy.deepcopy(model)
        for name, part in merged.named_modules():
            if hasattr(part, "scaling") and isinstance(part.scaling, dict):
                part.scaling = {key: 0.0 if left and name.endswith(left) else value * factor for key, value in part.scaling.items()}
        other = merged.merge_and_unload()
    return spoken(model, Only(other))


class Decoding(nn.Module):
    """A model that is given a token at a time with its cache. `still`: whether all tokens are said to be the first."""

    def __init__(self, net: nn.Module, still: bool) -> None:
        super().__init__()
        self.net, self.still = net, still

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        cache, made = None, []
        for place in range(ids.shape[1]):
            at = torch.full((1, 1), 0 if self.still else place)
            out = self.net(ids[:, place : place + 1], past_key_values=cache, position_ids=at, use_cache=True)
            made.append(out.logits)
            cache = out.past_key_values
        return torch.cat(made, 1)


def cached(still: bool) -> Made:
    import transformers

    torch.manual_seed(0)
    model = spread(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SPEECH, head_dim=SIZE)))
    return spoken(model, Decoding(copy.deepcopy(model), still))


healthy("flexible", "scores changed one by one", flexible)
broken("flexible", "a mask that shows one token more", lambda: flexible(late=1), "", "out")
broken("flexible", "scores without their scale", lambda: flexible(unscaled=True), "", "out")
healthy("forces", "by torch.func, point clouds one by one", lambda: forces("func"))
broken("forces", "forces that are detached", lambda: forces("detached"), "", "inside", "middle", "out")
broken("forces", "forces of the other sign", lambda: forces("signed"), "")
healthy("minimal recurrence", "all steps at once, in logarithms", lambda: pair(Minimal(), Minimal("logs"), 2, LENGTH, W))
broken("minimal recurrence", "no state to begin with", lambda: pair(Minimal(), Minimal("logs", begun=False), 2, LENGTH, W), "", "out")
broken("minimal recurrence", "states one step late", lambda: pair(Minimal(), Minimal("logs", shifted=True), 2, LENGTH, W), "", "out")
healthy("mixer", "by a transform", lambda: pair(Mixer(), Mixer("transform"), 2, 3, 5, 4))
broken("mixer", "a transform that is normed on one side", lambda: pair(Mixer(), Mixer("transform", "ortho"), 2, 3, 5, 4), "", "after")
broken("mixer", "a filter that is flipped", lambda: pair(Mixer(), Mixer("transform", flipped=True), 2, 3, 5, 4), "", "after")
healthy("chain", "the whole matrix first", lambda: pair(Chain(), Chain("whole"), 2, LENGTH, W))
broken("chain", "two axes of a tensor swapped", lambda: pair(Chain(), Chain("whole", True), 2, LENGTH, W), "", "norm")
healthy("minimal recurrence", "compiled step by step", lambda: compiled(False))
broken("minimal recurrence", "compiled, with states one step late", lambda: compiled(True), "", "out")
healthy("library", "a token at a time", lambda: cached(False))
healthy("library", "adapters merged", adapted)
broken("library", "adapters merged at half their scale", lambda: adapted(0.5), "net.model.layers.0.self_attn.q_proj")
broken("library", "one adapter not merged", lambda: adapted(left="1.mlp.down_proj"), "net.model.layers.1.mlp.down_proj")
broken(
    "library", "a token at a time, all of them the first", lambda: cached(True), "net.model.rotary_emb", "net.model.layers.0.self_attn", "net.model"
)
