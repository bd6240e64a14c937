"""Codecs, filters, transforms and losses for sound."""

from __future__ import annotations

import math

import torch
from fieldcase import Calls, Made, case, square


def _wave(length: int = 4096, batch: int = 2) -> torch.Tensor:
    times = torch.arange(length) / 16000
    return (0.3 * torch.sin(2 * math.pi * 440 * times) + 0.05 * torch.randn(batch, length)).unsqueeze(1)


def _filtered(loss: object) -> torch.nn.Module:
    return Calls(lambda layer, x, y: loss(layer(x), y.to(x.dtype)), torch.nn.Conv1d(1, 1, 9, padding=4))  # type: ignore[operator]


@case("encodec")
def encodec() -> Made:
    from encodec.modules import SEANetDecoder, SEANetEncoder
    from encodec.quantization import ResidualVectorQuantizer

    encoder, decoder = (kind(dimension=16, n_filters=4, n_residual_layers=1, ratios=[4, 2], lstm=1) for kind in (SEANetEncoder, SEANetDecoder))
    quantiser = ResidualVectorQuantizer(dimension=16, n_q=2, bins=16)

    def coded(into: torch.nn.Module, codes: torch.nn.Module, out: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        found = codes(into(x), 2000)
        return square(out(found.quantized) - x) + found.penalty

    return Made(Calls(coded, encoder, quantiser, decoder), (_wave(512),), lambda loss: loss)


@case("descript-audio-codec")
def descript_codec() -> Made:
    import dac

    model = dac.DAC(
        encoder_dim=8, encoder_rates=[2, 4], latent_dim=16, decoder_dim=32, decoder_rates=[4, 2], n_codebooks=3, codebook_size=32, codebook_dim=4
    )
    return Made(model, (_wave(512),), lambda out: square(out["audio"]) + out["vq/commitment_loss"] + out["vq/codebook_loss"])


@case("vocos")
def vocos() -> Made:
    from vocos.heads import ISTFTHead
    from vocos.models import VocosBackbone

    body = VocosBackbone(input_channels=16, dim=32, intermediate_dim=64, num_layers=2)
    return Made(torch.nn.Sequential(body, ISTFTHead(dim=32, n_fft=64, hop_length=16)), (torch.randn(2, 16, 20),), square)


@case("julius")
def julius_filters() -> Made:
    import julius

    return Made(
        Calls(lambda layer, x: julius.resample_frac(julius.lowpass_filter(layer(x), 0.2), 4, 3), torch.nn.Conv1d(1, 1, 9)), (_wave(),), square
    )


@case("auraloss")
def auraloss_stft() -> Made:
    from auraloss.freq import MultiResolutionSTFTLoss

    loss = MultiResolutionSTFTLoss(fft_sizes=[256, 512], hop_sizes=[64, 128], win_lengths=[256, 512])
    return Made(_filtered(loss), (_wave(), _wave()), lambda loss: loss)


@case("auraloss")
def auraloss_time() -> Made:
    from auraloss.time import ESRLoss, LogCoshLoss, SDSDRLoss, SISDRLoss, SNRLoss

    kinds = ESRLoss(), LogCoshLoss(), SDSDRLoss(), SISDRLoss(), SNRLoss()
    return Made(_filtered(lambda x, y: sum(kind(x, y) for kind in kinds)), (_wave(), _wave()), lambda loss: loss)


@case("asteroid-filterbanks")
def asteroid_filterbanks() -> Made:
    from asteroid_filterbanks import STFTFB, Encoder, ParamSincFB, transforms

    learnt, fixed = Encoder(ParamSincFB(n_filters=32, kernel_size=33, stride=8)), Encoder(STFTFB(n_filters=64, kernel_size=64, stride=16))

    def heard(sinc: torch.nn.Module, stft: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return square(sinc(x)) + torch.log(transforms.mag(stft(x)) + 1e-5).mean()

    return Made(Calls(heard, learnt, fixed), (_wave(1024),), lambda loss: loss)


@case("nnAudio")
def nnaudio_mel() -> Made:
    from nnAudio.features import MelSpectrogram

    features = MelSpectrogram(sr=16000, n_fft=256, n_mels=32, hop_length=64, trainable_mel=True, verbose=False)
    return Made(Calls(lambda mel, x: torch.log(mel(x) + 1e-6), features), (_wave().squeeze(1),), square)


@case("nnAudio")
def nnaudio_cqt() -> Made:
    from nnAudio.features import CQT2010v2

    features = CQT2010v2(sr=16000, n_bins=36, hop_length=256, fmin=220, verbose=False)
    return Made(Calls(lambda layer, cqt, x: cqt(layer(x).squeeze(1)), torch.nn.Conv1d(1, 1, 9, padding=4), features), (_wave(8192),), square)


@case("pytorch-wavelets")
def wavelets() -> Made:
    from pytorch_wavelets import DWTForward, DWTInverse

    down, up = DWTForward(J=2, wave="db3", mode="zero"), DWTInverse(wave="db3", mode="zero")

    def shrunk(conv: torch.nn.Module, forward: torch.nn.Module, inverse: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        low, high = forward(conv(x))
        return inverse((low, [torch.nn.functional.softshrink(part, 0.05) for part in high]))

    return Made(Calls(shrunk, torch.nn.Conv2d(1, 1, 3, padding=1), down, up), (torch.randn(2, 1, 32, 32),), square)


@case("conformer")
def conformer() -> Made:
    from conformer import ConformerBlock

    return Made(ConformerBlock(dim=32, dim_head=16, heads=2, conv_kernel_size=15), (torch.randn(2, 40, 32),), square)


@case("torch-dct")
def dct() -> Made:
    import torch_dct

    return Made(Calls(lambda layer, x: torch_dct.idct(torch_dct.dct(layer(x))), torch.nn.Linear(64, 64)), (torch.randn(4, 64),), square)


@case("asteroid")
def asteroid_conv_tasnet() -> Made:
    from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr
    from asteroid.models import ConvTasNet

    model = ConvTasNet(n_src=2, n_repeats=1, n_blocks=3, bn_chan=16, hid_chan=32, skip_chan=16, n_filters=32)
    loss = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    sources = torch.randn(2, 2, 2000)
    return Made(Calls(lambda net, x, y: loss(net(x), y), model), (sources.sum(1), sources), lambda loss: loss)


@case("asteroid")
def asteroid_dual_path() -> Made:
    from asteroid.models import DPRNNTasNet

    model = DPRNNTasNet(n_src=2, n_repeats=1, bn_chan=16, hid_size=16, chunk_size=20, n_filters=16)
    return Made(model, (torch.randn(2, 1000),), square)


@case("demucs")
def demucs() -> Made:
    from demucs.demucs import Demucs

    return Made(Demucs(["voice", "rest"], channels=8, depth=3, resample=False), (torch.randn(1, 2, 4096),), square)


@case("openai-whisper")
def whisper() -> Made:
    from whisper.model import ModelDimensions, Whisper

    model = Whisper(ModelDimensions(20, 50, 32, 2, 2, 100, 20, 32, 2, 2))
    torch.nn.init.normal_(model.decoder.positional_embedding, std=0.02)  # memory that nothing was written to, until a checkpoint is loaded
    tokens = torch.randint(0, 100, (2, 12))
    step = Calls(lambda net, x, said: torch.nn.functional.cross_entropy(net(x, said[:, :-1]).flatten(0, 1), said[:, 1:].flatten()), model)
    return Made(step, (torch.randn(2, 20, 100), tokens), lambda loss: loss)


@case("audio-diffusion-pytorch")
def audio_diffusion() -> Made:
    from audio_diffusion_pytorch import DiffusionModel, UNetV0, VDiffusion, VSampler

    model = DiffusionModel(
        net_t=UNetV0, in_channels=2, channels=[8, 16, 32], factors=[1, 4, 4], items=[1, 1, 1], attentions=[0, 0, 1], attention_heads=4,
        attention_features=16, diffusion_t=VDiffusion, sampler_t=VSampler,
    )  # fmt: skip
    return Made(model, (torch.randn(2, 2, 1024),), lambda loss: loss)


@case("torch-audiomentations")
def audio_augmentation() -> Made:
    from torch_audiomentations import AddColoredNoise, Compose, Gain, LowPassFilter, PolarityInversion

    changed = Compose([Gain(-15.0, 5.0, p=1.0), PolarityInversion(p=0.5), AddColoredNoise(p=1.0), LowPassFilter(p=1.0)], output_type="dict")
    net = torch.nn.Sequential(torch.nn.Conv1d(1, 8, 64, 16), torch.nn.ReLU(), torch.nn.Conv1d(8, 8, 16, 4))
    step = Calls(lambda layers, augment, x: layers(augment(x, sample_rate=16000).samples), net, changed)
    return Made(step, (_wave(),), square)


@case("speechbrain")
def speaker_embedding() -> Made:
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier
    from speechbrain.nnet.losses import AdditiveAngularMargin, LogSoftmaxWrapper

    model = ECAPA_TDNN(20, channels=[32, 32, 32, 32, 96], attention_channels=16, se_channels=16, lin_neurons=16, res2net_scale=4)
    loss, speakers = LogSoftmaxWrapper(AdditiveAngularMargin(margin=0.2, scale=30)), torch.randint(0, 10, (4, 1))
    step = Calls(lambda net, last, x: loss(last(net(x)), speakers), model, Classifier(16, out_neurons=10))
    return Made(step, (torch.randn(4, 60, 20),), lambda loss: loss)


@case("speechbrain")
def speech_conformer() -> Made:
    from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder
    from speechbrain.nnet.attention import RelPosEncXL

    places, encoder = RelPosEncXL(32), ConformerEncoder(1, 32, 64, 4)
    return Made(Calls(lambda net, where, x: net(x, pos_embs=where(x))[0], encoder, places), (torch.randn(2, 40, 32),), square)


@case("torchlibrosa")
def log_mel() -> Made:
    from torchlibrosa.stft import LogmelFilterBank, Spectrogram

    spectrogram = Spectrogram(n_fft=128, hop_length=64)
    mel = LogmelFilterBank(sr=16000, n_fft=128, n_mels=16, fmin=50, fmax=8000)

    def features(layer: torch.nn.Module, power: torch.nn.Module, bands: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return bands(power(layer(x).squeeze(1)))

    return Made(Calls(features, torch.nn.Conv1d(1, 1, 9, padding=4), spectrogram, mel), (_wave(1024),), lambda out: square(out / 20))


@case("dasp-pytorch")
def differentiable_effects() -> Made:
    from dasp_pytorch.modules import Compressor, ParametricEQ

    equalizer, compressor = ParametricEQ(sample_rate=16000), Compressor(sample_rate=16000)

    def mastered(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        settings = layer(x[:, 0, :64]).sigmoid().float()
        first, second = settings.split([equalizer.num_params, compressor.num_params], dim=1)
        return compressor.process_normalized(equalizer.process_normalized(x.float(), first), second)

    layer = torch.nn.Linear(64, equalizer.num_params + compressor.num_params)
    return Made(Calls(mastered, layer), (_wave(1024),), square)


@case("bs-roformer")
def band_split_roformer() -> Made:
    from bs_roformer import BSRoformer

    model = BSRoformer(
        dim=16, depth=1, time_transformer_depth=1, freq_transformer_depth=1, dim_head=8, heads=2, flash_attn=False, freqs_per_bands=(3, 6, 8, 16),
        stft_n_fft=64, stft_hop_length=16, stft_win_length=64, multi_stft_resolutions_window_sizes=(64, 32), multi_stft_hop_size=16,
    )  # fmt: skip
    return Made(model, (_wave(512)[:, 0], _wave(512)[:, 0]), lambda loss: loss)


@case("alias-free-torch")
def alias_free_activation() -> Made:
    from alias_free_torch import Activation1d

    layers = torch.nn.Conv1d(1, 8, 9, padding=4), Activation1d(torch.nn.SiLU()), torch.nn.Conv1d(8, 1, 9, padding=4)
    return Made(torch.nn.Sequential(*layers), (_wave(512),), square)
