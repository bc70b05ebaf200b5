"""What the `gpupool` command makes of a run: traces and what is read from them, `top` in a terminal,
a profile that spares PyTorch its driver calls, and what watching costs."""

import fcntl
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

import common
from check_cli import CACHING_OFF, COMMAND, TORCH, Program, command, commanded, expect
from check_programs import Check
from common import Fail, expect_ok, need_module, run

# What observing and tracing may cost PyTorch's inference.
OBSERVE_LIMIT = 1.02
TRACE_LIMIT = 1.10
TURNS = 2
MOST_TURNS = 5
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _traced(name, program, env=None) -> str:
    """Records, and has every reader of traces read it."""
    trace, stats = common.WORK / f"{name}.trace", common.WORK / f"{name}.json"
    command("run", "--set", f"TRACE={trace}", "--set", f"STATS={stats}", "--", *program, env=env)
    live = json.loads(stats.read_text())["peak_live_bytes"]
    replayed = json.loads(command("replay", "--json", trace))
    peak = replayed["variants"][0]["peak_live_bytes"]
    # Threads, and rounding up to the granule, make the two differ a little.
    expect(0.8 * live <= peak <= 1.02 * live, f"peak live {peak} in the trace, {live} in the run")
    page = common.WORK / f"{name}.html"
    command("report", trace, "-o", page)
    html = page.read_text()
    expect("<svg" in html and "http://" not in html.replace("http://www.w3.org", ""), "no page, or it needs a network")
    viewer = common.WORK / f"{name}-viewer.json"
    command("report", trace, "--perfetto", "-o", viewer)
    expect(json.loads(viewer.read_text()), "nothing for the viewer")
    tuned = json.loads(command("tune", trace, "--json"))
    expect(tuned, "tune says nothing")
    return f"{replayed['calls']} calls, peak live {peak / 2**20:.0f} MiB, as in the run"


def trace_plain():
    return _traced("plain", [common.PROGRAMS / "churn", "3000"])


def trace_torch():
    need_module("torch")
    return _traced("torch", [sys.executable, common.HERE / "torch_model.py", "40"], CACHING_OFF)


def top() -> str:
    """Two screens of `top` about a plain program and PyTorch, in a terminal of 100 columns."""
    need_module("torch")
    with commanded() as plain, Program([sys.executable, "-c", TORCH], CACHING_OFF) as torch:
        plain.tell("init", "alloc 50000000")
        expect(torch.line() == "ready", "no answer")
        screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        env = {**common.environment(), "TERM": "xterm-256color", "GPUPOOL_LIB": str(common.LIBRARY)}
        process = subprocess.Popen([COMMAND, "top", "--every", "200ms"], env=env, stdin=terminal, stdout=terminal,
                                   stderr=terminal, start_new_session=True)
        os.close(terminal)
        seen, until = "", time.monotonic() + 30
        try:
            while not (plain.pid in seen and torch.pid in seen):
                expect(time.monotonic() < until, f"not both processes on the screen: {seen[-300:]!r}")
                seen += ESCAPES.sub("", os.read(screen, 65536).decode(errors="replace"))
            os.write(screen, b"q")
            expect(process.wait(30) == 0, "it does not end well")
        finally:
            process.kill()
            os.close(screen)
        plain.end()
        torch.end()
    return "both processes on the screen"


def torch_profile() -> str:
    """With a profile of the first run, the second takes all from the driver at its start."""
    need_module("torch")
    file = str(common.WORK / "torch.profile")
    results, at_start = [], 0
    for turn in range(2):
        done = run(["python3", common.HERE / "torch_infer.py", "1"], library=common.LIBRARY,
                   env={**CACHING_OFF, "GPUPOOL_PROFILE": file}, timeout=110)
        results.append(expect_ok(done, "torch_infer.py").stats)
        if turn == 0:
            with open(file, encoding="utf-8") as f:
                at_start = sum(s["count"] for s in json.load(f)["devices"][0]["segments"]) + 1
    first, second = ((s["misses"], s["driver"]["alloc_calls"]) for s in results)
    expect(first[0] > 0, "the first run had no miss")
    expect(second[0] == 0 and second[1] <= at_start, f"the second run: {second[0]} misses, {second[1]} driver "
           f"allocations, {at_start} of them at the start")
    return f"{first[0]} misses in the first run, none in the second, which took {second[1]} segments at its start"


def _infer(env, library):
    done = run(["python3", common.HERE / "torch_infer.py", "2"], library=library, env={**CACHING_OFF, **env},
               timeout=110, stats=False)
    expect_ok(done, "torch_infer.py")
    return {l.split()[0]: float(l.split()[1]) for l in done.out.splitlines()}


def _overhead(limit, without, other):
    """How much longer each line takes; the best of some runs of each, taken in turns."""
    best = [{}, {}]
    for turn in range(MOST_TURNS):
        for way, seen in zip((without, other), best):
            for name, value in _infer(*way).items():
                seen[name] = min(value, seen.get(name, math.inf))
        ratios = {name: best[1][name] / best[0][name] for name in best[0]}
        if turn + 1 >= TURNS and max(ratios.values()) <= limit:
            break
    text = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    if max(ratios.values()) > limit:
        raise Fail(f"over {limit}: {text}")
    return text


def observe_overhead():
    need_module("torch")
    return _overhead(OBSERVE_LIMIT, ({}, None), ({"GPUPOOL_MODE": "observe"}, common.LIBRARY))


def trace_overhead():
    need_module("torch")
    trace = str(common.WORK / "overhead.trace")
    return _overhead(TRACE_LIMIT, ({}, common.LIBRARY), ({"GPUPOOL_TRACE": trace}, common.LIBRARY))


def checks() -> list[Check]:
    return [
        Check("cli_trace_plain", trace_plain),
        Check("cli_trace_torch", trace_torch),
        Check("cli_top", top),
        Check("cli_profile_torch", torch_profile, "alone"),
        Check("observe_overhead", observe_overhead, "speed"),
        Check("trace_overhead", trace_overhead, "speed"),
    ]
