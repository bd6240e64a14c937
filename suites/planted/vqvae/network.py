"""A VQ-VAE of images with a codebook of running means: nearest codes, straight-through gradients, counts that are smoothed.

The codebook's running sums are float32 buffers, which a conversion of the whole model would store low, so this model is trained in
mixed precision only.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed")
STEPS = 2
CODES, FEATURES, WIDTH, DECAY = 48, 16, 24, 0.9


def squared_distances(values: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Between each value and each code, (values, codes)."""
    values, codes = values.float(), codes.float()
    return (values.unsqueeze(1) - codes.unsqueeze(0)).square().sum(-1)


def code_counts(chosen: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How often each code was chosen."""
    counts = torch.zeros(CODES, device=like.device)
    return counts.index_add(0, chosen, torch.ones(len(chosen), dtype=counts.dtype)).float()


def means(sums: torch.Tensor, sizes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The codes: running sums over running counts, which get a little for codes that nobody chooses."""
    sizes = sizes.float()
    total = sizes.sum()
    shares = (sizes + 1e-5) / (total + CODES * 1e-5)
    return sums / (shares * total).unsqueeze(1)


def perplexity(counts: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """How many codes are in use, by the entropy of their shares."""
    shares = counts.float() / counts.float().sum()
    return torch.exp(-(shares * torch.log(shares + 1e-10)).sum())


class Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        codes = 3.0 + 0.25 * torch.randn(CODES, FEATURES)
        codes[-4:] += 1.5  # nobody chooses these
        self.register_buffer("codes", codes)
        self.register_buffer("sizes", torch.cat([torch.full((CODES - 4,), 40.0), torch.zeros(4)]))
        self.register_buffer("sums", codes * torch.cat([torch.full((CODES - 4,), 40.0), torch.full((4,), 1e-5)]).unsqueeze(1))

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        flat = values.flatten(0, 1)
        with torch.autocast(values.device.type, enabled=False):
            chosen = squared_distances(flat.detach(), self.codes).argmin(-1)
            counts = code_counts(chosen, values)
            used = perplexity(counts, values)
        if self.training:
            self._learn(flat.detach(), chosen, counts, values)
        quantised = self.codes[chosen].view_as(values)
        commitment = functional.mse_loss(values.float(), quantised.float())
        passed = values + (quantised - values).detach()
        return passed, commitment, used

    @torch.no_grad()
    def _learn(self, flat: torch.Tensor, chosen: torch.Tensor, counts: torch.Tensor, like: torch.Tensor) -> None:
        sums = torch.zeros_like(self.sums).index_add(0, chosen, flat.to(self.sums.dtype))
        self.sizes.mul_(DECAY).add_(counts, alpha=1 - DECAY)
        self.sums.mul_(DECAY).add_(sums, alpha=1 - DECAY)
        self.codes.copy_(means(self.sums, self.sizes, like))


class VQVAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, WIDTH, 4, 2, 1), nn.ReLU(), nn.Conv2d(WIDTH, FEATURES, 3, 1, 1))
        self.codebook = Codebook()
        self.decoder = nn.Sequential(nn.Conv2d(FEATURES, WIDTH, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1))

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        latent = self.encoder(images)
        values = latent.flatten(2).transpose(1, 2)
        passed, commitment, used = self.codebook(values)
        images_again = self.decoder(passed.transpose(1, 2).reshape(latent.shape))
        return {"reconstruction": functional.mse_loss(images_again.float(), images.float()), "commitment": commitment, "perplexity": used}


def make() -> nn.Module:
    torch.manual_seed(0)
    model = VQVAE()
    nn.init.constant_(model.encoder[2].bias, 3.0)
    return model


def batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    background = torch.randn(1, 3, 1, 1, generator=generator).expand(8, 3, 32, 32).clone()
    background[:, :, :, 20:] = torch.randn(8, 3, 32, 12, generator=generator)
    return background


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["reconstruction"] + 0.25 * output["commitment"]


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=1e-3)
