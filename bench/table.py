"""Tables in Markdown: a row for each way, and what a number looks like."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

LABELS = {
    "native": "cudaMalloc, cudaFree",
    "driver": "cuMemAlloc, cuMemFree",
    "async": "cudaMallocAsync, tuned",
    "cub": "CUB's caching allocator",
    "rmm-pool": "RMM's pool",
    "rmm-arena": "RMM's arena",
    "torch": "PyTorch's allocator (from C++)",
    "cupy": "CuPy's pool (from Python)",
    "gpupool": "**gpupool**",
    "gpupool-static": "**gpupool**, static runtime",
    "gpupool-driver": "**gpupool**, cuMemAlloc",
    "off": "the library, `GPUPOOL_MODE=off`",
    "observe": "the library, `GPUPOOL_MODE=observe`",
    "preallocated": "allocated beforehand",
    "uncached": "every array a cudaMalloc",
    "without": "without the library",
    "with": "with the library",
    "pinned": "cudaMallocHost, cudaFreeHost",
    "own": "the framework's own pool",
    "own-expandable": "its own, expandable segments",
    "own-async": "its own, cudaMallocAsync",
    "untuned": "cudaMallocAsync, untuned",
    "native-tuned": "tuned by the program",
    "gpupool-pass": "**gpupool**, `GPUPOOL_ASYNC=pass`",
    "gpupool-tune": "**gpupool**, `GPUPOOL_ASYNC=tune`",
    "gpupool-pool": "**gpupool**, `GPUPOOL_ASYNC=pool`",
}


def median(way: dict | None, key: str) -> float | None:
    """The median over the turns; None without a number."""
    values = way["values"].get(key) if way else None
    return statistics.median(values) if values else None


def bytes_name(size: float) -> str:
    """A size in binary units."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):.2f} GiB"
    for unit, step in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= step:
            return f"{size / step:.0f} {unit}"
    return f"{size:.0f} B"


def time_name(ns: float) -> str:
    if ns < 1e3:
        return f"{ns:.0f} ns"
    return f"{ns / 1e3:.1f} µs" if ns < 1e6 else f"{ns / 1e6:.2f} ms"


def rate_name(rate: float) -> str:
    if rate >= 1e6:
        return f"{rate / 1e6:.2f} M"
    return f"{rate / 1e3:.0f} k" if rate >= 1e5 else f"{rate:,.0f}"


def ms_name(ms: float) -> str:
    if ms < 1:
        return f"{ms * 1e3:.0f} µs"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.2f} ms"


def ratio_name(ratio: float) -> str:
    return f"{ratio:.2f}"


@dataclass
class Column:
    """A column of a table: its head, and the text of a way's cell (None: no number)."""

    head: str
    cell: Callable[[dict, dict], str | None]


def column(head: str, key: str, name) -> Column:
    """The median of a number."""
    return Column(head, lambda way, _: None if (v := median(way, key)) is None else name(v))


def beside(head: str, key: str, name, base: str) -> Column:
    """The median of a number, and its ratio to another way's."""
    def cell(way, ways):
        mine, other = median(way, key), median(ways.get(base), key)
        return None if mine is None else f"{name(mine)} ({ratio_name(mine / other)})" if other else name(mine)

    return Column(head, cell)


def first_of(head: str, keys: list[str], name) -> Column:
    """The first of these numbers that there is."""
    def cell(way, _):
        return next((name(v) for key in keys if (v := median(way, key)) is not None), None)

    return Column(head, cell)


def against(head: str, key: str, base: str) -> Column:
    """The ratio to another way's number."""
    def cell(way, ways):
        mine, other = median(way, key), median(ways.get(base), key)
        return ratio_name(mine / other) if mine and other else None

    return Column(head, cell)


def problems(ways: dict) -> list[str]:
    """What could not be measured, and what the library said."""
    lines, absent = [], {}
    for name, way in ways.items():
        label = LABELS.get(name, name)
        if way["not_here"]:
            absent.setdefault(way["not_here"], []).append(label)
        elif way["missed_turns"] and not way["values"] and not way["failures"]:
            absent.setdefault("the time was over", []).append(label)
        if way["failures"]:
            more = f" (and {len(way['failures']) - 1} more)" if len(way["failures"]) > 1 else ""
            lines.append(f"- {label}: **failed**, {way['failures'][0].replace('|', '/')}{more}.")
        for note in way["notes"]:
            lines.append(f"- {label}: said `{note.replace('`', '')}`")
    lines = [f"- Not measured ({why}): {', '.join(labels)}." for why, labels in absent.items()] + lines
    return ["", *lines] if lines else []


def table(ways: dict, columns: list[Column], corner: str = "") -> list[str]:
    """A row for each way that has a number or failed."""
    rows = []
    for name, way in ways.items():
        cells = [c.cell(way, ways) for c in columns]
        if all(cell is None for cell in cells):
            if way["not_here"] or not way["failures"]:
                continue
            cells = ["failed"] * len(cells)
        rows.append(f"| {LABELS.get(name, name)} | " + " | ".join("–" if c is None else c for c in cells) + " |")
    if not rows:
        return ["No number."]
    heads = " | ".join(c.head for c in columns)
    return [f"| {corner} | {heads} |", "|---" * (len(columns) + 1) + "|", *rows]


def keys_of(ways: dict, kind: str) -> list[list[str]]:
    """The words of all jobs of a kind, in the order of their numbers."""
    found = {tuple(key.partition("/")[0].split(":")[1:]) for way in ways.values() for key in way["values"]
             if key.startswith(kind + ":")}
    return [list(words) for words in
            sorted(found, key=lambda words: [(int(w), "") if w.isdigit() else (0, w) for w in words])]
