"""The page docs/bench.md, from the raw numbers."""

from pathlib import Path

from table import (
    Column,
    against,
    beside,
    bytes_name,
    column,
    first_of,
    keys_of,
    median,
    ms_name,
    problems,
    rate_name,
    ratio_name,
    table,
    time_name,
)

HOW = Path(__file__).resolve().parent / "how.md"


def pairs(ways):
    lines = ["An allocation and its free, over and over in so many threads, each with a stream of its own: pairs a "
             "second of all threads together. The GPU is idle, so every allocator can hand the same block out again."]
    jobs = keys_of(ways, "pairs")
    for size in sorted({int(size) for size, _ in jobs}):
        columns = [column(f"{threads} thread{'s' * (threads != '1')}", f"pairs:{size}:{threads}", rate_name)
                   for s, threads in jobs if int(s) == size]
        lines += ["", f"### {bytes_name(size)}", "", *table(ways, columns)]
    return lines


def busy(ways):
    jobs = keys_of(ways, "busy")
    columns = [column(f"{threads} thread{'s' * (threads != '1')}", f"busy:{size}:{threads}", rate_name)
               for size, threads in jobs]
    columns += [column(f"kernels/s beside {threads}", f"busy:{size}:{threads}/kernels", rate_name)
                for size, threads in (jobs[0], jobs[-1])] if jobs else []
    columns.append(column("pool held", "pool-reserved", bytes_name))
    return ["The same with 1 MiB, while one more stream always runs kernels of 100 µs (10,000 a second if nothing "
            "holds it up). gpupool may hold 1 GiB (`GPUPOOL_MAX=1G`). It is the hardest case for it: a block comes "
            "again only when the GPU has done everything submitted before its free, while a stream-ordered allocator "
            "may give it to the same stream at once.", "", *table(ways, columns)]


def handoff(ways):
    columns = [column(f"{bytes_name(int(size))}, {shape}", f"handoff:{size}:{shape}:{threads}", rate_name)
               for size, shape, threads in keys_of(ways, "handoff")]
    return ["Blocks that one thread allocates and another frees, blocks a second: 16 threads, as eight pairs (one "
            "allocates, one frees) and as a ring (each allocates for the next). No kernel uses the blocks, so that no "
            "stream has to wait for another.", "", *table(ways, columns)]


def costs(ways):
    lines = ["The mean time of a call: with the GPU idle, and with a kernel of 5 ms in flight on an unrelated stream. "
             "A free that takes about those 5 ms waits for it. Last, the rounds a second of a loop that allocates, "
             "launches a kernel of 100 µs and frees; no loop can make more than 10,000."]
    for (size,) in sorted(set(map(tuple, keys_of(ways, "cost"))), key=lambda words: int(words[0])):
        job = f"cost:{size}"

        def waits(way, _, job=job):
            busy_ns, idle_ns = median(way, f"{job}/free-busy"), median(way, f"{job}/free")
            return None if busy_ns is None else "yes" if busy_ns - idle_ns > 2.5e6 else "no"

        columns = [column("alloc", f"{job}/alloc", time_name), column("free", f"{job}/free", time_name),
                   column("alloc, GPU busy", f"{job}/alloc-busy", time_name),
                   column("free, GPU busy", f"{job}/free-busy", time_name), Column("the free waits", waits),
                   column("rounds/s", f"loop:{size}", rate_name),
                   against("of allocated beforehand", f"loop:{size}", "preallocated")]
        lines += ["", f"### {int(size) // 10**6} MB", "", *table(ways, columns)]
    return lines


def mistakes(ways):
    columns = []
    for kind, head in (("heads", "heads"), ("resize", "replaced"), ("beside", "default stream")):
        for words in keys_of(ways, kind):
            key = ":".join([kind, *words])
            columns += [column(f"{head}: rounds/s", key, rate_name),
                        against("of beforehand", key, "preallocated")]
            if kind == "beside":
                columns.append(column("kernels/s beside it", f"{key}/kernels", rate_name))
    return ["Loops written as if an allocation cost nothing, with kernels of 20 µs. *Heads*: a layer whose 16 attention "
            "heads each have a temporary of 2 MiB, on a stream of its own. *Replaced*: a buffer of 8 MiB is freed and "
            "allocated again before each use. *Default stream*: 2 MiB are allocated, used on the default stream and "
            "freed, while four unrelated streams always run kernels of 100 µs (40,000 a second if nothing holds them "
            "up).", "", *table(ways, columns)]


