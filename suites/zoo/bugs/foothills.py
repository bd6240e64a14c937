"""Foothills: drafts, actors, pupils that take small steps or have sure teachers, preferences, samplers and experts."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class LanguageModel(nn.Module):
    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.body, self.head = nn.Embedding(30, width), nn.Sequential(nn.Linear(width, width), nn.Tanh()), nn.Linear(width, 30)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens)))


def max_fn(x: torch.Tensor, p: torch.Tensor, guarded: bool) -> torch.Tensor:
    """The part of `p` that the draft leaves over, as a distribution."""
    positive = torch.where(x > 0, x, 0)
    total = positive.sum(-1, keepdim=True)
    if guarded:  # two models that agree leave nothing over
        return torch.where(total > 0, positive / torch.where(total > 0, total, 1), p)
    return positive / total  # culprit: draft-as-sure-as-its-teacher


def emitted(guarded: bool) -> torch.Tensor:
    """How likely each word is at each place of three drafts, as a speculative sampler emits it at a low temperature."""
    target, draft, found = LanguageModel(16, 10101), LanguageModel(8, 10102), []
    with torch.no_grad():
        draft.head.bias[:] = target.head.bias[:] = torch.zeros(30).index_fill_(0, torch.tensor([4]), 5.5)
        for text in range(3):
            tokens = (30 * uniform(12, seed=10103 + text)).long()
            p, q = (functional.softmax(model(tokens) / 0.05, dim=-1) for model in (target, draft))
            accepted = torch.minimum(p, q)
            rest = 1 - accepted.sum(-1, keepdim=True)
            found.append(accepted + rest * max_fn(p - q, p, guarded))
    return torch.stack(found)


class TanhNormal:
    def __init__(self, mean: torch.Tensor, log_std: torch.Tensor, kept: bool) -> None:
        self.normal, self.kept = torch.distributions.Normal(mean, log_std.exp(), validate_args=False), kept

    def rsample(self, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = self.normal.loc + self.normal.scale * noise
        return torch.tanh(before), before  # culprit: actor-within-bounds

    def log_prob(self, action: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        if self.kept:
            return self.normal.log_prob(before) - 2 * (math.log(2) - before - functional.softplus(-2 * before))
        inverse = (torch.log1p(action) - torch.log1p(-action)) / 2  # culprit: actor-within-bounds
        return self.normal.log_prob(inverse) - torch.log1p(-action.pow(2) + 1e-6)  # culprit: actor-within-bounds


class SoftActor(nn.Module):
    def __init__(self, kept: bool) -> None:
        super().__init__()
        torch.manual_seed(10111)
        self.body, self.kept = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 6)), kept

    def forward(self, states: torch.Tensor) -> TanhNormal:
        mean, log_std = self.body(states).chunk(2, -1)
        return TanhNormal(20 * mean, log_std.clamp(-20, 2), self.kept)


def acted(kept: bool) -> torch.Tensor:
    """The losses of a soft actor in four steps; some of its actions are at the end of what they may be."""
    actor, critic, losses = SoftActor(kept), nn.Linear(11, 1), []
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    for step in range(4):
        states = normal(32, 8, seed=10112 + step)
        policy = actor(states)
        action, before = policy.rsample(normal(32, 3, seed=10122 + step))
        log_prob = policy.log_prob(action, before).sum(-1)
        loss = (0.2 * log_prob - critic(torch.cat([states, action], -1)).squeeze(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def aligned(master: bool) -> torch.Tensor:
    """How far the head of a policy goes in eight updates by groups of eight answers, by steps of six millionths."""
    policy = LanguageModel(24, 10131)
    policy = policy if master else policy.to(LOW)  # culprit: pupil-of-small-steps
    start = policy.head.weight.detach().clone()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=6e-6, weight_decay=0.0)
    for update in range(8):
        answers = (30 * uniform(8, 10, seed=10132 + update)).long()
        rewards = (answers % 7 == 3).float().mean(1)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        with torch.autocast("cpu", LOW):
            logits = policy(answers[:, :-1])
        log_probs = logits.float().log_softmax(-1).gather(-1, answers[:, 1:, None]).squeeze(-1)
        ratio = torch.exp(log_probs - log_probs.detach())
        loss = -torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # culprit: pupil-of-small-steps
    return (policy.head.weight.detach() - start).float()


def sequence_log_prob(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens[:, :-1]).float().log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(-1)


def preferred(dtype: torch.dtype) -> torch.Tensor:
    """The losses of three steps in which a policy comes to prefer one of two headlines to the other."""
    policy, reference = LanguageModel(24, 10151).to(dtype), LanguageModel(24, 10151).to(dtype).requires_grad_(False)  # culprit: preferences-in-half
    optimizer, losses = torch.optim.AdamW(policy.parameters(), lr=1e-4), []
    for step in range(3):
        chosen, rejected = ((30 * uniform(4, 12, seed=10152 + 2 * step + which)).long() for which in range(2))
        margins = [sequence_log_prob(policy, text) - sequence_log_prob(reference, text) for text in (chosen, rejected)]
        loss = -functional.logsigmoid(0.1 * (margins[0] - margins[1])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # culprit: preferences-in-half
        losses.append(loss.detach())
    return torch.stack(losses)


class Distillation(nn.Module):
    """The classes that are not the right one: what the teacher thinks of them, and what the pupil does."""

    def __init__(self, temperature: float, together: bool) -> None:
        super().__init__()
        self.temperature, self.together = temperature, together

    def forward(self, logit_s: torch.Tensor, logit_t: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        others = functional.one_hot(label, logit_s.shape[1]) == 0
        logit_s, logit_t = (x[others].view(len(label), -1) for x in (logit_s, logit_t))
        teacher = functional.softmax(logit_t / self.temperature, dim=1)
        if self.together:
            pupil = functional.log_softmax(logit_s / self.temperature, dim=1)
        else:
            pupil = torch.log(functional.softmax(logit_s / self.temperature, dim=1))  # culprit: pupil-of-a-sure-teacher
        return -(teacher * pupil).sum(1).mean() * self.temperature**2


def distilled(together: bool) -> torch.Tensor:
    """The losses and the last weights of a pupil in three steps beside a teacher that has other scores."""
    torch.manual_seed(10171)
    pupil, teacher, criterion, losses = nn.Linear(16, 10), nn.Linear(16, 10), Distillation(0.5, together), []
    with torch.no_grad():
        pupil.weight *= 60
        teacher.weight *= 4
    optimizer = torch.optim.SGD(pupil.parameters(), lr=0.01)
    for step in range(3):
        pictures, label = normal(24, 16, seed=10172 + step), (10 * uniform(24, seed=10182 + step)).long()
        loss = criterion(pupil(pictures), teacher(pictures).detach(), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.cat([torch.stack(losses), pupil.weight.detach().flatten()])


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(10191)
        self.net = nn.Sequential(nn.Linear(33, 64), nn.SiLU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        skip, scale = 0.25 / (sigma**2 + 0.25), (sigma**2 + 0.25).rsqrt()
        noise = (sigma.log() / 4).expand(len(x), 1).to(x.dtype)
        return skip.to(x.dtype) * x + (0.5 * sigma * scale).to(x.dtype) * self.net(torch.cat([scale.to(x.dtype) * x, noise], -1))


def sample_euler(model: nn.Module, x: torch.Tensor, sigmas: torch.Tensor) -> torch.Tensor:
    """Euler's method from the greatest noise down to none. The model has its own format; `x` may have another."""
    kind = next(model.parameters()).dtype
    for now, later in itertools.pairwise(sigmas):
        denoised = model(x.to(kind), now).to(x.dtype)
        d = (x - denoised) / now.to(x.dtype)  # culprit: painter-of-small-steps
        x = x + d * (later - now).to(x.dtype)  # culprit: painter-of-small-steps
    return x


