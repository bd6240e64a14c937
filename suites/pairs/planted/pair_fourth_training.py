"""A fourth batch, third part: sounds, networks of two parts, optimizers of one's own, weights that are kept in other parts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

W, H = 16, 4


class Sound(nn.Module):
    """Logarithms of powers in bands, then two convolutions."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.first, self.last = ways, nn.Conv1d(8, W, 3, padding=1), nn.Linear(W, 3)
        self.register_buffer("bands", torch.rand(17, 8, generator=torch.Generator().manual_seed(3)))

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        window = torch.hann_window(32, periodic=not ways.get("symmetric"))
        with torch.autocast("cpu", enabled=False):
            wave = wave.float()
            if ways.get("form") == "other":
                frames = F.pad(wave[:, None], (16, 16), mode=ways.get("mode", "reflect"))[:, 0].unfold(-1, 32, 8) * window
                turns = torch.outer(torch.arange(32), torch.arange(17)) * (2 * math.pi / 32)
                powers = (frames @ turns.cos()).square() + (frames @ turns.sin()).square()
            else:
                powers = torch.stft(wave, 32, 8, 32, window, return_complex=True).abs().square().transpose(1, 2)
            self.bands: torch.Tensor
            if ways.get("root"):
                powers = powers.sqrt()
            logs = (powers @ self.bands.float()).clamp(min=1e-5).log()
        x = F.gelu(self.first(logs.transpose(1, 2).to(self.first.weight.dtype)))
        return self.last(x.mean(-1))


