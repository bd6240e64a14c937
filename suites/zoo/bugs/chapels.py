"""Chapels: low formats in what draws pictures and films, and words: steps of a sampler, times of a film, weights of times, and a choice."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class Painter(nn.Module):
    """Says which noise is in a picture, for a picture scaled to one and a time of a thousand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(5201)
        self.time, self.first, self.last = nn.Linear(1, 64), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, picture: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(picture) + self.time(time[None, None] / 250)))


def painted(kept: torch.dtype) -> torch.Tensor:
    """Eight pictures by twenty-five steps of Euler; what is left of a picture at each of a thousand times is kept in some format. Not a number."""
    model = Painter(48).to(LOW)
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000).square()
    left = torch.cumprod(1 - betas, 0).to(kept)  # culprit: first-of-a-thousand-times
    times = torch.linspace(999, 0, 25).round().long()
    noises = ((1 - left[times]) / left[times]).sqrt()  # culprit: first-of-a-thousand-times
    after = torch.cat([noises[1:], torch.zeros(1, dtype=kept)])
    picture = (noises[0] * normal(8, 48, seed=5202).to(kept)).to(kept)
    with torch.no_grad():
        for index in range(25):
            now = noises[index]
            scaled = picture / (now.square() + 1).sqrt()
            guess = model(scaled.to(LOW), times[index].to(LOW)).to(kept)
            clean = picture - now * guess
            slope = (picture - clean) / now  # culprit: first-of-a-thousand-times
            picture = picture + slope * (after[index] - now)
    return picture.float()


def shifted(time: torch.Tensor, film: dict[str, torch.Tensor], widened: bool) -> torch.Tensor:
    """The time of a film, later where the film is larger or longer, as large films need more noise."""
    if widened:
        film = {name: each.float() for name, each in film.items()}
    size = film["height"] * film["width"]  # culprit: times-of-large-films
    larger = (size / 512**2).sqrt()
    longer = (film["frames"] // 17 * 5).sqrt()
    ratio = larger * longer
    return ratio * time / (1 + (ratio - 1) * time)  # culprit: times-of-large-films


def filmed(widened: bool) -> torch.Tensor:
    """The losses of three steps of flow matching over films of different sizes. Not a number."""
    torch.manual_seed(5211)
    model = nn.Sequential(nn.Linear(33, 64), nn.SiLU(), nn.Linear(64, 32))
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-3), []
    for step in range(3):
        clean, noise = normal(6, 32, seed=5212 + step), normal(6, 32, seed=5222 + step)
        film = {"height": torch.tensor([480.0, 720, 240, 480, 720, 360]).to(HALF), "width": torch.tensor([854.0, 1280, 426, 854, 1280, 640]).to(HALF),
                "frames": torch.tensor([51.0, 51, 102, 34, 51, 68]).to(HALF)}  # fmt: skip
        time = shifted(uniform(6, seed=5232 + step), film, widened)[:, None].float()
        mixed = (1 - time) * clean + time * noise
        loss = functional.mse_loss(model(torch.cat([mixed, time], -1)), noise - clean)
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.stack(losses)


def zero_at_last(steps: int) -> torch.Tensor:
    """What is left of a picture at each time, shifted so that nothing is left at the last."""
    left = torch.cumprod(1 - torch.linspace(0.00085**0.5, 0.012**0.5, steps).square(), 0).sqrt()
    return ((left - left[-1]) * left[0] / (left[0] - left[-1])).square()


def weighed(careful: bool) -> torch.Tensor:
    """The losses of a painter whose times are weighed by how much of the picture is left, at most five. Not a number."""
    torch.manual_seed(5241)
    model = nn.Sequential(nn.Linear(17, 48), nn.SiLU(), nn.Linear(48, 16))
    optimizer, left, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), zero_at_last(1000), []
    ratio = left / (1 - left)
    for step in range(4):
        times = torch.cat([torch.tensor([999]), (1000 * uniform(7, seed=5242 + step)).long()])
        clean, noise = normal(8, 16, seed=5252 + step), normal(8, 16, seed=5262 + step)
        mixed = left[times].sqrt()[:, None] * clean + (1 - left[times]).sqrt()[:, None] * noise
        guess = model(torch.cat([mixed, times[:, None] / 1000], -1))
        share = ratio[times]
        weight = torch.clamp(share, max=5.0) / share  # culprit: last-time-of-all
        if careful:
            weight = torch.where(share == 0, 1.0, torch.clamp(share, max=5.0) / torch.where(share == 0, 1.0, share))
        loss = (weight * (guess - noise).square().mean(-1)).mean()  # culprit: last-time-of-all
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.stack(losses)


