"""A fourteenth batch, fifth part: sounds as transformers and Whisper read them, and samplers of diffusion models in other variables.

Faults as such ports have them: lengths of columns, another scale of pitch, a padding that is cut off in front, a table of noise that was rounded.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fourteenth_sights import renamed
from pair_tenth import Only
from torch import nn

W, HEADS, SIZE = 16, 2, 8


def wave(length: int, count: int = 2) -> torch.Tensor:
    return torch.randn(count, length, generator=torch.Generator().manual_seed(5))


class Heard(nn.Module):
    """Wav2Vec2. `weights`: the filter over places as its lengths and directions, or as one weight."""

    def __init__(self, lengths: bool = True, columns: bool = False, front: bool = False, act: str = "none", before: bool = False, normed: bool = True,
                 by_group: bool = True, late: bool = False, flash: bool = True, groups: int = 2) -> None:  # fmt: skip
        super().__init__()
        self.lengths, self.columns, self.front, self.act, self.before, self.normed, self.by_group, self.late, self.flash, self.groups = (
            lengths, columns, front, act, before, normed, by_group, late, flash, groups)  # fmt: skip
        self.first, self.second, self.group = nn.Conv1d(1, 8, 5, 3, bias=False), nn.Conv1d(8, 8, 3, 2, bias=False), nn.GroupNorm(8, 8)
        self.norm, self.into = nn.LayerNorm(8), nn.Linear(8, W)
        self.far, self.direction, self.bias = nn.Parameter(torch.zeros(1, 1, 4)), nn.Parameter(torch.zeros(W, 8, 4)), nn.Parameter(torch.zeros(W))
        self.begin, self.one, self.two = nn.LayerNorm(W), nn.LayerNorm(W), nn.LayerNorm(W)
        self.qkv, self.out, self.up, self.down = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Linear(W, 24), nn.Linear(24, W)

    def placed(self, x: torch.Tensor) -> torch.Tensor:
        if self.lengths:
            sizes = self.direction.float().square().sum((1, 2) if self.columns else (0, 1), keepdim=True).sqrt()
            weight = (self.far.float() * self.direction.float() / sizes).to(x.dtype)
        else:
            weight = torch._weight_norm(self.direction, self.far, 2)
        padded = F.pad(x.mT, (1, 2) if self.front else (2, 1))
        parts = zip(padded.chunk(self.groups, 1), weight.chunk(self.groups), self.bias.chunk(self.groups), strict=True)
        return F.gelu(torch.cat([F.conv1d(*part) for part in parts], 1)).mT

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(q, k, v) if self.flash else (q @ k.mT / math.sqrt(SIZE)).float().softmax(-1).to(v.dtype) @ v
        return self.out(made.transpose(1, 2).flatten(2))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.act))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(x.float(), x.shape[-1:], eps=1e-7).to(x.dtype)[:, None]
        x = self.first(x)
        x = self.group(x) if self.by_group else F.group_norm(x, 1, self.group.weight, self.group.bias)
        x = F.gelu(self.second(F.gelu(x))).mT
        x = self.into(self.norm(x) if self.normed else x)
        x = self.begin(x) + self.placed(x) if self.late else self.begin(x + self.placed(x))
        if self.before:
            x = x + self.attend(self.one(x))
            return x + self.feed(self.two(x))
        x = self.one(x + self.attend(x))
        return self.two(x + self.feed(x))


class Prepared(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = (wide - wide.mean(-1, keepdim=True)) / (wide.var(-1, correction=0, keepdim=True) + 1e-7).sqrt()
        return self.net(wide.to(x.dtype))


def heard(compiled: bool = False, **ways: Any) -> Made:
    import transformers

    torch.manual_seed(0)
    model = spread(transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(
        hidden_size=W, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=24, conv_dim=(8, 8), conv_kernel=(5, 3), conv_stride=(3, 2),
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, feat_extract_norm="group",
            apply_spec_augment=False))).eval()  # fmt: skip
    state = renamed(
        {name: value for name, value in model.state_dict().items() if "masked" not in name}, ("feature_extractor.conv_layers.0.conv", "first"),
        ("feature_extractor.conv_layers.1.conv", "second"), ("feature_extractor.conv_layers.0.layer_norm", "group"),
        ("feature_projection.layer_norm", "norm"),
        ("feature_projection.projection", "into"), ("encoder.pos_conv_embed.conv.parametrizations.weight.original0", "far"),
        ("encoder.pos_conv_embed.conv.parametrizations.weight.original1", "direction"), ("encoder.pos_conv_embed.conv.bias", "bias"),
        ("encoder.layer_norm", "begin"), ("encoder.layers.0.attention.out_proj", "out"), ("encoder.layers.0.attention.", ""),
        ("encoder.layers.0.layer_norm", "one"),
        ("encoder.layers.0.final_layer_norm", "two"), ("encoder.layers.0.feed_forward.intermediate_dense", "up"),
        ("encoder.layers.0.feed_forward.output_dense", "down"),
    )  # fmt: skip
    for kind in ("weight", "bias"):
        state[f"qkv.{kind}"] = torch.cat([state.pop(f"{each}_proj.{kind}") for each in "qkv"])
    other = Heard(**ways).eval()
    other.load_state_dict(state)
    return Prepared(Only(model, "last_hidden_state")), torch.compile(other) if compiled else other, wave(61), dict(MEAN)


class Pitches(nn.Module):
    """Logarithms of power by pitch, as Whisper reads sounds, and two filters. `kind`: torch's transform, or products of frames."""

    def __init__(self, kind: str = "torch", power: float = 2.0, log: str = "ten", pitch: str = "slaney", even: bool = True, row: bool = True,
        floor: float = 8.0,
                 last: bool = False, padding: str = "reflect", act: str = "none", least: float = 1e-10,
                     table: torch.dtype = torch.float32) -> None:  # fmt: skip
        super().__init__()
        self.kind, self.power, self.log, self.row, self.floor, self.last, self.padding, self.act, self.least = (
            kind, power, log, row, floor, last, padding, act, least)  # fmt: skip
        self.one, self.two = nn.Conv1d(10, W, 3, padding=1), nn.Conv1d(W, W, 3, 2, padding=1)
        self.register_buffer("filters", self.pitches(pitch, even).to(table).float(), persistent=False)

    def pitches(self, kind: str, even: bool) -> torch.Tensor:
        def mel(hertz: torch.Tensor) -> torch.Tensor:
            if kind == "htk":
                return 2595 * (1 + hertz / 700).log10()
            return torch.where(hertz < 1000, hertz * 3 / 200, 15 + 27 * (hertz.clamp(min=1) / 1000).log() / math.log(6.4))

        def hertz(mels: torch.Tensor) -> torch.Tensor:
            if kind == "htk":
                return 700 * (10 ** (mels / 2595) - 1)
            return torch.where(mels < 15, mels * 200 / 3, 1000 * ((mels - 15) * math.log(6.4) / 27).exp())

        bins = torch.linspace(0, 4000, 33, dtype=torch.float64)
        ends = mel(torch.tensor([0.0, 4000.0], dtype=torch.float64))
        edges = hertz(torch.linspace(float(ends[0]), float(ends[1]), 12, dtype=torch.float64))
        up = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        down = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
        made = torch.minimum(up, down).clamp(min=0)
        return made * (2 / (edges[2:] - edges[:-2]))[:, None] if even else made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide, window = x.float(), torch.hann_window(64)
        if self.kind == "torch":
            power = torch.stft(wide, 64, 16, window=window, pad_mode=self.padding, return_complex=True).abs() ** self.power
        else:
            frames = F.pad(wide[:, None], (32, 32), mode=self.padding)[:, 0].unfold(-1, 64, 16) * window
            angles = torch.arange(33)[:, None] * torch.arange(64) * (2 * math.pi / 64)
            power = ((frames @ angles.cos().T).square() + (frames @ angles.sin().T).square()).mT
            power = power if self.power == 2.0 else (power + 1e-20).sqrt()
        power = power if self.last else power[..., :-1]
        made = (self.filters.float() @ power).clamp(min=self.least)
        made = made.log10() if self.log == "ten" else made.log()
        most = made.amax((1, 2), keepdim=True) if self.row else made.amax()
        made = ((torch.maximum(made, most - self.floor) + 4) / 4).to(x.dtype)
        return F.gelu(self.two(F.gelu(self.one(made), approximate=self.act)))


