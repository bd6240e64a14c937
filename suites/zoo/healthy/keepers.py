"""Beside the cottages, docks and towers: draws that are bounded, tails by their logarithms, parts of one format, times since a start."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def draws_about_an_unsure_direction() -> torch.Tensor:
    """Draws on a sphere by the root of one less a square, which is far from nought."""
    along = 0.8 * (2 * uniform(64, 1, seed=4001) - 1)
    return torch.cat([along, torch.sqrt((1 - along**2).clamp(min=1e-10)) * functional.normalize(normal(64, 4, seed=4002), dim=-1)], -1)


def actions_that_keep_what_they_were() -> torch.Tensor:
    """Log chances of squashed actions, of the numbers that were squashed; the actions are nearly one and only returned."""
    raw = 5 * normal(40, 3, seed=4011)
    chance = -0.5 * raw.square() - 2 * (0.6931472 - raw - functional.softplus(-2 * raw))
    return torch.cat([torch.tanh(raw), chance], -1)


def what_is_left_of_a_bells_middle() -> torch.Tensor:
    """The logarithm of one less a chance that is near a half."""
    return torch.log(1 - torch.special.ndtr(torch.linspace(-1.5, 1.5, 40)))


def classes_near_their_bounds() -> torch.Tensor:
    """The loss of ordered classes, by differences of sigmoids which are apart."""
    place = normal(24, seed=4021)
    below = torch.sigmoid(torch.tensor([-2.0, 0.0, 2.0]) - place[:, None])
    chances = torch.cat([below[:, :1], below.diff(dim=-1), 1 - below[:, -1:]], -1).clamp_min(1e-15)
    return -torch.log(chances.gather(1, (4 * uniform(24, seed=4022)).long()[:, None])).squeeze(1)


def forms_with_few_violations() -> torch.Tensor:
    """A softmax by hand of harmonies of minus twenty, whose exponentials float32 holds."""
    harmony = -(10 * uniform(6, 9, seed=4031) + 15)
    return torch.log(torch.exp(harmony) / torch.exp(harmony).sum(-1, keepdim=True))


def columns_about_nought() -> torch.Tensor:
    """A covariance as a mean of products less a product of means, of columns whose means are small."""
    first = normal(10, 500, seed=4041)
    second = 0.7 * first + normal(10, 500, seed=4042)
    return (first * second).mean(-1) - first.mean(-1) * second.mean(-1)


def logistic_by_parts() -> torch.Tensor:
    """A sigmoid in two parts by `where`, of which one overflows where the other is taken."""
    scores = 60 * normal(40, seed=4051)
    raised = torch.exp(-scores)
    return torch.where(scores > 0, 1 / (1 + raised), torch.sigmoid(scores))


def places_below_a_thousand() -> torch.Tensor:
    """Places in half below a thousand, which it holds, times slow speeds in float32."""
    angles = torch.arange(1000).to(HALF).float()[:, None] * (10_000.0 ** (-torch.arange(0, 16, 2) / 16))
    return torch.cat([angles.cos(), angles.sin()], -1)


def mean_of_small_maps() -> torch.Tensor:
    """Means of maps in half by sums that fit."""
    return ((1 + 0.2 * normal(3, 100, 100, seed=4061)).to(HALF).sum((1, 2)) / 10_000).float()


def words_barred_by_the_least_of_half() -> torch.Tensor:
    """Scores in half are barred by the least number of half."""
    scores = normal(12, 12, seed=4071).to(HALF).masked_fill(torch.ones(12, 12).triu(1).bool(), torch.finfo(HALF).min)
    return torch.softmax(scores, -1).float()


def adapter_of_the_same_kind() -> torch.Tensor:
    """An adapter in float32 is made bfloat16 as its model is, and adds to its words."""
    torch.manual_seed(4081)
    layer, down, up = nn.Linear(24, 24).to(LOW), nn.Linear(24, 4), nn.Linear(4, 24)
    with torch.no_grad():
        words = layer(normal(6, 24, seed=4082).to(LOW))
        return (words + up.to(LOW)(torch.relu(down.to(LOW)(words)))).float()


def picture_within_autocast_that_fits() -> torch.Tensor:
    """An encoder under autocast whose features stay small."""
    torch.manual_seed(4091)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16))
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return model(normal(1, 3, 16, 16, seed=4092)).float()


def plan_of_mild_scores() -> torch.Tensor:
    """A plan by turns over rows and columns, of exponentials of small scores."""
    plan = torch.exp(normal(16, 8, seed=4101) / 0.3)
    for _ in range(8):
        plan = plan / plan.sum(1, keepdim=True)
        plan = plan / plan.sum(0, keepdim=True)
    return plan


def limit_within_float32() -> torch.Tensor:
    """A step whose gradients are cut, under autocast in bfloat16 and without a loss scale."""
    torch.manual_seed(4111)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer, lengths = torch.optim.SGD(model.parameters(), lr=0.1), []
    for turn in range(4):
        with torch.autocast("cpu", LOW):
            scores = model(normal(16, 10, seed=4112 + turn))
        optimizer.zero_grad()
        functional.cross_entropy(scores.float(), (4 * uniform(16, seed=4122 + turn)).long()).backward()
        lengths.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
    return torch.stack(lengths)


def time_between_looks_as_whole_numbers() -> torch.Tensor:
    """Milliseconds since 1970 are subtracted as whole numbers, and then are float32."""
    stamps = 1_522_772_381_696 + (3 + (4 * uniform(30, seed=4131)).long()).cumsum(0)
    return stamps.diff().float() / 1000


def steps_of_an_eighth() -> torch.Tensor:
    """A simulation by steps of an eighth, which float32 holds, until five seconds."""
    now, taken = torch.tensor(0.0), 0
    while bool(now < 5.0):
        now, taken = now + 0.125, taken + 1
    return now + taken


def time_of_a_short_game() -> torch.Tensor:
    """Two hundred frames of a game that has just begun."""
    now, told = torch.tensor(0.0), []
    for _ in range(200):
        now = now + 1 / 144
        told.append(now)
    return torch.stack(told)


def metres_of_a_flight() -> torch.Tensor:
    """Ways by the law of cosines between places that are thousands of kilometres apart."""
    up, along = torch.deg2rad(60 * uniform(20, 2, seed=4141)).unbind(-1)
    cosine = torch.sin(up) * torch.sin(up - 0.6) + torch.cos(up) * torch.cos(up - 0.6) * torch.cos(along + 0.5)
    return 6371 * torch.acos(cosine.clamp(-1, 1))


def stamps_since_the_first() -> torch.Tensor:
    """Seconds since the first reading are float32 beside the values."""
    rows = torch.stack([60 * torch.arange(40).float(), 0.1 * torch.arange(40)], -1)
    return rows[:, 0].long() - rows[:, 0].long()[0] + rows[:, 1]


def angle_of_a_wide_turn() -> torch.Tensor:
    """Angles of rotations of one to two radians by their trace."""
    return torch.acos(((1 + 2 * torch.cos(1 + uniform(40, seed=4151))) - 1) / 2)


IDIOMS = (
    draws_about_an_unsure_direction, actions_that_keep_what_they_were, what_is_left_of_a_bells_middle, classes_near_their_bounds,
    forms_with_few_violations, columns_about_nought, logistic_by_parts, places_below_a_thousand, mean_of_small_maps,
    words_barred_by_the_least_of_half, adapter_of_the_same_kind, picture_within_autocast_that_fits, plan_of_mild_scores, limit_within_float32,
    time_between_looks_as_whole_numbers, steps_of_an_eighth, time_of_a_short_game, metres_of_a_flight, stamps_since_the_first, angle_of_a_wide_turn,
)  # fmt: skip
EXACT = {
    "draws_about_an_unsure_direction", "actions_that_keep_what_they_were", "what_is_left_of_a_bells_middle", "classes_near_their_bounds",
    "forms_with_few_violations", "columns_about_nought", "logistic_by_parts", "plan_of_mild_scores", "time_between_looks_as_whole_numbers",
    "steps_of_an_eighth", "time_of_a_short_game", "metres_of_a_flight", "stamps_since_the_first", "angle_of_a_wide_turn",
}  # fmt: skip
