"""Pastures: scans, memories and attention that looks at many words, regions and windows."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class SelectiveScan(nn.Module):
    """A state for each channel, which forgets at a pace that the input sets; a chunk of words at a time."""

    def __init__(self, width: int, states: int, chunked: bool) -> None:
        super().__init__()
        torch.manual_seed(10001)
        self.dt, self.read, self.write = nn.Linear(width, width), nn.Linear(width, states), nn.Linear(width, states)
        self.log_a = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(width, 1))
        self.chunked = chunked

    def scan_chunk(self, u: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ats = torch.einsum("dn,ld->ldn", -self.log_a.exp(), dt.cumsum(0)).exp()  # culprit: scan-by-a-quotient
        written = torch.einsum("ld,ln->ldn", dt * u, b)
        states = ats * (written / ats).cumsum(0) + ats * h  # culprit: scan-by-a-quotient
        return torch.einsum("ln,ldn->ld", c, states), states[-1]

    def scan_slowly(self, u: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = []
        for word in range(len(u)):
            h = h * torch.exp(-self.log_a.exp() * dt[word, :, None]) + (dt[word] * u[word])[:, None] * b[word]
            outputs.append(h @ c[word])
        return torch.stack(outputs), h

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        dt, b, c = functional.softplus(self.dt(u)), self.write(u), self.read(u)
        h, outputs = u.new_zeros(self.log_a.shape), []
        for start in range(0, len(u), 16):
            part = slice(start, start + 16)
            scan = self.scan_chunk if self.chunked else self.scan_slowly
            y, h = scan(u[part], dt[part], b[part], c[part], h)
            outputs.append(y)
        return torch.cat(outputs)


def scanned(chunked: bool) -> torch.Tensor:
    """What a block of a vision model gives for two pictures of sixty-four patches."""
    model = SelectiveScan(12, 16, chunked)
    with torch.no_grad():
        return torch.stack([model(normal(64, 12, seed=10002 + picture)) for picture in range(2)])


class TimeMix(nn.Module):
    """A mean of all values so far, which forgets, weighted by the exponentials of keys; the largest exponent is taken out."""

    def __init__(self, width: int, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(10011)
        self.receptance, self.key, self.value = (nn.Parameter(torch.randn(width, width) / math.sqrt(width)) for _ in range(3))
        with torch.no_grad():
            self.key[:, :2] *= 900.0
        self.mix, self.decay, self.wide = nn.Parameter(torch.full((width,), 0.7)), nn.Parameter(-torch.rand(width)), wide

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        if self.wide:
            return x.float() @ self.key.float()
        return (x @ self.key).float()  # culprit: memory-that-weighs-words

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        last = torch.zeros_like(words[0])
        top, bottom, most = words.new_zeros(3, words.shape[1], dtype=SINGLE).unbind(0)
        most, outputs = most - 1e38, []
        for word in words:
            x = word * self.mix + last * (1 - self.mix)
            r, k, v = torch.sigmoid(x @ self.receptance), self.keys(x), (x @ self.value).float()
            peak = torch.maximum(most + self.decay.float(), k)
            old, new = torch.exp(most + self.decay.float() - peak), torch.exp(k - peak)
            top, bottom, most = old * top + new * v, old * bottom + new, peak
            outputs.append(r * (top / bottom).to(r.dtype))
            last = word
        return torch.stack(outputs)


def recalled(wide: bool) -> torch.Tensor:
    """A layer of a small model in half on twenty words, a few of which are a hundred times as loud."""
    layer, words = TimeMix(24, wide).to(HALF), normal(20, 24, seed=10012)
    words[7:9] *= 100
    with torch.no_grad():
        return layer(words.to(HALF)).float()


class LookAround(nn.Module):
    def __init__(self, width: int, heads: int, early: bool) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.early, self.scale = heads, early, (width // heads) ** -0.5

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.to_q(x)), self.split(self.to_k(x)), self.split(self.to_v(x))
        if self.early:
            scores = (q * self.scale) @ k.transpose(-1, -2)
        else:
            scores = (q @ k.transpose(-1, -2)) * self.scale  # culprit: painter-who-looks-around
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Painter(nn.Module):
    def __init__(self, early: bool) -> None:
        super().__init__()
        torch.manual_seed(10021)
        self.norm, self.look, self.act = nn.LayerNorm(64), LookAround(64, 1, early), nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))
        with torch.no_grad():
            self.look.to_q.weight *= 120
            self.look.to_k.weight *= 80

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.look(self.norm(x))
        return x + self.act(x)


def painted(early: bool) -> torch.Tensor:
    """Four steps of a painter in half whose queries and keys have grown large in one layer."""
    painter, x = Painter(early).to(HALF), normal(2, 24, 64, seed=10022)
    with torch.no_grad():
        for _ in range(4):
            x = x - 0.1 * painter(x.to(HALF)).float()
    return x


class ObjectContext(nn.Module):
    """Each pixel asks the regions of a photograph, which are sums over the pixels that belong to them."""

    def __init__(self, width: int, wide: bool) -> None:
        super().__init__()
        self.to_query, self.to_key, self.to_value, self.width, self.wide = *(nn.Conv1d(width, width, 1) for _ in range(3)), width, wide

    def attend(self, features: torch.Tensor, belongs: torch.Tensor) -> torch.Tensor:
        regions = torch.bmm(features, belongs.transpose(1, 2))  # culprit: regions-of-a-photograph
        query, key, value = self.to_query(features).transpose(1, 2), self.to_key(regions), self.to_value(regions).transpose(1, 2)
        sim = torch.bmm(query, key) * self.width**-0.5  # culprit: regions-of-a-photograph
        return torch.bmm(sim.softmax(-1), value).transpose(1, 2)

    def forward(self, features: torch.Tensor, belongs: torch.Tensor) -> torch.Tensor:
        if self.wide:
            with torch.autocast("cpu", enabled=False):
                return self.attend(features.float(), belongs.float())
        return self.attend(features, belongs)


class Salient(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(10031)
        self.stem, self.context = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()), ObjectContext(16, wide)
        self.first, self.last = nn.Conv2d(16, 2, 1), nn.Conv1d(32, 1, 1)
        with torch.no_grad():
            self.context.to_key.weight *= 1e-5
            self.context.to_value.weight *= 1e-4

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        features = 40 * self.stem(pictures)
        guess = torch.sigmoid(self.first(features)).flatten(2)
        features = features.flatten(2)
        return self.last(torch.cat([features, self.context(features, guess)], 1))


def segmented(wide: bool) -> torch.Tensor:
    """What a detector of salient objects says of two photographs of 96 by 96 under autocast in half."""
    model = Salient(wide)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return model(1 + uniform(2, 3, 96, 96, seed=10032)).float()


class DistanceAttention(nn.Module):
    """Attention that minds words the less, the further back they are: each head has a slope."""

    def __init__(self, width: int, heads: int, length: int, dtype: torch.dtype, wide: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        slopes = torch.tensor([2 ** (-8 * (head + 1) / heads) for head in range(heads)])
        alibi = slopes[:, None, None] * torch.arange(length)[None, None, :]
        self.alibi = alibi if wide else alibi.to(dtype)  # culprit: words-by-distance
        self.hidden = torch.ones(length, length, dtype=torch.bool).triu(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(0, 1) for part in self.qkv(x).chunk(3, -1))
        kind = self.alibi.dtype
        scores = torch.baddbmm(self.alibi, q.to(kind), k.transpose(1, 2).to(kind), alpha=q.shape[-1] ** -0.5)
        weights = scores.masked_fill(self.hidden, -1e4).softmax(-1).to(v.dtype)
        return self.out(torch.bmm(weights, v).transpose(0, 1).flatten(1))


def read_on(wide: bool) -> torch.Tensor:
    """Two layers of a language model in bfloat16 on eight hundred words."""
    torch.manual_seed(10041)
    layers = nn.ModuleList(DistanceAttention(32, 4, 800, LOW, wide) for _ in range(2)).to(LOW)
    x = normal(800, 32, seed=10042).to(LOW)
    with torch.no_grad():
        for layer in layers:
            x = x + layer(functional.layer_norm(x, (32,)))
    return x.float()


class WindowRope(nn.Module):
    """Turns the parts of queries and keys by their place in a window of a film."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("freqs", self.computed(width))

    @staticmethod
    def computed(width: int) -> torch.Tensor:
        return 10000.0 ** (-torch.arange(0, width, 2) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[-2], dtype=SINGLE)[:, None] * self.freqs.float()
        first, second = x.float().chunk(2, -1)
        return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1).to(x.dtype)


class FilmBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(10051)
        self.qkv, self.out, self.rope = nn.Linear(width, 3 * width), nn.Linear(width, width), WindowRope(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(functional.scaled_dot_product_attention(self.rope(3 * q), self.rope(3 * k), v))


def upscaled(computed: bool) -> torch.Tensor:
    """A block of a film's upscaler in bfloat16, whose weights come from a checkpoint of eight bits, on two windows of 256 places."""
    saved = {name: value.to(torch.float8_e4m3fn) for name, value in FilmBlock(32).state_dict().items()}  # culprit: windows-of-a-film
    block = FilmBlock(32).to(LOW)
    block.load_state_dict({name: value.to(LOW) for name, value in saved.items()})
    block.rope.freqs = WindowRope.computed(32) if computed else saved["rope.freqs"].to(LOW)  # culprit: windows-of-a-film
    with torch.no_grad():
        return block(normal(2, 256, 32, seed=10052).to(LOW)).float()


BUGS = (
    Bug("scan-by-a-quotient", "MzeroMiko/mamba-mini#6", ("underflow", "nan", "overflow"), "aten.div.Tensor",
        lambda: scanned(chunked=True), lambda: scanned(chunked=False), precision="32-true"),
    Bug("memory-that-weighs-words", "BlinkDL/ChatRWKV#155", ("overflow", "nan"), "aten.mm.default",
        lambda: recalled(wide=False), lambda: recalled(wide=True), module="TimeMix"),
    Bug("painter-who-looks-around", "philipturner/metal-flash-attention#8", ("overflow", "nan"), "aten.bmm.default",
        lambda: painted(early=False), lambda: painted(early=True), module="look"),
    Bug("regions-of-a-photograph", "plemeri/InSPyReNet#36", ("overflow", "nan"), "aten.bmm.default",
        lambda: segmented(wide=False), lambda: segmented(wide=True), module="context"),
    Bug("words-by-distance", "bigscience-workshop/Megatron-DeepSpeed#101", ("amplified-rounding", "local-drift", "absorption"),
        "aten._to_copy.default", lambda: read_on(wide=False), lambda: read_on(wide=True),
        expected_miss="what attention adds is off by 15 %, as a note says; the stream that it is added to is larger, and off by 2 %"),
    Bug("windows-of-a-film", "numz/ComfyUI-SeedVR2_VideoUpscaler#610", ("amplified-rounding", "underflow"), "aten._to_copy.default",
        lambda: upscaled(computed=False), lambda: upscaled(computed=True),
        expected_miss="what is kept in eight bits and then widened are codes, and they count as meant; the turns by them are right to a rounding"),
)  # fmt: skip
