"""The `gpupool` command on programs that run: check, observe, stat, trim, set, what an idle process
gives back, what a profile reserves, and the report when memory is short. With a plain program, and
with PyTorch if it is there."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import common
from check_attach import COMMAND
from check_programs import Check
from common import Fail, Skip, need_module

TORCH = """
import sys, torch
keep = torch.ones(1 << 20, device="cuda")
for _ in range(200):
    (torch.ones(1 << 20, device="cuda") * 2).sum()
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()
"""
CACHING_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
MIB = 1 << 20


class Program:
    """A program under the library that answers lines."""

    def __init__(self, command, env=None, library=True, timeout=110):
        if not Path(command[0]).exists():
            raise Fail(f"{command[0]} is missing: scripts/build-tests")
        full = common.environment(env)
        if folder := common.runtime_folder():
            full["LD_LIBRARY_PATH"] = folder + ":" + full.get("LD_LIBRARY_PATH", "")
        if library:
            full["LD_PRELOAD"] = str(common.LIBRARY)
        self.errors = tempfile.TemporaryFile("w+", dir=common.WORK)
        self.process = subprocess.Popen([str(c) for c in command], env=full, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.timer = threading.Timer(timeout, self.process.kill)
        self.timer.start()

    @property
    def pid(self) -> str:
        return str(self.process.pid)

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def line(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise Fail(f"it has ended, or hung until it was killed: {self.process.wait()}, {self.said()[-300:]}")
        return line.strip()

    def tell(self, *lines: str) -> str:
        """Says lines one after the other; the last answer."""
        answer = ""
        for line in lines:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.line()
        return answer

    def figures(self) -> dict:
        return json.loads(command("stat", self.pid, "--json"))

    def end(self) -> str:
        """Has it end; what it said on stderr."""
        self.process.stdin.close()
        code = self.process.wait()
        self.timer.cancel()
        if code != 0:
            raise Fail(f"it exits {code}: {self.said()[-300:]}")
        return self.said()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.timer.cancel()
        self.process.kill()
        self.process.wait()


def command(*arguments, env=None, code: int = 0, timeout: float = 110) -> str:
    """Runs the command; what it prints, which must end with this code."""
    if not COMMAND.exists():
        raise Fail(f"{COMMAND} is missing: cargo build --release")
    env = {"GPUPOOL_LIB": str(common.LIBRARY), **(env or {})}
    done = common.run([COMMAND, *arguments], env=env, cuda_path=True, timeout=timeout)
    if done.code != code:
        raise Fail(f"gpupool {' '.join(map(str, arguments))} exits {done.code}: {done.tail()}")
    return done.out + done.err


def commanded(env=None, library=True) -> Program:
    return Program([common.PROGRAMS / "commanded"], env, library)


def expect(condition, what: str) -> None:
    if not condition:
        raise Fail(what)


def check() -> str:
    """A program before it runs, and two that do."""
    need_driver = command("check", common.PROGRAMS / "commanded")
    expect("shared runtime" in need_driver and "ok driver" in need_driver, need_driver)
    static = command("check", common.PROGRAMS / "churn-static")
    expect("the runtime is inside churn-static" in static, static)
    with commanded() as program:
        program.tell("init", "alloc 1000")
        seen = command("check", program.pid)
        expect("mode pool" in seen and "ok driver" in seen, seen)
        program.end()
    with commanded(library=False) as program:
        program.tell("init", "alloc 1000")
        seen = command("check", program.pid, code=1)
        expect("NO library" in seen, seen)
        program.end()
    return "fence there" if "has cuCtxRecordEvent" in need_driver else "no fence"


def torch_check() -> str:
    """What PyTorch loads while it runs is seen."""
    need_module("torch")
    with Program([sys.executable, "-c", TORCH], CACHING_OFF) as program:
        expect(program.line() == "ready", "no answer")
        seen = command("check", program.pid)
        expect("verdict: the pool reaches it" in seen, seen)
        figures = program.figures()
        expect(figures["hits"] > 200, f"{figures['hits']} hits")
        expect(figures["live_bytes"] >= 4 * MIB, f"{figures['live_bytes']} bytes live")
        prometheus = command("stat", "--all", "--prometheus")
        expect(f'gpupool_live_bytes{{pid="{program.pid}"' in prometheus, prometheus[-400:])
        program.end()
    return f"{figures['hits']} hits seen from outside"


def trim_and_set() -> str:
    """A process with a helper thread answers while it makes no call."""
    with commanded({"GPUPOOL_HELPER": "on"}) as program:
        program.tell("init", "alloc 1000", "alloc 500000000", "free", "sync")
        before = program.figures()["reserved_bytes"]
        answer = command("trim", program.pid)
        after = program.figures()["reserved_bytes"]
        expect(before > 500_000_000 and after <= 2 * MIB, f"{before} bytes before, {after} after: {answer}")
        command("set", program.pid, "MODE=off")
        off = program.figures()
        program.tell("alloc 70000000", "free")
        later = program.figures()
        expect(later["mode"] == "off" and later["hits"] == off["hits"], "the pool still serves")
        command("set", program.pid, "MODE=pool", "INFLIGHT=64M")
        program.tell("alloc 70000000", "free", "free")
        expect(program.figures()["frees"] > later["frees"], "the pool does not serve again")
        program.end()
    with commanded() as program:
        program.tell("init", "alloc 1000")
        refused = command("trim", program.pid, "--wait", "200ms", code=1)
        expect("GPUPOOL_HELPER=on" in refused, refused)
        program.end()
    return answer.strip()


def idle_release() -> str:
    """Unused segments go back by themselves, and not while the GPU is busy."""
    with commanded({"GPUPOOL_IDLE_RELEASE": "500ms"}) as program:
        program.tell("init", "alloc 500000000", "free", "sync", "spin 3000")
        start = time.monotonic()
        while time.monotonic() - start < 2:
            held = program.figures()["reserved_bytes"]
            if time.monotonic() - start < 2.5:
                expect(held > 500_000_000, f"only {held} bytes are held while the GPU is busy")
            time.sleep(0.1)
        program.tell("sync")
        start = time.monotonic()
        while program.figures()["reserved_bytes"] > 0:
            expect(time.monotonic() - start < 30, "nothing goes back")
            time.sleep(0.05)
        took = time.monotonic() - start
        program.tell("alloc 500000000", "free")
        program.end()
    return f"given back {took:.1f} s after the GPU became idle"


def profile() -> str:
    """The second run takes all at once."""
    file = str(common.WORK / "check.profile")
    calls = []
    for _ in range(2):
        with commanded({"GPUPOOL_PROFILE": file}) as program:
            program.tell("init", "alloc 1000")
            first = program.figures()["driver"]["alloc_calls"]
            program.tell("alloc 40000000", "alloc 900000000", "alloc 300000", "free", "free", "alloc 200000000")
            calls.append(program.figures()["driver"]["alloc_calls"] - first)
            program.end()
    expect(calls[0] > 0 and calls[1] == 0, f"{calls} driver allocations on the way")
    return f"{calls[0]} driver allocations on the way in the first run, none in the second"


def observe() -> str:
    """The verdict on a program that allocates all the time."""
    report = common.WORK / "observe.json"
    command("observe", "--json", report, "--", common.PROGRAMS / "churn", "3000")
    seen = json.loads(report.read_text())
    expect(seen["allocs"] >= 3000 and seen["verdict"] in ("much", "perhaps"), f"{seen}")
    return seen["sentence"]


def torch_observe() -> str:
    """The verdict on PyTorch without its own pool."""
    need_module("torch")
    report = common.WORK / "observe-torch.json"
    command("observe", "--json", report, "--", sys.executable, "-c", TORCH, env=CACHING_OFF)
    seen = json.loads(report.read_text())
    expect(seen["allocs"] > 200, f"{seen}")
    return seen["sentence"]


def summary() -> str:
    """`gpupool run` ends with a summary."""
    said = command("run", "--", common.PROGRAMS / "churn", "2000")
    line = next((l for l in said.splitlines() if "served without the driver" in l), None)
    expect(line, said)
    return line.split(": ", 1)[1]


def shortage() -> str:
    """The report when the device is full."""
    with commanded(env={"GPUPOOL_LOG": "info"}) as program:
        program.tell("init", "fill")
        said = program.end()
    reports = [l for l in said.splitlines() if "out of memory on device" in l]
    expect(len(reports) == 1, f"{len(reports)} reports: {said[-300:]}")
    return reports[0].split(": ", 2)[2]


def folded(run: list, env=None) -> list[str]:
    """The folded stacks of a program's allocation calls, by calls; each call has one."""
    trace, stacks = common.WORK / "stacks.trace", common.WORK / "stacks.folded"
    command("run", "--quiet", "--set", f"TRACE={trace}", "--set", "TRACE_STACKS=on", "--", *run, env=env)
    said = command("report", "--flamegraph", stacks, "--weight", "calls", trace)
    expect("no stacks" not in said, said)
    lines = stacks.read_text().splitlines()
    expect(lines, "no stack at all")
    return lines


