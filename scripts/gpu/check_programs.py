"""The C programs of tests/programs on the real driver: with and without the library, the
cross-stream stress and its negative control, and what must not notice the library at all."""

import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import common
from common import Fail, Skip, compare, expect_ok, hits, run

# A program with hundreds of contexts takes 50 s beside five others.
RUN_LIMIT = 150


@dataclass
class Check:
    """A named check. `group` says beside what it may run (gpu_check.GROUPS)."""

    name: str
    body: Callable[[], str | None]
    group: str = "together"


@dataclass
class Row:
    """A line of tests/programs/table.txt."""

    id: str
    program: str
    arguments: list[str]
    flavours: list[str]
    pool: dict[str, str]
    rules: list[str]


def table() -> list[Row]:
    rows = []
    for line in (common.SOURCES / "table.txt").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, program, flavours, _sim, pool, rules, _covers = (c.strip() for c in line.split("|"))
        words = program.split()
        rows.append(Row(name, words[0], words[1:], flavours.split(), dict(v.split("=", 1) for v in pool.split()),
                        rules.split()))
    return rows


_build_lock = threading.Lock()
_builds: dict[str, threading.Lock] = {}
_built: dict[str, Path] = {}


def _compile(program: str, flavour: str) -> Path:
    """With NVIDIA's own runtime and driver library, as a user would."""
    source = next((path for path in (common.SOURCES / f"{program}{end}" for end in (".c", ".cc")) if path.exists()), None)
    if not source:
        raise Skip(f"{program} is not built, and nvcc cannot build it")
    out = common.WORK / (f"lib{program}.so" if flavour == "plugin" else f"{program}-{flavour}")
    stubs = []
    if home := common.cuda_home():
        stubs = [f"-L{p}" for p in (home / "lib64/stubs", home / "targets/x86_64-linux/lib/stubs") if p.is_dir()]
    flags = {
        "static": ["-cudart", "static", *stubs, "-lpthread", "-ldl"],
        "shared": ["-cudart", "shared", *stubs, "-lcuda", "-lpthread"],
        # As needed: a program that looks everything up at run time is then linked to nothing.
        "driver": ["-cudart", "none", "-Xlinker", "--as-needed", *stubs, "-lcuda", "-lpthread", "-ldl"],
        "plugin": ["-cudart", "static", "-shared", "-Xcompiler", "-fPIC", "-lpthread", "-ldl"],
    }[flavour]
    compiler = common.need_tool("nvcc")
    done = run([compiler, "-O1", f"-I{common.SOURCES}", "-o", out, source, *flags], timeout=110)
    if done.code != 0:
        raise Fail(f"nvcc cannot compile {source.name} ({flavour}): {done.tail()}")
    return out


def executable(program: str, flavour: str) -> Path:
    """The prebuilt program; with NVIDIA's static runtime inside it is compiled here, since the
    prebuilt one has the stand-in inside, which is for the simulated driver."""
    key = f"{program}-{flavour}"
    with _build_lock:
        lock = _builds.setdefault(key, threading.Lock())
    with lock:
        if key not in _built:
            ready = common.PROGRAMS / program
            if flavour in ("static", "plugin") or not ready.is_file():
                _built[key] = _compile(program, flavour)
            elif program in ("plugin", "unload"):
                # It opens the library beside it: the one compiled here.
                _built[key] = Path(shutil.copy(ready, common.WORK / f"{program}-{flavour}"))
            else:
                _built[key] = ready
        return _built[key]


def program_check(row: Row, flavour: str) -> str:
    path = executable(row.program, flavour)
    if row.program in ("plugin", "unload"):
        executable("plugin_library", "plugin")
    if row.program == "forwarding" and path.parent == common.WORK:
        executable("forwarding_library", "plugin")
    excepted = [r.split("=", 1)[1].replace("_", " ") for r in row.rules if r.startswith("except=")]
    expected = [r.split("=", 1)[1].replace("_", " ") for r in row.rules if r.startswith("expect=")]
    command = [path, *row.arguments]
    native = None
    if "pooled-only" not in row.rules:
        native = run(command, cuda_path=True, timeout=RUN_LIMIT)
    pooled = run(command, library=common.LIBRARY, env=row.pool, cuda_path=True, timeout=RUN_LIMIT)
    if native is None:
        expect_ok(pooled, "the program")
    else:
        if native.code != 0:
            raise Fail(f"already without the library it exits {native.code}: {native.tail()}")
        expect_ok(pooled, "with the library it")
        compare(native.out, pooled.out, excepted)
    if pooled.err.strip():
        raise Fail(f"says on stderr: {pooled.tail()}")
    for text in expected:
        if not any(text in line for line in pooled.out.splitlines()):
            raise Fail(f"no line with `{text}`")
    if "hits" in row.rules:
        count, misses = hits(pooled)
        if count == 0:
            raise Fail(f"nothing was pooled ({misses} misses)")
        return f"{count} of {count + misses} from the pool"
    return ""


