"""Does the classifier train in low precision as it does in float32?"""

import torch
from model import Classifier
from torch.nn.functional import cross_entropy


def test_training(check_precision):
    torch.manual_seed(0)
    tokens, classes = torch.randint(0, 100, (8, 12)), torch.randint(0, 4, (8,))
    check_precision(
        Classifier(),
        tokens,
        loss=lambda scores: cross_entropy(scores.float(), classes),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        steps=2,
    )
