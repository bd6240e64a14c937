"""The twenty-fourth batch, second part: frames of residues, complex layers, prefixes for layers, styles for layers."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, B, W, family, ported
from torch import nn


class Frames:
    """A rotation and a place for each residue."""

    def __init__(self, turns: torch.Tensor, places: torch.Tensor) -> None:
        self.turns, self.places = turns, places

    def out(self, points: torch.Tensor) -> torch.Tensor:
        """Points of a residue's own frame, (batch, residues, points, 3), in the frame of all."""
        return points @ self.turns.mT + self.places[:, :, None]

    def inside(self, points: torch.Tensor) -> torch.Tensor:
        return (points - self.places[:, :, None]) @ self.turns

    def then(self, turns: torch.Tensor, places: torch.Tensor) -> Frames:
        return Frames(self.turns @ turns, self.places + (self.turns @ places[..., None])[..., 0])


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotations by quaternions 1 + xi + yj + zk."""
    a, b, c, d = F.normalize(torch.cat([torch.ones_like(x[..., :1]), x], -1), dim=-1).unbind(-1)
    rows = (a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c), 2 * (b * c + a * d), a * a - b * b + c * c - d * d,
            2 * (c * d - a * b), 2 * (b * d - a * c), 2 * (c * d + a * b), a * a - b * b - c * c + d * d)  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


class Points(nn.Module):
    """Attention by features and by distances of points, whose mean goes back into each residue's frame. `pairs`: distances one by one."""

    def __init__(self, pairs: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.pairs, self.wrong, self.qkv, self.points, self.out = pairs, wrong, nn.Linear(W, 3 * W), nn.Linear(W, 36), nn.Linear(W + 16, W)

    def forward(self, x: torch.Tensor, frames: Frames) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        own = self.points(x).unflatten(-1, (12, 3))
        a, b, c = (own if self.wrong == "local" else frames.out(own)).split(4, 2)
        if self.pairs:
            far = (a[:, :, None] - b[:, None]).square().sum((-1, -2))
        else:
            a, b = a.flatten(2), b.flatten(2)
            far = a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None] - 2 * a @ b.mT
        share = (q @ k.mT * (W**-0.5) - (1.0 if self.wrong == "weight" else 0.5) * far / 12).softmax(-1)
        mixed = torch.einsum("bij,bjpd->bipd", share, c)
        mixed = mixed if self.wrong == "global" else frames.inside(mixed)
        lengths = (mixed.square().sum(-1) + 1e-6).sqrt()
        return x + self.out(torch.cat([share @ v, mixed.flatten(2), lengths], -1))


class Step(nn.Module):
    def __init__(self, wrong: str = "", **ways: Any) -> None:
        super().__init__()
        self.wrong, self.attend, self.norm, self.move = wrong, Points(**ways), nn.LayerNorm(W), nn.Linear(W, 6)

    def forward(self, x: torch.Tensor, frames: Frames) -> tuple[torch.Tensor, Frames]:
        x = self.norm(self.attend(x, frames))
        turn, place = self.move(x).split(3, -1)
        if self.wrong == "order":
            made = Frames(turned(turn) @ frames.turns, frames.places + (frames.turns @ place[..., None])[..., 0])
        elif self.wrong == "unturned":
            made = Frames(frames.turns @ turned(turn), frames.places + place)
        else:
            made = frames.then(turned(turn), place)
        return x, made


class Folding(nn.Module):
    def __init__(self, second: dict[str, Any] | None = None, part: str = "", top: str = "", **ways: Any) -> None:
        super().__init__()
        self.top, self.inside, self.start, self.head = top, nn.Linear(6, W), nn.Linear(6, 6), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Step(**ways), Step(**ways, **(second or {})), Step(**ways)])
        self.layers[1].attend.wrong = part

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turn, place = self.start(x).split(3, -1)
        frames, x = Frames(turned(turn), place), self.inside(x)
        for number, layer in enumerate(self.layers):
            if self.top == "cut" and number == 1:
                frames = Frames(frames.turns.detach(), frames.places)
            if self.top == "kept" and number == 1:
                x, _ = layer(x, frames)
            else:
                x, frames = layer(x, frames)
        return self.head(x), frames.places