class Listener(nn.Module):
    """A listener that puts sound into the places that a text has kept for it; it counts the places anew, at 7.5 for each second of 24000 samples."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(5271)
        self.wide, self.words, self.ear = wide, nn.Embedding(40, 16), nn.Linear(4, 16)

    def count(self, samples: torch.Tensor) -> torch.Tensor:
        seconds = samples.to(torch.float64 if self.wide else SINGLE) / 24000  # culprit: places-for-a-sound
        return torch.ceil(seconds * 7.5).long()  # culprit: places-for-a-sound

    def forward(self, text: torch.Tensor, sound: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        kept = torch.arange(sound.shape[1])[None] < self.count(samples)[:, None]
        states = self.words(text)
        states[text == 39] = self.ear(sound)[kept]  # culprit: places-for-a-sound
        return states.mean(1)


def heard(wide: bool) -> torch.Tensor:
    """What a listener makes of three recordings, of which the longest has twenty-one minutes. Torch refuses one that does not fit its places."""
    samples = torch.tensor([30323201, 24000 * 300, 24000 * 61 + 77])
    places = (samples.double() / 24000 * 7.5).ceil().long()
    most = int(places.max())
    text = torch.where(torch.arange(most + 20)[None] < places[:, None], 39, 7)
    with torch.no_grad():
        return Listener(wide)(text, normal(3, most + 2, 4, seed=5272), samples)


def different(raced: bool) -> torch.Tensor:
    """How many different words a server draws in two hundred draws, for four texts, from a large vocabulary."""
    torch.manual_seed(5281)
    head = nn.Linear(32, 8000, bias=False)
    with torch.no_grad(), torch.autocast("cpu", LOW):
        logits = head(normal(4, 32, seed=5282))
    even, seen = uniform(4, 200, 8000, seed=5283), []
    if raced:
        chances = torch.softmax(logits.float(), -1)
        drawn = (chances[:, None] / -torch.log(even)).argmax(-1)
    else:
        upto = torch.softmax(logits, -1).cumsum(-1)  # culprit: words-never-drawn
        drawn = torch.searchsorted(upto.float(), even[..., 0] * upto[:, -1:].float())  # culprit: words-never-drawn
    for words in drawn:
        seen.append(float(len(words.unique())))
    return torch.tensor(seen)


BUGS = (
    Bug("first-of-a-thousand-times", "huggingface/diffusers#4254", ("cancellation", "amplified-rounding", "nan", "underflow"), "aten.sub.Tensor",
        lambda: painted(LOW), lambda: painted(SINGLE), phase="data"),
    Bug("times-of-large-films", "hpcaitech/Open-Sora#523", ("overflow",), "aten.mul.Tensor",
        lambda: filmed(widened=False), lambda: filmed(widened=True)),
    Bug("last-time-of-all", "TiankaiHang/Min-SNR-Diffusion-Training#4", ("nan",), "aten.div.Tensor",
        lambda: weighed(careful=False), lambda: weighed(careful=True), precision="32-true", severity="warning"),
    Bug("places-for-a-sound", "huggingface/transformers#48835", ("integer-rounding", "decision-flip"), "aten._to_copy.default",
        lambda: heard(wide=False), lambda: heard(wide=True), raises=RuntimeError, precision="32-true"),
    Bug("words-never-drawn", "NVIDIA/Megatron-LM#7182", ("decision-flip", "accumulated-drift", "absorption"), "aten.cumsum.default",
        lambda: different(raced=False), lambda: different(raced=True)),
)  # fmt: skip
