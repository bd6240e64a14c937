"""Speech: analysis, intelligibility, separation and pitch."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


def _sound(count: int) -> torch.Tensor:
    """Two sounds of a few tones and noise, as speech has them."""
    times = torch.arange(count) / 16000
    tones = sum(torch.sin(6.2832 * f * times) / n for n, f in enumerate((140.0, 280.0, 420.0, 1200.0), 1))
    return (0.1 * torch.as_tensor(tones).expand(2, count) + 0.02 * torch.randn(2, count)).contiguous()


@case("diffsptk")
def mel_cepstrum() -> Made:
    import diffsptk

    power = diffsptk.STFT(frame_length=256, frame_period=80, fft_length=256)
    analysis = diffsptk.MelCepstralAnalysis(fft_length=256, cep_order=12, alpha=0.42, n_iter=2)

    def analysed(layer: torch.nn.Module, power: torch.nn.Module, analysis: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return analysis(power((x + 0.1 * layer(x[:, None])[:, 0]).float()))

    return Made(Calls(analysed, torch.nn.Conv1d(1, 1, 5, padding=2), power, analysis), (_sound(1600),), square)


@case("diffsptk")
def linear_prediction() -> Made:
    import diffsptk

    frames, prediction = diffsptk.Frame(frame_length=256, frame_period=80), diffsptk.LPC(frame_length=256, lpc_order=12)

    def analysed(layer: torch.nn.Module, frames: torch.nn.Module, prediction: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return prediction(frames(x + 0.1 * layer(x[:, None])[:, 0]))

    return Made(Calls(analysed, torch.nn.Conv1d(1, 1, 5, padding=2), frames, prediction), (_sound(1600),), square)


@case("torch-stoi")
def intelligibility() -> Made:
    from torch_stoi import NegSTOILoss

    loss = NegSTOILoss(sample_rate=10000, use_vad=False, do_resample=False)

    def judged(layer: torch.nn.Module, loss: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return loss((x + layer(x[:, None])[:, 0]).float(), x.float())

    return Made(Calls(judged, torch.nn.Conv1d(1, 1, 5, padding=2), loss), (_sound(8000),), lambda out: out.mean())


@case("openunmix")
def open_unmix() -> Made:
    from openunmix.model import OpenUnmix

    return Made(OpenUnmix(nb_bins=65, nb_channels=2, hidden_size=32, nb_layers=1), (torch.rand(2, 2, 65, 20),), square)


@case("pytorch-wpe")
def dereverberation() -> Made:
    from pytorch_wpe import wpe_one_iteration
    from torch_complex.tensor import ComplexTensor

    def cleaned(layer: torch.nn.Module, real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
        power = layer(torch.log1p(real.square() + imaginary.square()).mean(1)).exp()
        found = wpe_one_iteration(ComplexTensor(real.float(), imaginary.float()), power.float(), taps=3, delay=2)
        return torch.cat([found.real, found.imag])

    return Made(Calls(cleaned, torch.nn.Linear(40, 40)), (torch.randn(17, 2, 40), torch.randn(17, 2, 40)), square)


@case("torchcrepe")
def pitch_network() -> Made:
    from torchcrepe.model import Crepe

    return Made(Crepe("tiny"), (torch.randn(4, 1024),), square)


@case("fast-bss-eval")
def separation_quality() -> Made:
    from fast_bss_eval import sdr_loss

    def judged(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return sdr_loss((x + layer(x[:, None])[:, 0]).float(), x.float(), filter_length=16, load_diag=1e-4)

    return Made(Calls(judged, torch.nn.Conv1d(1, 1, 5, padding=2)), (_sound(2000),), lambda out: out.mean())


@case("fast-bss-eval")
def separation_scale() -> Made:
    from fast_bss_eval import si_sdr_loss

    def judged(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return si_sdr_loss((x + layer(x[:, None])[:, 0]).to(x.dtype), x)

    return Made(Calls(judged, torch.nn.Conv1d(1, 1, 5, padding=2)), (_sound(2000),), lambda out: out.mean())
