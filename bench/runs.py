"""Runs measurements: each in a process of its own, with a time limit, the ways of a section in
turns. Whatever goes wrong is kept beside the numbers, and the next one goes on."""

import ctypes
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import common
from common import Fail, Skip


@dataclass
class Way:
    """One column of a comparison: a program, with or without the library.

    `command` gives its words, or raises Skip where it cannot be run; `parse` its output's values
    and texts."""

    name: str
    command: Callable[[], list]
    library: bool = False
    env: dict[str, str] = field(default_factory=dict)
    parse: Callable[[str], tuple[dict[str, float], dict[str, str]]] | None = None
    quick: bool = True
    programs: list[str] = field(default_factory=list)


@dataclass
class Section:
    """What is compared, in so many turns."""

    name: str
    ways: list[Way]
    turns: int = 3
    timeout: float = 60
    memory: bool = False   # whether the device's memory is watched
    stats: bool = True     # whether the library's figures are read
    quick: bool = True     # whether a quick run has it


def plain(out: str) -> tuple[dict[str, float], dict[str, str]]:
    """Lines of `NAME VALUE [TEXT]`: values and texts by name. Other lines are passed over."""
    values, texts = {}, {}
    for line in out.splitlines():
        words = line.split()
        try:
            values[words[0]] = float(words[1])
        except (IndexError, ValueError):
            continue
        if len(words) > 2:
            texts[words[0]] = words[2]
    return values, texts


class DeviceMemory:
    """Watches how much of the first device's memory is in use, as the driver's management library
    sees it: all processes, contexts included."""

    def __init__(self):
        self.library = None
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            self.device = ctypes.c_void_p()
            if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByIndex_v2(
                    0, ctypes.byref(self.device)) == 0:
                self.library = library
        except (OSError, AttributeError):
            pass

    def used(self) -> int | None:
        """Bytes in use; None where it cannot be asked."""
        memory = (ctypes.c_ulonglong * 3)()
        if not self.library or self.library.nvmlDeviceGetMemoryInfo(self.device, memory) != 0:
            return None
        return memory[2]

    def peak_of(self, work):
        """What `work` returns or raises, and the rise of memory during it."""
        before = self.used()
        if before is None:
            return work(), None
        peak, stop = [before], threading.Event()

        def watch():
            while not stop.wait(0.005):
                peak[0] = max(peak[0], self.used() or 0)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            return work(), peak
        finally:
            stop.set()
            thread.join()
            peak[0] -= before


class Results:
    """All raw numbers, written to a file after each process."""

    def __init__(self, path: Path | None, head: dict):
        self.path = path
        self.data = {**head, "sections": {}}

    def way(self, section: str, way: str) -> dict:
        """Where a way's numbers go."""
        empty = {"values": {}, "texts": {}, "failures": [], "notes": [], "not_here": None,
                 "missed_turns": 0}
        return self.data["sections"].setdefault(section, {}).setdefault(way, empty)

    def save(self) -> None:
        if self.path:
            new = self.path.with_name(self.path.name + ".new")
            new.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
            new.replace(self.path)


class Runner:
    """Runs sections until `deadline` (time.monotonic)."""

    def __init__(self, results: Results, deadline: float, env: dict[str, str] | None):
        self.results = results
        self.deadline = deadline
        self.env = env
        self.memory = DeviceMemory()

    def one(self, section: Section, way: Way, turn: int) -> None:
        """One process; its numbers and whatever went wrong."""
        record = self.results.way(section.name, way.name)
        if record["not_here"]:
            return
        left = self.deadline - time.monotonic()
        if left < 2:
            record["missed_turns"] += 1
            return
        out, peak = "", None
        try:
            command = way.command()
            left = max(2.0, self.deadline - time.monotonic())

            def work():
                # Python's packages find their own runtime.
                return common.run(command, env={**(self.env or {}), **way.env},
                                  cuda_path=self.env is None and bool(way.programs),
                                  library=common.LIBRARY if way.library else None, stats=section.stats,
                                  timeout=min(section.timeout, left))

            done, peak = self.memory.peak_of(work) if section.memory else (work(), None)
            out = done.out
            if done.code != 0:
                record["failures"].append(f"turn {turn + 1}: exit {done.code}: {done.tail()}")
            for line in done.err.splitlines():
                said = re.sub(r"gpupool\[\d+\]", "gpupool", line)[:300]
                if "gpupool" in said and said not in record["notes"] and len(record["notes"]) < 3:
                    record["notes"].append(said)
            if reserved := done.stats.get("peak_reserved_bytes"):
                record["values"].setdefault("pool-reserved", []).append(float(reserved))
        except Skip as why:
            record["not_here"] = str(why)
        except Fail as why:
            out = why.out
            if why.hangs and left < section.timeout:  # it was cut off, and may be sound
                record["missed_turns"] += 1
            else:
                record["failures"].append(f"turn {turn + 1}: {why}")
        except Exception as why:  # noqa: BLE001 - one line that fails must not lose the others
            record["failures"].append(f"turn {turn + 1}: {type(why).__name__}: {why}")
        try:
            values, texts = (way.parse or plain)(out)
        except (ValueError, KeyError, IndexError) as why:
            record["failures"].append(f"turn {turn + 1}: output not understood: {why}")
            values, texts = {}, {}
        if peak:
            values["device-memory"] = float(peak[0])
        for key, value in values.items():
            record["values"].setdefault(key, []).append(value)
        for key, text in texts.items():
            if text not in record["texts"].setdefault(key, []):
                record["texts"][key].append(text)
        self.results.save()

    def all(self, sections: list[Section], turns: int) -> None:
        """The sections, turn by turn: the first turn has everything, further ones what they want.
        Every second turn takes the ways from the last to the first."""
        start = time.monotonic()
        for turn in range(turns):
            for section in sections:
                if turn >= section.turns:
                    continue
                begun = time.monotonic()
                for way in section.ways[::-1] if turn % 2 else section.ways:
                    self.one(section, way, turn)
                print(f"turn {turn + 1}, {section.name}: {time.monotonic() - begun:.1f} s "
                      f"(all: {time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)


def cpu() -> str:
    """The processor's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((l.partition(":")[2].strip() for l in file if l.startswith("model name")), "?")
    except OSError:
        return "?"


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))
