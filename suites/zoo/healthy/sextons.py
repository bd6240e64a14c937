"""Beside cloisters and turrets: masked words, labels, tags, powers, graphs, robots, readers, views, prototypes, noise that hold."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


def words_hidden_in_bfloat16() -> torch.Tensor:
    """Masked diffusion whose forbidden words get -10^6, in a format that has such numbers."""
    torch.manual_seed(9501)
    model = nn.Sequential(nn.Embedding(40, 24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 40)).to(LOW)
    text, entropies = (39 * uniform(3, 12, seed=9502)).long(), []
    with torch.no_grad():
        for step in range(4):
            xt = text.masked_fill(uniform(3, 12, seed=9503 + step) > (step + 1) / 5, 39)
            logits = model(xt)
            logits[:, :, 39] += -1e6
            logits = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
            kept = (torch.zeros_like(logits) - 1e6).scatter_(-1, xt[..., None], 0.0)
            log_p = torch.where((xt != 39)[..., None], kept, logits)
            entropies.append(-(log_p.exp() * log_p).sum(-1).float().mean(-1))
    return torch.stack(entropies)


def labels_of_a_parser_that_is_unsure() -> torch.Tensor:
    """The log-probabilities of labels that a new parser gives to eight sentences: tens, as differences of hundreds."""
    labels, scores = (5 * uniform(8, 31, seed=9511)).long(), 5 + 2 * normal(8, 30, 5, 5, seed=9512)
    alpha = torch.zeros(8, 5)
    for position in range(30):
        alpha = torch.logsumexp(alpha[:, :, None] + scores[:, position], dim=1)
    gold = scores[torch.arange(8)[:, None], torch.arange(30)[None], labels[:, :-1], labels[:, 1:]].sum(1)
    return gold - torch.logsumexp(alpha, dim=-1)


def chance_of_a_short_tagging() -> torch.Tensor:
    """A tagger's loss by the logarithm of a chance, for sentences of eight words, in three steps."""
    torch.manual_seed(9521)
    emit, transition, losses = nn.Linear(16, 9), nn.Parameter(0.1 * torch.randn(9, 9)), []
    optimizer = torch.optim.SGD([*emit.parameters(), transition], lr=0.01)
    for step in range(3):
        emissions, tags = emit(normal(4, 8, 16, seed=9522 + step)), (9 * uniform(4, 8, seed=9532 + step)).long()
        alpha = emissions[:, 0]
        for position in range(1, 8):
            alpha = torch.logsumexp(alpha[:, :, None] + transition + emissions[:, position, None], dim=1)
        labeled = emissions.gather(-1, tags[..., None]).squeeze(-1).sum(-1) + transition[tags[:, :-1], tags[:, 1:]].sum(-1)
        loss = -torch.log(torch.exp(labeled - torch.logsumexp(alpha, dim=-1))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.cat([torch.stack(losses), emit.weight.detach().flatten()])


def places_by_gentle_powers() -> torch.Tensor:
    """Linear attention in which both sides have a power of their place; the powers end at a hundred."""
    torch.manual_seed(9541)
    query, key, value = (nn.Linear(12, 12) for _ in range(3))
    x, places = normal(2, 480, 12, seed=9542), torch.arange(480)[:, None]
    with torch.no_grad():
        q = (functional.elu(query(x)) + 1) * 0.99**places
        k = (functional.elu(key(x)) + 1) * (1 / 0.99) ** places
        context = torch.einsum("nsd,nsm->nmd", k, value(x))
        return torch.einsum("nld,nmd,nl->nlm", q, context, 1 / (torch.einsum("nld,nd->nl", q, k.sum(1)) + 1e-6))


def graph_of_scaled_counts() -> torch.Tensor:
    """Graph attention by plain exponentials over six times; counts were scaled before."""
    torch.manual_seed(9551)
    fc, left, right, cell = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 1), nn.GRUCell(8, 8)
    source, target = (30 * uniform(150, seed=9552)).long(), torch.arange(150) % 30
    state = torch.zeros(30, 8)
    with torch.no_grad():
        for time in range(6):
            z = fc(normal(30, 8, seed=9553 + time))
            coefficients = torch.exp(functional.leaky_relu(left(z)[source] + right(z)[target], 0.2).squeeze(-1))
            total = torch.zeros(30).index_add(0, target, coefficients)
            state = cell(torch.zeros_like(z).index_add(0, target, (coefficients / total[target])[:, None] * z[source]), state)
    return state


def robot_that_steers_gently() -> torch.Tensor:
    """The chances of actions that were squeezed and are brought back; none is near a bound."""
    torch.manual_seed(9561)
    net, log_std = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2)), torch.full((2,), -1.5)
    observation, chances = normal(20, 6, seed=9562), []
    with torch.no_grad():
        for step in range(5):
            mean = net(observation)
            action = torch.tanh(mean + log_std.exp() * normal(20, 2, seed=9563 + step))
            z = (torch.atanh(action) - mean) / log_std.exp()
            gaussian = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
            chances.append((gaussian - torch.log(1 - action**2 + 1e-6)).sum(-1))
            observation = 0.9 * observation + 0.1 * torch.cat([action, action, action], -1)
    return torch.stack(chances)


