#!/usr/bin/env python3
"""Runs the demo program natively and with the library, and compares. Started by
scripts/demo, which builds what it needs."""

import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

RUNS = 3  # of each kind, alternating; the median counts
LIMIT_S = 300  # for one run: more means that it hangs

DRIVER_ALLOCATIONS = ("cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocPitch", "cuMemAllocPitch_v2")

GPU_PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0:
    name = ctypes.create_string_buffer(256)
    if cuda.cuDeviceGetName(name, 256, 0) == 0:
        print(name.value.decode())
"""


class Failed(Exception):
    """What went wrong, for the user."""


def note(text):
    print(text, file=sys.stderr)


def forget_simulated_driver(sim):
    """The simulated driver in LD_LIBRARY_PATH, left from a test, is no GPU."""
    targets = os.path.dirname(os.path.realpath(sim))
    folders = os.environ.pop("LD_LIBRARY_PATH", "").split(":")
    kept = [folder for folder in folders if folder and os.path.dirname(os.path.realpath(folder)) != targets]
    if kept:
        os.environ["LD_LIBRARY_PATH"] = ":".join(kept)


def find_gpu():
    """The name of the first GPU, or None where no driver answers."""
    probe = subprocess.run(
        [sys.executable, "-c", GPU_PROBE], capture_output=True, text=True, check=False, timeout=120
    )
    return probe.stdout.strip() or None


def folder_of_runtime():
    """The folder of NVIDIA's libcudart.so.13; "" where ld.so finds it by itself."""
    if "libcudart.so.13" in loader_cache():
        return ""
    python = [os.path.join(path, "nvidia", "*", "lib") for path in sys.path if path]
    cuda = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/lib64", "/usr/local/cuda*/lib64"]
    for pattern in cuda + python:
        for folder in sorted(glob.glob(pattern)):
            if os.path.exists(os.path.join(folder, "libcudart.so.13")):
                return folder
    return None


def loader_cache():
    for tool in ("ldconfig", "/sbin/ldconfig"):
        try:
            return subprocess.run([tool, "-p"], capture_output=True, text=True, check=False).stdout
        except OSError:
            continue
    return ""


