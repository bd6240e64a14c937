"""Trains a regression in bfloat16. The weights lose their updates; with --master the optimizer steps on float32 copies, and they arrive."""

import sys

import torch

import precheck


def batches(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(32, 16, generator=generator)
        yield x.bfloat16(), x.sum(1, keepdim=True).bfloat16()


def train(model, steps=20, master=False):
    weights = [weight.detach().float() for weight in model.parameters()] if master else list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    for x, wanted in batches(steps):
        (model(x) - wanted).float().square().mean().backward()
        if master:
            for copy, weight in zip(weights, model.parameters(), strict=True):
                copy.grad = weight.grad.float()
        optimizer.step()
        if master:
            with torch.no_grad():
                for copy, weight in zip(weights, model.parameters(), strict=True):
                    weight.copy_(copy)
        model.zero_grad()


def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 1)).to(torch.bfloat16)
    with precheck.watch(model) as report:
        train(model, master="--master" in sys.argv[1:])
    print(report.summary())
    return bool(report.errors)


if __name__ == "__main__":
    sys.exit(main())