# ---- the driver itself, as the simulated one takes it to be ------------------------------


def driver_facts() -> str:
    done = run([executable("driver_facts", "shared")], cuda_path=True, timeout=120)
    good = [l for l in done.out.splitlines() if l.startswith("PASS")]
    bad = [l for l in done.out.splitlines() if l.startswith("FAIL")]
    if bad or done.code != 0 or not good:
        raise Fail(f"exit {done.code}, {len(good)} facts hold, {len(bad)} do not: {'; '.join(bad)[:600]}")
    return f"{len(good)} facts hold"


# ---- the stress and its negative control --------------------------------------------------

STRESS = ["--max-size", "256M", "--budget", "4G", "--window", "65536"]
# One hardware queue a stream, so that streams do not wait for one another by accident.
STRESS_ENV = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


def _stress_line(result) -> tuple[int, int]:
    found = re.search(r"blocks (\d+) violations (\d+)", result.out)
    if not found:
        raise Fail(f"exit {result.code}, no result line: {result.tail()}")
    return int(found[1]), int(found[2])


def stress(flavour: str, iterations: int, extra: list[str], env: dict[str, str], timeout: float,
           reissued_at_least: float = 0.9) -> str:
    path = executable("stress", flavour)
    done = run([path, *STRESS, "--iterations", str(iterations), *extra], library=common.LIBRARY,
               env=STRESS_ENV | env, cuda_path=True, timeout=timeout)
    blocks, violations = _stress_line(done)
    if violations or done.code != 0:
        raise Fail(f"{violations} violations in {blocks} blocks, exit {done.code}: {done.tail()}")
    reissued = int(done.stats.get("reissues", 0))
    if reissued < iterations * reissued_at_least:
        raise Fail(f"only {reissued} reissues in {blocks} blocks")
    return f"{blocks} blocks, {reissued} reissues, no violation"


def negative_control() -> str:
    if not common.NO_GRACE.exists():
        raise Skip(f"{common.NO_GRACE} is not built")
    done = run([executable("stress", "shared"), *STRESS, "--iterations", "50000"], library=common.NO_GRACE,
               env=STRESS_ENV, cuda_path=True, timeout=120)
    blocks, violations = _stress_line(done)
    if violations == 0:
        raise Fail(f"without grace periods the stress found nothing in {blocks} blocks: it proves nothing")
    return f"without grace periods {violations} wrong words in {blocks} blocks"


def pinned_stress(iterations: int, seed: int, env: dict[str, str]) -> str:
    command = [executable("pinned_stress", "shared"), "--iterations", str(iterations), "--seed", str(seed)]
    done = run(command, library=common.LIBRARY, env=STRESS_ENV | env, cuda_path=True, timeout=150)
    blocks, violations = _stress_line(done)
    if violations or done.code != 0:
        raise Fail(f"{violations} violations in {blocks} blocks, exit {done.code}: {done.tail()}")
    reissued = int(done.stats.get("pinned", {}).get("reissues", 0))
    if reissued < iterations * 0.5:
        raise Fail(f"only {reissued} reissues in {blocks} blocks")
    return f"{blocks} blocks, {reissued} reissues, no violation"


def pinned_negative_control() -> str:
    if not common.NO_GRACE.exists():
        raise Skip(f"{common.NO_GRACE} is not built")
    command = [executable("pinned_stress", "shared"), "--iterations", "5000"]
    done = run(command, library=common.NO_GRACE, env=STRESS_ENV, cuda_path=True, timeout=120)
    blocks, violations = _stress_line(done)
    if violations == 0:
        raise Fail(f"without grace periods the stress found nothing in {blocks} blocks: it proves nothing")
    return f"without grace periods {violations} wrong words in {blocks} blocks"


# ---- processes that the library must not change -------------------------------------------


def hygiene(command: list[str], env: dict[str, str] | None = None, timeout: float = 60) -> str:
    plain = run(command, env=env, timeout=timeout)
    loaded = run(command, library=common.LIBRARY, env=env, stats=False, timeout=timeout)
    if loaded.code != plain.code or loaded.out != plain.out:
        raise Fail(f"exit {plain.code} and {loaded.code}, output equal {loaded.out == plain.out}: {loaded.tail()}")
    if loaded.err != plain.err:
        raise Fail(f"says on stderr: {loaded.tail()}")
    return ""


# ---- under the checker ---------------------------------------------------------------------


