"""The comparison's command line. See scripts/bench."""

import argparse
import datetime
import fnmatch
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

import build  # noqa: E402
import common  # noqa: E402
import gpu_check  # noqa: E402
import page  # noqa: E402
import runs  # noqa: E402
import smoke  # noqa: E402
from common import Skip  # noqa: E402
from sections import Maker, Scale  # noqa: E402

MATPLOTLIB = ROOT / "bench" / "requirements.txt"


def commit() -> str:
    """The commit of this tree; `?` outside a repository."""
    try:
        done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                              timeout=20, check=False)
    except OSError:
        return "?"
    return done.stdout.strip() if done.returncode == 0 else "?"


def head(kind: str, gpu: str, driver: str, at: str | None) -> dict:
    """What is true of the whole run."""
    return {"format": 1, "kind": kind, "gpu": gpu, "driver": driver,
            "date": datetime.date.today().isoformat(), "commit": at or commit(), "cpu": runs.cpu(),
            "cores": runs.cores(), "versions": build.versions()}


def measure(options) -> int:
    """Measures; writes the numbers and the page."""
    if not common.LIBRARY.exists():
        print(f"bench: {common.LIBRARY} is missing: cargo build --release", file=sys.stderr)
        return 2
    scale = Scale("quick" if options.quick else "full")
    minutes = options.minutes or (1.5 if options.quick else 6)
    # The page has to be written within the time, too.
    deadline = time.monotonic() + minutes * 60 - 2
    programs = build.Programs(None)
    sections = Maker(scale, programs).all()
    if options.only:
        patterns = options.only.split(",")
        sections = [s for s in sections if any(fnmatch.fnmatch(s.name, p) for p in patterns)]
    if options.list:
        for section in sections:
            print(f"{section.name}: {', '.join(way.name for way in section.ways)}")
        return 0
    if not sections:
        print(f"bench: no section matches {options.only}", file=sys.stderr)
        return 2
    gpu = driver = "none"
    if any(section.name not in ("startup", "traces") for section in sections):
        try:
            gpu, driver = gpu_check.device()
        except Skip as why:
            print(f"bench: no usable GPU ({why}); scripts/bench --smoke tries it on the simulated driver",
                  file=sys.stderr)
            return 2
    programs.start([name for section in sections for way in section.ways for name in way.programs])
    programs.wait()
    results = runs.Results(Path(options.json), head(scale.kind, gpu, driver, options.commit))
    results.save()
    runs.Runner(results, deadline, None).all(sections, options.turns)
    text = page.page(results.data)
    Path(options.out).write_text(text, encoding="utf-8")
    print(text)
    for section, ways in results.data["sections"].items():
        for name, way in ways.items():
            for failure in way["failures"]:
                print(f"bench: {section}, {name}: {failure}", file=sys.stderr)
    return 0


def write_page(options) -> int:
    """The page of numbers that are there already, with the plots in `plots` beside it."""
    data = json.loads(Path(options.page or options.plot).read_text(encoding="utf-8"))
    out = Path(options.out)
    out.write_text(page.page(data, out.parent / "plots"), encoding="utf-8")
    return 0


def plot(options) -> int:
    """The plots of numbers that are there already, by matplotlib in an environment of its own, and the
    page again."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    environment = target / "plot-environment"
    wanted = MATPLOTLIB.read_text(encoding="utf-8")
    installed = environment / "installed.txt"
    python = environment / "bin" / "python"
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", MATPLOTLIB],
                       check=True)
        installed.write_text(wanted, encoding="utf-8")
    done = subprocess.run([python, ROOT / "bench" / "plot.py", options.plot, Path(options.out).parent / "plots"],
                          check=False)
    return done.returncode or write_page(options)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measures the library beside its alternatives, in one run.",
        epilog="environment: GPUPOOL_LIB, GPUPOOL_COMMAND; RMM_WHEELS: a folder with the wheels of librmm and "
               "rapids_logger; TRACES: a folder of traces; CXX")
    parser.add_argument("--quick", action="store_true", help="the main peers, one turn: at most 90 s instead of 6 min")
    parser.add_argument("--only", metavar="PATTERN", help="only sections whose name matches, e.g. 'pairs,torch*'")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="at most so many turns (3)")
    parser.add_argument("--minutes", type=float, metavar="N", help="what is not measured by then is left out")
    parser.add_argument("--commit", metavar="ID", help="named on the page; without it git is asked")
    parser.add_argument("--json", metavar="FILE", default=str(ROOT / "docs" / "bench.json"),
                        help="all raw numbers (docs/bench.json)")
    parser.add_argument("--out", metavar="FILE", default=str(ROOT / "docs" / "bench.md"),
                        help="the page (docs/bench.md)")
    parser.add_argument("--list", action="store_true", help="name the sections and their ways, and end")
    parser.add_argument("--page", metavar="JSON", help="only the page, from raw numbers")
    parser.add_argument("--plot", metavar="JSON",
                        help="only the plots, in plots/ beside the page, and the page, from raw numbers; needs "
                             "network once")
    parser.add_argument("--smoke", action="store_true",
                        help="whether everything works, on the simulated driver; writes no page")
    options = parser.parse_args()
    if options.page:
        return write_page(options)
    if options.plot:
        return plot(options)
    if options.smoke:
        return smoke.main()
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
