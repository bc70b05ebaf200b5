"""Runs the checks that need a GPU. See scripts/gpu-check."""

import argparse
import concurrent.futures
import ctypes
import datetime
import fnmatch
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass

import common
from common import Fail, Skip

import check_attach
import check_cases
import check_cli
import check_frameworks
import check_programs
import check_speed
import check_suites
import check_tools

# Checks of these groups run in this order: many at a time, one at a time (those that fill the
# device), and last, alone, those that measure.
GROUPS = ("together", "alone", "speed")
AT_A_TIME = max(2, min(8, (os.cpu_count() or 6) - 2))


@dataclass
class Outcome:
    """One line of the table."""

    name: str
    verdict: str
    reason: str
    seconds: float

    def line(self) -> str:
        return f"{self.verdict} {self.name}" + (f" ({self.reason})" if self.reason else "")


def judge(check) -> Outcome:
    """Runs one check. Whatever goes wrong inside is a FAIL with its reason."""
    start = time.monotonic()
    try:
        verdict, reason = "PASS", check.body() or ""
    except Skip as why:
        verdict, reason = "SKIP", str(why)
    except Fail as why:
        verdict, reason = "FAIL", str(why)
    except Exception as why:  # a fault of the check itself must not hide the other results
        verdict, reason = "FAIL", f"{type(why).__name__}: {why}"
    outcome = Outcome(check.name, verdict, " ".join(reason.split()), time.monotonic() - start)
    print(outcome.line(), flush=True)
    return outcome


def device() -> tuple[str, str]:
    """Name of the first GPU and version of its driver; Skip if there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as why:
        raise Skip(f"no libcuda.so.1: {why}") from None
    if (code := cuda.cuInit(0)) != 0:
        raise Skip(f"cuInit answers {code}")
    text = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(text, 256, 0)
    name = text.value.decode(errors="replace")
    version = "?"
    if smi := shutil.which("nvidia-smi"):
        answer = common.run([smi, "--query-gpu=driver_version", "--format=csv,noheader"], timeout=60)
        version = answer.out.strip().splitlines()[0] if answer.code == 0 and answer.out.strip() else "?"
    else:
        try:
            with open("/proc/driver/nvidia/version", encoding="ascii", errors="replace") as f:
                version = next((w for w in f.readline().split() if w[:1].isdigit() and "." in w), "?")
        except OSError:
            pass
    return name, version


def markdown(gpu: str, driver: str, outcomes: list[Outcome], seconds: float) -> str:
    count = {v: sum(o.verdict == v for o in outcomes) for v in ("PASS", "FAIL", "SKIP")}
    lines = [
        "# What was run on a GPU",
        "",
        f"`scripts/gpu-check` on one {gpu}, driver {driver}, {datetime.date.today().isoformat()}: "
        f"{count['PASS']} passed, {count['FAIL']} failed, {count['SKIP']} skipped, {seconds:.0f} s.",
        "",
        "Each program also runs without the library; the results have to be equal. A name that ends in "
        "`-static` has NVIDIA's runtime inside, one in `-shared` uses libcudart.so, one in `-driver` uses the "
        "driver alone.",
        "",
        "| check | result | what was seen |",
        "|---|---|---|",
    ]
    for o in outcomes:
        lines.append(f"| {o.name} | {o.verdict} | {o.reason.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description="The checks that need a GPU.")
    parser.add_argument("--only", metavar="PATTERN", help="only checks whose name matches, e.g. 'stress*,torch_*'")
    parser.add_argument("--json", metavar="FILE", help="the results as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="the table for docs/gpu-check.md")
    parser.add_argument("--list", action="store_true", help="name the checks and end")
    options = parser.parse_args()

    checks = (check_programs.checks() + check_frameworks.checks() + check_cases.checks() + check_suites.checks()
              + check_attach.checks() + check_cli.checks() + check_tools.checks() + check_speed.checks())
    if options.only:
        patterns = options.only.split(",")
        checks = [c for c in checks if any(fnmatch.fnmatch(c.name, p) for p in patterns)]
    if options.list:
        for check in checks:
            print(check.name)
        return 0
    if not checks:
        print(f"gpu-check: no check matches {options.only}", file=sys.stderr)
        return 2
    if not common.LIBRARY.exists():
        print(f"gpu-check: {common.LIBRARY} is missing: cargo build --release", file=sys.stderr)
        return 2
    try:
        gpu, driver = device()
    except Skip as why:
        print(f"gpu-check: no usable GPU ({why})", file=sys.stderr)
        return 2
    print(f"{gpu}, driver {driver}", flush=True)

    start = time.monotonic()
    outcomes = []
    for group in GROUPS:
        mine = [c for c in checks if c.group == group]
        if not mine:
            continue
        workers = AT_A_TIME if group == "together" else 1
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            outcomes += pool.map(judge, mine)
    seconds = time.monotonic() - start

    print()
    width = max(len(o.name) for o in outcomes)
    for o in outcomes:
        print(f"{o.verdict}  {o.name:{width}}  {o.seconds:6.1f} s  {o.reason}")
    failed = [o for o in outcomes if o.verdict == "FAIL"]
    counts = {v: sum(o.verdict == v for o in outcomes) for v in ("PASS", "FAIL", "SKIP")}
    print(f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped in {seconds:.0f} s")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump({"gpu": gpu, "driver": driver, "date": datetime.date.today().isoformat(),
                       "seconds": seconds, "checks": [vars(o) for o in outcomes]}, f, indent=1)
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as f:
            f.write(markdown(gpu, driver, outcomes, seconds))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
