"""Bugs of speech recognisers: features, lengths and normalisation."""

from __future__ import annotations

from planted_bug import Planted

BUGS = [
    Planted(
        name="spectrum-under-autocast",
        healthy=(
            '    with torch.autocast("cpu", enabled=False):\n'
            "        waves = F.conv1d(audio.float()[:, None], spectrum_basis(), stride=HOP)\n"
        ),
        planted="    waves = F.conv1d(audio[:, None].to(spectrum_basis()), spectrum_basis(), stride=HOP).float()  # culprit\n",
        precisions=("bf16-mixed", "16-mixed"),
        part="function:log_mel",
        rules=("cancellation", "amplified-rounding", "local-drift", "accumulated-drift"),
        why="A quiet frequency is what is left when a loud wave cancels. Rounded audio and filters leave a noise floor above the quiet bands.",
        source="https://github.com/qiuqiangkong/audioset_tagging_cnn/issues/17",
    ),
    Planted(
        name="mel-in-float16",
        healthy=(
            '    with torch.autocast("cpu", enabled=False):\n'
            "        mel = mel_filters() @ power\n"
        ),
        planted="    mel = mel_filters() @ power  # culprit\n",
        more=(("    return torch.log(mel + 1e-10)\n", "    return torch.log(mel + 1e-10)  # culprit\n"),),
        precisions=("16-mixed",),
        part="function:log_mel",
        rules=("vanished-constant", "underflow", "overflow"),
        why="Power below 6e-8 is zero in float16 and 1e-10 is too, so the logarithm of silence is -Inf.",
        source="https://github.com/LIHANG-HONG/birdclef2023-2nd-place-solution/issues/2",
    ),
    Planted(
        name="lengths-low",
        healthy='    return torch.div(lengths - kernel, stride, rounding_mode="floor") + 1\n',
        planted="    return (torch.floor((lengths.to(like.dtype) - kernel) / stride) + 1).long()  # culprit\n",
        precisions=("bf16-mixed", "bf16-true"),
        part="function:frame_mask",
        rules=("integer-rounding",),
        why="A length beyond 256 is rounded to a bfloat16 number. Frames of padding are read as speech, or the last of the speech is cut off.",
        source="https://github.com/christopherthompson81/vernacula/pull/175",
    ),
    Planted(
        name="variance-by-moments",
        healthy=(
            "    mean = (features * weights).sum(-1, keepdim=True)\n"
            "    variance = ((features - mean).square() * weights).sum(-1, keepdim=True)\n"
        ),
        planted=(
            "    mean = features @ weights.to(features.dtype).transpose(1, 2)\n"
            "    variance = features.square() @ weights.to(features.dtype).transpose(1, 2) - mean.square()  # culprit\n"
        ),
        precisions=("bf16-mixed", "16-mixed"),
        part="function:normalised",
        rules=("cancellation", "amplified-rounding", "nan"),
        why="Under autocast both products are low. The mean square less the squared mean of log energies keeps few digits, or falls below zero.",
        source="https://github.com/tenstorrent/tt-metal/issues/45968",
    ),
    Planted(
        name="no-master-copy",
        healthy=(
            '                state["master"].sub_(weight.grad.float(), alpha=group["lr"])\n'
            '                weight.copy_(state["master"])\n'
        ),
        planted='                weight.sub_(weight.grad, alpha=group["lr"])  # culprit\n',
        precisions=("bf16-true",),
        part="weights",
        rules=("lost-update",),
        why="A step below half the spacing of bfloat16 numbers leaves a weight where it is, and 0.0002 is such a step for weights above 0.06.",
        source="https://github.com/meta-pytorch/torchtune/issues/2254",
    ),
]
