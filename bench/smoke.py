"""Whether the comparison works, on the simulated driver: everything that needs no GPU runs with tiny
counts, and every number and table has to be there. Nothing is timed."""

import json
import sys
import time

import build
import common
import page
import runs
import table
from sections import Maker, Scale

# Sections that a machine without a GPU has nothing for, and ways of the others.
GPU_SECTIONS = {"streams", "infer", "train", "cupy"}
GPU_WAYS = {"cub", "rmm-pool", "rmm-arena", "torch", "cupy"}
SIM = common.ROOT / "target" / "sim"


class Wrong(Exception):
    """The comparison does not work; the text says why."""


def expect(condition: bool, why: str) -> None:
    if not condition:
        raise Wrong(why)


def check_failures(maker: Maker, env: dict) -> None:
    """A line that fails, hangs or is not there is told, and loses neither others nor its own numbers."""
    def way(name, command):
        return runs.Way(name, command)

    program = maker.programs.get("shared")
    half = [program, "malloc", "0.01", "pairs:4096:1", "no-such-job:1"]
    hanging = runs.Section("pairs", [way("hangs", lambda: ["sleep", "1000"])], timeout=1)
    ways = [way("half", lambda: half), way("absent", lambda: [common.WORK / "absent"]),
            maker.jobs("cub", "cub", "cub", ["pairs:4096:1"]), maker.jobs("native", "shared", "malloc", ["pairs:4096:1"])]
    results = runs.Results(None, {})
    section = runs.Section("pairs", ways)
    runs.Runner(results, time.monotonic() + 240, env).all([hanging, section], 1)
    found = results.data["sections"]["pairs"]
    expect(found["half"]["values"]["pairs:4096:1"][0] > 0, "a job that fails loses the one before it")
    expect("exit 1" in found["half"]["failures"][0], f"exit status not told: {found['half']}")
    expect("hangs" in found["hangs"]["failures"][0], f"a program that hangs is not told: {found['hangs']}")
    expect("FileNotFoundError" in found["absent"]["failures"][0], f"absent program not told: {found['absent']}")
    expect(bool(found["cub"]["not_here"]), "what is not here is not told")
    expect(found["native"]["values"]["pairs:4096:1"][0] > 0, "a failure before it loses a way")
    late = runs.Results(None, {})
    runs.Runner(late, time.monotonic(), env).all([section], 1)
    native = late.data["sections"]["pairs"]["native"]
    expect(native["missed_turns"] == 1 and not native["values"], f"measured after the time was over: {native}")
    columns = [table.column("x", "pairs:4096:1", table.rate_name)]
    text = "\n".join(table.table(found, columns) + table.problems(found))
    for wanted in ("| hangs | failed |", "Not measured (not on the simulated driver): CUB", "**failed**"):
        expect(wanted in text, f"the page does not say `{wanted}`: {text}")


def check_numbers(sections: list[runs.Section], data: dict, maker: Maker) -> int:
    """Every way has a number for each of its jobs. Returns how many."""
    count = 0
    for section in sections:
        for way in section.ways:
            record = data["sections"][section.name][way.name]
            where = f"{section.name}, {way.name}"
            if section.name in GPU_SECTIONS or way.name in GPU_WAYS:
                expect(bool(record["not_here"]), f"{where}: should not be here: {record}")
                continue
            if record["not_here"] and section.name == "traces":
                continue
            expect(not record["failures"] and not record["not_here"], f"{where}: {record}")
            wanted = [str(word) for word in way.command()[3:]] if way.programs else []
            for job in wanted:
                values = [v for key, all_of in record["values"].items() for v in all_of
                          if key.partition("/")[0] == job and not key.endswith("/memory")]
                expect(bool(values), f"{where}: nothing for {job}: {record}")
                expect(all(v > 0 for v in values), f"{where}: {job}: {values}")
            expect(bool(record["values"]), f"{where}: no number: {record}")
            if way.library and section.stats and section.name == "pairs" and way.name.startswith("gpupool"):
                expect(record["values"].get("pool-reserved", [0])[0] > 0, f"{where}: the pool was not used: {record}")
            count += sum(len(values) for values in record["values"].values())
    return count


def run() -> str:
    """Runs all of it; returns what was seen."""
    env = {"LD_LIBRARY_PATH": str(SIM)}
    programs = build.Programs(SIM)
    maker = Maker(Scale("smoke"), programs)
    sections = maker.all()
    for section in sections:
        section.turns = min(section.turns, 2)
    programs.start([name for section in sections for way in section.ways for name in way.programs])
    programs.wait()
    head = {"format": 1, "kind": "smoke", "gpu": "simulated device", "driver": "simulated", "date": "today",
            "commit": "?", "cpu": runs.cpu(), "cores": runs.cores(), "versions": build.versions()}
    path = common.WORK / "smoke.json"
    results = runs.Results(path, head)
    runs.Runner(results, time.monotonic() + 540, env).all(sections, 2)
    data = json.loads(path.read_text(encoding="utf-8"))
    expect(data == results.data, "the file does not hold what was measured")
    count = check_numbers(sections, data, maker)
    text = page.page(data)
    expect(set(page.SECTIONS) == {section.name for section in sections}, "a section without a table, or the reverse")
    for name, (title, _) in page.SECTIONS.items():
        _, _, body = text.partition(f"## {title}\n")
        expect("|---|" in body.partition("\n## ")[0] or name in GPU_SECTIONS, f"no table under {title}: {text}")
    check_failures(maker, env)
    return f"bench smoke: {count} numbers in {len(sections)} sections"


def main() -> int:
    for needed in (common.LIBRARY, SIM / "libcuda.so.1"):
        if not needed.exists():
            print(f"bench: {needed} is missing: cargo build --release, scripts/build-tests", file=sys.stderr)
            return 2
    try:
        print(run())
    except Wrong as why:
        print(f"bench: {why}", file=sys.stderr)
        return 1
    return 0
