"""The networks, and their code with a bug planted into it, each version imported as a module of its own."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from planted_bug import Harmless, Planted

HERE = Path(__file__).parent
PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
SECOND = ("crf", "dit", "nerf", "robot", "ssd", "tts", "two_tower", "vqvae")
"""The second batch. It was frozen before precheck was tried on any bug of it, by someone who had not read precheck's rules."""
THIRD = ("conformer", "dreamer", "drafts", "molecule", "swin", "xlstm")
"""The third batch, frozen in one commit before precheck was tried on any of its bugs."""
FOURTH = ("delta_rule", "folding", "optical_flow", "preference", "separation", "sparse_codes")
"""The fourth batch, frozen in the same way."""
FIFTH = ("gaussian_process", "returns", "rwkv", "splats", "survival", "weather")
"""The fifth batch, frozen in the same way."""
SIXTH = ("bodies", "lidar", "matching", "query_boxes", "speech_units")
"""The sixth batch, frozen in the same way."""
SEVENTH = ("codec", "hierarchy", "spline_flow", "tabular", "transducer", "video")
"""The seventh batch, frozen in the same way. It has changes that look like bugs and do no harm, too."""
EIGHTH = ("energy", "equilibrium", "hybrid", "routes", "slots", "turing")
"""The eighth batch, frozen in the same way. Most of its changes do no harm."""
NINTH = ("em_routing", "faces", "hyena", "lightgcn", "perceiver", "pinn", "spiking", "tracking")
"""The ninth batch, frozen in the same way, in styles that the others do not have."""
TENTH = ("hedging", "kalman", "latent_attention", "mri", "planning", "style_gan")
"""The tenth batch, frozen in the same way. It has as many changes that do no harm as bugs."""
ELEVENTH = ("beamformer", "compression", "genome", "light_curves")
"""The eleventh batch, frozen in the same way, by an author who knew the rules."""
TWELFTH = ("jets", "quakes", "ranking", "trips", "vocoder")
"""The twelfth batch, frozen in the same way, by an author who had not looked at the rules."""
THIRTEENTH = ("generative_flow", "late_interaction", "stereo", "text_diffusion", "uplift", "ward")
"""The thirteenth batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
FOURTEENTH = ("crystals", "epidemics", "handwriting", "knowledge_graph", "poses", "tomography")
"""The fourteenth batch, frozen in the same way, by an author who had read the suite's pages and begun to read the analysis."""
FIFTEENTH = ("bundle", "consistency", "copying", "power_grid", "spectra", "stations")
"""The fifteenth batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
SIXTEENTH = ("electrons", "heartbeats", "keypoints", "negatives", "pretraining", "shapes")
"""The sixteenth batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
SEVENTEENTH = ("camera", "exams", "orbits", "reader", "segments")
"""The seventeenth batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
EIGHTEENTH = ("claims", "mesh", "music", "order_book")
"""The eighteenth batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
NINETEENTH = ("battery", "crops", "events", "rainbow", "registration", "speaker")
"""The nineteenth batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
TWENTIETH = ("bytes", "fluid", "radar", "single_cell")
"""The twentieth batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
TWENTY_FIRST = ("film", "geolocation", "group_policy")
"""The twenty-first batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
TWENTY_SECOND = ("auctions", "chess", "rivers")
"""The twenty-second batch, frozen in the same way, by an author who had read the suite's pages and parts of the analysis."""
TWENTY_THIRD = ("flights", "phylogeny", "receiver")
"""The twenty-third batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
TWENTY_FOURTH = ("shading", "skymap", "solar")
"""The twenty-fourth batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
TWENTY_FIFTH = ("assistant", "distilled", "listener", "rectified")
"""The twenty-fifth batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
TWENTY_SIXTH = ("bandit", "cryo", "federated", "topics")
"""The twenty-sixth batch, frozen before precheck was tried on any of it, by an author who had read the analysis."""
TWENTY_SEVENTH = ("dosing", "localisation", "quantised", "soft_actor")
"""The twenty-seventh batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
TWENTY_EIGHTH = ("hologram", "ponder", "sharded", "titans")
"""The twenty-eighth batch, frozen in the same way, by an author who had read the suite's pages and not the analysis."""
NINTH_HEALTHY = ("byol", "cells", "ensemble", "fourier_operator", "hidden_markov", "kan", "neural_ode", "tcn")
"""Networks of the ninth batch into which nothing is planted: what healthy code is accused of rests on more of them."""


@dataclasses.dataclass(frozen=True)
class Network:
    """A folder with a network.py and a bugs.py."""

    name: str
    text: str
    bugs: tuple[Planted, ...]
    harmless: tuple[Harmless, ...] = ()

    def code(self, bug: Planted | Harmless | None = None) -> ModuleType:
        """The network's module, as it is or with a change. Each call imports it anew, from a file of its own, so that tracebacks show its lines."""
        name = f"{self.name}_{bug.name if bug else 'healthy'}".replace("-", "_")
        path = _folder() / f"{name}.py"
        path.write_text(bug.applied(self.text) if bug else self.text, encoding="utf8")
        return _imported(f"planted_{name}", path)

    def culprits(self, bug: Planted) -> set[int]:
        """The numbers of the lines that are at fault."""
        lines = bug.applied(self.text).splitlines()
        return {number for number, line in enumerate(lines, 1) if line.endswith("# culprit")}

    def bug(self, name: str) -> Planted:
        return next(bug for bug in self.bugs if bug.name == name)

    def change(self, name: str) -> Planted | Harmless:
        """The bug or the harmless change of that name."""
        return next(each for each in (*self.bugs, *self.harmless) if each.name == name)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Those under which the network is healthy."""
        return tuple(getattr(self.code(), "PRECISIONS", PRECISIONS))


@functools.cache
def network(name: str) -> Network:
    folder = HERE / name
    bugs = _imported(f"planted_bugs_of_{name}", folder / "bugs.py")
    return Network(name, (folder / "network.py").read_text(encoding="utf8"), tuple(bugs.BUGS), tuple(getattr(bugs, "HARMLESS", ())))


def names() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/bugs.py"))


def cases() -> Iterator[tuple[Network, Planted | Harmless | None, str]]:
    """Every network under every precision that it is healthy under, and every change of it under every precision that it is meant for."""
    for each in map(network, names()):
        yield from ((each, None, precision) for precision in each.precisions)
        yield from ((each, change, precision) for change in (*each.harmless, *each.bugs) for precision in change.precisions)


def _imported(name: str, path: Path) -> ModuleType:
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))  # bugs.py imports planted_bug
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def _folder() -> Path:
    """Where planted code lies while this process runs."""
    path = Path(tempfile.mkdtemp(prefix="planted-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
