"""States and running sums that are stored low between one token, frame or ray sample and the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def delta_rule(dtype: torch.dtype) -> torch.Tensor:
    """A gated delta rule: what no later key touches is forgotten by 0.2 % a token, which the rounding to bfloat16 takes back."""
    keys, values = functional.normalize(normal(350, 8), dim=-1), normal(350, 8, seed=1)
    keys[50:, 2:] = 0
    state = torch.zeros(8, 8).to(dtype)
    for key, value in zip(keys, values, strict=True):
        kept = 0.998 * state.float()
        kept = kept + 0.3 * torch.outer(key, value - key @ kept)
        state = kept.to(dtype)  # culprit: delta-state
    return state.float()


def subtracted_read(rounds: bool) -> torch.Tensor:
    """A delta rule whose keys come again: what the state gives back, rounded to bfloat16, is nearly the value that it is subtracted from."""
    keys, values = functional.normalize(normal(4, 16), dim=-1), 32 + normal(4, 16, seed=1)
    state, corrections = torch.zeros(16, 16), []
    for token, noise in enumerate(0.2 * normal(64, 16, seed=2)):
        key, value = keys[token % 4].to(LOW), (values[token % 4] + noise).to(LOW)
        read = state @ key.float()
        correction = 0.5 * (value - read.to(LOW) if rounds else value.float() - read)  # culprit: subtracted-read
        state = state + torch.outer(correction.float(), key.float())
        corrections.append(correction.float())
    return torch.stack(corrections[32:])


class Decoder(nn.Module):
    """Mamba's decode step: float32 arithmetic, and a state that rests in the cache's dtype."""

    def __init__(self, cache: torch.dtype | None) -> None:
        super().__init__()
        self.cache = cache
        self.rate = nn.Parameter(torch.full((16,), -7.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        keep = torch.exp(-torch.exp(self.rate.float()))
        state = torch.zeros(tokens.shape[1]).to(self.cache or tokens.dtype)
        for token in tokens:
            following = state.float() * keep + token.float()
            state = following.to(state.dtype)  # culprit: cached-state
        return state.to(tokens.dtype)


def decoded(cache: torch.dtype | None) -> torch.Tensor:
    return Decoder(cache).to(LOW)((0.25 + uniform(900, 16)).to(LOW))


class Scan(nn.Module):
    """A state-space layer whose decay was trained to one: the state is a sum of all tokens, and leaves float16."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.rate, self.out = nn.Parameter(torch.full((8,), -12.0)), nn.Parameter(torch.full((8,), 2.0**-10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = WIDE if self.wide else x.dtype
        keep, state, made = torch.exp(-torch.exp(self.rate.float())).to(dtype), torch.zeros(x.shape[1]).to(dtype), []
        for token in x:
            state = keep * state + token.to(dtype)  # culprit: endless-memory
            made.append((self.out.to(dtype) * state).to(x.dtype))
        return torch.stack(made)


def loud_tokens() -> torch.Tensor:
    return torch.round(240 + 16 * normal(400, 8))


class Lanes(nn.Module):
    """RMS norm that adds squares lane by lane, as a vector unit does: after an outlier of 768 the others are lost."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float() if self.wide else x
        total = torch.zeros(*x.shape[:-1], 8).to(h.dtype)
        for part in h.split(8, -1):
            total = total + part * part  # culprit: lanes-of-squares
        return x * torch.rsqrt(total.float().sum(-1, keepdim=True) / x.shape[-1] + 1e-6).to(x.dtype)


def outliers() -> torch.Tensor:
    x = normal(4, 1024).sign() * (30 + torch.round(8 * uniform(4, 1024)) / 8)  # bfloat16 holds them
    x[:, :8] = 768.0
    return x


def arrivals(dtype: torch.dtype) -> torch.Tensor:
    """Times of events from the gaps between them."""
    gaps = (0.3 + 0.1 * uniform(1000)).to(LOW)
    time, times = torch.zeros(()).to(dtype), []
    for gap in gaps:
        time = time + gap.to(dtype)  # culprit: event-times
        times.append(time)
    return torch.stack(times)


class Flow(nn.Module):
    """RAFT: pixel positions are moved twelve times by less than a pixel; where pixels count in ones, nothing moves."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        start = torch.arange(features.shape[-1]).to(WIDE if self.wide else features.dtype).expand_as(features)
        where = start
        for _ in range(12):
            where = where + (0.3 * torch.tanh(features)).to(start.dtype)  # culprit: moved-pixels
        return (where - start).to(features.dtype)  # culprit: moved-pixels