def sound(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Sound()), Sound(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(3, 160), MEAN


class Crossed(nn.Module):
    """An encoder that a decoder looks at; `other` decodes one token at a time with keys and values of the encoder made once."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.encoder, self.words = nn.TransformerEncoderLayer(W, H, 2 * W, 0.0, F.gelu, batch_first=True), nn.Embedding(11, W)
        self.q, self.kv, self.o, self.norm, self.own = (nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(W, W), nn.LayerNorm(W), nn.Linear(W, 3 * W))
        self.out = nn.Linear(W, 11)

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (H, -1)).transpose(1, 2) for each in (q, k, v))
        if self.ways.get("form") == "other":
            scores = q @ k.mT / 2
            return (
                ((scores if seen is None else scores.masked_fill(~seen, -1e9 if q.dtype != torch.float16 else -6e4)).softmax(-1) @ v)
                .transpose(1, 2)
                .flatten(2)
            )
        return F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2)

    def forward(self, sources: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        padding = torch.arange(sources.shape[1]) >= lengths[:, None]
        memory = self.encoder(sources, src_key_padding_mask=None if self.ways.get("unmasked") else padding)
        k, v = self.kv(memory).chunk(2, -1)
        seen, x = ~padding[:, None, None], self.words(tokens)
        if self.ways.get("form") != "other":
            x = x + self.mixed(*self.own(x).chunk(3, -1), torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril())
            return self.out(self.norm(x + self.o(self.mixed(self.q(x), k, v, seen))))
        kept: list[torch.Tensor] = []
        made = []
        for place in range(tokens.shape[1]):
            token = x[:, place : place + 1]
            kept.append(self.own(token))
            if self.ways.get("forgets") and len(kept) > 4:
                kept.pop(0)
            every = torch.cat(kept, 1)
            token = token + self.mixed(every[:, -1:, :W], every[..., W : 2 * W], every[..., 2 * W :], None)
            made.append(self.out(self.norm(token + self.o(self.mixed(self.q(token), k, v, None if self.ways.get("all") else seen)))))
        return torch.cat(made, 1)


def crossed(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Crossed()), Crossed(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(0, 11, (3, 7))
    return (
        model,
        other,
        (torch.randn(3, 9, W), torch.tensor([9, 4, 6]), tokens),
        {"loss": lambda out: F.cross_entropy(out.float().flatten(0, 1), tokens.flatten())},
    )


class Layers(nn.Module):
    """Three layers whose weights are lengths and directions; `other` has them merged."""

    def __init__(self, merged: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(W, W) for _ in range(3))
        if merged is None:
            for each in self.layers:
                weight_norm(each)
        else:
            with torch.no_grad():
                for mine, theirs in zip(self.layers, merged.layers, strict=True):  # type: ignore[arg-type]
                    mine.weight.copy_(theirs.weight), mine.bias.copy_(theirs.bias)  # type: ignore[union-attr, operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.layers:
            x = x + torch.tanh(each(x))
        return x


def merged() -> Made:
    torch.manual_seed(0)
    model = Layers()
    spread(model)
    return model, Layers(model), torch.randn(5, W), MEAN


class Cells(nn.Module):
    """Torch's own LSTM, and a cell whose two products are one of what comes in beside what is kept."""

    def __init__(self, source: nn.Module | None = None, swapped: bool = False) -> None:
        super().__init__()
        self.swapped, self.last = swapped, nn.Linear(W, 3)
        if source is None:
            self.lstm = nn.LSTM(6, W, batch_first=True)
        else:
            self.joined, self.bias = nn.Parameter(torch.empty(4 * W, 6 + W)), nn.Parameter(torch.empty(4 * W))
            with torch.no_grad():
                lstm = source.lstm
                self.joined.copy_(torch.cat([lstm.weight_ih_l0, lstm.weight_hh_l0], 1))  # type: ignore[union-attr, arg-type, list-item]
                self.bias.copy_(lstm.bias_ih_l0 + lstm.bias_hh_l0)  # type: ignore[union-attr, operator]
            self.last.load_state_dict(source.last.state_dict())  # type: ignore[union-attr, operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "joined"):
            return self.last(self.lstm(x)[0])
        hidden = cell = x.new_zeros(len(x), W)
        made = []
        for place in range(x.shape[1]):
            i, f, g, o = F.linear(torch.cat([x[:, place], hidden.to(x.dtype)], 1), self.joined, self.bias).chunk(4, -1)
            i, f = (f, i) if self.swapped else (i, f)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            made.append(hidden)
        return self.last(torch.stack(made, 1))


def cells(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Cells(), 0.4)
    return model, Cells(model, **ways), torch.randn(3, 8, 6), MEAN


class Deep(nn.Module):
    """A network that is trained; `halves`: its first layer is in two parts, by which optimizers tell the sides apart."""

    def __init__(self, source: nn.Module | None = None, saved: bool = False) -> None:
        super().__init__()
        self.saved, self.norm, self.second, self.last = saved, nn.BatchNorm1d(W), nn.Linear(W, W), nn.Linear(W, 4)
        if source is None:
            self.first = nn.Linear(6, W)
        else:
            self.load_state_dict({name: each for name, each in source.state_dict().items() if not name.startswith("first")})
            self.a, self.b, self.bias = (
                nn.Parameter(each.detach().clone()) for each in (source.first.weight[:9], source.first.weight[9:], source.first.bias)
            )  # type: ignore[union-attr, index, operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x) if hasattr(self, "first") else torch.cat([F.linear(x, self.a), F.linear(x, self.b)], -1) + self.bias.to(x.dtype)
        y = F.gelu(self.norm(y))
        y = y + (checkpoint(self.second, y, use_reentrant=False) if self.saved else self.second(y))
        return self.last(F.gelu(y))


class Written(torch.optim.Optimizer):
    """AdamW by its formulas, after a clip of all gradients by their common norm."""

    def __init__(self, held: Iterable[nn.Parameter], **ways: Any) -> None:
        super().__init__(held, {})
        self.ways = ways

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        held = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        whole = torch.stack([each.grad.float().square().sum() for each in held]).sum().sqrt()
        for each in held:
            size = each.grad.float().norm() if self.ways.get("singly") else whole
            gradient = each.grad.float() * (0.05 / size.clamp(min=0.05))
            kept = self.state.setdefault(each, {"step": 0, "m": torch.zeros_like(gradient), "v": torch.zeros_like(gradient)})
            kept["step"] += 1
            kept["m"] = 0.9 * kept["m"] + 0.1 * gradient
            kept["v"] = 0.95 * kept["v"] + 0.05 * gradient * gradient
            m, v = kept["m"], kept["v"]
            if not self.ways.get("uncorrected"):
                m, v = m / (1 - 0.9 ** kept["step"]), v / (1 - 0.95 ** kept["step"])
            eps = (v + 1e-6).sqrt() if self.ways.get("inside") else v.sqrt() + 1e-6
            decay = 0.0 if self.ways.get("undecayed") and each.dim() < 2 else 0.1
            each.copy_((each.float() * (1 - 0.01 * decay) - 0.01 * m / eps).to(each.dtype))


class Clipped(torch.optim.AdamW):
    """Torch's AdamW, after torch's own clip."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], 0.05)
        super().step(closure)


def deep(saved: bool = False, own: bool = True, **ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Deep())
    theirs: Any = functools.partial(Written, **ways) if own else functools.partial(Clipped, lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)

    def optimizer(held: list[nn.Parameter]) -> torch.optim.Optimizer:
        ours = Clipped(held, lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
        return theirs(held) if any(each.shape == (9, 6) for each in held) else ours  # type: ignore[no-any-return]

    return model, Deep(model, saved), torch.randn(12, 6), {**MEAN, "optimizer": optimizer, "steps": 3}


class Losses(nn.Module):
    """A small network with a loss of several terms inside of it."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.words, self.first, self.head = ways, nn.Embedding(13, W), nn.Linear(W, W), nn.Linear(W, 13)
        self.register_buffer("shares", torch.rand(13, generator=torch.Generator().manual_seed(5)) + 0.2)

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        ways, x = self.ways, torch.tanh(self.first(self.words(tokens))).flatten(0, 1)
        self.shares: torch.Tensor
        shares, wanted = self.shares.float(), wanted.flatten()
        if ways.get("form") != "other":
            logits = self.head(x).float()
            return F.cross_entropy(logits, wanted, shares) + 1e-2 * logits.logsumexp(-1).square().mean()

        def part(x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            logits = self.head(x).float()
            all_ = logits.logsumexp(-1)
            lost = (all_ - logits.gather(1, wanted[:, None])[:, 0]) * shares[wanted]
            return torch.stack([lost.sum(), all_.square().sum()])

        total = torch.stack([checkpoint(part, a, b, use_reentrant=False) for a, b in zip(x.split(7), wanted.split(7), strict=True)]).sum(0)
        return total[0] / (len(wanted) if ways.get("counted") else shares[wanted].sum()) + 1e-2 * total[1] / (
            1 if ways.get("summed") else len(wanted)
        )


def losses(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Losses()), Losses(**{"form": "other", **ways})
    other.load_state_dict(model.state_dict())
    return model, other, (torch.randint(0, 13, (3, 9)), torch.randint(0, 13, (3, 9))), {"loss": lambda out: out}


healthy("sound", "a transform as two products", sound)
broken("sound", "a symmetric window", lambda: sound(symmetric=True), "")
broken("sound", "amplitudes for powers", lambda: sound(root=True), "")
broken("sound", "zeros before and after", lambda: sound(mode="constant"), "")
healthy("crossed", "a token at a time", crossed)
broken("crossed", "padding of the source seen", lambda: crossed(all=True), "")
broken("crossed", "a cache of four", lambda: crossed(forgets=True), "")
broken("crossed", "the encoder sees padding", lambda: crossed(unmasked=True), "encoder", "encoder.self_attn", "")
healthy("merged", "lengths and directions as one weight", merged)
healthy("cells", "one product for two", cells)
broken("cells", "gates for what comes in and what is kept swapped", lambda: cells(swapped=True), "")
healthy("deep", "AdamW by its formulas", deep)
healthy("deep", "a layer recomputed, a weight in two parts", lambda: deep(saved=True, own=False))
broken("deep", "each gradient clipped by itself", lambda: deep(singly=True), "", "a", "b", "second", "last", "norm")
broken("deep", "moments not corrected", lambda: deep(uncorrected=True), "", "a", "b", "second", "last", "norm")
broken("deep", "eps inside of the root", lambda: deep(inside=True), "", "a", "b", "second", "last", "norm")
broken("deep", "no decay of biases and norms", lambda: deep(undecayed=True), "", "a", "b", "second", "last", "norm")
healthy("losses", "seven at a time, recomputed", losses)
broken("losses", "a mean over rows for one by weight", lambda: losses(counted=True), "")
broken("losses", "a penalty that is summed", lambda: losses(summed=True), "")