def pitched(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Pitches()), Pitches(**ways)
    other.load_state_dict(model.state_dict())
    return model, other, wave(160) * torch.tensor([[1.0], [1e-4]]), dict(MEAN)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.label, self.one, self.two, self.norm = nn.Linear(8, W), nn.Embedding(3, W), nn.Linear(6, W), nn.Linear(W, 6), nn.LayerNorm(W)

    def forward(self, x: torch.Tensor, step: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        angles = step.float()[:, None] * 10000.0 ** (-torch.arange(4) / 4)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype))
        return self.two(F.silu(self.norm(self.one(x) + time + self.label(label))))


class Sampler(nn.Module):
    """Four steps from noise, with guidance. `kind`: in the scale of the data, in that of noise, or by what is predicted of the data."""

    def __init__(self, kind: str = "data", straight: bool = False, early: int = 0, last: bool = True, guidance: float = 3.0, turned: bool = False,
        at_once: bool = True,
                 table: torch.dtype = torch.float32, clipped: bool = False, root: bool = True, spaced: str = "leading") -> None:  # fmt: skip
        super().__init__()
        self.kind, self.early, self.last, self.guidance, self.turned, self.at_once, self.clipped, self.root, self.spaced = (
            kind, early, last, guidance, turned, at_once, clipped, root, spaced)  # fmt: skip
        self.net = Denoiser()
        betas = torch.linspace(1e-3, 2e-2, 200) if straight else torch.linspace(1e-3**0.5, 2e-2**0.5, 200).square()
        self.register_buffer("kept", (1 - betas.double()).cumprod(0).to(table).float(), persistent=False)

    def guided(self, x: torch.Tensor, step: int) -> torch.Tensor:
        steps, labels, none = torch.full((len(x),), step), torch.arange(len(x)) % 2 + 1, torch.zeros(len(x), dtype=torch.long)
        if self.at_once:
            free, bound = self.net(torch.cat([x, x]), steps.repeat(2), torch.cat([none, labels])).chunk(2)
        else:
            free, bound = self.net(x, steps, none), self.net(x, steps, labels)
        free, bound = (bound, free) if self.turned else (free, bound)
        return free.float() + self.guidance * (bound.float() - free.float())

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        steps = [151 - self.early, 101 - self.early, 51 - self.early, 1 - min(self.early, 1)] if self.spaced == "leading" else [199, 149, 99, 49]
        x, kept = noise.float(), self.kept.float()
        if self.kind == "noise":
            x = x / kept[steps[0]].sqrt()
        for step, after in zip(steps, [*steps[1:], -1], strict=True):
            now = kept[step]
            then = kept[after] if after >= 0 else torch.tensor(1.0) if self.last else kept[0]
            if self.kind == "noise":
                level, next_ = ((1 - each) / each for each in (now, then))
                level, next_ = (level.sqrt(), next_.sqrt()) if self.root else (level, next_)
                x = x + (next_ - level) * self.guided((x / (1 + level.square()).sqrt()).to(noise.dtype), step)
                continue
            eps = self.guided(x.to(noise.dtype), step)
            if self.kind == "ratio":
                ratio = (then / now).sqrt()
                x = ratio * x + ((1 - then).sqrt() - ratio * (1 - now).sqrt()) * eps
                continue
            data = (x - (1 - now).sqrt() * eps) / now.sqrt()
            data = data.clamp(-1, 1) if self.clipped else data
            x = then.sqrt() * data + (1 - then).sqrt() * eps
        return x.to(noise.dtype)


