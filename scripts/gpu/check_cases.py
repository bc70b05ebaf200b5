"""Cases that users reported of such systems and that need real libraries: docs/contract.md."""

import os
import shutil
import sys

import common
from check_programs import Check, table, executable
from common import Fail, Skip, compare, expect_ok, need_module, run

CACHING_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
# How often a process has to end well: the order in which things are taken down is not always the same.
ENDS = 50


def _equal(script, *arguments, env=None, timeout=150, library=None):
    """Runs a script of this folder without and with the library: the same output and exit code."""
    command = [sys.executable, common.HERE / script, *arguments]
    native = run(command, env=env, timeout=timeout)
    if native.code == 77:
        raise Skip(native.out.strip() or native.tail())
    if native.code != 0:
        raise Skip(f"does not work without the library either: exit {native.code}, {native.tail()}")
    pooled = expect_ok(run(command, library=library or common.LIBRARY, env=env, timeout=timeout), "with the library it")
    compare(native.out, pooled.out)
    said = [l for l in pooled.err.splitlines() if l.startswith("gpupool[")]
    if said:
        raise Fail(f"the library says: {said[0]}")
    return pooled


# covers: case-13
def torch_multiprocessing(caching, *arguments):
    need_module("torch")
    _equal("torch_multiprocessing.py", *arguments, env={} if caching else CACHING_OFF)
    return "60 tensors in each direction, values right"


# covers: case-19
def right_library():
    folder = common.WORK / "a,b;größe"
    folder.mkdir(exist_ok=True)
    library = folder / "libgpupool.so"
    shutil.copy(common.LIBRARY, library)
    pooled = _equal("right_library.py", library=library)
    found = [l for l in pooled.out.splitlines() if l.startswith("lib") and not l.endswith("absent")]
    return f"{len(found)} functions in their libraries"


# covers: case-28
def cufft_plan():
    pooled = _equal("cufft_plan.py")
    return "; ".join(pooled.out.splitlines()[:2])


# covers: case-35
def tensorrt_large():
    command = [*common.tensorrt(), common.HERE / "tensorrt_work.py", "large"]
    native = common.expect_ok(common.run(command), "without the library it")
    pooled = common.expect_ok(common.run(command, library=common.LIBRARY), "with the library it")
    common.compare(native.out, pooled.out)
    return "4 runs with 96 MiB of output right"


def ends(row, flavour):
    """A row about the end of a process, many times: each time as the first."""
    times = int(os.environ.get("GPUPOOL_TEST_REPEAT", ENDS))
    command = [executable(row.program, flavour), *row.arguments]
    if row.program == "unload":
        executable("plugin_library", "plugin")
    expected = None
    if "pooled-only" not in row.rules:
        expected = expect_ok(run(command, cuda_path=True, timeout=60), "already without the library it").out
    for i in range(times):
        done = run(command, library=common.LIBRARY, env=row.pool, cuda_path=True, timeout=60, stats=False)
        expect_ok(done, f"run {i + 1} with the library")
        expected = expected if expected is not None else done.out
        if done.out != expected or done.err.strip():
            raise Fail(f"run {i + 1}: `{done.out.strip()[-150:]}`, on stderr `{done.tail()}`")
    return f"{times} times alike"


def checks() -> list[Check]:
    made = [
        Check("torch_multiprocessing", lambda: torch_multiprocessing(True)),
        Check("torch_multiprocessing_caching_off", lambda: torch_multiprocessing(False)),
        Check("torch_multiprocessing_plain_child", lambda: torch_multiprocessing(True, "plain-child")),
        Check("torch_multiprocessing_plain_child_caching_off", lambda: torch_multiprocessing(False, "plain-child")),
        Check("right_library", right_library),
        Check("cufft_plan", cufft_plan, "alone"),
        Check("tensorrt_large", tensorrt_large),
    ]
    for row in table():
        if "ends" in row.rules and "sim-only" not in row.rules:
            for flavour in row.flavours:
                made.append(Check(f"ends_{row.id}-{flavour}", lambda row=row, flavour=flavour: ends(row, flavour)))
    return made
