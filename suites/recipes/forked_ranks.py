"""Ranks of a program, in the environment that torchrun gives them, forked from one process that has imported torch: each import takes seconds.

`python forked_ranks.py RANKS PROGRAM FOLDER NAMES NAMES …` calls the program's `main(folder, names)` in that many ranks, once for each NAMES, which
are names with commas between. NAMES that end in `&` run beside those after them, as commands of a shell do.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
STUCK = 240
"""Seconds after which a launch is taken to hang: what is launched here takes 20 s on an idle machine. Nothing is judged by it."""
Program = Callable[[Path, list[str]], None]


def launch(program: Path, folder: Path, *groups: list[str], ranks: int = 2) -> None:
    """Runs `main(folder, names)` of a program in each rank, for each group of names in ranks of its own. Each rank has to end with status 0."""
    command = [sys.executable, __file__, str(ranks), str(program), str(folder), *(",".join(names) for names in groups)]
    paths = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    agent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf8", start_new_session=True)
    try:
        said, _ = agent.communicate(timeout=STUCK)
    except subprocess.TimeoutExpired:
        os.killpg(agent.pid, 9)
        said, _ = agent.communicate()
    assert agent.returncode == 0, said


def forked(main: Program, folder: Path, names: list[str], rank: int, ranks: int, port: int) -> int:
    """The process id of a rank that runs.

    It ends without Python's end: a DistributedDataParallel that is still referenced keeps its process group's threads, and an orderly end aborts on
    them at times (https://github.com/pytorch/pytorch/issues/190489).
    """
    child = os.fork()
    if child:
        return child
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), **store})
    status = 1
    try:
        main(folder, names)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    count, path, given, *wanted = sys.argv[1:]
    sys.path.insert(0, str(Path(path).parent))
    run: Program = importlib.import_module(Path(path).stem).main
    from torch.distributed import TCPStore

    failed, beside = False, list[tuple[TCPStore, list[int]]]()  # `beside`: what runs beside the others, with the store of its ranks
    for group in wanted:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun's agent holds one
        names = group.removesuffix("&").split(",")
        children = [forked(run, Path(given), names, rank, int(count), store.port) for rank in range(int(count))]
        if group.endswith("&"):
            beside.append((store, children))
        else:
            failed |= any(os.waitpid(child, 0)[1] for child in children)
    sys.exit(failed | any(os.waitpid(child, 0)[1] for _, children in beside for child in children))
