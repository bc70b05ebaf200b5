"""What the checks share: paths, running programs with and without the library, comparing."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SOURCES = ROOT / "tests" / "programs"
LIBRARY = Path(os.environ.get("GPUPOOL_LIB", ROOT / "target/release/libgpupool.so")).resolve()
NO_GRACE = Path(os.environ.get("GPUPOOL_NOGRACE_LIB", ROOT / "target/no-grace/release/libgpupool.so")).resolve()
PROGRAMS = Path(os.environ.get("PROGRAMS", ROOT / "target/programs")).resolve()
WORK = Path(tempfile.mkdtemp(prefix="gpupool-check-"))
atexit.register(shutil.rmtree, WORK, ignore_errors=True)


class Fail(Exception):
    """The check failed; the text says why. Of a process that was killed because its time was over
    (`hangs`), `out` is what it had printed."""

    hangs = False
    out = ""


class Skip(Exception):
    """The check cannot run here; the text says why."""


@dataclass
class Result:
    """How one process ended."""

    code: int
    out: str
    err: str
    stats: dict = field(default_factory=dict)

    def tail(self) -> str:
        """The last lines of what it said, for a reason."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return " / ".join(lines[-3:])[-400:]


def cuda_home() -> Path | None:
    """The toolkit, if there is one."""
    for place in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if place and Path(place).is_dir():
            return Path(place)
    nvcc = shutil.which("nvcc")
    return Path(nvcc).resolve().parents[1] if nvcc else None


def tool(name: str) -> str | None:
    """A program of the toolkit, or of the PATH."""
    home = cuda_home()
    for place in ([home / "bin" / name] if home else []) + [shutil.which(name)]:
        if place and Path(place).exists():
            return str(place)
    return None


def runtime_folder() -> str | None:
    """The folder that holds libcudart.so.13."""
    places = []
    if home := cuda_home():
        places += [home / "lib64", home / "targets/x86_64-linux/lib"]
    for entry in sys.path:
        places += [Path(entry) / "nvidia/cu13/lib", Path(entry) / "nvidia/cuda_runtime/lib"]
    for place in places:
        if (place / "libcudart.so.13").exists():
            return str(place)
    return None


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a checked process: none of the caller's options of the library."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_") and k != "LD_PRELOAD"}
    env.update(extra or {})
    return env


def run(command, *, library: Path | None = None, env: dict[str, str] | None = None, timeout: float = 120,
        stats: bool = True, cuda_path: bool = False, cwd=None, feed: str | None = None) -> Result:
    """Runs a command, with `library` preloaded if given and `feed` on its standard input, in a process
    group of its own that is killed when the time is over. With the library, its statistics are read
    back."""
    full = environment(env)
    stats_folder = None
    if cuda_path and (folder := runtime_folder()):
        full["LD_LIBRARY_PATH"] = folder + ":" + full.get("LD_LIBRARY_PATH", "")
    if library:
        full["LD_PRELOAD"] = str(library)
        if stats:
            # One file a process: helpers that the program starts have numbers of their own.
            stats_folder = Path(tempfile.mkdtemp(prefix="stats-", dir=WORK))
            full["GPUPOOL_STATS"] = str(stats_folder / "%p.json")
    process = subprocess.Popen([str(c) for c in command], env=full, cwd=cwd,
                               stdin=subprocess.DEVNULL if feed is None else subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                               start_new_session=True)
    try:
        out, err = process.communicate(feed, timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        side = "with" if library else "without"
        why = Fail(f"{side} the library it hangs: not ended after {timeout:.0f} s; last: "
                   f"{(err or out).strip()[-200:]}")
        why.hangs, why.out = True, out
        raise why from None
    result = Result(process.returncode, out, err)
    if stats_folder:
        own = stats_folder / f"{process.pid}.json"
        result.stats = json.loads(own.read_text()) if own.exists() else {}
    return result


def expect_ok(result: Result, what: str) -> Result:
    """Fails unless the process ended with 0."""
    if result.code != 0:
        raise Fail(f"{what} exits {result.code}: {result.tail()}")
    return result


def _no_worse(native: str, pooled: str) -> bool:
    """A `maybe-better` line: word by word equal, or 0 with the library."""
    a, b = native.split(), pooled.split()
    return len(a) == len(b) and all(x == y or (y == "0" and x.isdigit()) for x, y in zip(a, b))


def compare(native: str, pooled: str, left_out: list[str] = ()) -> None:
    """Fails unless the two outputs are equal, as tests/programs/table.txt defines equal."""
    def keep(text):
        return [l for l in text.splitlines() if not any(t in l for t in left_out)]

    a, b = keep(native), keep(pooled)
    for x, y in zip(a, b):
        if x != y and not (x.startswith("maybe-better") and _no_worse(x, y)):
            raise Fail(f"without the library `{x}`, with it `{y}`")
    if len(a) != len(b):
        raise Fail(f"{len(a)} lines without the library, {len(b)} with it")


def hits(result: Result) -> tuple[int, int]:
    """Pooled allocations, and those that needed the driver."""
    if "hits" not in result.stats:
        raise Fail("the library wrote no statistics")
    return int(result.stats["hits"]), int(result.stats["misses"])


def warm_rate(short: Result, long: Result) -> float:
    """The hit rate once warm: of what the longer run asked for beyond the shorter one."""
    (h1, m1), (h2, m2) = hits(short), hits(long)
    asked = (h2 + m2) - (h1 + m1)
    if asked <= 0:
        raise Fail(f"the longer run allocated no more than the shorter ({h1 + m1}, {h2 + m2})")
    return (h2 - h1) / asked


def need_module(*names: str) -> None:
    """Skips the check if Python has no such module."""
    import importlib.util
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise Skip(f"no {name} here")


def tensorrt() -> list[str]:
    """The command that runs Python with TensorRT: what TENSORRT names, else this Python."""
    if command := os.environ.get("TENSORRT"):
        return [command]
    need_module("tensorrt", "numpy")
    return ["python3"]


def need_tool(name: str) -> str:
    """Skips the check if the toolkit has no such program."""
    found = tool(name)
    if not found:
        raise Skip(f"no {name} here")
    return found


def nvcc(source: Path, out: Path, *flags: str) -> Path:
    """Compiles with nvcc, for the GPU at hand."""
    compiler = need_tool("nvcc")
    done = run([compiler, "-O2", "-arch=native", *flags, "-o", out, source], timeout=110)
    if done.code != 0:
        raise Fail(f"nvcc cannot compile {source.name}: {done.tail()}")
    return out
