"""Programs `python` and `pytest` whose processes are forked from one that has imported torch and pytest: each import takes one to two seconds.

The programs are small: they hand their arguments, folder, environment and open files to the server, wait for the process that it forks, and end with
its status. What such a process cannot be (another option of Python's, another number of threads, more open files, a server that has gone) they run as
usual.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import marshal
import os
import random
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = """#!{python} -IS
import marshal, os, socket, sys
words = [*{words}, *sys.argv[1:]]
fixed = {{name: value for name, value in os.environ.items() if name.startswith({fixed}) and name != "PYTHONPATH"}}
given = words[words[:1] == ["-u"]:][:1] or ["-"]
files = os.listdir("/proc/self/fd")  # 0, 1, 2 and the folder itself: others that it was given are not handed on
with socket.socket(socket.AF_UNIX) as link:
    try:
        assert len(files) <= 4 and fixed == {known} and (not given[0].startswith("-") or given[0][:2] in ("-c", "-m"))
        link.connect({address})
    except (AssertionError, OSError):
        os.execv({python!r}, [{python!r}, *words])
    request = marshal.dumps((words, os.getcwd(), dict(os.environ)))
    socket.send_fds(link, [len(request).to_bytes(8, "big")], [0, 1, 2])
    link.sendall(request)
    status = link.recv(1)
os._exit(status[0] if status else 1)
"""
FIXED = ("PYTHON", "OMP_", "MKL_", "TORCH", "PYTORCH", "TRITON", "CUDA", "ATEN", "LD_")
"""How the names of variables begin that Python and torch read when they start."""


@contextlib.contextmanager
def programs(folder: Path) -> Iterator[Path | None]:
    """A folder with `python`, `python3` and `pytest`, while the server runs. None where processes are not forked: outside Linux."""
    if sys.platform != "linux":
        yield None
        return
    address = folder / "server"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, __file__, str(address), str(folder / "bin" / "python")]
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    known = {name: value for name, value in os.environ.items() if name.startswith(FIXED) and name != "PYTHONPATH"}
    (folder / "bin").mkdir()
    for name, words in {"python": [], "python3": [], "pytest": ["-m", "pytest"]}.items():
        program = folder / "bin" / name
        program.write_text(PROGRAM.format(python=sys.executable, words=words, fixed=FIXED, known=known, address=repr(str(address))), encoding="utf8")
        program.chmod(0o755)
    try:
        assert server.stdout.read(1) == b"!", "the server of forked processes has not started"
        yield folder / "bin"
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait()
        shutil.rmtree(folder)


def serve(address: str) -> tuple[list[str], str, dict[str, str]]:
    """Forks a process for each program that asks. Returns in that process, with its words, folder and environment; ends when stdin is closed."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that none of those who wait has to be waited for
    os.write(1, b"!")
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        link, _ = listening.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            return _asked(link)
        link.close()
    os._exit(0)


def _asked(link: socket.socket) -> tuple[list[str], str, dict[str, str]]:
    """Reads a request, and forks once more: one process is what was asked for, and the other one waits for it and tells its status."""
    length, files, _, _ = socket.recv_fds(link, 8, 3)
    with link.makefile("rb") as stream:
        request: tuple[list[str], str, dict[str, str]] = marshal.loads(stream.read(int.from_bytes(length, "big")))
    child = os.fork()
    if child:
        for each in (0, 1, 2, *files):
            os.close(each)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        link.sendall(bytes([status if status >= 0 else 128 - status]))
        os._exit(0)
    link.close()
    for place, each in enumerate(files):
        os.dup2(each, place)
        os.close(each)
    return request


def become(words: list[str], folder: str, environment: dict[str, str], paths: list[str]) -> None:
    """Does in this process what Python does with these words."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    unbuffered = words[0] == "-u"
    first, *rest = words[unbuffered:]
    kind = first[:2] if first.startswith("-") else ""
    words = [first[2:], *rest] if first[2:] and kind else rest if kind else [first, *rest]  # "-mpytest" and "-m", "pytest"
    _files(unbuffered)
    own = {"-c": "", "-m": folder}.get(kind, str(Path(words[0]).resolve().parent))
    sys.path[:] = [own, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *paths]
    importlib.invalidate_caches()
    random.seed()
    sys.argv = ["-c" if kind == "-c" else words[0], *words[1:]]
    if kind == "-m":
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if not kind:
        main.__file__ = str(Path(words[0]).resolve())
    exec(compile(words[0] if kind else Path(words[0]).read_bytes(), "<string>" if kind else words[0], "exec"), main.__dict__)


def finish(ended: int | str | None) -> None:
    """Ends this process as `sys.exit(ended)` does, but for taking all modules apart, which takes longer than most tests here."""
    if isinstance(ended, str):
        sys.stderr.write(f"{ended}\n")
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for each in (sys.stdout, sys.stderr):
        each.flush()
    os._exit(ended & 255 if isinstance(ended, int) else int(ended is not None))


def _files(unbuffered: bool) -> None:
    """Files for the three descriptors, as Python opens them when it starts."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf8", closefd=False)  # type: ignore[misc]
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw: Any = open(number, "wb", -1, closefd=False)
        made = io.TextIOWrapper(raw, "utf8", errors, line_buffering=number == 2 or raw.isatty(), write_through=unbuffered)
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


if __name__ == "__main__":
    for module in ("torch", "pytest", "execnet"):  # and no plugin: pytest wants to rewrite each when it is imported
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    from _pytest.config import default_plugins

    for module in default_plugins:
        importlib.import_module(f"_pytest.{module}")
    base = sys.path[1:]
    place, sys.executable = sys.argv[1:]
    gc.freeze()  # what a process has from the server stays: no collection has to go over it
    asked = serve(place)
    ended: int | str | None = 0
    try:
        become(*asked, base)
    except SystemExit as error:
        ended = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        ended = 1
    finish(ended)
