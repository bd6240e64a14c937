"""Networks with memories, codes, symmetries and bounds."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("dnc")
def external_memory() -> Made:
    from dnc import DNC

    net = DNC(input_size=8, hidden_size=16, rnn_type="lstm", num_layers=2, nr_cells=8, cell_size=6, read_heads=2, batch_first=True, gpu_id=-1)

    def read(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net(x, (None, None, None), reset_experience=True, pass_through_memory=True)[0]

    return Made(Calls(read, net), (torch.randn(4, 6, 8),), square)


@case("brc-pytorch")
def bistable_cells() -> Made:
    from brc_pytorch.layers import BistableRecurrentCell, NeuromodulatedBistableRecurrentCell

    def read(first: torch.nn.Module, second: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        one = two = torch.zeros(4, 16).to(x)
        for step in x.unbind(1):
            one = first(step, one)
            two = second(one, two)
        return two

    return Made(Calls(read, BistableRecurrentCell(8, 16), NeuromodulatedBistableRecurrentCell(16, 16)), (torch.randn(4, 20, 8),), square)


@case("opengdn")
def gated_delta() -> Made:
    from opengdn import GatedDeltaMixer

    return Made(GatedDeltaMixer(32, 2, backend="chunkwise", chunk_size=16), (torch.randn(2, 40, 32),), square)


@case("rotary-spatial-embeddings")
def spatial_rotary() -> Made:
    from RoSE import RoSEMultiHeadCrossAttention

    net = RoSEMultiHeadCrossAttention(feature_dims=32, num_heads=4, spatial_dims=2, learnable=True)

    def attended(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        out = net(x, x, q_spacing=(0.5, 0.5), q_grid_shape=(16, 16), k_spacing=(0.5, 0.5), k_grid_shape=(16, 16))
        return torch.stack(out) if isinstance(out, tuple) else out

    return Made(Calls(attended, net), (torch.randn(2, 256, 32),), square)


@case("bitlinear-pytorch")
def ternary_layers() -> Made:
    from bitlinear_pytorch.bitlinear import BitLinear

    net = torch.nn.Sequential(torch.nn.LayerNorm(16), BitLinear(16, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), BitLinear(64, 8))
    truth = torch.randint(0, 8, (32,))
    return Made(net, (torch.randn(32, 16),), lambda out: torch.nn.functional.cross_entropy(out, truth))


@case("molecule-attention-transformer")
def molecule_attention() -> Made:
    from molecule_attention_transformer import MAT

    net = MAT(dim_in=16, model_dim=32, dim_out=1, depth=3, Lg=0.5, Ld=0.5, La=1, dist_kernel_fn="exp")
    joined, distances = (torch.rand(2, 20, 20) > 0.7).float(), torch.randn(2, 20, 20).abs() * 3
    mask = torch.ones(2, 20).bool()

    def scored(net: torch.nn.Module, atoms: torch.Tensor, joined: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        return net(atoms, mask=mask, adjacency_mat=joined, distance_mat=distances)

    return Made(Calls(scored, net), (torch.randn(2, 20, 16), joined, distances), square)


@case("lie-transformer-pytorch")
def lie_transformer() -> Made:
    from lie_transformer_pytorch import LieTransformer

    net = LieTransformer(dim=32, depth=2, heads=4, dim_head=8, liftsamples=2)
    mask = torch.ones(1, 16).bool()
    return Made(Calls(lambda net, x, places: net(x, places, mask=mask), net), (torch.randn(1, 16, 32), torch.randn(1, 16, 3)), square)


@case("hourglass-transformer-pytorch")
def hourglass() -> Made:
    from hourglass_transformer_pytorch import HourglassTransformerLM

    net = HourglassTransformerLM(num_tokens=64, dim=32, max_seq_len=64, heads=4, dim_head=8, shorten_factor=2, depth=(2, 2, 2))
    tokens = torch.randint(0, 64, (2, 33))
    return Made(net, (tokens[:, :-1],), lambda out: torch.nn.functional.cross_entropy(out.transpose(1, 2), tokens[:, 1:]))


@case("ezgatr")
def geometric_algebra() -> Made:
    from ezgatr.interfaces import point
    from ezgatr.nets.mv_only_gatr import MVOnlyGATrConfig, MVOnlyGATrModel

    config = MVOnlyGATrConfig(num_layers=2, size_channels_hidden=8, size_channels_intermediate=8, attn_num_heads=2)
    net = MVOnlyGATrModel(config)
    return Made(Calls(lambda net, x: net(point.encode(x).unsqueeze(-2)), net), (torch.randn(2, 24, 3),), square)


@case("nsvq")
def noise_substitution() -> Made:
    from nsvq import NSVQ

    def coded(net: torch.nn.Module, codes: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return codes(net(x))[0]

    codes = NSVQ(num_embeddings=16, embedding_dim=8, verbose=False)
    return Made(Calls(coded, torch.nn.Linear(12, 8), codes), (torch.randn(64, 12),), square)


@case("proxynorm")
def proxy_normalized() -> Made:
    from proxynorm import ProxyNorm2d

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(1, 8), ProxyNorm2d(8), torch.nn.Conv2d(8, 4, 3))
    return Made(net, (torch.randn(4, 3, 12, 12),), square)


@case("diffq")
def learnt_bits() -> Made:
    from diffq import DiffQuantizer

    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer, truth = torch.optim.Adam(net.parameters()), torch.randn(32, 8)
    quantizer = DiffQuantizer(net, group_size=8, min_size=0.001)
    quantizer.setup_optimizer(optimizer)
    return Made(net, (torch.randn(32, 64),), lambda out: torch.nn.functional.mse_loss(out, truth.to(out)) + 1e-3 * quantizer.model_size())


@case("diffabs")
def abstract_bounds() -> Made:
    from diffabs import DeeppolyDom

    domain = DeeppolyDom()
    net = torch.nn.Sequential(domain.Linear(6, 24), domain.ReLU(), domain.Linear(24, 24), domain.Tanh(), domain.Linear(24, 3))

    def bounded(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        least, most = net(domain.Ele.by_intvl(x - 0.05, x + 0.05)).gamma()[:2]
        return torch.stack([least, most])

    return Made(Calls(bounded, net), (torch.randn(8, 6),), square)


@case("egnlib")
def geodesic_network() -> Made:
    from egn import EGN

    net, truth = EGN(num_classes=3, in_dim=8, depth=2, min_dim=4), torch.randint(0, 3, (12,))
    return Made(net, (torch.randn(12, 8, 64),), lambda out: torch.nn.functional.cross_entropy(out, truth))


@case("pyharmx")
def polyharmonic_spline() -> Made:
    from pyharmx import PolyHarmInterpolator

    def bent(net: torch.nn.Module, places: torch.Tensor) -> torch.Tensor:
        values = net(places).float()
        return PolyHarmInterpolator(places.float(), values, order=2, smoothing=0.001)(places.float() * 0.9)

    return Made(Calls(bent, torch.nn.Linear(2, 3)), (torch.rand(1, 30, 2),), square)


@case("diff-nurbs")
def rational_surface() -> Made:
    from diff_nurbs import nurbs

    _, _, across, along = nurbs.setup_nurbs_surface(3, 3, 6, 6, torch.device("cpu"))
    places = torch.rand(2, 40) * 0.98

    def drawn(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        shaped, (one, other) = net(x).view(6, 6, 4), places.to(x)
        return nurbs.evaluate_nurbs_surface_flex(one, other, 3, 3, shaped[..., :3], shaped[..., 3:].exp(), across.to(x), along.to(x))

    return Made(Calls(drawn, torch.nn.Linear(6, 144)), (torch.randn(6),), square)


@case("pymiediff")
def scattering_sphere() -> Made:
    import pymiediff

    waves = 2 * torch.pi / torch.linspace(500, 900, 12)

    def scattered(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        core, shell = 40 + 20 * net(x).float().sigmoid().mean(0)
        sphere = pymiediff.Particle(r_layers=torch.stack([core, core + shell]), mat_layers=[3.5, 1.5])
        found = sphere.get_cross_sections(waves)
        return torch.stack([found["q_ext"], found["q_sca"]])

    return Made(Calls(scattered, torch.nn.Linear(4, 2)), (torch.randn(4, 4),), square)
