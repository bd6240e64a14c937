"""Sound and states that fade: spectra of loud frames, phases that run for long, chunks of a linear attention with decay."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


def mel_of(wave: torch.Tensor, window: int = 1024) -> torch.Tensor:
    """A log-mel spectrogram by products with sines and cosines, in the format of the wave."""
    frames = wave.unfold(0, window, 256) * torch.hann_window(window, dtype=wave.dtype)
    turns = 2 * math.pi * torch.arange(window)[:, None] * torch.arange(0, 160) / window
    real, imaginary = (frames @ basis.to(wave.dtype) for basis in (turns.cos(), turns.sin()))
    magnitude = torch.sqrt(real.pow(2) + imaginary.pow(2) + 1e-6)  # culprit: loud-frames
    mel = torch.zeros(160, 20)
    mel[torch.arange(160), torch.arange(160) // 8] = 1 / 8
    return torch.log(torch.clamp(magnitude @ mel.to(wave.dtype), min=1e-5))


def generator_loss(wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The mel loss of a vocoder that is trained in half, for a tone that was recorded too loud."""
    time = torch.arange(4096) / 22050
    wave = (1.6 * torch.sin(2 * math.pi * 440 * time)).clamp(-1, 1)
    made = (0.9 * wave + 0.02 * normal(4096)).half()
    target = mel_of(wave.float() if wide else wave.half())
    mel = mel_of(made.float() if wide else made)
    return mel.float(), 45 * (mel - target).abs().float().mean()


def shifted(wrapped: bool, begun: int = 310_000, frames: int = 240) -> torch.Tensor:
    """Frames of a pitch shifter that has been running for half an hour: a phase for each band grows with every hop."""
    steps = [2 * math.pi * 256 * (110.0 * band + 3.7) * 1.12 / 44100 for band in range(1, 13)]
    step = torch.tensor(steps)
    phase = torch.tensor([math.fmod(begun * each, 2 * math.pi) if wrapped else begun * each for each in steps])
    loudness, out = 1 / torch.arange(1, 13), []
    for _ in range(frames):
        phase += step  # culprit: shifted-phase
        if wrapped:
            phase %= 2 * math.pi
        out.append((loudness * phase.cos()).sum())  # culprit: shifted-phase
    return torch.stack(out)


def chunked(paired: bool, length: int = 128, chunk: int = 64, width: int = 8) -> torch.Tensor:
    """Linear attention whose keys fade at their own rates: within a chunk the decay is split into a factor of the query and one of the key."""
    q, k, v = (normal(length, width, seed=seed) for seed in range(3))
    gate = -3.5 * uniform(length, width, seed=3) * torch.linspace(0.1, 1, width)
    state, out = torch.zeros(width, width), []
    for start in range(0, length, chunk):
        rows = slice(start, start + chunk)
        faded = gate[rows].cumsum(0)
        if paired:
            between = (faded[:, None] - faded[None]).clamp(max=0).exp()
            scores = torch.einsum("id,jd,ijd->ij", q[rows], k[rows], between).tril()
        else:
            scores = ((q[rows] * faded.exp()) @ (k[rows] * (-faded).exp()).T).tril()  # culprit: decayed-chunk
        out.append(scores @ v[rows] + (q[rows] * faded.exp()) @ state)
        state = state * faded[-1].exp()[:, None] + (k[rows] * (faded[-1] - faded).exp()).T @ v[rows]
    return torch.cat(out)


BUGS = (
    Bug("loud-frames", "jaywalnut310/vits#15", ("overflow",), "aten.pow.Tensor_Scalar", lambda: generator_loss(False),
        lambda: generator_loss(True)),
    Bug("shifted-phase", "NathanRoyer/pitch_shift#3", ("amplified-rounding", "accumulated-drift", "absorption"), "aten.add_.Tensor",
        lambda: shifted(False), lambda: shifted(True), precision="32-true"),
    Bug("decayed-chunk", "NVIDIA/cudnn-frontend#1017", ("overflow", "nan"), "aten.exp.default", lambda: chunked(False),
        lambda: chunked(True), precision="32-true"),
)  # fmt: skip
