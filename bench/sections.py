"""What is compared: sections, their ways, and the jobs of each (bench/programs/bench.h)."""

import json
import os
from pathlib import Path

import common
from build import SOURCES, Programs
from common import Skip, need_module
from runs import Section, Way

KIB, MIB = 1 << 10, 1 << 20
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


class Scale:
    """How much is measured: fully, in a short time, or just enough to see that it works."""

    def __init__(self, kind: str = "full"):
        self.kind = kind
        full = kind == "full"
        self.simulated = kind == "smoke"
        # The length of one measurement.
        self.seconds = {"full": 0.08, "quick": 0.05, "smoke": 0.01}[kind]
        self.sizes = [4 * KIB, MIB]
        self.threads = {"full": [1, 2, 4, 8, 16], "quick": [1, 4, 16], "smoke": [1, 2]}[kind]
        self.passing = 4 if self.simulated else 16
        self.cost_sizes = [10**6, 10**8] if not self.simulated else [10**6]
        self.streams = 4 if self.simulated else 16
        self.live = {"full": [1000, 100_000, 1_000_000], "quick": [1000, 100_000], "smoke": [100, 1000]}[kind]
        self.host = [(4 * KIB, 1), (MIB, 1)] if self.simulated else [
            (4 * KIB, 1), (4 * KIB, 16), (MIB, 1), (MIB, 16), (100 * MIB, 1)] + ([(100 * MIB, 16)] if full else [])
        self.staging = 64 * KIB if self.simulated else 4 * MIB
        self.startups = {"full": 200, "quick": 50, "smoke": 3}[kind]
        self.passes = 2 if full else 1
        self.steps = 40 if full else 10


def pair_jobs(scale: Scale) -> list[str]:
    return [f"pairs:{size}:{threads}" for size in scale.sizes for threads in scale.threads]


def busy_jobs(scale: Scale) -> list[str]:
    return [f"busy:{MIB}:{threads}" for threads in scale.threads if threads not in (2, 8) or scale.simulated]


def handoff_jobs(scale: Scale) -> list[str]:
    return [f"handoff:{size}:{shape}:{scale.passing}" for size in scale.sizes for shape in ("pairs", "ring")]


def cost_jobs(scale: Scale) -> list[str]:
    return [f"cost:{size}" for size in scale.cost_sizes] + loop_jobs(scale)


def loop_jobs(scale: Scale) -> list[str]:
    return [f"loop:{size}" for size in scale.cost_sizes]


def mistake_jobs(scale: Scale) -> list[str]:
    return [f"heads:{scale.streams}", f"resize:{8 * MIB}", "beside:4"]


def live_jobs(scale: Scale) -> list[str]:
    return [f"live:{blocks}" for blocks in scale.live]


def host_jobs(scale: Scale) -> list[str]:
    return [f"host:{size}:{threads}" for size, threads in scale.host] + [f"staging:{scale.staging}:request"]


def async_jobs(scale: Scale) -> list[str]:
    return [f"pairs:{MIB}:{threads}" for threads in (1, scale.threads[-1])] + [f"sync:{MIB}"]


