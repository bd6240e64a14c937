"""An ensemble in one call of torch.func.vmap, as a critic that says how sure it is, with gradients of its outputs for a Lipschitz penalty."""

import torch
import torch.nn as nn
from torch.func import functional_call, grad, stack_module_state, vmap

STEPS = 1
MEMBERS, STATE, ACTION, WIDTH = 4, 6, 2, 32


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.ln, self.l2, self.l3 = nn.Linear(STATE + ACTION, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, s, a):
        h = nn.functional.elu(self.ln(self.l1(torch.cat([s, a], -1))))
        return self.l3(nn.functional.elu(self.l2(h)))


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        params, _ = stack_module_state([Critic() for _ in range(MEMBERS)])
        self.params = nn.ParameterDict({name.replace(".", "_"): nn.Parameter(each.detach()) for name, each in params.items()})
        self.names = {name.replace(".", "_"): name for name in params}
        self.base = [Critic().to("meta")]

    def stacked(self):
        return {self.names[key]: each for key, each in self.params.items()}

    def one(self, params, s, a):
        return functional_call(self.base[0], params, (s, a))

    def forward(self, s, a, reward):
        out = vmap(self.one, (0, None, None))(self.stacked(), s, a).float()
        mean, logvar = out[..., 0], out[..., 1].clamp(-6, 3)

        def value(params, state, action):
            return self.one(params, state, action)[..., 0].float()

        slopes = vmap(vmap(grad(value, argnums=2), (None, 0, 0)), (0, None, None))(self.stacked(), s, a)
        nll = 0.5 * ((reward.float() - mean) ** 2 * torch.exp(-logvar) + logvar)
        steep = (slopes.float().norm(dim=-1) - 1).relu().square().mean()
        doubt = mean.var(0, unbiased=False) + logvar.exp().mean(0)
        best = mean.amin(0)
        return {"loss": nll.mean() + 0.1 * steep, "best": best, "doubt": doubt, "slopes": slopes}


PRECISIONS = ("bf16-mixed", "16-mixed")  # a model on the device meta is not converted


def make():
    torch.manual_seed(0)
    return Ensemble()


def batch():
    g = torch.Generator().manual_seed(27)
    return {"s": torch.randn(32, STATE, generator=g), "a": torch.rand(32, ACTION, generator=g) * 2 - 1, "reward": torch.randn(32, generator=g)}


def loss(output):
    return output["loss"]


optimizer = None
