"""The plots of docs/bench.md and the README, from the raw numbers, each for a light and a dark page.

Usage: plot.py JSON FOLDER     run by scripts/bench --plot, which provides matplotlib"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullLocator  # noqa: E402

from table import bytes_name, median, ms_name  # noqa: E402

# Text, grid, and the colour of what is compared with; the others are readable on both.
THEMES = {
    "light": {"text": "#1f2328", "grid": "#d1d9e0", "strong": "#cf222e"},
    "dark": {"text": "#e6edf3", "grid": "#3d444d", "strong": "#ff7b72"},
}
# Of each peer: label, colour, marker. `strong` is the theme's.
PEERS = {
    "native": ("cudaMalloc", "#8c959f", "s"),
    "gpupool": ("gpupool", "strong", "o"),
    "gpupool-static": ("gpupool, static runtime", "strong", "^"),
    "async": ("cudaMallocAsync, tuned", "#2f81f7", "D"),
    "cub": ("CUB", "#bf8700", "v"),
    "rmm-pool": ("RMM pool", "#1a9c8a", "P"),
    "rmm-arena": ("RMM arena", "#2da44e", "X"),
    "torch": ("PyTorch's (C++)", "#a371f7", "*"),
    "cupy": ("CuPy's (from Python)", "#db61a2", "h"),
}
FRAMEWORK_WAYS = {
    "uncached": ("every array a cudaMalloc", "#8c959f"),
    "gpupool": ("the same, with gpupool", "strong"),
    "own-expandable": ("own pool, expandable segments", "#2da44e"),
    "own-async": ("own pool on cudaMallocAsync", "#2f81f7"),
}
# Section, number and label of each group of bars.
FRAMEWORK_LINES = [
    ("infer", "batch-1", "PyTorch\ninference\nbatch 1"),
    ("infer", "batch-8", "batch 8"),
    ("infer", "batch-32", "batch 32"),
    ("infer", "batch-8-streams-4", "batch 8,\n4 streams"),
    ("train", "train", "PyTorch\ntraining"),
    ("cupy", "elementwise", "CuPy\nelement-wise"),
]


def colour(name: str, theme: dict) -> str:
    return theme["strong"] if name == "strong" else name


def finish(axes, theme: dict) -> None:
    """The looks that all axes share."""
    axes.grid(True, axis="y", color=theme["grid"], linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(theme["grid"])


def thread_axes(axes, ways: dict, kind: str, size: int, theme: dict) -> None:
    """Pairs a second over the number of threads, a line for each peer."""
    counts = set()
    for name, (label, hue, marker) in PEERS.items():
        way = ways.get(name)
        points = sorted((int(key.split(":")[2]), median(way, key)) for key in (way or {"values": {}})["values"]
                        if key.startswith(f"{kind}:{size}:") and "/" not in key)
        if not points:
            continue
        counts.update(x for x, _ in points)
        mine = name.startswith("gpupool")
        axes.plot([x for x, _ in points], [y for _, y in points], label=label, color=colour(hue, theme), marker=marker,
                  markersize=6 if mine else 5, linewidth=2.4 if mine else 1.3,
                  linestyle="--" if name == "gpupool-static" else "-")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(counts), [str(x) for x in sorted(counts)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y / 1e6:g} M" if y >= 1e6 else f"{y / 1e3:g} k"))
    axes.set_xlabel("threads")
    finish(axes, theme)


def below(figure, axes, columns: int) -> None:
    """One legend under the axes."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def pairs(data: dict, theme: dict):
    """An allocation and its free, small and large."""
    ways = data["sections"].get("pairs", {})
    sizes = sorted({int(key.split(":")[1]) for way in ways.values() for key in way["values"]
                    if key.startswith("pairs:")})
    if not sizes:
        return None
    figure, all_axes = plt.subplots(1, len(sizes), figsize=(9, 4.6), sharey=True, squeeze=False, layout="constrained")
    for axes, size in zip(all_axes[0], sizes):
        thread_axes(axes, ways, "pairs", size, theme)
        axes.set_title(f"{bytes_name(size)} allocated and freed", fontsize=11)
    all_axes[0][0].set_ylabel("pairs a second, all threads (log scale)")
    below(figure, all_axes[0][0], 3)
    return figure


