"""Builds the benchmark's programs: with the C++ compiler against NVIDIA's runtime, or against the
simulated driver's; multi_stream with nvcc. What cannot be built is a reason, not an end."""

import concurrent.futures
import functools
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import zipfile
from pathlib import Path

import common
from common import Fail, Skip

SOURCES = Path(__file__).resolve().parent / "programs"
JOBS = ["jobs", "jobs_pairs", "jobs_handoff", "jobs_costs", "jobs_mistakes", "jobs_live", "jobs_host"]
# What each program is linked with, and the file that defines its allocators.
LINKED = {
    "shared": "peer_cuda",
    "static": "peer_cuda",
    "cub": "peer_cub",
    "rmm": "peer_rmm",
    "torch": "peer_torch",
}
BUILD_TIMEOUT = 150


def module_folder(name: str) -> Path:
    """Where Python finds a package; Skip if it does not."""
    found = importlib.util.find_spec(name)
    if not found or not found.submodule_search_locations:
        raise Skip(f"no {name} here")
    return Path(next(iter(found.submodule_search_locations)))


class Toolchain:
    """Where headers and libraries are: the CUDA toolkit's, or the simulated driver's."""

    def __init__(self, simulated: Path | None):
        self.simulated = simulated
        self.compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
        if not self.compiler:
            raise Skip("no C++ compiler here")
        if simulated:
            self.includes = [common.ROOT / "tests/simcuda/include"]
            self.libraries = [simulated]
            return
        home = common.cuda_home()
        if not home:
            raise Skip("no CUDA toolkit here")
        self.includes = [home / "include", home / "targets/x86_64-linux/include", home / "include/cccl",
                         home / "targets/x86_64-linux/include/cccl"]
        self.libraries = [home / "lib64", home / "targets/x86_64-linux/lib", home / "lib"]

    def library(self, *names: str) -> Path:
        """The first of these files that is there."""
        for name in names:
            for folder in self.libraries:
                if (folder / name).exists():
                    return folder / name
        raise Skip(f"no {names[0]} in {self.libraries[0]}")

    def runtime(self, program: str) -> list:
        """How the CUDA runtime is linked."""
        if program == "static":
            return [self.library("libcudart_static.a"), "-lrt"]
        shared = [self.library("libcudart.so.13", "libcudart.so")]
        # The simulated runtime finds its driver when it is loaded.
        return shared + (["-Wl,--allow-shlib-undefined"] if self.simulated else [])


def unpacked_wheels() -> Path | None:
    """The folder that RMM_WHEELS names, with the wheels in it unpacked."""
    named = os.environ.get("RMM_WHEELS")
    if not named:
        return None
    folder = Path(named)
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        return folder
    target = common.WORK / "wheels"
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return target


@functools.cache
def rmm_folders() -> tuple[Path, Path]:
    """The packages librmm and rapids_logger: from RMM_WHEELS, else from where Python finds them."""
    if carried := unpacked_wheels():
        folders = carried / "librmm", carried / "rapids_logger"
        for folder in folders:
            if not folder.is_dir():
                raise Skip(f"no {folder.name} in RMM_WHEELS")
        return folders
    return module_folder("librmm"), module_folder("rapids_logger")


def extra(program: str, toolchain: Toolchain) -> tuple[list, list]:
    """More words for compiling and for linking a program's allocator."""
    if program in ("cub", "rmm", "torch") and toolchain.simulated:
        raise Skip("not on the simulated driver")
    if program == "rmm":
        rmm, logger = rmm_folders()
        libraries = [rmm / "lib64/librmm.so", logger / "lib64/librapids_logger.so"]
        includes = [rmm / "include", rmm / "include/rapids", logger / "include"]
    elif program == "torch":
        torch = module_folder("torch")
        libraries = [torch / "lib/libc10_cuda.so", torch / "lib/libc10.so"]
        includes = [torch / "include"]
    else:
        return [], []
    for needed in libraries + includes:
        if not needed.exists():
            raise Skip(f"no {needed.name} in {needed.parent}")
    paths = ":".join(str(library.parent) for library in libraries)
    return [word for i in includes for word in ("-isystem", i)], [*libraries, f"-Wl,-rpath,{paths}"]


