"""Graphs, molecules and equivariant networks; tables, series and reinforcement learning."""

from __future__ import annotations

from typing import Any

import torch
from fieldcase import Calls, Made, case, square


def _edges() -> torch.Tensor:
    return torch.stack([torch.arange(24).repeat(3), (torch.arange(24).repeat(3) + torch.arange(3).repeat_interleave(24) + 1) % 24])


@case("torch-geometric")
def geometric_gat() -> Made:
    from torch_geometric.nn import GAT

    return Made(GAT(8, 16, num_layers=2, out_channels=4, heads=2), (torch.randn(24, 8), _edges()), square)


@case("torch-geometric")
def geometric_pna() -> Made:
    from torch_geometric.nn import PNAConv

    model = PNAConv(8, 8, aggregators=["mean", "min", "max", "std"], scalers=["identity", "amplification"], deg=torch.tensor([0, 0, 0, 24]))
    return Made(model, (torch.randn(24, 8), _edges()), square)


@case("torch-geometric")
def geometric_schnet() -> Made:
    from torch_geometric.nn.models.schnet import GaussianSmearing, InteractionBlock

    smear, block = GaussianSmearing(0.0, 5.0, 20), InteractionBlock(16, 20, 16, 5.0)

    def moved(spread: torch.nn.Module, inner: torch.nn.Module, h: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        edges = _edges()
        apart = (places[edges[0]] - places[edges[1]]).norm(dim=-1)
        return inner(h, edges, apart, spread(apart))

    return Made(Calls(moved, smear, block), (torch.randn(24, 16), torch.randn(24, 3)), square)


@case("egnn-pytorch")
def egnn() -> Made:
    from egnn_pytorch import EGNN

    def moved(layer: torch.nn.Module, feats: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        out, coordinates = layer(feats, places)
        return out.float().square().mean() + coordinates.float().square().mean()

    return Made(Calls(moved, EGNN(dim=16, m_dim=8, fourier_features=2)), (torch.randn(1, 12, 16), torch.randn(1, 12, 3)), lambda loss: loss)


@case("se3-transformer-pytorch")
def se3_transformer() -> Made:
    from se3_transformer_pytorch import SE3Transformer

    model = SE3Transformer(dim=8, heads=1, depth=1, dim_head=8, num_degrees=2, valid_radius=10, num_neighbors=6)
    return Made(model, (torch.randn(1, 12, 8), torch.randn(1, 12, 3)), square)


@case("En-transformer")
def en_transformer() -> Made:
    from en_transformer import EnTransformer

    return Made(
        EnTransformer(dim=16, depth=1, dim_head=32, heads=2),
        (torch.randn(1, 12, 16), torch.randn(1, 12, 3)),
        lambda out: square(out[0]) + square(out[1]),
    )


@case("invariant-point-attention")
def invariant_point_attention() -> Made:
    from invariant_point_attention import InvariantPointAttention

    model = InvariantPointAttention(dim=16, heads=2, scalar_key_dim=8, scalar_value_dim=8, point_key_dim=4, point_value_dim=4)
    frames = torch.eye(3).expand(1, 12, 3, 3).clone(), torch.randn(1, 12, 3) * 10

    def attended(layer: Any, single: torch.Tensor, pairs: torch.Tensor, turns: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
        return layer(single, pairs, rotations=turns, translations=moves)

    return Made(Calls(attended, model), (torch.randn(1, 12, 16), torch.randn(1, 12, 12, 16), *frames), square)


@case("e3nn")
def e3nn() -> Made:
    from e3nn import o3

    hidden = o3.Irreps("4x0e + 4x1o")
    product = o3.FullyConnectedTensorProduct(hidden, o3.Irreps("1x0e + 1x1o + 1x2e"), hidden)

    def turned(layer: torch.nn.Module, x: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        return layer(x, o3.spherical_harmonics("1x0e + 1x1o + 1x2e", vectors, normalize=True, normalization="component"))

    return Made(Calls(turned, product), (torch.randn(16, 16), torch.randn(16, 3)), square)


@case("rtdl-num-embeddings")
def numeric_embeddings() -> Made:
    from rtdl_num_embeddings import PeriodicEmbeddings

    embedding = PeriodicEmbeddings(4, d_embedding=8, n_frequencies=16, frequency_init_scale=1.0, lite=False)
    return Made(torch.nn.Sequential(embedding, torch.nn.Flatten(), torch.nn.Linear(32, 1)), (torch.randn(16, 4),), square)


@case("pytorch-tabnet")
def tabnet() -> Made:
    from pytorch_tabnet.tab_network import TabNet

    model = TabNet(input_dim=8, output_dim=2, n_d=8, n_a=8, n_steps=3, virtual_batch_size=16, group_attention_matrix=torch.eye(8))
    return Made(model, (torch.randn(32, 8),), lambda out: square(out[0]) + 1e-3 * out[1])


@case("iTransformer")
def i_transformer() -> Made:
    from iTransformer import iTransformer

    model = iTransformer(num_variates=6, lookback_len=24, dim=32, depth=2, heads=2, dim_head=16, pred_length=(6,), use_reversible_instance_norm=True)
    series = torch.randn(2, 24, 6).cumsum(1) + 30
    target = torch.randn(2, 6, 6) + 30
    return Made(Calls(lambda net, x, y: net(x, targets=(y.to(x.dtype),)), model), (series, target), lambda loss: loss)


@case("pytorch-tcn")
def temporal_convolution() -> Made:
    from pytorch_tcn import TCN

    return Made(TCN(num_inputs=4, num_channels=[8, 8], kernel_size=3, use_norm="weight_norm"), (torch.randn(2, 4, 40),), square)


@case("tensordict")
def tensordict_module() -> Made:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule

    module = TensorDictModule(torch.nn.Linear(8, 4), in_keys=["seen"], out_keys=["done"])
    return Made(Calls(lambda net, x: net(TensorDict({"seen": x}, batch_size=[len(x)]))["done"], module), (torch.randn(16, 8),), square)


@case("torchrl", ("bf16-mixed", "16-mixed"))
def torchrl_returns() -> Made:
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    def regressed(value: torch.nn.Module, seen: torch.Tensor, following: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        now, then = value(seen), value(following)
        ended = torch.zeros(*reward.shape, dtype=torch.bool)
        gained, target = generalized_advantage_estimate(0.99, 0.95, now.detach(), then.detach(), reward, ended)
        return (now - target).float().square().mean() + gained.float().mean() * 0

    return Made(Calls(regressed, torch.nn.Linear(4, 1)), (torch.randn(2, 50, 4), torch.randn(2, 50, 4), torch.rand(2, 50, 1)), lambda loss: loss)


@case("stable-baselines3", ("bf16-mixed", "16-mixed"))
def stable_baselines_policy() -> Made:
    import gymnasium
    import numpy
    from stable_baselines3.common.policies import ActorCriticPolicy

    space = gymnasium.spaces.Box(-1, 1, (6,), dtype=numpy.float32)
    policy = ActorCriticPolicy(space, gymnasium.spaces.Box(-1, 1, (2,), dtype=numpy.float32), lambda _: 3e-4)

    def judged(actor: Any, seen: torch.Tensor, acted: torch.Tensor, gained: torch.Tensor) -> torch.Tensor:
        values, chances, entropy = actor.evaluate_actions(seen, acted)
        ratio = torch.exp(chances - chances.detach())
        return -(gained * ratio).mean() + 0.5 * (values.flatten() - gained).square().mean() - 0.01 * entropy.mean()

    return Made(Calls(judged, policy), (torch.randn(32, 6), torch.randn(32, 2) * 0.5, torch.randn(32)), lambda loss: loss)


@case("torchani")
def torchani_energies() -> Made:
    from torchani.arch import simple_ani

    species, places = torch.tensor([[1, 6, 7, 8, 1, 1, 6, 1]]), torch.randn(1, 8, 3) * 1.5
    model = simple_ani(("H", "C", "N", "O"), "wb97x-631gd")
    return Made(Calls(lambda net, kinds, x: net((kinds, x)).energies, model), (species, places), lambda energy: energy.sum() * 1e-3)


@case("d3rlpy")
def quantile_critic() -> Made:
    from d3rlpy.models.torch.encoders import VectorEncoderWithAction
    from d3rlpy.models.torch.q_functions import ContinuousQRQFunction, ContinuousQRQFunctionForwarder

    critic = ContinuousQRQFunction(VectorEncoderWithAction((4,), 2, [32, 32]), 32, 16)
    forwarder = ContinuousQRQFunctionForwarder(critic, 16)
    batch = torch.randn(32, 4), torch.randn(32, 2), torch.randn(32, 1), torch.randn(32, 16), torch.zeros(32, 1)
    return Made(Calls(lambda net, *given: forwarder.compute_error(*given), critic), batch, lambda loss: loss)


@case("d3rlpy")
def decision_transformer() -> Made:
    from d3rlpy.models.torch.encoders import VectorEncoder
    from d3rlpy.models.torch.transformers import ContinuousDecisionTransformer, GlobalPositionEncoding

    places = GlobalPositionEncoding(32, 1000, 8)
    model = ContinuousDecisionTransformer(
        encoder=VectorEncoder((4,), [32]), embed_size=32, position_encoding=places, action_size=2, num_heads=2, context_size=8, num_layers=2,
        attn_dropout=0.0, resid_dropout=0.0, embed_dropout=0.0, activation=torch.nn.ReLU(),
    )  # fmt: skip
    path = torch.randn(3, 8, 4), torch.randn(3, 8, 2), torch.randn(3, 8, 1) * 100, torch.arange(8).expand(3, 8), torch.ones(3, 8)
    return Made(model, path, lambda out: square(out[0]))


@case("rtdl-revisiting-models")
def feature_tokens() -> Made:
    from rtdl_revisiting_models import FTTransformer

    model = FTTransformer(
        n_cont_features=5, cat_cardinalities=[4, 7], d_out=1, n_blocks=2, d_block=32, attention_n_heads=4, attention_dropout=0.0, ffn_d_hidden=None,
        ffn_d_hidden_multiplier=4 / 3, ffn_dropout=0.0, residual_dropout=0.0,
    )  # fmt: skip
    return Made(model, (torch.randn(32, 5), torch.stack([torch.randint(0, 4, (32,)), torch.randint(0, 7, (32,))], 1)), square)


@case("tabm")
def tabm() -> Made:
    from tabm import TabM

    return Made(TabM.make(n_num_features=6, d_out=1, k=8), (torch.randn(32, 6),), square)


@case("tab-transformer-pytorch")
def tab_transformer() -> Made:
    from tab_transformer_pytorch import TabTransformer

    model = TabTransformer(
        categories=(10, 5, 6), num_continuous=5, dim=32, dim_out=1, depth=2, heads=4, mlp_hidden_mults=(4, 2), mlp_act=torch.nn.ReLU(),
        continuous_mean_std=torch.rand(5, 2) + 0.5,
    )  # fmt: skip
    kinds = torch.stack([torch.randint(0, size, (32,)) for size in (10, 5, 6)], 1)
    return Made(model, (kinds, torch.randn(32, 5)), square)


@case("tab-transformer-pytorch")
def tab_feature_tokens() -> Made:
    from tab_transformer_pytorch import FTTransformer

    model = FTTransformer(categories=(10, 5, 6), num_continuous=5, dim=32, dim_out=1, depth=2, heads=4)
    kinds = torch.stack([torch.randint(0, size, (32,)) for size in (10, 5, 6)], 1)
    return Made(model, (kinds, torch.randn(32, 5)), square)


@case("tianshou")
def soft_actor_critic() -> Made:
    import gymnasium
    import numpy
    from tianshou.algorithm.modelfree.sac import SACPolicy
    from tianshou.data import Batch
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    body = Net(state_shape=(6,), hidden_sizes=(32, 32))
    actor = ContinuousActorProbabilistic(preprocess_net=body, action_shape=(2,), unbounded=True, conditioned_sigma=True)
    critic = ContinuousCritic(preprocess_net=Net(state_shape=(6,), action_shape=(2,), hidden_sizes=(32, 32), concat=True))
    policy = SACPolicy(actor=actor, deterministic_eval=False, action_space=gymnasium.spaces.Box(-1, 1, (2,), dtype=numpy.float32))

    def acted(chooser: torch.nn.Module, judge: torch.nn.Module, seen: torch.Tensor) -> torch.Tensor:
        found = chooser(Batch(obs=seen, info={}))
        return (0.2 * found.log_prob.flatten() - judge(seen, found.act).flatten()).mean()

    return Made(Calls(acted, policy, critic), (torch.randn(32, 6),), lambda loss: loss)
