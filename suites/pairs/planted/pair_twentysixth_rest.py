"""The twenty-sixth batch, fourth part: a sampler, codes with delays, triangles.

The issues: a last step of no size (diffusers 6477), times that are rounded to others (diffusers 12771, 7214), steps by sigmas and by logarithms
(diffusers 4986); delays that are applied twice (parler-tts 110), a cut that is too long (mlx-audio 891), two channels in turn (transformers
27084); incoming for outgoing edges (alphafold 77), a sum for a product (alphafold2 86), no mean over rows (alphafold2 102).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_twentyfourth import ROWS, TOP, B, W, ported
from pair_twentysixth import Layer, Whole, family
from torch import nn


class Cleaner(nn.Module):
    """A network inside of scales that depend on the noise: what it returns is the clean picture."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.into, self.time, self.out = wrong, nn.Linear(6, W), nn.Linear(1, W), nn.Linear(W, 6)

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        wide = (sigma.square() + 0.25).sqrt()
        keep, give, take = 0.25 / wide.square(), sigma * 0.5 / wide, 1 / wide
        keep = sigma.square() / wide.square() if self.wrong == "keep" else keep
        noise = sigma.log()[None] / (1 if self.wrong == "time" else 4)
        y = self.into(x if self.wrong == "take" else x * take.to(x.dtype)) + self.time(noise.to(x.dtype))
        return keep.to(x.dtype) * x + give.to(x.dtype) * self.out(F.silu(y))