def tool(command: list, what: str) -> None:
    done = common.run(command, timeout=BUILD_TIMEOUT)
    if done.code != 0:
        first = next((l for l in done.err.splitlines() if "error" in l), done.tail())
        raise Fail(f"{what} does not build: {first.strip()[:300]}")


class Programs:
    """The programs by name; each is built once, in the background, from when it is first named."""

    def __init__(self, simulated: Path | None):
        self.folder = common.WORK / "bench-programs"
        self.folder.mkdir()
        self.simulated = simulated
        self.workers = concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2)
        self.objects: dict[str, concurrent.futures.Future] = {}
        self.programs: dict[str, concurrent.futures.Future] = {}

    def _object(self, source: str, words: list) -> Path:
        """Compiles one file."""
        toolchain = Toolchain(self.simulated)
        out = self.folder / f"{source}.o"
        includes = [word for i in [common.SOURCES, *toolchain.includes]
                    if i.is_dir() and i != Path("/usr/include") for word in ("-isystem", i)]
        tool([toolchain.compiler, "-std=c++17", "-O2", "-pthread", "-Wall", "-Wextra", *words, *includes,
              "-c", SOURCES / f"{source}.cc", "-o", out], f"{source}.cc")
        return out

    def _link(self, program: str, objects: list[concurrent.futures.Future]) -> Path:
        toolchain = Toolchain(self.simulated)
        out = self.folder / program
        _, words = extra(program, toolchain)
        tool([toolchain.compiler, "-pthread", *[o.result() for o in objects], "-o", out, *words,
              *toolchain.runtime(program), "-ldl"], program)
        return out

    def _multi_stream(self, linked: str) -> Path:
        if self.simulated:
            raise Skip("needs nvcc and a GPU")
        return common.nvcc(common.HERE / "multi_stream.cu", self.folder / f"multi_stream_{linked}", "-cudart", linked)

    def start(self, names: list[str]) -> None:
        """Begins to build these."""
        for name in names:
            if name in self.programs:
                continue
            if name.startswith("multi_stream_"):
                self.programs[name] = self.workers.submit(self._multi_stream, name.removeprefix("multi_stream_"))
                continue
            try:
                words, _ = extra(name, Toolchain(self.simulated))
            except Skip as why:
                self.programs[name] = concurrent.futures.Future()
                self.programs[name].set_exception(why)
                continue
            for source in [*JOBS, LINKED[name]]:
                if source not in self.objects:
                    self.objects[source] = self.workers.submit(self._object, source, words)
            parts = [self.objects[source] for source in [*JOBS, LINKED[name]]]
            # A thread of its own: a worker would wait for other workers.
            linker = concurrent.futures.ThreadPoolExecutor(1)
            self.programs[name] = linker.submit(self._link, name, parts)
            linker.shutdown(wait=False)

    def wait(self) -> None:
        """Until all that was begun is built or has failed: a compiler beside it would spoil a measurement."""
        concurrent.futures.wait(self.programs.values())

    def get(self, name: str) -> Path:
        """The program's file. Raises Skip or Fail if there is none."""
        self.start([name])
        return self.programs[name].result()


def versions() -> dict[str, str]:
    """Versions of what is compared with."""
    found = {"python": sys.version.split()[0]}
    for name in ("torch", "cupy-cuda13x", "cupy-cuda12x", "librmm-cu13"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    if named := os.environ.get("RMM_WHEELS"):
        for wheel in Path(named).glob("librmm_cu*-*"):
            found["librmm-cu13"] = wheel.name.split("-")[1].removesuffix(".dist")
    if nvcc := common.tool("nvcc"):
        text = common.run([nvcc, "--version"], timeout=30).out
        found["cuda"] = text.partition("release ")[2].partition(",")[0] or "?"
    return found