def sampled(calls: str = "at once", **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Sampler()), Sampler(at_once=calls == "at once", **ways)
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(3, 6, generator=torch.Generator().manual_seed(9)), dict(MEAN)


for way, given in {"lengths and directions": {}, "torch's norm of weights": {"lengths": False}, "by formulas": {"flash": False},
    "compiled": {"compiled": True}}.items():
    healthy("wav2vec", way, lambda given=given: heard(**given))  # type: ignore[misc]
for fault, modules, bad in (
    ("lengths of filters", ("",), {"columns": True}), ("cut off in front", ("",), {"front": True}), ("gelu by tanh", ("",), {"act": "tanh"}),
    ("norms before branches", ("",), {"before": True}),
    ("no norm of features", ("", "into"), {"normed": False}), ("one group", ("", "group"), {"by_group": False}),
    ("places after the norm", ("",), {"late": True}),
):  # fmt: skip
    broken("wav2vec", fault, lambda bad=bad: heard(**bad), *modules)  # type: ignore[misc]
for way, given in {"products of frames": {"kind": "frames"}, "the same once more": {}}.items():
    healthy("pitches", way, lambda given=given: pitched(**given))  # type: ignore[misc]
for fault, bad in (
    ("amplitudes", {"power": 1.0}), ("natural logarithms", {"log": "e"}), ("another scale of pitch", {"pitch": "htk"}),
    ("filters as high as wide", {"even": False}), ("the largest of all rows", {"row": False}),
    ("another range", {"floor": 2.0}), ("zeros around", {"padding": "constant"}), ("gelu by tanh", {"act": "tanh"}),
    ("a table in bfloat16", {"table": torch.bfloat16}), ("a larger least", {"least": 1e-2}),
):  # fmt: skip
    broken("pitches", fault, lambda bad=bad: pitched(kind="frames", **bad), "")  # type: ignore[misc]
for way, given in {"in the scale of noise": {"kind": "noise"}, "by ratios": {"kind": "ratio"}, "label by label": {"calls": "apart"},
                   "noise, label by label": {"kind": "noise", "calls": "apart"}}.items():  # fmt: skip
    healthy("sampler", way, lambda given=given: sampled(**given))  # type: ignore[misc]
for fault, bad in (
    ("straight betas", {"straight": True}), ("steps one early", {"early": 1}), ("not to the end", {"last": False}),
    ("guidance turned round", {"turned": True}), ("guided by one more", {"guidance": 4.0}),
    ("a table in bfloat16", {"table": torch.bfloat16}), ("data clipped", {"clipped": True}), ("trailing steps", {"spaced": "trailing"}),
    ("variances for deviations", {"kind": "noise", "root": False}),
):  # fmt: skip
    broken("sampler", fault, lambda bad=bad: sampled(**bad), "")  # type: ignore[misc]