def flamegraph() -> str:
    """The stacks of the demo's calls lead from its functions to the beginning."""
    lines = folded([common.PROGRAMS / "demo", "200"])
    ours = [line for line in lines if ";main;" in line and "run_layer" in line]
    expect(ours, f"run_layer is on none of {len(lines)} stacks: {lines[:3]}")
    return f"{len(lines)} stacks, {len(ours)} through run_layer"


def torch_flamegraph() -> str:
    """The same through PyTorch's and Python's libraries."""
    need_module("torch")
    lines = folded([sys.executable, "-c", TORCH], env=CACHING_OFF)
    deep = [line for line in lines if "c10::" in line and line.count(";") > 10]
    expect(deep, f"none of {len(lines)} stacks goes through c10: {lines[:2]}")
    return f"{len(lines)} stacks, the deepest of {max(line.count(';') for line in lines)} frames"


def nsight() -> str:
    """Nsight Systems has the pool's marks, if it is here."""
    if not shutil.which("nsys"):
        raise Skip("no nsys")
    report = common.WORK / "nvtx"
    for arguments in (
        ["profile", "--trace", "nvtx", "--force-overwrite", "true", "--output", report, COMMAND, "run",
         "--quiet", "--set", "NVTX=on", "--", common.PROGRAMS / "churn", "500"],
        ["export", "--type", "jsonlines", "--force-overwrite", "true", "--output", f"{report}.jsonl",
         f"{report}.nsys-rep"],
    ):
        env = {"GPUPOOL_LIB": str(common.LIBRARY)}
        done = common.run(["nsys", *arguments], env=env, cuda_path=True, timeout=110)
        expect(done.code == 0, f"nsys {arguments[0]}: {done.code}, {done.tail()}")
    text = Path(f"{report}.jsonl").read_text(errors="replace")
    hits = len(re.findall(r"alloc \d+ hit", text))
    expect(hits > 0 and "grow " in text, f"{hits} hits in {len(text)} bytes")
    return f"{hits} hits marked"


def checks() -> list[Check]:
    return [
        Check("cli_check", check),
        Check("cli_check_torch", torch_check),
        Check("cli_trim_and_set", trim_and_set, "alone"),
        Check("cli_idle_release", idle_release, "alone"),
        Check("cli_profile", profile, "alone"),
        Check("cli_observe", observe),
        Check("cli_observe_torch", torch_observe),
        Check("cli_run_summary", summary),
        Check("cli_shortage", shortage, "alone"),
        Check("cli_flamegraph", flamegraph),
        Check("cli_flamegraph_torch", torch_flamegraph),
        Check("cli_nsight", nsight),
    ]