def sanitizer_clean() -> str:
    checker = common.need_tool("compute-sanitizer")
    command = [checker, "--error-exitcode", "9", executable("churn", "static"), "300"]
    probe = run(command, cuda_path=True, timeout=110)
    if probe.code != 0:
        raise Skip(f"compute-sanitizer does not work here without the library either: {probe.tail()}")
    done = run(command, library=common.LIBRARY, cuda_path=True, timeout=110)
    if done.code != 0 or "ERROR SUMMARY: 0 errors" not in done.out:
        raise Fail(f"exit {done.code}: {done.out.strip()[-300:]}")
    return "0 errors"


def sanitizer_finds_overrun() -> str:
    checker = common.need_tool("compute-sanitizer")
    program = common.nvcc(common.HERE / "overrun.cu", common.WORK / "overrun")
    command = [checker, "--error-exitcode", "9", program]
    if run(command, timeout=110).code != 9:
        raise Skip("compute-sanitizer does not find the overrun without the library either")
    done = run(command, library=common.LIBRARY, timeout=110)
    if done.code != 9:
        raise Fail(f"the overrun is not found, exit {done.code}: {done.out.strip()[-300:]}")
    return "a write one past the end is found"


def nvcc_program(linked: str) -> str:
    program = common.nvcc(common.HERE / "nvcc_app.cu", common.WORK / f"nvcc_app_{linked}", "-cudart", linked)
    native = expect_ok(run([program, "2000"], cuda_path=True), "without the library it")
    short = expect_ok(run([program, "2000"], library=common.LIBRARY, cuda_path=True), "with the library it")
    long = expect_ok(run([program, "6000"], library=common.LIBRARY, cuda_path=True), "the longer run")
    compare(native.out, short.out)
    rate = common.warm_rate(short, long)
    if rate < 0.99:
        raise Fail(f"hit rate once warm {rate:.2%}")
    return f"results equal, {rate:.2%} hits once warm"


def checks() -> list[Check]:
    made = [Check("driver_facts", driver_facts, "alone")]
    # The stress can hold much of the device, so nothing runs beside it.
    made.append(Check("stress_million", lambda: stress("shared", 1_200_000, ["--seed", "11"], {}, 300), "alone"))
    made.append(Check("stress_static", lambda: stress("static", 200_000, ["--seed", "12"], {}, 120), "alone"))
    made.append(Check("stress_ordered", lambda: stress("shared", 100_000, ["--seed", "13"],
                                                       {"GPUPOOL_FREE": "ordered"}, 120), "alone"))
    made.append(Check("stress_small_limit", lambda: stress("shared", 100_000, ["--seed", "14"],
                                                           {"GPUPOOL_INFLIGHT": "64M"}, 120), "alone"))
    made.append(Check("stress_async_mix", lambda: stress("shared", 100_000, ["--seed", "15", "--async", "30"], {}, 120,
                                                         0.5), "alone"))
    made.append(Check("stress_negative_control", negative_control, "alone"))
    made.append(Check("pinned_stress_long", lambda: pinned_stress(60_000, 21, {}), "alone"))
    made.append(Check("pinned_stress_ordered", lambda: pinned_stress(10_000, 22, {"GPUPOOL_FREE": "ordered"}), "alone"))
    made.append(Check("pinned_stress_small_limit", lambda: pinned_stress(10_000, 23, {"GPUPOOL_INFLIGHT": "4M"}), "alone"))
    made.append(Check("pinned_negative_control", pinned_negative_control, "alone"))
    for linked in ("static", "shared"):
        made.append(Check(f"nvcc_{linked}", lambda linked=linked: nvcc_program(linked)))
    for row in table():
        if "sim-only" in row.rules:
            continue
        for flavour in row.flavours:
            made.append(Check(f"{row.id}-{flavour}", lambda row=row, flavour=flavour: program_check(row, flavour),
                              "alone" if "alone" in row.rules else "together"))
    made.append(Check("sanitizer_clean", sanitizer_clean))
    # covers: case-34
    made.append(Check("sanitizer_finds_overrun", sanitizer_finds_overrun))
    # covers: case-21 without-cuda
    made.append(Check("preload_true", lambda: hygiene(["true"])))
    made.append(Check("preload_bash", lambda: hygiene(["bash", "-c", "echo $((6 * 7)); ls / | wc -l; exit 3"])))
    made.append(Check("preload_python", lambda: hygiene(["python3", "-c", "import ctypes, json, ssl; print(1)"])))

    def torch_without_gpu():
        common.need_module("torch")
        program = "import torch; print(torch.cuda.is_available(), float(torch.arange(9.).sum()))"
        return hygiene(["python3", "-c", program], {"CUDA_VISIBLE_DEVICES": ""}, 110)

    # covers: case-20
    made.append(Check("preload_torch_without_gpu", torch_without_gpu))
    return made
