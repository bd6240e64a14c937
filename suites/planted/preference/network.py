"""Learning from preferences: a policy beside its reference, chances of whole texts, a divergence for each token, advantages in groups."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed")  # rewards and old chances are inputs, which a conversion of everything would round
STEPS = 1
VOCABULARY, WIDTH, HEADS, LENGTH, GROUP, BETA = 211, 48, 4, 160, 4, 0.1


def token_chances(logits: torch.Tensor, words: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The logarithm of each word's chance."""
    return logits.float().log_softmax(-1).gather(-1, words.unsqueeze(-1)).squeeze(-1)


def text_chances(chances: torch.Tensor, answered: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The logarithm of the chance of all words of each answer."""
    return (chances * answered.float()).sum(-1).float()


def margin(ours: torch.Tensor, theirs: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much more the policy prefers the better answer than its reference does. Better and worse answers take turns."""
    gained = ours - theirs
    return (gained[0::2] - gained[1::2]).float()


def divergence(ours: torch.Tensor, theirs: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Schulman's estimate for each token, which is never negative."""
    apart = theirs - ours
    return (torch.expm1(apart) - apart).float()


def ratios(now: torch.Tensor, before: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much likelier each word has become since the answers were drawn."""
    return torch.exp(now - before).float()


def advantages(rewards: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How good each answer is beside the others to the same question."""
    grouped = rewards.view(-1, GROUP)
    above = grouped - grouped.mean(-1, keepdim=True)
    return (above / (grouped.std(-1, keepdim=True) + 1e-8)).flatten().float()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.mlp(self.norm2(x))


class Writer(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.words(words) + self.places.weight[: words.shape[1]])))


class Preference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy, self.reference = Writer(), Writer()
        self.reference.load_state_dict(self.policy.state_dict())

    def forward(self, words: torch.Tensor, answered: torch.Tensor, before: torch.Tensor, rewards: torch.Tensor) -> dict[str, torch.Tensor]:
        weight = self.policy.head.weight
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else weight.dtype
        given, wanted = words[:, :-1], words[:, 1:]
        logits = self.policy(given)
        with torch.no_grad():
            reference = self.reference(given)
        with torch.autocast(words.device.type, enabled=False):
            ours, theirs = token_chances(logits, wanted, low), token_chances(reference, wanted, low)
            prefers = margin(text_chances(ours, answered, low), text_chances(theirs, answered, low), low)
            apart = divergence(ours, theirs, low)
            ratio = ratios(ours, before, low)
            gain = advantages(rewards, low).unsqueeze(-1)
            clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            count = answered.float().sum()
            loss = (0.04 * apart - clipped).mul(answered.float()).sum() / count - functional.logsigmoid(BETA * prefers).mean()
        return {"margin": prefers, "divergence": apart, "ratio": ratio, "loss": loss}


def make() -> nn.Module:
    """The policy has left its reference a little."""
    torch.manual_seed(0)
    model = Preference()
    model.reference.requires_grad_(False)
    with torch.no_grad():
        for weight in model.policy.parameters():
            weight.add_(0.01 * weight.std().nan_to_num(0.1) * torch.randn_like(weight))
    return model


def batch() -> dict[str, torch.Tensor]:
    """Two questions with four answers each. All answers to the second are as good."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(VOCABULARY, (2 * GROUP, LENGTH + 1), generator=generator)
    words[:, :30] = words[::GROUP, :30].repeat_interleave(GROUP, 0)
    answered = torch.arange(LENGTH).expand(2 * GROUP, -1) >= 30
    lengths = torch.randint(120, LENGTH, (2 * GROUP, 1), generator=generator)
    answered = answered & (torch.arange(LENGTH) < lengths)
    with torch.no_grad():
        torch.manual_seed(0)
        drawn = make().reference(words[:, :-1]).log_softmax(-1).gather(-1, words[:, 1:].unsqueeze(-1)).squeeze(-1)
    rewards = torch.tensor([101.3, 101.9, 100.8, 101.6, 97.0, 97.0, 97.0, 97.0])
    return {"words": words, "answered": answered, "before": drawn, "rewards": rewards}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