def far(out: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return out[0].float().square().mean() + out[1].float().square().mean() / 9


family("frames of residues", "distances one by one", lambda **bad: ported(Folding(), Folding(**{"pairs": True, **bad}), loss=far), {
    "points of their own frames": ({"part": "local"}, ("layers.1.attend",), ""),
    "a whole weight": ({"part": "weight"}, ("layers.1.attend",), ""),
    "points that are not brought back": ({"part": "global"}, ("layers.1.attend",), ""),
    "a turn from the other side": ({"second": {"wrong": "order"}}, B, ""), "a step that is not turned": ({"second": {"wrong": "unturned"}}, B, ""),
    "turns that teach nothing": ({"top": "cut"}, TOP, ""), "frames that are not handed on": ({"top": "kept"}, TOP, ""),
}, as_it_is={"pairs": False})  # fmt: skip


class Complex(nn.Module):
    """A linear layer on complex numbers. `real`: by four real products."""

    def __init__(self, real: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.real, self.wrong = real, wrong
        self.a, self.b, self.bias = nn.Parameter(torch.zeros(W, W)), nn.Parameter(torch.zeros(W, W)), nn.Parameter(torch.zeros(W, 2))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        a, b, bias = self.a.float(), self.b.float(), self.bias.float()
        if self.real:
            x, y = z.real, z.imag
            sign = -1 if self.wrong == "sign" else 1
            made = torch.complex((x @ a.T).float() - sign * (y @ b.T).float(), (x @ b.T).float() + sign * (y @ a.T).float())
            if self.wrong == "bias":
                return made + bias[:, 0]
        else:
            made = z @ torch.complex(a, b).T
        return made + torch.view_as_complex(bias.contiguous())


class Gate(nn.Module):
    """Keeps the angle of each number, and takes a threshold from its size."""

    def __init__(self, polar: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.polar, self.wrong, self.least = polar, wrong, nn.Parameter(torch.zeros(W))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        size, least = (z.real.square() + z.imag.square() + 1e-6).sqrt(), self.least.float()
        kept = F.relu(size - least if self.wrong == "sign" else size + least)
        if self.wrong == "parts":
            return torch.complex(F.relu(z.real + least), F.relu(z.imag + least))
        return torch.complex(kept * z.real / size, kept * z.imag / size) if self.polar else z * (kept / size)


class Waves(nn.Module):
    """Attention whose scores are the real parts of products, then a gate."""

    def __init__(self, real: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.real, self.wrong = real, wrong
        self.q, self.k, self.v, self.gate = Complex(real), Complex(real), Complex(real), Gate(real)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(z), self.k(z), self.v(z)
        if self.real:
            sign = -1 if self.wrong == "conjugate" else 1
            scores = q.real @ k.real.mT + sign * q.imag @ k.imag.mT
        else:
            scores = (q @ k.mH).real
        share = (scores * (1 if self.wrong == "scale" else W**-0.5)).softmax(-1).to(v.dtype)
        return z + self.gate(share @ v)


class Wavy(nn.Module):
    """Spectra of rows, layers on complex numbers, and back."""

    def __init__(self, real: bool = False, parts: dict[str, str] | None = None, top: str = "") -> None:
        super().__init__()
        self.top, self.inside, self.head = top, nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Waves(real) for _ in range(3)])
        for name, wrong in (parts or {}).items():
            self.layers[1].get_submodule(name).wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.fft.rfft(self.inside(x).float(), dim=1, norm="ortho")
        for number, layer in enumerate(self.layers):
            z = layer(z.conj() if self.top == "turned" and number == 1 else z)
        made = torch.fft.irfft(z, n=x.shape[1], dim=1, norm=None if self.top == "norm" else "ortho")
        return self.head(made.to(self.head.weight.dtype))


family("complex layers", "real products", lambda **bad: ported(Wavy(), Wavy(**{"real": True, **bad})), {
    "a product of the other sign": ({"parts": {"k": "sign"}}, ("layers.1.k",), ""), "half a bias": ({"parts": {"v": "bias"}}, ("layers.1.v",), ""),
    "a threshold of the other sign": ({"parts": {"gate": "sign"}}, ("layers.1.gate",), ""),
    "a gate on each part": ({"parts": {"gate": "parts"}}, ("layers.1.gate",), ""),
    "scores without a conjugate": ({"parts": {"": "conjugate"}}, B, ""), "scores not scaled": ({"parts": {"": "scale"}}, B, "times|wrong is"),
    "conjugates given": ({"top": "turned"}, TOP, ""), "an inverse of another norm": ({"top": "norm"}, TOP, "times|top is"),
}, as_it_is={"real": False})  # fmt: skip


class Bank:
    """Keys and values that each layer sees before those of the tokens."""

    def __init__(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.pairs = pairs


class Prefixed(nn.Module):
    """Causal attention behind a prefix. `written`: scores written out."""

    def __init__(self, number: int = 0, written: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.number, self.written, self.wrong, self.norm, self.qkv, self.out = (
            number,
            written,
            wrong,
            nn.LayerNorm(W),
            nn.Linear(W, 3 * W),
            nn.Linear(W, W),
        )

    def forward(self, x: torch.Tensor, bank: Bank) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        first, second = bank.pairs[self.number]
        first, second = (second, first) if self.wrong == "turned" else (first, second)
        k, v = torch.cat([first.to(k.dtype), k], 2), torch.cat([second.to(v.dtype), v], 2)
        more = k.shape[2] - q.shape[2] - (1 if self.wrong == "hidden" else 0)
        kept = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(more)
        if self.written:
            mixed = (q @ k.mT / math.sqrt(8)).masked_fill(~kept, -math.inf).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=kept)
        made: torch.Tensor = x + self.out(mixed.transpose(1, 2).flatten(2))
        return made


class Prompt(nn.Module):
    """Makes the prefixes of all layers from a table, through two layers."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.table, self.up, self.down = wrong, nn.Embedding(4, W), nn.Linear(W, 12), nn.Linear(12, 3 * 2 * W)

    def forward(self, count: int) -> torch.Tensor:
        hidden = self.up(self.table(torch.arange(4)))
        made: torch.Tensor = self.down(hidden if self.wrong == "linear" else torch.tanh(hidden))
        return made.expand(count, 4, 3 * 2 * W)


class Tuned(nn.Module):
    def __init__(self, prompt: str = "", top: str = "", second: str = "", written: bool = False) -> None:
        super().__init__()
        self.top, self.prompt, self.inside, self.head = top, Prompt(prompt), nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Prefixed(n, written, second if n == 1 else "") for n in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.prompt(len(x))
        if self.top == "order":
            each = flat.unflatten(-1, (2, 3, 2, 8)).transpose(2, 3).permute(2, 3, 0, 4, 1, 5)
        else:
            each = flat.unflatten(-1, (3, 2, 2, 8)).permute(2, 3, 0, 4, 1, 5)
        pairs = [(one[0], one[1]) for one in each]
        if self.top == "next":
            pairs[1] = pairs[2]
        if self.top == "short":
            pairs[1] = pairs[1][0][:, :, 1:], pairs[1][1][:, :, 1:]
        if self.top == "frozen":
            pairs[1] = pairs[1][0].detach(), pairs[1][1]
        bank, x = Bank(pairs), self.inside(x)
        for layer in self.layers:
            x = layer(x, bank)
        return self.head(x)


family("a prefix for each layer", "scores written out", lambda **bad: ported(Tuned(), Tuned(**{"written": True, **bad})), {
    "no tanh between": ({"prompt": "linear"}, ("prompt",), ""), "keys for values": ({"second": "turned"}, B, ""),
    "the last token of a prefix unseen": ({"second": "hidden"}, B, ""), "keys of all layers first": ({"top": "order"}, TOP, ""),
    "the prefix of the next layer": ({"top": "next"}, TOP, ""), "a prefix of three": ({"top": "short"}, TOP, ""),
    "keys that teach nothing": ({"top": "frozen"}, TOP, ""),
}, by_the_kernel={"written": False})  # fmt: skip


class Mapping(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.first, self.second = wrong, nn.Linear(6, W), nn.Linear(W, W)
        self.register_buffer("mean", numbers(W))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        z = z if self.wrong == "raw" else z * (z.square().mean(-1, keepdim=True) + 1e-8).rsqrt()
        w = F.leaky_relu(self.second(F.leaky_relu(self.first(z), 0.2)), 0.2) * math.sqrt(2)
        return self.mean.lerp(w.to(self.mean.dtype), 0.3 if self.wrong == "mean" else 0.7)


class Styled(nn.Module):
    """A filter whose weights a style scales. `scaled`: pictures are scaled before and after instead."""

    def __init__(self, scaled: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.scaled, self.wrong, self.style, self.strength = scaled, wrong, nn.Linear(W, 8), nn.Parameter(torch.zeros(1))
        self.weight, self.bias = nn.Parameter(torch.zeros(8, 8, 3, 3)), nn.Parameter(torch.zeros(8))
        self.register_buffer("noise", numbers(8, 8))

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        style = self.style(w) + (0.0 if self.wrong == "style" else 1.0)
        if self.scaled:
            size = torch.einsum("oiyx,bi->bo", self.weight.square(), style.square().to(self.weight.dtype))
            x = F.conv2d(x * style[:, :, None, None], self.weight, padding=1)
            x = x if self.wrong == "size" else x * (size + 1e-8).rsqrt()[:, :, None, None]
        else:
            made = self.weight[None] * style[:, None, :, None, None]
            made = made * (made.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
            x = F.conv2d(x.flatten(0, 1)[None], made.flatten(0, 1).to(x.dtype), padding=1, groups=len(w)).unflatten(1, (len(w), 8))[0]
        noise = self.noise[: x.shape[-2], : x.shape[-1]]
        x = x + self.strength * (noise.mT if self.wrong == "noise" else noise) + self.bias[:, None, None]
        return F.leaky_relu(x, 0.2) * (1.0 if self.wrong == "gain" else math.sqrt(2))


class Painter(nn.Module):
    """Pictures of two sizes, and the sum of what each layer paints."""

    def __init__(self, scaled: bool = False, second: str = "", mapping: str = "", top: str = "") -> None:
        super().__init__()
        self.top, self.mapping, self.base = top, Mapping(mapping), nn.Parameter(torch.zeros(8, 4, 4))
        self.layers = nn.ModuleList([Styled(scaled, second if n == 1 else "") for n in range(3)])
        self.paint = nn.ModuleList([nn.Conv2d(8, 3, 1) for _ in range(3)])
        with torch.no_grad():
            self.base.copy_(numbers(8, 4, 4))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        w = self.mapping(z)
        w = torch.stack([w, w.roll(1, 0), w.flip(0)], 1)  # styles of other rows are mixed in
        x, picture = self.base.expand(len(z), 8, 4, 4), None
        for number, (layer, paint) in enumerate(zip(self.layers, self.paint, strict=True)):
            if number == 1:
                x = F.interpolate(x, scale_factor=2, mode="nearest" if self.top == "near" else "bilinear")
                picture = F.interpolate(picture, scale_factor=2, mode="bilinear")
            x = layer(x, w[:, 2 if self.top == "next" and number == 1 else number])
            made = paint(x)
            picture = made if picture is None or (self.top == "last" and number == 2) else picture + made
        return picture


def painter(**bad: Any) -> Made:
    return ported(Painter(), Painter(**{"scaled": True, **bad}), numbers(3, 6))


family("styles for layers", "scaled pictures", painter, {
    "styles around zero": ({"second": "style"}, B, ""), "not brought to size": ({"second": "size"}, B, ""),
    "noise turned": ({"second": "noise"}, B, ""),
    "no gain": ({"second": "gain"}, B, "times|wrong is"), "inputs not normed": ({"mapping": "raw"}, ("mapping",), ""),
    "more of the mean": ({"mapping": "mean"}, ("mapping",), ""), "the style of the next layer": ({"top": "next"}, TOP, ""),
    "nearest for bilinear": ({"top": "near"}, TOP, ""), "the last painting alone": ({"top": "last"}, TOP, ""),
}, as_it_is={"scaled": False})  # fmt: skip