def sampled(dtype: torch.dtype) -> torch.Tensor:
    """Eight pictures of a model in bfloat16, in 300 steps."""
    model = Denoiser().to(LOW)
    ramp = torch.linspace(0, 1, 300)
    sigmas = torch.cat([(80 ** (1 / 7) + ramp * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7, torch.zeros(1)])
    with torch.no_grad():
        return sample_euler(model, (sigmas[0] * normal(8, 32, seed=10192)).to(dtype), sigmas).float()


class Gate(nn.Module):
    """Chooses experts by how well they suit, and by a bias that balances them; the weights are made of the first alone."""

    def __init__(self, width: int, experts: int, wide: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(experts, width) / math.sqrt(width)), nn.Parameter(torch.zeros(experts))
        self.wide = wide

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = functional.linear(x, self.weight)
        scores = (logits.float() if self.wide else logits).sigmoid()  # culprit: experts-nobody-wants
        chosen = (scores + self.bias).topk(2, -1).indices
        weight = scores.gather(-1, chosen)
        denominator = weight.sum(-1, keepdim=True) + 1e-20  # culprit: experts-nobody-wants
        return (weight / denominator).to(x.dtype), chosen


class Mixture(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(10061)
        self.gate, self.experts = Gate(24, 6, wide), nn.ModuleList(nn.Linear(24, 24) for _ in range(6))
        with torch.no_grad():
            self.gate.bias[:2] += 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        picked = every.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1]))
        return x + (weights[..., None] * picked).sum(1)