def reader_whose_scaler_is_off() -> torch.Tensor:
    """Gradients are limited as they are, since the scaler is switched off in bfloat16."""
    torch.manual_seed(9571)
    embed, classify = nn.Embedding(60, 16), nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    weights = [*embed.parameters(), *classify.parameters()]
    optimizer, scaler = torch.optim.SGD(weights, lr=2.0), torch.amp.GradScaler("cpu", enabled=False)
    for update in range(4):
        optimizer.zero_grad()
        for batch in range(2):
            seed = 9572 + 2 * update + batch
            with torch.autocast("cpu", LOW):
                scores = classify(embed((60 * uniform(16, 12, seed=seed)).long()).mean(1))
            loss = functional.cross_entropy(scores.float(), (4 * uniform(16, seed=seed + 20)).long()) / 2
            scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        scaler.step(optimizer)
        scaler.update()
    return nn.utils.parameters_to_vector(weights).detach()


def views_of_unit_length() -> torch.Tensor:
    """A supervised contrastive loss by exponentials, of features of length one, in three steps."""
    torch.manual_seed(9581)
    encoder, losses = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 16)), []
    optimizer, kinds, itself = torch.optim.SGD(encoder.parameters(), lr=0.05), torch.arange(16).repeat(2) % 4, torch.eye(32, dtype=torch.bool)
    for step in range(3):
        views = normal(16, 1, 24, seed=9582 + step) + 0.4 * normal(16, 2, 24, seed=9592 + step)
        features = functional.normalize(encoder(torch.cat(torch.unbind(views, 1))), dim=1)
        dots = features @ features.T / 0.07
        logits = dots - dots.max(1, keepdim=True)[0].detach()
        log_prob = logits - torch.log((torch.exp(logits) * ~itself).sum(1, keepdim=True))
        alike = (kinds[:, None] == kinds) & ~itself
        loss = -((log_prob * alike).sum(1) / alike.sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def prototypes_of_unit_length() -> torch.Tensor:
    """Shares of prototypes by exponentials of cosines over a twentieth, balanced three times."""
    torch.manual_seed(9601)
    projection, prototypes = nn.Linear(20, 16), functional.normalize(torch.randn(12, 16), dim=1)
    with torch.no_grad():
        q = torch.exp(functional.normalize(projection(8 * normal(24, 20, seed=9602)), dim=1) @ prototypes.T / 0.05).T
        q = q / q.sum()
        for _ in range(3):
            q = q / q.sum(1, keepdim=True) / 12
            q = q / q.sum(0, keepdim=True) / 24
        return (q * 24).T


def noise_learned_from_the_twentieth_step_on() -> torch.Tensor:
    """Diffusion that learns its variance in half, at times whose variances lie between e^-6 and e^-4."""
    torch.manual_seed(9611)
    unet, betas = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 16)).to(HALF), torch.linspace(1e-4, 0.02, 100)
    kept = (1 - betas).cumprod(0)
    t, x, noise = 20 + (80 * uniform(16, seed=9612)).long(), normal(16, 8, seed=9613), normal(16, 8, seed=9614)
    noisy = kept[t, None].sqrt() * x + (1 - kept[t, None]).sqrt() * noise
    guess, share = unet(torch.cat([noisy, t[:, None] / 100], 1).to(HALF)).chunk(2, 1)
    most, least = betas.log()[t, None].to(HALF), (betas * (1 - kept / (1 - betas)) / (1 - kept)).log()[t, None].to(HALF)
    logvar = (share + 1) / 2 * most + (1 - share) / 2 * least
    apart = (0.05 * (noise.to(HALF) - guess.detach())) ** 2 * torch.exp(-logvar)
    kl = 0.5 * (-1.0 + logvar - least + torch.exp(least - logvar) + apart)
    ((noise - guess).square().mean() + 0.1 * kl.float().mean()).backward()
    return torch.cat([each.grad.flatten() for each in unet.parameters()]).float()


IDIOMS = (
    words_hidden_in_bfloat16,
    labels_of_a_parser_that_is_unsure,
    chance_of_a_short_tagging,
    places_by_gentle_powers,
    graph_of_scaled_counts,
    robot_that_steers_gently,
    reader_whose_scaler_is_off,
    views_of_unit_length,
    prototypes_of_unit_length,
    noise_learned_from_the_twentieth_step_on,
)
EXACT = (
    "labels_of_a_parser_that_is_unsure", "chance_of_a_short_tagging", "places_by_gentle_powers", "graph_of_scaled_counts",
    "robot_that_steers_gently", "views_of_unit_length", "prototypes_of_unit_length",
)  # fmt: skip
ACCUSED = {
    "noise_learned_from_the_twentieth_step_on": "truly: half rounds logarithms that differ by hundredths; the gradient of the share is off by 4 %",
}