def streams(ways):
    threads = ("1", "4", "8")
    columns = [column(f"{t} thread{'s' * (t != '1')}", t, rate_name) for t in threads]
    columns += [against("of beforehand, 8", "8", "preallocated"), column("pool held", "pool-reserved", bytes_name)]
    return ["Threads with a stream each: 4 MiB allocated, used by a kernel of 50 µs, freed. Kernels a second.", "",
            *table(ways, columns)]


def checksums(ways):
    """A line if results differ between ways or turns."""
    seen: dict[str, set] = {}
    for way in ways.values():
        for key, texts in way["texts"].items():
            seen.setdefault(key, set()).update(texts)
    wrong = [key for key, texts in seen.items() if len(texts) > 1]
    if wrong:
        return ["", f"**The results differ**: {', '.join(wrong)}."]
    return ["", "The results are the same in every row."] if seen else []


MEMORY = [first_of("held by the allocator", ["reserved", "pool-reserved"], bytes_name),
          column("device memory in use", "device-memory", bytes_name)]
MEMORY_NOTE = ("Device memory is the most that was in use on the whole device, seen every 5 ms, over what was "
               "before: it has the context, the modules and the libraries' workspaces too.")


def infer(ways):
    lines = ("batch-1", "batch-8", "batch-32", "batch-8-streams-4")
    columns = [beside(line, line, ms_name, "own") for line in lines] + MEMORY
    return ["PyTorch inference of a transformer: the time of an iteration, and its ratio to PyTorch's own pool. In "
            f"the first two rows its cache is off (`PYTORCH_NO_CUDA_MEMORY_CACHING=1`). {MEMORY_NOTE}", "",
            *table(ways, columns), *checksums(ways)]


def train(ways):
    columns = [beside("training, a step", "train", ms_name, "own"),
               beside("linear layers", "cache-kept", ms_name, "own"),
               beside("the same, `empty_cache` each time", "cache-emptied", ms_name, "own"),
               column("most allocated", "allocated", bytes_name), *MEMORY]
    return ["PyTorch training of a transformer over batches of varied shapes, and inference of linear layers that "
            f"empties PyTorch's cache in each iteration. {MEMORY_NOTE}", "", *table(ways, columns)]


def cupy(ways):
    columns = [beside("an iteration", "elementwise", ms_name, "own"), *MEMORY]
    return [f"CuPy, element-wise operations over arrays of changing sizes. {MEMORY_NOTE}", "",
            *table(ways, columns), *checksums(ways)]


def startup(ways):
    mine, other = median(ways.get("with"), "startup"), median(ways.get("without"), "startup")
    lines = ["What a process without CUDA notices: `true`, started over and over by a shell.", "",
             *table(ways, [column("a process", "startup", time_name)])]
    if mine and other:
        lines += ["", f"The difference: {(mine - other) / 1e3:.0f} µs."]
    return lines


def live(ways):
    columns = []
    for (blocks,) in keys_of(ways, "live"):
        count = f"{int(blocks):,}"
        columns += [column(f"alloc, up to {count}", f"live:{blocks}/alloc", time_name),
                    column(f"pair at {count}", f"live:{blocks}/pair", time_name),
                    column(f"memory a block, up to {count}", f"live:{blocks}/memory", bytes_name)]
    return ["Live blocks of 512 bytes in one thread: the mean time of the allocations that lead there from the column "
            "before, a further pair, and how much the process grew for each block. Without the library the growth is "
            "the driver's own bookkeeping.", "", *table(ways, columns)]


def host(ways):
    columns = [column(f"{bytes_name(int(size))}, {threads} thread{'s' * (threads != '1')}", f"host:{size}:{threads}",
                      rate_name) for size, threads in keys_of(ways, "host")]
    for size, _ in keys_of(ways, "staging"):
        title = f"requests/s, {bytes_name(int(size))}"
        if not any(c.head == title for c in columns):
            columns.append(first_of(title, [f"staging:{size}:request", f"staging:{size}:kept"], rate_name))
    return ["Pinned memory: pairs of cudaMallocHost and cudaFreeHost a second, of all threads together; and requests "
            "that each stage their input through pinned memory, allocated for the request or beforehand.", "",
            *table(ways, columns)]


def ordered(ways):
    columns = [column(f"{threads} thread{'s' * (threads != '1')}", f"pairs:{size}:{threads}", rate_name)
               for size, threads in keys_of(ways, "pairs")]
    columns += [column("synchronised each time", f"sync:{size}", rate_name) for (size,) in keys_of(ways, "sync")]
    return ["cudaMallocAsync and cudaFreeAsync of 1 MiB, pairs a second: the default pool as it comes (release "
            "threshold 0), tuned by the program, and left to the library. The last column has a "
            "cudaStreamSynchronize after each pair, where an untuned pool gives everything back.", "",
            *table(ways, columns)]


