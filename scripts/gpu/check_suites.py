"""The frameworks' own tests, unmodified, with and without the library: each test has to end in the
same way. They are not part of this repository, nor of the wheels: SUITES names a folder with

  pytorch/test_cuda.py, pytorch/test_multiprocessing.py    of the PyTorch that is installed
  cupy-N/test_*.py and conftest.py                         tests/cupy_tests/cuda_tests of CuPy N.x, and
                                                           tests/conftest.py"""

import json
import os
import re
import sys
from pathlib import Path

import common
from check_programs import Check
from common import Fail, Skip

# New tests begin for so long, and a run is killed after that; a test that begins late may take a while.
BEGIN = int(os.environ.get("SUITES_SECONDS", "100"))
LIMIT = BEGIN + 50
CACHING_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
# Of a suite that is large: what has to do with memory, streams, graphs and processes.
CONCERNED = r"(?i)graph|memory|stream|alloc|pool|event|cach|ipc|record|pinned|reset|context|out_of"


def _folder(name: str) -> Path:
    place = os.environ.get("SUITES")
    if not place:
        raise Skip("SUITES names no folder with the frameworks' tests")
    folder = Path(place).resolve() / name
    if not folder.is_dir():
        raise Skip(f"no {name} in SUITES")
    return folder


class Outcomes(dict):
    """How each test ended. `last`: the one that had begun and not ended."""

    last = None
    why = ""


def _parse(text: str) -> Outcomes:
    found = Outcomes()
    for line in text.splitlines():
        # A test's own output may stand before it on the line.
        match = re.search(r"@(\{.*\})$", line)
        try:
            event = json.loads(match[1]) if match else {}
        except ValueError:
            continue
        if "begins" in event:
            found.last = event["begins"]
        elif "test" in event:
            found[event["test"]] = event["outcome"]
            found.last = None
        elif "collect" in event:
            found.why = f"{event['collect']}: {event['why']}"
    return found


def _run(files, pattern, library, env, names=None) -> Outcomes:
    command = [sys.executable, common.HERE / "suite_runner.py", str(BEGIN), "=" if names else pattern, *files]
    # What does not work without the library is no fault of the library's.
    fault = Fail if library else Skip
    side = "with" if library else "without"
    try:
        done = common.run(command, library=library, env=env, timeout=LIMIT, stats=False, cwd=files[0].parent,
                          feed="\n".join(names) if names else None)
    except Fail as why:
        raise fault(f"{side} the library it {why}") from None
    found = _parse(done.out)
    said = [l for l in done.err.splitlines() if l.startswith("gpupool[")]
    if said:
        raise Fail(f"the library says: {said[0]}")
    if found.last:
        raise fault(f"{side} the library {found.last} ends the process, exit {done.code}: {done.tail()}")
    found.why = found.why or (done.tail() if done.code else "")
    return found


def _differing(native: Outcomes, pooled: Outcomes) -> list[str]:
    # A slower run may have begun fewer tests.
    return sorted(name for name in native.keys() & pooled.keys() if native[name] != pooled[name])


def same_outcomes(files, pattern=".", env=None) -> str:
    """Fails unless each test ends alike. One that does not is run again on both sides, as some are
    unsteady by themselves."""
    native = _run(files, pattern, None, env)
    if not any(outcome == "passed" for outcome in native.values()):
        raise Skip(f"none of the tests passes without the library either: {native.why or dict(native)}"[:300])
    pooled = _run(files, pattern, common.LIBRARY, env)
    if not pooled:
        raise Fail(f"with the library no test runs: {pooled.why}")
    differing = _differing(native, pooled)
    unsteady = 0
    if differing:
        again = _differing(_run(files, pattern, None, env, differing), _run(files, pattern, common.LIBRARY, env, differing))
        unsteady = len(differing) - len(again)
        if again:
            text = ", ".join(f"{name}: {native[name]} / {pooled[name]}" for name in again[:5])
            raise Fail(f"{len(again)} tests end otherwise with the library: {text}")
    both = native.keys() & pooled.keys()
    passed = sum(native[name] == "passed" for name in both)
    return f"{len(both)} tests end alike, {passed} pass" + (f", {unsteady} unsteady" if unsteady else "")


def cupy(names, pattern=".") -> str:
    common.need_module("cupy", "pytest")
    from importlib.metadata import distributions

    versions = [d.version for d in distributions() if (d.metadata["Name"] or "").lower().startswith("cupy")]
    folder = _folder(f"cupy-{versions[0].split('.')[0]}" if versions else "cupy")
    files = [folder / f"{name}.py" for name in names if (folder / f"{name}.py").exists()]
    if not files:
        raise Skip(f"none of {', '.join(names)} in {folder.name}")
    return same_outcomes(files, pattern)


def torch(name, pattern, env) -> str:
    common.need_module("torch", "expecttest")
    path = _folder("pytorch") / f"{name}.py"
    if not path.exists():
        raise Skip(f"no {path.name} in pytorch")
    return same_outcomes([path], pattern, env)


def checks() -> list[Check]:
    return [
        # Tests of limits fill the device, and readings of free memory suffer from neighbours.
        Check("suite_cupy_memory", lambda: cupy(["test_memory", "test_pinned_memory", "test_memory_hook"]), "alone"),
        Check("suite_cupy_streams", lambda: cupy(["test_stream", "test_graph", "test_graph_functional_api"]), "alone"),
        # A test of threads that switch devices does not end on some machines, without the library either.
        Check("suite_cupy_driver", lambda: cupy(["test_driver", "test_device", "test_runtime", "test_ipc_handle",
                                                 "test_cufft"], r"^(?!.*test_thread_safe)"), "alone"),
        Check("suite_torch_cuda", lambda: torch("test_cuda", CONCERNED, {}), "alone"),
        Check("suite_torch_cuda_caching_off", lambda: torch("test_cuda", CONCERNED, CACHING_OFF), "alone"),
        Check("suite_torch_multiprocessing", lambda: torch("test_multiprocessing", "cuda|event|mixed", {}), "alone"),
        Check("suite_torch_multiprocessing_caching_off",
              lambda: torch("test_multiprocessing", "cuda|event|mixed", CACHING_OFF), "alone"),
    ]
