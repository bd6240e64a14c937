"""Bugs planted into the variational autoencoder."""

from __future__ import annotations

from planted_bug import Planted

BF16, LOW = ("bf16-mixed", "bf16-true"), ("bf16-mixed", "16-mixed", "bf16-true")

BUGS = [
    Planted(
        name="divergence-low",
        healthy="    mean, log_variance = mean.float(), log_variance.float()\n"
        "    return 0.5 * (mean.square() + torch.expm1(log_variance) - log_variance)\n",
        planted="    return (-0.5 * (1 + log_variance - mean.square() - torch.exp(log_variance))).float()  # culprit\n",
        precisions=LOW,
        part="function:divergence",
        rules=("cancellation", "amplified-rounding", "absorption", "local-drift"),
        why="Close to the prior the terms 1, the log variance and its exponential cancel, and what is left is their rounding; some "
        "divergences are negative.",
        source="https://github.com/NVIDIA/apex/issues/812",
    ),
    Planted(
        name="bin-probability-low",
        healthy="    inside = torch.log((torch.sigmoid(upper) - torch.sigmoid(lower)).clamp(min=1e-12))\n",
        planted="    upper, lower = upper.to(low), lower.to(low)\n"
        "    inside = torch.log((torch.sigmoid(upper) - torch.sigmoid(lower)).clamp(min=1e-12)).float()  # culprit\n",
        precisions=LOW,
        part="function:pixel_log_likelihood",
        rules=("cancellation", "amplified-rounding", "vanished-constant", "overflow", "nan", "underflow"),
        why="The two ends of a bin of 1/127 have nearly the same cumulative probability, so low their difference is often zero; "
        "1e-12 is zero in float16.",
        source="https://github.com/pytorch/pytorch/issues/40497",
        more=(
            (
                "    image, mean, log_scale = image.float() / 127.5 - 1, mean.float(), log_scale.float()\n",
                "    low = mean.dtype\n    image, mean, log_scale = image.float() / 127.5 - 1, mean.float(), log_scale.float()\n",
            ),
        ),
    ),
    Planted(
        name="likelihood-summed-low",
        healthy="    return pixels.sum(-1)\n",
        planted="""    pixels = pixels.to(low)
    total = pixels[:, 0]
    for pixel in range(1, PIXELS):
        total = total + pixels[:, pixel]  # culprit
    return total.float()
""",
        precisions=BF16,
        part="function:image_log_likelihood",
        rules=("absorption", "local-drift"),
        why="The log-likelihood of an image is a running sum of 256 pixels, kept low: once it is near -1000 it moves in steps of 4 to 8.",
        source="https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
        more=(
            ("def image_log_likelihood(pixels: torch.Tensor)", "def image_log_likelihood(pixels: torch.Tensor, low: torch.dtype)"),
            (
                "        likelihood = image_log_likelihood(pixels).view(SAMPLES, -1)\n",
                "        likelihood = image_log_likelihood(pixels, mean.dtype).view(SAMPLES, -1)\n",
            ),
        ),
    ),
    Planted(
        name="mixture-exponentials-low",
        healthy="    terms = -0.5 * squares - 0.5 * LATENT * math.log(2 * math.pi)\n"
        "    return torch.logsumexp(terms, dim=-1) - math.log(COMPONENTS)\n",
        planted="""    terms = -0.5 * squares - 0.5 * LATENT * math.log(2 * math.pi)
    densities = torch.zeros(terms.shape, dtype=low, device=terms.device)
    densities[...] = torch.exp(terms)  # culprit
    return torch.log(densities.float().mean(-1))
""",
        precisions=("16-mixed",),
        part="function:mixture_log_density",
        rules=("underflow", "overflow", "nan"),
        why="The density of a sample of 32 latents is below e^-30, which float16 does not hold: it is zero and its logarithm infinite.",
        source="https://github.com/chainer/chainer/issues/6168",
        more=(
            (
                "def mixture_log_density(z: torch.Tensor, centers: torch.Tensor)",
                "def mixture_log_density(z: torch.Tensor, centers: torch.Tensor, low: torch.dtype)",
            ),
            (
                "        log_weights = likelihood + mixture_log_density(z, self.centers) - posterior\n",
                "        log_weights = likelihood + mixture_log_density(z, self.centers, mean.dtype) - posterior\n",
            ),
        ),
    ),
    Planted(
        name="importance-weights-low",
        healthy="        bound = (importance_weights(log_weights).detach() * log_weights).sum(0)\n",
        planted="        bound = (importance_weights(log_weights.to(mean.dtype)).detach() * log_weights).sum(0)  # culprit\n",
        precisions=BF16,
        part="function:importance_weights",
        rules=("amplified-rounding", "accumulated-drift", "decision-flip"),
        why="Log weights of about -1000 are rounded to multiples of 4 before the softmax, so the weights of the samples are off by whole factors.",
        source="https://github.com/OpenRLHF/OpenRLHF/pull/634",
    ),
]