def program_for_gpu(options, scratch):
    """(command, extra environment, how it was built) of the demo for a real driver: what
    nvcc makes of the source if it is at hand, as users have it, else the program built here
    on NVIDIA's shared runtime."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(home, "bin"))
    if nvcc:
        target = os.path.join(scratch, "demo")
        built = subprocess.run(
            [nvcc, "-O2", "-o", target, "tests/programs/demo.c", "-ldl", "-lpthread"],
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode == 0:
            return target, {}, "built by nvcc"
        note(f"nvcc could not build tests/programs/demo.c:\n{built.stderr.strip()}")
    folder = folder_of_runtime()
    if folder is None:
        raise Failed(
            "there is a GPU, but neither nvcc nor libcudart.so.13: set CUDA_HOME to a CUDA 13 "
            "toolkit, or use --simulated"
        )
    return os.path.join(options.programs, "demo"), {"LD_LIBRARY_PATH": folder}, "shared runtime"


def run(program, requests, extra):
    """(stdout, seconds of the request loop) of one run."""
    environment = {**os.environ, **extra}
    if "LD_LIBRARY_PATH" in extra and "LD_LIBRARY_PATH" in os.environ:
        environment["LD_LIBRARY_PATH"] = extra["LD_LIBRARY_PATH"] + ":" + os.environ["LD_LIBRARY_PATH"]
    what = "with the library" if "LD_PRELOAD" in extra else "natively"
    try:
        done = subprocess.run(
            [program, str(requests)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{program} {what} did not end within {LIMIT_S} s") from error
    if done.returncode != 0:
        raise Failed(
            f"{program} {what} failed with {done.returncode}:\n{(done.stdout + done.stderr).strip()}"
        )
    seconds = None
    for line in done.stderr.splitlines():
        if line.startswith("seconds "):
            seconds = float(line.split()[1])
        else:
            note(line)
    if seconds is None:
        raise Failed(f"{program} {what} printed no time")
    return done.stdout, seconds


def run_counted(program, requests, extra, library, scratch, mode):
    """One run with the library in `mode`: (stdout, seconds, its counters)."""
    path = os.path.join(scratch, f"{mode}.json")
    report = os.path.join(scratch, f"{mode}-driver.json")
    for file in (path, report):
        if os.path.exists(file):
            os.remove(file)
    extra = {**extra, "LD_PRELOAD": library, "GPUPOOL_MODE": mode, "GPUPOOL_STATS": path}
    simulated = "SIMCUDA_STRICT" in extra
    if simulated:
        extra["SIMCUDA_REPORT"] = report
    stdout, seconds = run(program, requests, extra)
    try:
        with open(path, encoding="utf-8") as file:
            counters = json.load(file)
    except (OSError, ValueError) as error:
        raise Failed(f"the library wrote no counters (GPUPOOL_MODE={mode}): {error}") from error
    if counters["mode"] != mode:
        raise Failed(f"the library ran with mode {counters['mode']!r} rather than {mode!r}")
    if simulated:
        check_counters(counters, report)
    return stdout, seconds, counters


def check_counters(counters, report):
    """On the simulated driver, which counts its calls itself: the library must not report
    fewer than arrived there."""
    try:
        with open(report, encoding="utf-8") as file:
            calls = next(row for row in map(json.loads, file) if row.get("summary"))["calls"]
    except (OSError, ValueError, StopIteration) as error:
        raise Failed(f"the simulated driver left no report in {report}: {error!r}") from error
    arrived = sum(count for name, count in calls.items() if name in DRIVER_ALLOCATIONS)
    reported = counters["driver"]["alloc_calls"]
    if reported < arrived:
        raise Failed(f"the library reports {reported} driver allocations, the driver saw {arrived}")


def measure(options, scratch):
    gpu = None if options.simulated else find_gpu()
    if gpu:
        program, extra, built = program_for_gpu(options, scratch)
        device = gpu
    else:
        program, built = os.path.join(options.programs, "demo"), "shared runtime"
        # A violation of the memory rules that the simulated driver sees ends the run.
        extra = {"LD_LIBRARY_PATH": options.sim, "SIMCUDA_STRICT": "1"}
        device = "simulated driver"
    library, requests = os.path.abspath(options.library), options.requests
    outputs, native_times, pooled_times, pooled = [], [], [], None
    for _ in range(RUNS):
        stdout, seconds = run(program, requests, extra)
        outputs.append(stdout)
        native_times.append(seconds)
        stdout, seconds, pooled = run_counted(program, requests, extra, library, scratch, "pool")
        outputs.append(stdout)
        pooled_times.append(seconds)
    stdout, _, observed = run_counted(program, requests, extra, library, scratch, "observe")
    outputs.append(stdout)

    def row(counters, times):
        return {
            "driver_alloc_calls": counters["driver"]["alloc_calls"],
            "seconds": statistics.median(times),
            "peak_bytes": counters["peak_reserved_bytes"],
        }

    return {
        "device": device,
        "program": f"tests/programs/demo.c ({built})",
        "requests": requests,
        "same_results": all(stdout == outputs[0] for stdout in outputs),
        "native": row(observed, native_times),
        "pooled": row(pooled, pooled_times),
    }


def table(result):
    native, pooled = result["native"], result["pooled"]

    def times(key, text):
        return f"{native[key] / pooled[key]:,.1f} {text}" if pooled[key] else ""

    rows = [
        ("", "native", "with gpupool", ""),
        (
            "driver allocation calls",
            f"{native['driver_alloc_calls']:,}",
            f"{pooled['driver_alloc_calls']:,}",
            times("driver_alloc_calls", "times fewer"),
        ),
        ("seconds", f"{native['seconds']:.3f}", f"{pooled['seconds']:.3f}", times("seconds", "times as fast")),
        (
            "peak device memory, MiB",
            f"{native['peak_bytes'] / 2**20:,.1f}",
            f"{pooled['peak_bytes'] / 2**20:,.1f}",
            "",
        ),
        ("results", "", "the same" if result["same_results"] else "DIFFERENT", ""),
    ]
    lines = [
        f"device:  {result['device']}",
        f"program: {result['program']}, {result['requests']} requests, unmodified; median of {RUNS} runs",
        "",
    ]
    lines += [f"{name:<24} {a:>12} {b:>14}   {c}".rstrip() for name, a, b, c in rows]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="scripts/demo")
    parser.add_argument("--library", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--programs", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--sim", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--simulated", action="store_true", help="do not look for a GPU")
    options = parser.parse_args()
    forget_simulated_driver(options.sim)
    try:
        with tempfile.TemporaryDirectory(prefix="gpupool-demo-") as scratch:
            result = measure(options, scratch)
    except Failed as failure:
        note(f"demo: {failure}")
        return 1
    print(json.dumps(result) if options.json else table(result))
    if not result["same_results"]:
        note("demo: the results differ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