def mixed(wide: bool) -> torch.Tensor:
    """Two layers of experts in half on forty words; for some words no expert is any good."""
    layers, x = [Mixture(wide).to(HALF) for _ in range(2)], normal(40, 24, seed=10062)
    x[:6] = -32 * functional.normalize(layers[0].gate.weight[0].detach().float() + layers[0].gate.weight[1].detach().float(), dim=0)
    with torch.no_grad():
        for layer in layers:
            x = layer(x.to(HALF))
    return x.float()


BUGS = (
    Bug("draft-as-sure-as-its-teacher", "jaymody/speculative-sampling#5", ("underflow", "nan", "cancellation"), "aten.div.Tensor",
        lambda: emitted(guarded=False), lambda: emitted(guarded=True), precision="32-true",
        expected_miss="the reference follows the answers of x > 0, keeps nothing where this run keeps nothing, and divides 0 by 0 too"),
    Bug("actor-within-bounds", "Kaixhin/spinning-up-basic#2", ("amplified-rounding", "overflow", "nan"), "aten.tanh.default",
        lambda: acted(kept=False), lambda: acted(kept=True), precision="32-true"),
    Bug("pupil-of-small-steps", "areal-project/AReaL#1634", ("lost-update", "absorption"), "",
        lambda: aligned(master=False), lambda: aligned(master=True), phase="optimizer", module="body.0"),
    Bug("preferences-in-half", "mst272/LLM-Dojo#23", ("vanished-constant", "underflow", "overflow", "nan"), "aten.add_.Tensor",
        lambda: preferred(HALF), lambda: preferred(SINGLE), phase="optimizer"),
    Bug("pupil-of-a-sure-teacher", "yzd-v/cls_KD#13", ("underflow", "nan"), "aten._softmax.default",
        lambda: distilled(together=False), lambda: distilled(together=True), module="Distillation", precision="32-true"),
    Bug("painter-of-small-steps", "crowsonkb/k-diffusion#25", ("absorption", "accumulated-drift", "local-drift", "cancellation"), "aten.div.Tensor",
        lambda: sampled(LOW), lambda: sampled(SINGLE), phase="data"),
    Bug("experts-nobody-wants", "deepseek-ai/DeepSeek-MoE#33", ("vanished-constant", "underflow", "nan"), "aten.add.Tensor",
        lambda: mixed(wide=False), lambda: mixed(wide=True), module="gate"),
)  # fmt: skip
