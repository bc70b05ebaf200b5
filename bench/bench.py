"""The benchmark's tables. See scripts/bench."""

import argparse
import datetime
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

import common  # noqa: E402
import gpu_check  # noqa: E402
import measure  # noqa: E402
from common import Fail, Skip  # noqa: E402

TURNS = 3


def size_name(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def time_name(ns: float) -> str:
    return f"{ns / 1000:.1f} µs" if ns >= 1000 else f"{ns:.0f} ns"


def best_of(turns, *ways):
    """Each way measured in turns; of each cell the best."""
    best = [{} for _ in ways]
    for _ in range(turns):
        for cells, way in zip(best, ways):
            for key, value in way().items():
                cells[key] = min(value, cells.get(key, value))
    return best


def pair_table(program, env=None, pairs="2000"):
    """The cost of a pair by size and threads: natively, with the library, stream-ordered."""
    def run(library, *arguments):
        return lambda: measure.pairs([program, pairs, *arguments], library, env)

    native, pool, ordered = best_of(TURNS, run(None), run(common.LIBRARY), run(None, "async"))
    lines = ["| size | threads | cudaMalloc + cudaFree | the same with the library | gain | cudaMallocAsync + FreeAsync |",
             "|---|---|---|---|---|---|"]
    for (way, size, threads), ns in native.items():
        mine = pool[way, size, threads]
        lines.append(f"| {size_name(size)} | {threads} | {time_name(ns)} | {time_name(mine)} | {ns / mine:.0f}× | "
                     f"{time_name(ordered['async', size, threads])} |")
    return lines


def stream_table(program):
    """Kernels a second on many streams; all ways in each turn, the best of each."""
    best = {}
    for _ in range(TURNS):
        for label, ways, library in (("native", ["malloc"], None), ("pool", ["malloc"], common.LIBRARY),
                                     ("rest", ["async", "preallocated"], None)):
            rates, _ = measure.multi_stream(program, ways, library, 1000 if label == "native" else 4000)
            for (way, threads), value in rates.items():
                key = (label if way == "malloc" else way, threads)
                best[key] = max(value, best.get(key, 0))
    lines = ["| threads | cudaMalloc | with the library | of preallocated | cudaMallocAsync | preallocated |",
             "|---|---|---|---|---|---|"]
    for threads in (1, 4, 8):
        row = {k: best[k, threads] for k in ("native", "pool", "async", "preallocated")}
        lines.append(f"| {threads} | {row['native']:,.0f} | {row['pool']:,.0f} | "
                     f"{row['pool'] / row['preallocated']:.2f} | {row['async']:,.0f} | {row['preallocated']:,.0f} |")
    return lines


def torch_table():
    lines = ["| PyTorch inference | caching off | caching off, with the library | PyTorch's own allocator | "
             "library / own |", "|---|---|---|---|---|"]
    for name, by in measure.torch_infer(TURNS, ["raw", "pool", "own"]).items():
        if len({t.checksum for t in by.values()}) != 1:
            raise Fail(f"{name}: the checksums differ")
        lines.append(f"| {name} | {by['raw'].value:.2f} ms | {by['pool'].value:.2f} ms | {by['own'].value:.2f} ms | "
                     f"{by['pool'].value / by['own'].value:.2f} |")
    return lines


def section(title, body):
    """A part of the page; what cannot be measured here is said, not left out."""
    print(f"measuring: {title}", file=sys.stderr, flush=True)
    try:
        lines = body()
    except Skip as why:
        lines = [f"Not measured: {why}."]
    return ["", f"## {title}", "", *lines]


def torch_section():
    common.need_module("torch")
    return torch_table()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="The benchmark's tables.")
    parser.add_argument("--simulated", action="store_true", help="the simulated driver, also where a GPU is")
    parser.add_argument("--out", metavar="FILE", default=str(ROOT / "docs" / "bench.md"))
    options = parser.parse_args()
    if not common.LIBRARY.exists():
        print(f"bench: {common.LIBRARY} is missing: cargo build --release", file=sys.stderr)
        return 2
    gpu = None
    if not options.simulated:
        try:
            gpu, driver = gpu_check.device()
        except Skip as why:
            print(f"bench: no usable GPU ({why}); on the simulated driver", file=sys.stderr)
    today = datetime.date.today().isoformat()
    try:
        if gpu:
            page = ["# Benchmark", "",
                    f"One {gpu}, driver {driver}, {today}. Everything was measured in one run, the columns of a "
                    f"table in turns; each cell is the best of {TURNS}. Ratios hold; absolute times drift from run "
                    "to run."]
            page += section("An allocation and its free, for each thread",
                            lambda: pair_table(common.PROGRAMS / "pairs" if (common.PROGRAMS / "pairs").exists()
                                               else common.nvcc(common.SOURCES / "pairs.c", common.WORK / "pairs",
                                                                "-cudart", "shared", "-lpthread", "-ldl")))
            page += section("Kernels a second: 4 MiB allocated, used by a kernel of 50 µs, freed",
                            lambda: stream_table(common.nvcc(common.HERE / "multi_stream.cu",
                                                             common.WORK / "multi_stream")))
            page += section("PyTorch", torch_section)
        else:
            sim = ROOT / "target" / "sim"
            program = common.PROGRAMS / "pairs"
            for needed in (sim / "libcuda.so.1", program):
                if not needed.exists():
                    print(f"bench: {needed} is missing: scripts/build-tests", file=sys.stderr)
                    return 2
            page = ["# Benchmark", "",
                    f"**Simulated driver**, no GPU, {platform.processor() or platform.machine()}, {today}. The "
                    "native column is the simulated driver's model of what a real one costs (30 µs and 26 µs); only "
                    "the column of the library is a measurement, of its own CPU time."]
            page += section("An allocation and its free, for each thread",
                            lambda: pair_table(program, {"LD_LIBRARY_PATH": str(sim)}, "1000"))
    except Fail as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    text = "\n".join(page) + "\n"
    Path(options.out).write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
