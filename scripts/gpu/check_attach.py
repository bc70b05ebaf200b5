"""`gpupool attach` and `detach` on programs that run: results stay the same, counters and
throughput rise, and after a detach new allocations are the driver's."""

import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import threading
from pathlib import Path

import common
from check_programs import Check
from common import Fail, Skip, need_module

COMMAND = Path(os.environ.get("GPUPOOL_COMMAND", common.LIBRARY.parent / "gpupool")).resolve()
# Longest that all threads may be stopped, in milliseconds.
PAUSE = 50
# Of the rate of a preloaded process, an attached one has at least this part.
PRELOADED_LEAST = 0.85
CACHING_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


class Loop:
    """A program that prints a line for each stretch of work, until its standard input ends."""

    def __init__(self, command, env=None, timeout=150):
        self.stats = Path(tempfile.mkdtemp(prefix="attach-", dir=common.WORK))
        full = common.environment(env)
        if folder := common.runtime_folder():
            full["LD_LIBRARY_PATH"] = folder + ":" + full.get("LD_LIBRARY_PATH", "")
        self.errors = open(self.stats / "stderr", "w+", encoding="utf-8")
        self.process = subprocess.Popen([str(c) for c in command], env=full, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        start_new_session=True)
        self.timer = threading.Timer(timeout, self.kill)
        self.timer.start()

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def said(self):
        self.errors.seek(0)
        return " / ".join(self.errors.read().strip().splitlines()[-3:])[-400:]

    def line(self):
        """The words of the next line."""
        line = self.process.stdout.readline()
        if not line:
            raise Fail(f"the program has ended, or hung until it was killed: {self.process.wait()}, {self.said()}")
        return line.split()

    def lines(self, count):
        return [self.line() for _ in range(count)]

    def end(self):
        """Has it end; its counters, if the library wrote any."""
        self.process.stdin.close()
        while self.process.stdout.readline():
            pass
        code = self.process.wait()
        if code != 0:
            raise Fail(f"the program exits {code}: {self.said()}")
        own = self.stats / f"{self.process.pid}.json"
        return json.loads(own.read_text()) if own.exists() else {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.timer.cancel()
        self.process.wait()
        self.errors.close()


def gpupool(*arguments):
    """Runs the command, which has to succeed; what it prints."""
    if not COMMAND.exists():
        raise Skip(f"{COMMAND} is not built")
    done = common.run([COMMAND, *arguments], env={"GPUPOOL_LIB": str(common.LIBRARY)}, timeout=60)
    if done.code != 0:
        raise Fail(f"gpupool {arguments[0]}: exit {done.code}: {done.tail()}")
    return done.out


def pause(text):
    """How long all threads were stopped, in milliseconds."""
    found = re.search(r"were stopped for ([0-9.]+) ms", text)
    if not found:
        raise Fail(f"the command names no pause: {text.strip()}")
    if float(found[1]) > PAUSE:
        raise Fail(f"all threads were stopped for {found[1]} ms")
    return float(found[1])


def rate(lines):
    return statistics.median(float(words[0]) for words in lines)


def whole_life(command, env=None, pooled=None, warm=2):
    """Runs natively, observed, attached, detached and attached again. `pooled` is the column that
    has the number of the library's blocks among eight, where the program tells."""
    with Loop(command, env) as loop:
        loop.lines(warm)
        native = loop.lines(4)
        pid = str(loop.process.pid)
        options = ["--set", f"STATS={loop.stats}/%p.json"]
        pauses = [pause(gpupool("attach", "--observe", *options, pid))]
        observed = loop.lines(3)
        gpupool("detach", pid)
        pauses.append(pause(gpupool("attach", pid)))
        loop.lines(2)
        attached = loop.lines(4)
        pauses.append(pause(gpupool("detach", pid)))
        loop.lines(2)
        detached = loop.lines(3)
        pauses.append(pause(gpupool("attach", pid)))
        loop.lines(1)
        again = loop.lines(2)
        counters = loop.end()
    everything = native + observed + attached + detached + again
    results = {words[1] for words in everything}
    if len(results) != 1:
        raise Fail(f"results differ: {sorted(results)}")
    if pooled is not None:
        for name, lines, expected in (("before", native, "0"), ("observed", observed, "0"), ("attached", attached, "8"),
                                      ("detached", detached, "0"), ("attached again", again, "8")):
            seen = {words[pooled] for words in lines}
            if seen != {expected}:
                raise Fail(f"{name}: of eight blocks the library's are {sorted(seen)}, not {expected}")
    if counters.get("hits", 0) < 100:
        raise Fail(f"only {counters.get('hits', 0)} allocations came from the pool")
    with Loop(command, {**(env or {}), "LD_PRELOAD": str(common.LIBRARY)}) as loop:
        loop.lines(warm)
        preloaded = rate(loop.lines(4))
        loop.end()
    before, after = rate(native), rate(attached)
    told = (f"{before:.0f} rounds/s before, {after:.0f} attached, {preloaded:.0f} if preloaded, "
            f"{rate(detached):.0f} detached")
    if after <= before or after < PRELOADED_LEAST * preloaded:
        raise Fail(f"no faster, or slower than if preloaded: {told}")
    return (f"results equal, {told}, {counters['hits']} hits, threads stopped for at most {max(pauses):.1f} ms")


def nvcc_program():
    program = common.nvcc(common.HERE / "attach_app.cu", common.WORK / "attach_app", "-cudart", "static")
    return whole_life([program], pooled=2)


def torch_inference():
    need_module("torch")
    return whole_life(["python3", common.HERE / "attach_loops.py", "torch"], CACHING_OFF)


def cupy_loop():
    need_module("cupy")
    return whole_life(["python3", common.HERE / "attach_loops.py", "cupy"])


def tensorrt_serving():
    return whole_life([*common.tensorrt(), common.HERE / "tensorrt_work.py", "serve"])


def checks() -> list[Check]:
    return [
        Check("attach_nvcc_static", nvcc_program, "speed"),
        Check("attach_torch_inference", torch_inference, "speed"),
        Check("attach_cupy", cupy_loop, "speed"),
        Check("attach_tensorrt", tensorrt_serving, "speed"),
    ]