def busy(data: dict, theme: dict):
    """The same beside running kernels."""
    ways = data["sections"].get("busy", {})
    sizes = sorted({int(key.split(":")[1]) for way in ways.values() for key in way["values"]
                    if key.startswith("busy:")})
    if not sizes:
        return None
    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    thread_axes(axes, ways, "busy", sizes[0], theme)
    axes.set_title(f"{bytes_name(sizes[0])} allocated and freed beside kernels of 100 µs", fontsize=11)
    axes.set_ylabel("pairs a second, all threads (log scale)")
    below(figure, axes, 3)
    return figure


def grouped_bars(axes, groups: list[str], series: list[tuple[str, str, list, list]]) -> None:
    """Groups of bars: label, colour, heights and texts of each series; None leaves a bar out."""
    width = 0.8 / max(1, len(series))
    for i, (label, hue, heights, texts) in enumerate(series):
        places = [g + (i - (len(series) - 1) / 2) * width for g in range(len(groups))]
        there = [j for j, h in enumerate(heights) if h is not None]
        bars = axes.bar([places[j] for j in there], [heights[j] for j in there], width * 0.9, label=label, color=hue)
        axes.bar_label(bars, [texts[j] for j in there], rotation=90, padding=3, fontsize=8)
    axes.set_xticks(range(len(groups)), groups, fontsize=9)
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.25)


def frameworks(data: dict, theme: dict):
    """Times of PyTorch and CuPy, beside the framework's own pool."""
    lines = [(section, key, label, own) for section, key, label in FRAMEWORK_LINES
             if (own := median(data["sections"].get(section, {}).get("own"), key))]
    if not lines:
        return None
    series = []
    for name, (label, hue) in FRAMEWORK_WAYS.items():
        times = [median(data["sections"][section].get(name), key) for section, key, _, _ in lines]
        if any(times):
            series.append((label, colour(hue, theme), [t / own if t else None for t, (*_, own) in zip(times, lines)],
                           [ms_name(t) if t else "" for t in times]))
    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    grouped_bars(axes, [f"{label}\n({ms_name(own)})" for _, _, label, own in lines], series)
    axes.axhline(1, color=theme["text"], linewidth=1, linestyle=":")
    axes.set_ylabel("time, the framework's own pool = 1 (its time below)")
    finish(axes, theme)
    below(figure, axes, 2)
    return figure


def traces(data: dict, theme: dict):
    """What the pool held of what was live."""
    ways = data["sections"].get("traces", {})
    names = list(dict.fromkeys(key.partition(" ")[2] for key in ways))
    live = {n: median(ways.get(f"at-once {n}"), "live") for n in names}
    names = [n for n in names if live[n]]
    if not names:
        return None
    series = []
    for delay, label, hue in (("at-once", "GPU done with a block at its free", "strong"),
                              ("later", "GPU done 0.2 ms later", "#2f81f7")):
        held = [median(ways.get(f"{delay} {n}"), "reserved") for n in names]
        series.append((label, colour(hue, theme), [h / live[n] if h else None for h, n in zip(held, names)],
                       [bytes_name(h) if h else "" for h in held]))
    figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
    grouped_bars(axes, [f"{n}\n({bytes_name(live[n])} live)" for n in names], series)
    axes.axhline(1, color=theme["text"], linewidth=1, linestyle=":")
    axes.set_ylabel("most held / most live at once")
    finish(axes, theme)
    below(figure, axes, 2)
    return figure


PLOTS = {"pairs": pairs, "busy": busy, "frameworks": frameworks, "traces": traces}


def draw(data: dict, folder: Path) -> list[str]:
    """Writes every plot for which there are numbers; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    done = []
    for name, make in PLOTS.items():
        for theme_name, theme in THEMES.items():
            looks = {"text.color": theme["text"], "axes.labelcolor": theme["text"], "xtick.color": theme["text"],
                     "ytick.color": theme["text"], "axes.titlecolor": theme["text"], "axes.facecolor": "none",
                     "axes.edgecolor": theme["grid"], "font.size": 10, "svg.hashsalt": name}
            with plt.rc_context(looks):
                figure = make(data, theme)
                if figure is None:
                    break
                # No date and no random names: the same numbers give the same file.
                figure.savefig(folder / f"{name}-{theme_name}.svg", transparent=True, metadata={"Date": None})
                plt.close(figure)
        else:
            done.append(name)
    return done


def main() -> int:
    data = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    done = draw(data, Path(sys.argv[2]))
    print("\n".join(done) if done else "no numbers to draw")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