class Sampler(nn.Module):
    """Steps of the second order from noise to a picture. `logs`: by logarithms of the noise, as the paper has it."""

    def __init__(self, logs: bool = False, top: str = "", cleaner: str = "") -> None:
        super().__init__()
        self.logs, self.top, self.cleaner = logs, top, Cleaner(cleaner)

    def sigmas(self) -> torch.Tensor:
        share, rho = torch.arange(6) / 5, 5 if self.top == "rho" else 7
        sigmas = (4 ** (1 / rho) + share * (0.05 ** (1 / rho) - 4 ** (1 / rho))) ** rho
        if self.top == "line":
            sigmas = 4 + share * (0.05 - 4)
        return torch.cat([sigmas, sigmas[-1:] if self.top == "last" else sigmas[-1:] * 0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sigmas, top = self.sigmas(), self.top
        x, old = x if top == "scale" else x * sigmas[0].to(x.dtype), x
        for number in range(6):
            now, then = sigmas[number], sigmas[number + 1]
            new = self.cleaner(x, sigmas[number + 1 if top == "time" and number < 5 else number])
            if number == 0 or number == 5 or top == "first":
                mean = new
            else:
                before = sigmas[number - 1]
                ratio = (now / then).log() / (before / now).log() if top == "ratio" else (before / now).log() / (now / then).log()
                if self.logs:
                    mean = new + ((-0.5 if top == "sign" else 0.5) / ratio).to(x.dtype) * (new - old)
                else:
                    mean = (1 + 1 / (2 * ratio)).to(x.dtype) * new - (1 / (2 * ratio)).to(x.dtype) * old
            if self.logs and number < 5 and top != "last":
                step = (now / then).log()
                x = (-step).exp().to(x.dtype) * x - torch.expm1(-step).to(x.dtype) * mean
            else:
                x = (then / now).to(x.dtype) * x + (1 - then / now).to(x.dtype) * mean
            old = mean if top == "mean" else new
        return x


CLEANER = ("cleaner",)
family("steps of a sampler", "by logarithms", lambda **bad: ported(Sampler(), Sampler(**{"logs": True, **bad}), ROWS), {
    "a last step of no size": ({"top": "last"}, TOP, ""), "the next time": ({"top": "time"}, TOP, ""),
    "a ratio turned round": ({"top": "ratio"}, TOP, ""),
    "the first order alone": ({"top": "first"}, TOP, ""), "the other sign": ({"top": "sign"}, TOP, ""),
    "another bend of times": ({"top": "rho"}, TOP, ""),
    "times on a line": ({"top": "line"}, TOP, ""), "noise not scaled": ({"top": "scale"}, TOP, ""), "the mean is kept": ({"top": "mean"}, TOP, ""),
    "a time not divided": ({"cleaner": "time"}, CLEANER, ""), "what is kept of the picture": ({"cleaner": "keep"}, CLEANER, ""),
    "a picture not scaled": ({"cleaner": "take"}, CLEANER, ""),
})  # fmt: skip


class Codes(nn.Module):
    """Four codes for each frame, of which each is one later than the one before. `joined`: all words in one table, and one head for all."""

    def __init__(self, joined: bool = False, top: str = "") -> None:
        super().__init__()
        self.joined, self.top = joined, top
        self.words = nn.Embedding(4 * 9, W) if joined else nn.ModuleList([nn.Embedding(9, W) for _ in range(4)])
        self.heads = nn.Linear(W, 32, bias=False) if joined else nn.ModuleList([nn.Linear(W, 8, bias=False) for _ in range(4)])
        self.layers, self.norm = nn.ModuleList([Layer(Whole()) for _ in range(2)]), nn.LayerNorm(W)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        top, length = self.top, codes.shape[2]
        delays = [0, 1, 2, 3] if top != "turned" else [3, 2, 1, 0]
        late = torch.full((len(codes), 4, length + 4), 8)
        for number, delay in enumerate(delays):
            again = 1 if top == "twice" and number else 0
            late[:, number, 1 + delay + again : 1 + delay + length] = codes[:, number, : length - again]
        late = late.clamp(max=7) if top == "word" else late
        if self.joined:
            x = self.words(late + (8 if top == "rows" else 9) * torch.arange(4)[:, None]).sum(1)
        else:
            x = torch.stack([words(late[:, number]) for number, words in enumerate(self.words)]).sum(0)
        x = x / 4 if top == "mean" else x
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        if self.joined:
            logits = self.heads(x).unflatten(-1, (8, 4)).mT if top == "heads" else self.heads(x).unflatten(-1, (4, 8))
        else:
            logits = torch.stack([head(x) for head in self.heads], 2)
        begun = [0, 1, 2, 3] if top != "begun" else [1, 2, 3, 4]
        return torch.stack(
            [logits[:, begin : begin + length, 0 if top == "first" and number == 3 else number] for number, begin in enumerate(begun)], 1
        )


def coded(**bad: Any) -> Any:
    ways = {"joined": True, **bad}

    def convert(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if not ways["joined"]:
            return state
        found = {name: value for name, value in state.items() if not name.startswith(("words", "heads"))}
        return found | {f"{kind}.weight": torch.cat([state[f"{kind}.{n}.weight"] for n in range(4)]) for kind in ("words", "heads")}

    return ported(Codes(), Codes(**ways), torch.randint(8, (3, 4, 6), generator=torch.Generator().manual_seed(5)), convert)


family("codes with delays", "one table for all", coded, {
    "delays the other way": ({"top": "turned"}, TOP, ""), "delayed twice": ({"top": "twice"}, TOP, ""),
    "padding by a word": ({"top": "word"}, TOP, ""),
    "rows of the other table": ({"top": "rows"}, TOP, ""), "a mean of codes": ({"top": "mean"}, TOP, ""),
    "heads in turn": ({"top": "heads"}, TOP, ""),
    "cut off one late": ({"top": "begun"}, TOP, ""), "the first code for the last": ({"top": "first"}, TOP, ""),
    "tables of their own, a mean of codes": ({"top": "mean", "joined": False}, TOP, ""),
}, tables_of_their_own={"joined": False})  # fmt: skip


class Triangle(nn.Module):
    """Edges by the two other edges of each triangle. `product`: as matrices, one for each channel."""

    def __init__(self, incoming: bool, product: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.incoming, self.product, self.wrong, self.norm, self.last = incoming, product, wrong, nn.LayerNorm(W), nn.LayerNorm(W)
        self.into, self.gates, self.gate, self.out = nn.Linear(W, 2 * W), nn.Linear(W, 2 * W), nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        z = self.norm(pairs)
        both = self.into(z) * self.gates(z).sigmoid()
        a, b = both.chunk(2, -1)[::-1] if self.wrong == "sides" else both.chunk(2, -1)
        incoming = self.incoming != (self.wrong == "way")
        if self.product:
            a, b = a.permute(0, 3, 1, 2), b.permute(0, 3, 1, 2)
            made = (a.mT @ b if incoming else a @ b.mT).permute(0, 2, 3, 1)
        else:
            made = torch.einsum("nkic,nkjc->nijc" if incoming else "nikc,njkc->nijc", a, b)
        return self.out(made if self.wrong == "last" else self.last(made)) * self.gate(pairs if self.wrong == "norm" else z).sigmoid()


class Evolved(nn.Module):
    """Rows of relatives that read by pairs, a mean of outer products, and triangles."""

    def __init__(self, product: bool = False, wrong: str = "", out: str = "", into: str = "") -> None:
        super().__init__()
        self.product, self.wrong, self.norm, self.qkv, self.bias, self.mixed = (
            product,
            wrong,
            nn.LayerNorm(W),
            nn.Linear(W, 3 * W),
            nn.Linear(W, 1),
            nn.Linear(W, W),
        )
        self.left, self.right, self.outer = nn.Linear(W, 4), nn.Linear(W, 4), nn.Linear(16, W)
        self.going, self.coming = Triangle(False, product, out), Triangle(True, product, into)

    def forward(self, rows: torch.Tensor, pairs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.qkv(self.norm(rows)).chunk(3, -1)
        bias = self.bias(pairs)[..., 0][:, None]
        scores = q @ k.mT / math.sqrt(W) + (bias.mT if self.wrong == "turned" else 0 * bias if self.wrong == "bias" else bias)
        rows = rows + self.mixed(scores.softmax(-1) @ v)
        a, b = self.left(rows), self.right(rows)
        if self.wrong == "outer":
            outer = (a[:, :, :, None, :, None] + b[:, :, None, :, None, :]).mean(1)
        elif self.product:
            outer = (a.permute(0, 2, 3, 1).flatten(1, 2) @ b.flatten(2)).unflatten(1, (-1, 4)).unflatten(3, (-1, 4)).transpose(2, 3)
            outer = outer if self.wrong == "sum" else outer / rows.shape[1]
        else:
            outer = torch.einsum("nsic,nsjd->nijcd", a, b) / (1 if self.wrong == "sum" else rows.shape[1])
        pairs = pairs + self.outer((outer.mT if self.wrong == "order" else outer).flatten(3))
        pairs = pairs + self.going(pairs)
        return rows, pairs + (self.going if self.wrong == "same" else self.coming)(pairs)


class Folded(nn.Module):
    """Two blocks, run twice: the first row and the pairs of the first time are given to the second, which teaches them nothing."""

    def __init__(self, product: bool = False, top: str = "", **second: str) -> None:
        super().__init__()
        self.top, self.inside, self.far, self.again, self.head = top, nn.Linear(6, W), nn.Embedding(7, W), nn.LayerNorm(W), nn.Linear(W, 3)
        self.layers = nn.ModuleList([Evolved(product, **(second if n == 1 else {})) for n in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length, top = x.shape[2], self.top
        far = torch.arange(length)[:, None] - torch.arange(length)
        inside, places = self.inside(x), self.far((far.T if top == "places" else far).clamp(-3, 3) + 3).expand(len(x), -1, -1, -1)
        old_row, old_pairs = inside[:, 0] * 0, places * 0
        for _ in range(2):
            rows = torch.cat([inside[:, :1] + (old_row if top == "row" else self.again(old_row))[:, None], inside[:, 1:]], 1)
            pairs = places + old_pairs
            for layer in self.layers:
                rows, pairs = layer(rows, pairs)
            old_row, old_pairs = (rows[:, 0], pairs) if top == "taught" else (rows[:, -1 if top == "last" else 0].detach(), pairs.detach())
        return self.head(pairs + (0 if top == "half" else pairs.transpose(1, 2)))


family("triangles", "products for each channel", lambda **bad: ported(Folded(), Folded(**{"product": True, **bad}), numbers(2, 3, 5, 6)), {
    "incoming for outgoing": ({"out": "way"}, ("layers.1.going",), ""), "outgoing for incoming": ({"into": "way"}, ("layers.1.coming",), ""),
    "sides exchanged": ({"out": "sides"}, ("layers.1.going",), ""), "no last norm": ({"into": "last"}, ("layers.1.coming",), ""),
    "a gate without its norm": ({"out": "norm"}, ("layers.1.going",), ""), "a sum for a product": ({"wrong": "outer"}, B, ""),
    "no mean over rows": ({"wrong": "sum"}, B, ""), "channels of products exchanged": ({"wrong": "order"}, B, ""),
    "pairs turned round": ({"wrong": "turned"}, B, ""), "no pairs in attention": ({"wrong": "bias"}, B, ""),
    "one triangle twice": ({"wrong": "same"}, B, ""),
    "distances turned round": ({"top": "places"}, TOP, ""), "no norm of the first time": ({"top": "row"}, TOP, ""),
    "the first time is taught": ({"top": "taught"}, TOP, ""), "the last row again": ({"top": "last"}, TOP, ""),
    "pairs of one side": ({"top": "half"}, TOP, ""),
}, as_it_is={"product": False})  # fmt: skip
