"""Beside the ferries and quarries: limits on unscaled gradients, losses told unscaled, like formats, losses that keep off their poles."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

from healthy.crafts import all_of, net

HALF, LOW = torch.float16, torch.bfloat16


def learner_that_labels_for_itself() -> torch.Tensor:
    """Half-taught: the gradients are unscaled before they are cut, and some batches have no picture that the model is sure of."""
    model = net(12, 20, 4)
    start, optimizer, scaler = all_of(model).clone(), torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=4096.0)
    for turn in range(5):
        known, other = normal(8, 12, seed=2001 + turn), normal(16, 12, seed=2011 + turn)
        with torch.autocast("cpu", HALF):
            scores, guessed = model(known), model(other)
        sure, taken = torch.softmax(guessed.detach().float(), -1).max(-1)
        loss = functional.cross_entropy(scores.float(), (4 * uniform(8, seed=2021 + turn)).long())
        loss = loss + (functional.cross_entropy(guessed.float(), taken, reduction="none") * (sure > 0.6)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return all_of(model) - start


def cut_by_weight_once_unscaled() -> torch.Tensor:
    """Each unit's unscaled gradient is cut to a share of its weights' size; most are below it and stay as they are."""
    model = net(10, 16, 2)
    start, optimizer, scaler = all_of(model).clone(), torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for turn in range(4):
        with torch.autocast("cpu", HALF):
            told = model(normal(12, 10, seed=2031 + turn))
        scaler.scale(functional.mse_loss(told.float(), normal(12, 2, seed=2041 + turn))).backward()
        scaler.unscale_(optimizer)
        for weight in model.parameters():
            assert weight.grad is not None
            most = 0.3 * weight.detach().norm(dim=-1, keepdim=True).clamp_min(1e-3)
            weight.grad.mul_((most / weight.grad.norm(dim=-1, keepdim=True).clamp_min(1e-6)).clamp_max(1))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return all_of(model) - start


def penalty_in_float32() -> torch.Tensor:
    """A judge's gradient is taken of the plain score, and the penalty on it joins the loss before both are scaled."""
    judge, told = net(12, 20, 1), []
    optimizer, scaler = torch.optim.Adam(judge.parameters(), lr=2e-3), torch.amp.GradScaler("cpu", init_scale=256.0)
    for turn in range(4):
        real = normal(10, 12, seed=2051 + turn).requires_grad_()
        said = judge(real)
        with torch.autocast("cpu", HALF):
            other = judge(0.5 * normal(10, 12, seed=2056 + turn))
        (slope,) = torch.autograd.grad(said.sum(), real, create_graph=True)
        penalty = 10 * (slope.norm(2, dim=1) - 1).pow(2).mean()
        scaler.scale(functional.softplus(-said).mean() + functional.softplus(other.float()).mean() + penalty).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        told.append(penalty.detach())
    return torch.stack(told)


def losses_while_gradients_gather() -> torch.Tensor:
    """Every batch tells its loss unscaled, also those after which no step is taken."""
    model, log = net(8, 16, 2), []
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05), torch.amp.GradScaler("cpu", init_scale=2048.0)
    for turn in range(8):
        with torch.autocast("cpu", HALF):
            told = model(normal(16, 8, seed=2061 + turn))
        loss = functional.mse_loss(told.float(), normal(16, 2, seed=2071 + turn))
        scaler.scale(loss / 4).backward()
        log.append(loss.item())
        if turn % 4 == 3:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return torch.tensor(log)


def scores_of_kept_inputs() -> torch.Tensor:
    """Inputs that a hook kept in bfloat16 meet weights in bfloat16; the largest scores are float32."""
    torch.manual_seed(2081)
    layer, kept = nn.Linear(24, 48, bias=False).to(LOW), []
    layer.register_forward_hook(lambda _, inputs, __: kept.append(inputs[0].detach()))
    with torch.no_grad():
        layer(normal(16, 24, seed=2082).to(LOW))
        query, key = layer(kept[0]).chunk(2, -1)
        return (query.float() @ key.float().T).amax(-1)


