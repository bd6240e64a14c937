"""Networks for volumes, points, spikes, tables, graphs, weather and time."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("dynamic-network-architectures")
def plain_volume_unet() -> Made:
    from dynamic_network_architectures.architectures.unet import PlainConvUNet

    norms = {"norm_op": torch.nn.InstanceNorm3d, "norm_op_kwargs": {"affine": True}, "nonlin": torch.nn.LeakyReLU}
    net = PlainConvUNet(1, 3, [8, 16, 32], torch.nn.Conv3d, 3, [1, 2, 2], 1, 2, 1, conv_bias=True, deep_supervision=True, **norms)
    truth = torch.randint(0, 2, (1, 8, 8, 8))
    return Made(net, (torch.randn(1, 1, 8, 8, 8),), lambda out: torch.nn.functional.cross_entropy(out[0], truth))


@case("pytorch3dunet")
def residual_volume_unet() -> Made:
    from pytorch3dunet.unet3d.losses import GeneralizedDiceLoss
    from pytorch3dunet.unet3d.model import ResidualUNet3D

    net = ResidualUNet3D(1, 2, f_maps=[8, 16], num_groups=4, is_segmentation=False)
    truth, loss = (torch.rand(1, 2, 8, 8, 8) > 0.7).float(), GeneralizedDiceLoss()
    return Made(net, (torch.randn(1, 1, 8, 8, 8),), lambda out: loss(out[0] if isinstance(out, tuple) else out, truth.to(out[0])))


@case("pointnet")
def point_classifier() -> Made:
    from pointnet.pointnet import STN, PointNetCls

    net, truth = PointNetCls(3, 5, stn_3d=STN(in_dim=3)), torch.randint(0, 5, (4,))
    return Made(net, (torch.randn(4, 3, 64),), lambda out: torch.nn.functional.cross_entropy(out[0] if isinstance(out, tuple) else out, truth))


@case("norse")
def leaky_neurons() -> Made:
    import norse.torch as norse

    net = norse.SequentialState(torch.nn.Linear(8, 32), norse.LIFCell(), torch.nn.Linear(32, 4), norse.LICell())

    def run(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        state, seen = None, []
        for step in x:
            out, state = net(step, state)
            seen.append(out)
        return torch.stack(seen)

    return Made(Calls(run, net), (3 * torch.rand(12, 4, 8),), square)


@case("spikingjelly")
def integrating_neurons() -> Made:
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    spike = surrogate.ATan()
    net = torch.nn.Sequential(
        layer.Linear(8, 32), neuron.LIFNode(surrogate_function=spike), layer.Linear(32, 4), neuron.ParametricLIFNode(surrogate_function=spike)
    )

    def run(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        functional.reset_net(net)
        return torch.stack([net(step) for step in x]).mean(0)

    return Made(Calls(run, net), (3 * torch.rand(6, 4, 8),), square)


@case("torch-hyperbolic")
def poincare_graph() -> Made:
    from torch_hyperbolic.nn.hlinear import HypLinear

    net = HypLinear(8, 8, c=1.0)

    def placed(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        ball = net.manifold
        return ball.logmap0(net(ball.proj(ball.expmap0(x, 1.0), 1.0)), 1.0)

    return Made(Calls(placed, net), (torch.randn(16, 8),), square)


@case("pytorch-tsmixer")
def time_series_mixer() -> Made:
    from torchtsmixer import TSMixer

    return Made(TSMixer(24, 6, 5), (torch.randn(8, 24, 5),), square)


@case("torch-rechub")
def low_rank_crosses() -> Made:
    from torch_rechub.basic.features import DenseFeature, SparseFeature
    from torch_rechub.models.ranking import DCNv2

    features = [SparseFeature(f"s{number}", vocab_size=20, embed_dim=8) for number in range(4)] + [DenseFeature("d")]
    given = {f"s{number}": torch.randint(0, 20, (32,)) for number in range(4)} | {"d": torch.rand(32)}
    net, truth = DCNv2(features, 2, {"dims": [16], "activation": "relu"}, low_rank=8), torch.randint(0, 2, (32,)).float()
    return Made(net, (given,), lambda out: torch.nn.functional.binary_cross_entropy(out.float(), truth))


@case("torch-rechub")
def interest_network() -> Made:
    from torch_rechub.basic.features import SequenceFeature, SparseFeature
    from torch_rechub.models.ranking import DIN

    user, item = SparseFeature("u", vocab_size=20, embed_dim=8), SparseFeature("i", vocab_size=30, embed_dim=8)
    history = SequenceFeature("h", vocab_size=30, embed_dim=8, pooling="concat", shared_with="i")
    net = DIN([user], [history], [item], {"dims": [16]}, {"dims": [16]})
    given = {"u": torch.randint(0, 20, (16,)), "i": torch.randint(0, 30, (16,)), "h": torch.randint(0, 30, (16, 6))}
    truth = torch.randint(0, 2, (16,)).float()
    return Made(net, (given,), lambda out: torch.nn.functional.binary_cross_entropy(out.float(), truth))


@case("pytorch-frame")
def column_trompts() -> Made:
    from torch_frame.nn.models.trompt import TromptConv

    net, rows = TromptConv(16, 5, 8), torch.randn(8, 5, 16)
    return Made(Calls(lambda net, rows, prompts: net(rows, prompts), net), (rows, torch.randn(8, 8, 16)), square)


@case("metnet3-pytorch")
def weather_blocks() -> Made:
    from metnet3_pytorch.metnet3_pytorch import MaxViT

    return Made(MaxViT(dim=32, depth=1, heads=2, dim_head=16, window_size=4), (torch.randn(1, 32, 8, 8), torch.randn(1, 32)), square)


@case("torchopt")
def inner_steps() -> Made:
    import torchopt

    def learnt(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.Linear(4, 1).to(x.dtype)
        optimizer = torchopt.MetaSGD(inner, lr=0.1)
        weights = net(x).exp()
        for _ in range(2):
            optimizer.step((weights * inner(x).square()).mean())
        return inner(x).square().mean()

    return Made(Calls(learnt, torch.nn.Linear(4, 1)), (torch.randn(16, 4),), lambda out: out)


@case("higher")
def adapted_tasks() -> Made:
    import higher

    def learnt(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        with higher.innerloop_ctx(net, inner, copy_initial_weights=False) as (copy, optimizer):
            for _ in range(2):
                optimizer.step((copy(x) - x[:, :1]).square().mean())
            return (copy(x) - x[:, 1:2]).square().mean()

    return Made(Calls(learnt, torch.nn.Linear(4, 1)), (torch.randn(16, 4),), lambda out: out)
