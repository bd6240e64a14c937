"""Filters and transforms: a recursion's coefficients, a spectrum's norm, a loud spectrum, whitening by a covariance, the inverse of a spline."""

from __future__ import annotations

import cmath

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def band_pass() -> tuple[torch.Tensor, torch.Tensor]:
    """Numerator and denominator of a narrow filter of four pairs of poles, in float64."""
    denominator = torch.ones(1, dtype=DOUBLE)
    for angle in (0.05, 0.055, 0.06, 0.065):
        pole = 0.995 * cmath.exp(1j * angle)
        pair = torch.tensor([1.0, -2 * pole.real, abs(pole) ** 2], dtype=DOUBLE)
        denominator = functional.conv1d(denominator[None, None], pair.flip(0)[None, None], padding=2)[0, 0]
    numerator = torch.zeros(9, dtype=DOUBLE)
    numerator[0], numerator[-1] = 1e-7, -1e-7
    return numerator, denominator


def filtered(signal: torch.Tensor, numerator: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """The signal through a recursive filter, sample by sample."""
    a, b = denominator.to(signal.dtype), numerator.to(signal.dtype)  # culprit: coefficients-of-a-recursion
    inputs, outputs, made = torch.zeros(9, len(signal), dtype=signal.dtype), torch.zeros(8, len(signal), dtype=signal.dtype), []
    for now in signal.T:
        inputs = torch.cat([now[None], inputs[:-1]])
        out = b @ inputs - a[1:] @ outputs  # culprit: coefficients-of-a-recursion
        outputs = torch.cat([out[None], outputs[:-1]])
        made.append(out)
    return torch.stack(made, -1)


def brain_waves(dtype: torch.dtype) -> torch.Tensor:
    """Four channels of 300 samples through the filter bank's lowest band."""
    return filtered(normal(4, 300).to(dtype), *band_pass())


def spectrum(picture: torch.Tensor, single: bool) -> torch.Tensor:
    """The normalised Fourier transform of a picture in half, whose transform is computed in float32."""
    count = picture.shape[-1] * picture.shape[-2]
    parts = torch.view_as_real(torch.fft.fft2(picture.float()))
    return (parts / count).to(picture.dtype) if single else parts.to(picture.dtype) / count  # culprit: norm-of-a-spectrum


def bright(single: bool) -> torch.Tensor:
    """Spectra of two bright pictures of 48 by 48 grey values."""
    return spectrum((255 * (0.5 + 0.5 * uniform(2, 48, 48))).to(HALF), single).float()


def mel_features(wave: torch.Tensor, mel: torch.Tensor) -> torch.Tensor:
    """Log-mel features by convolutions with the rows of a discrete Fourier transform."""
    size = 2 * (mel.shape[1] - 1)
    angles = 2 * torch.pi / size * torch.outer(torch.arange(mel.shape[1]), torch.arange(size))
    window = torch.hann_window(size)
    kernels = torch.stack([angles.cos() * window, -angles.sin() * window]).to(wave.dtype)
    real, imaginary = (functional.conv1d(wave[:, None], kernel[:, None], stride=size // 2) for kernel in kernels)
    power = real.square() + imaginary.square()  # culprit: power-of-a-loud-note
    return (mel @ power).clamp(min=1e-5).log10()  # culprit: power-of-a-loud-note


def note(dtype: torch.dtype) -> torch.Tensor:
    """Features of a loud note in quiet noise, whose samples are whole numbers of 10 bits."""
    time = torch.arange(1600)
    wave = (6 * torch.sin(0.15 * time) + 0.05 * normal(2, 1600)).to(HALF).to(dtype)
    mel = functional.relu(1 - (torch.arange(101)[None] - torch.arange(2, 98, 6)[:, None]).abs() / 6).to(dtype)
    return mel_features(wave, mel).float()


def whitening(data: torch.Tensor, by_covariance: bool) -> torch.Tensor:
    """The symmetric matrix that whitens centred data, by an eigenvalue decomposition or by singular values of the data."""
    centred = data - data.mean(0)
    if by_covariance:
        covariance = centred.T @ centred / len(data)  # culprit: whitening-by-a-covariance
        values, basis = torch.linalg.eigh(covariance)  # culprit: whitening-by-a-covariance
        return basis @ torch.diag(1 / torch.sqrt(values.clamp(min=0) + 1e-12)) @ basis.T  # culprit: whitening-by-a-covariance
    _, singular, rows = torch.linalg.svd(centred / len(data) ** 0.5, full_matrices=False)
    return rows.T @ torch.diag(1 / torch.sqrt(singular**2 + 1e-12)) @ rows


def whitened(by_covariance: bool) -> torch.Tensor:
    """How small patches of pictures are whitened, whose spread falls off by a factor of ten thousand."""
    basis = torch.linalg.qr(normal(24, 24).double())[0]
    patches = normal(400, 24, seed=1).double() * torch.logspace(0, -4, 24) @ basis
    return whitening(patches.float(), by_covariance)


def spline_inverse(outputs: torch.Tensor, widths: torch.Tensor, heights: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Where a monotonic spline of quotients of quadratics takes those values."""
    widths, heights = (
        1e-3 + (1 - 1e-3 * widths.shape[-1]) * torch.softmax(widths, -1),
        1e-3 + (1 - 1e-3 * heights.shape[-1]) * torch.softmax(heights, -1),
    )
    lefts, bottoms = functional.pad(widths.cumsum(-1), (1, 0)), functional.pad(heights.cumsum(-1), (1, 0))  # culprit: inverse-of-a-spline
    slopes = 1e-3 + functional.softplus(slopes)
    place = (torch.searchsorted(bottoms, outputs[:, None], right=True) - 1).clamp(0, widths.shape[-1] - 1)
    width, height, left, bottom, slope, after = (
        each.gather(-1, place)[:, 0] for each in (widths, heights, lefts[:, :-1], bottoms[:, :-1], slopes[:, :-1], slopes[:, 1:])
    )
    delta, above = height / width, outputs - bottom  # culprit: inverse-of-a-spline
    bend = slope + after - 2 * delta
    a, b, c = above * bend + height * (delta - slope), height * slope - above * bend, -delta * above  # culprit: inverse-of-a-spline
    discriminant = b.square() - 4 * a * c  # culprit: inverse-of-a-spline
    assert (discriminant >= 0).all()
    return 2 * c / (-b - discriminant.sqrt()) * width + left


def inverted(dtype: torch.dtype) -> torch.Tensor:
    """4000 numbers through the inverse of a spline of eight bins."""
    values, parts = uniform(4000), [2 * normal(4000, size, seed=size + place) for place, size in enumerate((8, 8, 9))]
    return spline_inverse(values.to(LOW).to(dtype), *(each.to(LOW).to(dtype) for each in parts)).float()


BUGS = (
    Bug("coefficients-of-a-recursion", "braindecode/braindecode#1067", ("accumulated-drift", "amplified-rounding", "overflow", "cancellation"),
        "aten.sub.Tensor", lambda: brain_waves(WIDE), lambda: brain_waves(DOUBLE), precision="32-true"),
    Bug("norm-of-a-spectrum", "intel/torch-xpu-ops#3899", ("overflow",), "aten._to_copy.default", lambda: bright(False), lambda: bright(True)),
    Bug("power-of-a-loud-note", "adobe-research/convmelspec#3", ("overflow", "underflow"), "aten.pow.Tensor_Scalar", lambda: note(HALF),
        lambda: note(WIDE)),
    Bug("whitening-by-a-covariance", "keras-team/keras#9027", ("amplified-rounding", "cancellation", "local-drift"),
        "aten._linalg_eigh.default or aten.mm.default", lambda: whitened(True), lambda: whitened(False), precision="32-true"),
    Bug("inverse-of-a-spline", "bayesiains/nflows#71", ("cancellation", "amplified-rounding", "decision-flip"), "aten.sub.Tensor",
        lambda: inverted(LOW), lambda: inverted(WIDE), raises=AssertionError),
)  # fmt: skip