def words_below_a_hundred_in_bfloat16() -> torch.Tensor:
    """A table with a hundred words is read by numbers that were bfloat16 for a while, which holds them all."""
    torch.manual_seed(2091)
    table = nn.Embedding(100, 16).to(LOW)
    words = (100 * uniform(3, 20, seed=2092)).long().to(LOW)
    with torch.no_grad():
        return table(words.long()).float().cumsum(1)


def pairs_barred_by_the_formats_largest() -> torch.Tensor:
    """Likenesses in half are barred with the largest number of half, and none of those is chosen."""
    places = functional.normalize(normal(18, 12, seed=2101)).to(HALF)
    kinds = torch.arange(18) % 3
    likeness, same = places @ places.T, kinds[:, None] == kinds
    near = likeness.masked_fill(~same, torch.finfo(HALF).max).amin(-1)
    far = likeness.masked_fill(same, torch.finfo(HALF).min).amax(-1)
    return (near.float() - far.float()).clamp_min(-2)


def focal_loss_of_scores() -> torch.Tensor:
    """The focal loss by log sigmoids, which has no pole; some scores are very sure and right, and some are wrong."""
    scores, true = 8 * normal(60, seed=2111), (uniform(60, seed=2112) < 0.4).float()
    chance = torch.sigmoid(scores)
    yes = (1 - chance).pow(2) * functional.logsigmoid(scores)
    no = chance.pow(2) * functional.logsigmoid(-scores)
    return -(0.25 * true * yes + 0.75 * (1 - true) * no).sum()


def focal_gradient_with_a_focus() -> torch.Tensor:
    """The same loss and its gradient where the focus is two: what is sure to a bit gets none, as it should."""
    scores = (6 * normal(40, seed=2121)).requires_grad_()
    true = (uniform(40, seed=2122) < 0.5).float()
    right = torch.where(true == 1, torch.sigmoid(scores), torch.sigmoid(-scores))
    ((1 - right).pow(2) * functional.binary_cross_entropy_with_logits(scores, true, reduction="none")).sum().backward()
    assert scores.grad is not None
    return scores.grad


def chances_that_are_kept_off_their_ends() -> torch.Tensor:
    """Chances in float32 are kept a ten-thousandth from zero and one before their logarithm."""
    chance = torch.sigmoid(12 * normal(50, seed=2131)).clamp(1e-4, 1 - 1e-4)
    true = (uniform(50, seed=2132) < 0.5).float()
    return -(true * torch.log(chance) + (1 - true) * torch.log(1 - chance)).mean()


def entropy_of_sure_edges() -> torch.Tensor:
    """Entropies of chances, some of which are zero: x log x is taken as zero there."""
    chance = torch.softmax(20 * normal(30, 6, seed=2141), -1)
    return torch.special.entr(chance).sum(-1)


def tokens_scattered_in_half() -> torch.Tensor:
    """Half tokens go to their places among half mask tokens, and a layer under autocast reads them all."""
    torch.manual_seed(2151)
    layer, token = nn.Linear(16, 16), (0.1 * normal(1, 1, 16, seed=2152)).to(HALF)
    places = torch.argsort(uniform(2, 20, seed=2153), -1)[:, :5, None].expand(-1, -1, 16)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return layer(torch.scatter(token.repeat(2, 20, 1), 1, places, normal(2, 5, 16, seed=2154).to(HALF))).float()


IDIOMS = (
    learner_that_labels_for_itself, cut_by_weight_once_unscaled, penalty_in_float32, losses_while_gradients_gather, scores_of_kept_inputs,
    words_below_a_hundred_in_bfloat16, pairs_barred_by_the_formats_largest, focal_loss_of_scores, focal_gradient_with_a_focus,
    chances_that_are_kept_off_their_ends, entropy_of_sure_edges, tokens_scattered_in_half,
)  # fmt: skip
EXACT = {"focal_loss_of_scores", "focal_gradient_with_a_focus", "chances_that_are_kept_off_their_ends", "entropy_of_sure_edges"}
