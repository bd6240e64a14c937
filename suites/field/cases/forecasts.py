"""Networks that forecast series."""

from __future__ import annotations

import torch
from fieldcase import Calls, Made, case, square


@case("nbeats-pytorch")
def nbeats() -> Made:
    from nbeats_pytorch.model import NBeatsNet

    kinds = NBeatsNet.TREND_BLOCK, NBeatsNet.SEASONALITY_BLOCK, NBeatsNet.GENERIC_BLOCK
    model = NBeatsNet(stack_types=kinds, nb_blocks_per_stack=2, forecast_length=5, backcast_length=20, thetas_dim=(4, 8, 8), hidden_layer_units=32)
    return Made(model, (torch.randn(8, 20).cumsum(1) * 0.2,), lambda out: square(out[1]))


@case("tft-torch")
def fusion_transformer() -> Made:
    from omegaconf import OmegaConf
    from tft_torch.loss import get_quantiles_loss_and_q_risk
    from tft_torch.tft import TemporalFusionTransformer

    shape = {"num_historical_numeric": 3, "num_static_numeric": 2, "num_future_numeric": 2, "num_static_categorical": 1}
    given = {
        "model": {"dropout": 0.1, "state_size": 16, "lstm_layers": 1, "attention_heads": 2, "output_quantiles": [0.1, 0.5, 0.9]},
        "task_type": "regression",
        "target_window_start": None,
        "data_props": shape | {"static_categorical_cardinalities": [5]},
    }
    batch = {"historical_ts_numeric": torch.randn(4, 12, 3), "future_ts_numeric": torch.randn(4, 6, 2)}
    batch |= {"static_feats_numeric": torch.randn(4, 2), "static_feats_categorical": torch.randint(0, 5, (4, 1))}
    target = torch.randn(4, 6)

    def forecast(out: dict[str, torch.Tensor]) -> torch.Tensor:
        quantiles = out["predicted_quantiles"]
        return get_quantiles_loss_and_q_risk(quantiles, target, torch.tensor([0.1, 0.5, 0.9]))[0]

    return Made(TemporalFusionTransformer(OmegaConf.create(given)), (batch,), forecast)


@case("ETSformer-pytorch")
def smoothing_transformer() -> Made:
    from etsformer_pytorch import ETSFormer

    model = ETSFormer(time_features=4, model_dim=32, embed_kernel_size=3, K=4, dropout=0.0, layers=2, heads=2)
    return Made(Calls(lambda net, x: net(x, num_steps_forecast=8), model), (torch.randn(2, 32, 4).cumsum(1) * 0.2,), square)


@case("pysdtw")
def soft_warping() -> Made:
    import pysdtw

    distance = pysdtw.SoftDTW(gamma=1.0, dist_func=pysdtw.distance.pairwise_l2_squared, use_cuda=False)
    series = torch.randn(4, 20, 3).cumsum(1) * 0.3
    return Made(torch.nn.Linear(8, 3), (torch.randn(4, 16, 8),), lambda out: distance(out.float(), series).mean())