class Maker:
    """Makes the sections for a scale and the programs built for it."""

    def __init__(self, scale: Scale, programs: Programs):
        self.scale = scale
        self.programs = programs

    def jobs(self, name: str, program: str, allocator: str, jobs: list[str], **options) -> Way:
        """A way that runs jobs with an allocator of one of the programs."""
        def command():
            return [self.programs.get(program), allocator, str(self.scale.seconds), *jobs]

        return Way(name, command, programs=[program], **options)

    def peers(self, jobs: list[str], env: dict[str, str] | None = None) -> list[Way]:
        """Every allocator that threads can use."""
        env = env or {}
        return [
            self.jobs("native", "shared", "malloc", jobs),
            self.jobs("gpupool", "shared", "malloc", jobs, library=True, env=env),
            self.jobs("gpupool-static", "static", "malloc", jobs, library=True, env=env),
            self.jobs("async", "shared", "async", jobs),
            self.jobs("cub", "cub", "cub", jobs, quick=False),
            self.jobs("rmm-pool", "rmm", "rmm-pool", jobs, quick=False),
            self.jobs("rmm-arena", "rmm", "rmm-arena", jobs, quick=False),
            self.jobs("torch", "torch", "torch", jobs, quick=False),
        ]

    def all_peers(self, jobs: list[str]) -> list[Way]:
        """These, CuPy's, and what shows the cost of a way: through the driver, and a library that does
        nothing or only looks on."""
        def cupy():
            self.needs_gpu("cupy")
            return ["python3", SOURCES / "cupy_pairs.py", str(self.scale.seconds), *jobs]

        return [
            *self.peers(jobs),
            Way("cupy", cupy, quick=False),
            self.jobs("gpupool-driver", "shared", "driver", jobs, library=True, quick=False),
            self.jobs("driver", "shared", "driver", jobs, quick=False),
            self.jobs("off", "shared", "malloc", jobs, library=True, env={"GPUPOOL_MODE": "off"}, quick=False),
            self.jobs("observe", "shared", "malloc", jobs, library=True, env={"GPUPOOL_MODE": "observe"},
                      quick=False),
        ]

    def needs_gpu(self, *modules: str) -> None:
        if self.scale.simulated:
            raise Skip("not on the simulated driver")
        need_module(*modules)

    def python(self, name: str, module: str, script: str, *arguments, **options) -> Way:
        """A way that runs a Python program of scripts/gpu."""
        def command():
            self.needs_gpu(module)
            return ["python3", common.HERE / script, *arguments]

        return Way(name, command, **options)

    def torch(self, script: str, *arguments) -> list[Way]:
        """PyTorch without its cache, natively and with the library, and its own allocators."""
        def backend(text: str) -> dict[str, str]:
            # Older and newer versions name the variable differently.
            return {"PYTORCH_CUDA_ALLOC_CONF": text, "PYTORCH_ALLOC_CONF": text}

        def way(name, **options):
            return self.python(name, "torch", script, *arguments, **options)

        return [
            way("uncached", env=UNCACHED),
            way("gpupool", env=UNCACHED, library=True),
            way("own"),
            way("own-expandable", env=backend("expandable_segments:True"), quick=False),
            way("own-async", env=backend("backend:cudaMallocAsync"), quick=False),
        ]

    def streams(self) -> list[Way]:
        """multi_stream, with both kinds of linking."""
        kernels = {"full": ("1000", "4000"), "quick": ("500", "2000"), "smoke": ("10", "10")}[self.scale.kind]

        def way(name, linked, what, count, library=False):
            def command():
                return [self.programs.get(f"multi_stream_{linked}"), count, what]

            return Way(name, command, library=library, parse=stream_rates, programs=[f"multi_stream_{linked}"])

        return [
            way("native", "shared", "malloc", kernels[0]),
            way("gpupool", "shared", "malloc", kernels[1], library=True),
            way("gpupool-static", "static", "malloc", kernels[1], library=True),
            way("async", "shared", "async", kernels[1]),
            way("preallocated", "shared", "preallocated", kernels[1]),
        ]

    def traces(self) -> list[Way]:
        """The recorded traces through the pool's logic."""
        folder = Path(os.environ.get("TRACES", common.ROOT / "tests/traces"))
        command_file = Path(os.environ.get("GPUPOOL_COMMAND", common.LIBRARY.parent / "gpupool"))

        def way(name: str, trace: Path, delay: list[str]) -> Way:
            def command():
                if not command_file.exists():
                    raise Skip(f"no {command_file.name} beside the library")
                return [command_file, "replay", "--json", *delay, trace]

            return Way(name, command, parse=replayed)

        files = sorted(f for f in folder.glob("*") if f.name.endswith((".csv.xz", ".trace", ".csv")))
        if self.scale.simulated:
            files = files[:1]
        return [way(f"{name} {f.name.partition('.')[0]}", f, delay) for f in files
                for name, delay in (("at-once", []), ("later", ["--delay", "0.2ms"]))]

    def startup(self) -> list[Way]:
        def command():
            return [SOURCES / "startup", str(self.scale.startups)]

        return [Way("without", command), Way("with", command, library=True)]

    def all(self) -> list[Section]:
        """Every section, in the order in which they are run and shown."""
        scale = self.scale
        jobs, costs, mistakes = self.jobs, cost_jobs(scale), mistake_jobs(scale)
        live, hosts, ordered = live_jobs(scale), host_jobs(scale), async_jobs(scale)
        # A million native allocations would take half a minute, and as long to free.
        few = live[:2] if scale.kind != "quick" else live[:1]
        sections = [
            Section("pairs", self.all_peers(pair_jobs(scale))),
            Section("busy", self.peers(busy_jobs(scale), {"GPUPOOL_MAX": "1G"})),
            Section("handoff", self.peers(handoff_jobs(scale))),
            Section("costs", [
                jobs("native", "shared", "malloc", costs),
                jobs("gpupool", "shared", "malloc", costs, library=True),
                jobs("async", "shared", "async", costs),
                jobs("preallocated", "shared", "preallocated", loop_jobs(scale)),
            ]),
            Section("mistakes", [
                jobs("native", "shared", "malloc", mistakes),
                jobs("gpupool", "shared", "malloc", mistakes, library=True),
                jobs("gpupool-static", "static", "malloc", mistakes, library=True, quick=False),
                jobs("async", "shared", "async", mistakes),
                jobs("preallocated", "shared", "preallocated", mistakes),
            ]),
            Section("streams", self.streams(), turns=2),
            Section("infer", self.torch("torch_infer.py", str(scale.passes), "memory"), turns=2, timeout=90,
                    memory=True),
            Section("train", self.torch("torch_train.py", str(scale.steps)), turns=1, timeout=90, memory=True,
                    quick=False),
            Section("cupy", [
                self.python("uncached", "cupy", "cupy_elementwise.py", "off"),
                self.python("gpupool", "cupy", "cupy_elementwise.py", "off", library=True),
                self.python("own", "cupy", "cupy_elementwise.py", "own"),
            ], turns=2, memory=True),
            Section("startup", self.startup(), stats=False),
            Section("live", [
                jobs("native", "shared", "malloc", few),
                jobs("gpupool", "shared", "malloc", live, library=True),
                jobs("async", "shared", "async", live, quick=False),
            ], turns=1),
            Section("host", [
                jobs("pinned", "shared", "malloc", hosts),
                jobs("gpupool", "shared", "malloc", hosts, library=True),
                jobs("preallocated", "shared", "malloc", [f"staging:{scale.staging}:kept"]),
            ], turns=2),
            Section("async", [
                jobs("untuned", "shared", "async-untuned", ordered),
                jobs("native-tuned", "shared", "async", ordered),
                *[jobs(f"gpupool-{value}", "shared", "async-untuned", ordered, library=True,
                       env={"GPUPOOL_ASYNC": value}, quick=value != "pass") for value in ("pass", "tune", "pool")],
            ], turns=2),
            Section("traces", self.traces(), turns=1, stats=False, quick=False),
        ]
        if scale.kind == "quick":
            for section in sections:
                section.turns = 1
                section.ways = [way for way in section.ways if way.quick]
            sections = [section for section in sections if section.quick]
        return sections


def stream_rates(out: str):
    """Of multi_stream's `WAY THREADS RATE` lines: rates by thread count."""
    return {words[1]: float(words[2]) for line in out.splitlines() if len(words := line.split()) == 3}, {}


def replayed(out: str):
    """Of `gpupool replay --json`."""
    if not out.strip():
        return {}, {}
    figures = json.loads(out)["variants"][0]
    return {"reserved": float(figures["peak_reserved_bytes"]), "live": float(figures["peak_live_bytes"])}, {}