def quieter(dtype: torch.dtype) -> torch.Tensor:
    """Adam's second moment after loud gradients: 0.999 v is v again, in bfloat16, and so it stays."""
    v, noise = torch.zeros(64).to(dtype), normal(900, 64)
    for step, g in enumerate(noise):
        small = (g * (1.0 if step < 50 else 0.01)).to(dtype)
        v.mul_(0.999).addcmul_(small, small, value=0.001)  # culprit: stuck-moment
    return v.float()


def overview(dtype: torch.dtype) -> torch.Tensor:
    """Mean of a layer's parameters for a table, added up one by one."""
    total = torch.zeros(()).to(dtype)
    for each in torch.ones(768).to(dtype):
        total = total + each  # culprit: parameter-table
    return total.float() / 768


def late_interaction(dtype: torch.dtype) -> torch.Tensor:
    """ColBERT: the best document token for each of 32 query tokens, added. Scores near 30 go in steps of 0.125."""
    query = functional.normalize(normal(32, 64), dim=-1)
    noise = torch.linspace(0.040, 0.046, 24)[:, None, None] * normal(1, 32, 64, seed=1)
    documents = functional.normalize(query + noise, dim=-1).to(LOW)
    best = torch.einsum("qh,dth->dqt", query.to(LOW), documents).amax(-1).to(dtype)
    total = torch.zeros(24).to(dtype)
    for column in best.unbind(1):
        total = total + column  # culprit: late-interaction
    return total.float()


def asked(model: nn.Module, inputs: torch.Tensor, precision: str) -> dict[str, Any]:
    return {"model": model, "inputs": inputs, "precision": precision}


def pixels() -> torch.Tensor:
    return torch.round(8 * normal(2, 1280)) / 8


BUGS = (
    Bug("delta-state", "ollama/ollama#15865", ("absorption", "accumulated-drift"), "aten._to_copy.default", lambda: delta_rule(LOW),
        lambda: delta_rule(WIDE)),
    Bug("subtracted-read", "meta-pytorch/attention-gym#465", ("cancellation",), "aten.sub.Tensor", lambda: subtracted_read(True),
        lambda: subtracted_read(False)),
    Bug("cached-state", "vllm-project/vllm#13466", ("accumulated-drift", "absorption"), "aten._to_copy.default", lambda: decoded(None),
        lambda: decoded(WIDE), module="Decoder",
        measured=lambda fixed: asked(Decoder(WIDE if fixed else None), (0.25 + uniform(900, 16)).to(LOW).float(), "bf16-true")),
    Bug("endless-memory", "state-spaces/mamba#996", ("overflow",), "aten.add.Tensor", lambda: Scan(False).half()(loud_tokens().half()),
        lambda: Scan(True).half()(loud_tokens().half()), module="Scan", measured=lambda fixed: asked(Scan(fixed), loud_tokens(), "16-true")),
    Bug("lanes-of-squares", "sgl-project/sglang#27540", ("absorption",), "aten.add.Tensor", lambda: Lanes(False)(outliers().to(LOW)),
        lambda: Lanes(True)(outliers().to(LOW)), module="Lanes", measured=lambda fixed: asked(Lanes(fixed), outliers(), "bf16-true")),
    Bug("event-times", "numpy/numpy#24443", ("absorption",), "aten.add.Tensor", lambda: arrivals(LOW), lambda: arrivals(WIDE)),
    Bug("moved-pixels", "princeton-vl/RAFT#54", ("absorption", "cancellation"), "aten.add.Tensor",
        lambda: Flow(False)(pixels().half()), lambda: Flow(True)(pixels().half()), module="Flow",
        measured=lambda fixed: asked(Flow(fixed), pixels(), "16-true")),
    Bug("stuck-moment", "Nerogar/OneTrainer#1005", ("accumulated-drift", "absorption"), "aten.mul_.Tensor", lambda: quieter(LOW),
        lambda: quieter(WIDE)),
    Bug("parameter-table", "google/CommonLoopUtils#380", ("absorption",), "aten.add.Tensor", lambda: overview(LOW), lambda: overview(WIDE)),
    Bug("late-interaction", "lightonai/pylate#237", ("accumulated-drift", "absorption", "decision-flip"), "aten.add.Tensor",
        lambda: late_interaction(LOW), lambda: late_interaction(WIDE), harm=0.005),
)  # fmt: skip