def traces(ways):
    ratios, lines = {"at-once": [], "later": []}, []
    for name in dict.fromkeys(key.partition(" ")[2] for key in ways):
        cells = []
        for delay, found in ratios.items():
            reserved, need = (median(ways.get(f"{delay} {name}"), key) for key in ("reserved", "live"))
            if reserved and need:
                found.append(reserved / need)
                cells = cells or [bytes_name(need)]
                cells += [bytes_name(reserved), ratio_name(reserved / need)]
            else:
                cells += ["–", "–"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if not any(ratios.values()):
        return ["No number."]
    means = []
    for found in ratios.values():
        product = 1.0
        for ratio in found:
            product *= ratio
        means += ["", f"{product ** (1 / len(found)):.2f}"] if found else ["", ""]
    return ["Recorded programs, run through the pool's logic by `gpupool replay`: the most that was live, and the most "
            "that the pool held, where the GPU is done with a block at its free, and 0.2 ms later.", "",
            "| trace | live | held | ratio | held, 0.2 ms | ratio |", "|---|---|---|---|---|---|", *lines,
            f"| geometric mean | | {' | '.join(means[0:2])} | {' | '.join(means[2:4])} |"]


SECTIONS = {
    "pairs": ("An allocation and its free", pairs),
    "busy": ("The same beside running kernels", busy),
    "handoff": ("Blocks passed between threads", handoff),
    "costs": ("What a call costs, and whether it waits", costs),
    "mistakes": ("Loops that allocate", mistakes),
    "streams": ("Kernels on many streams", streams),
    "infer": ("PyTorch inference", infer),
    "train": ("PyTorch training, varied shapes", train),
    "cupy": ("CuPy", cupy),
    "startup": ("A process without CUDA", startup),
    "live": ("Many live blocks", live),
    "host": ("Pinned host memory", host),
    "async": ("Stream-ordered calls", ordered),
    "traces": ("Memory held over recorded programs", traces),
}
PLOTS = {"pairs": ("pairs", "busy"), "infer": ("frameworks",), "traces": ("traces",)}
PLOT_TEXTS = {
    "pairs": "Pairs a second over threads",
    "busy": "Pairs a second over threads beside running kernels",
    "frameworks": "PyTorch and CuPy: time beside the framework's own pool",
    "traces": "Memory held and memory live",
}


def picture(name: str) -> list[str]:
    """A plot, for a light and a dark page."""
    return ["", "<picture>", f'<source media="(prefers-color-scheme: dark)" srcset="plots/{name}-dark.svg">',
            f'<img alt="{PLOT_TEXTS[name]}" src="plots/{name}-light.svg">', "</picture>"]


def page(data: dict, plots: Path | None = None) -> str:
    """The whole page, with the plots that are in the folder `plots` beside it."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    kind = {"full": "", "quick": " A quick run: one turn, the main peers.",
            "smoke": " **The simulated driver**: whether it works, no measurement."}[data["kind"]]
    lines = [
        "# Benchmark", "",
        f"One {data['gpu']}, driver {data['driver']}, {data['cores']} cores of {data['cpu']}, {data['date']}, commit "
        f"{data['commit']}; {versions}.{kind}", "",
        "Everything was measured in one run of `scripts/bench`. Each way of a table ran in a process of its own, the "
        "ways in turns, forwards and backwards; a cell is the median of its turns (at most three). Ratios within a "
        "table hold; absolute times drift from run to run and between machines. *Tuned* means that the default "
        "memory pool's release threshold is raised, as a program does that wants cudaMallocAsync to be fast. CUB has "
        "bins by powers of two and room for 4 GiB (with its defaults it keeps 6 MiB), RMM's pool and arena may hold "
        "8 GiB. A dash: not measured. All raw numbers are in bench.json; `scripts/bench --plot` draws them.",
    ]
    for name, (title, body) in SECTIONS.items():
        if ways := data["sections"].get(name):
            lines += ["", f"## {title}", "", *body(ways)]
            for plot in PLOTS.get(name, ()):
                if plots and (plots / f"{plot}-light.svg").exists():
                    lines += picture(plot)
            lines += problems(ways)
    return "\n".join(lines) + "\n\n" + HOW.read_text(encoding="utf-8")
