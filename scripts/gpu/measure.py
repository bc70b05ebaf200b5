"""What check_speed measures."""

import common
from common import Fail, expect_ok, run
from dataclasses import dataclass

# How PyTorch allocates in each column.
TORCH_WAYS = {
    "own": ({}, False),
    "pool": ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, True),
}


@dataclass
class Timed:
    """Milliseconds an iteration, the best seen, and the result's checksum."""

    value: float
    checksum: str


def torch_infer(turns: int, ways: list[str], repeat: int = 2,
                lines: dict[str, dict[str, Timed]] | None = None) -> dict[str, dict[str, Timed]]:
    """line -> way -> best time of `turns` runs, the ways taken in turns; added to `lines`."""
    lines = {} if lines is None else lines
    for _ in range(turns):
        for way in ways:
            env, with_library = TORCH_WAYS[way]
            done = run(["python3", common.HERE / "torch_infer.py", str(repeat)], env=env,
                       library=common.LIBRARY if with_library else None, timeout=120)
            expect_ok(done, f"torch_infer.py ({way})")
            for line in done.out.splitlines():
                name, value, checksum = line.split()
                seen = lines.setdefault(name, {}).get(way)
                if seen and seen.checksum != checksum:
                    raise Fail(f"{name}: checksum {seen.checksum}, then {checksum} ({way})")
                if not seen or float(value) < seen.value:
                    lines[name][way] = Timed(float(value), checksum)
    return lines


def multi_stream(program, ways: list[str], library=None, kernels: int = 4000):
    """({(way, threads): kernels/s}, statistics) of one run."""
    done = run([program, str(kernels), *ways], library=library, cuda_path=True, timeout=120)
    expect_ok(done, "multi_stream")
    rates = {}
    for line in done.out.splitlines():
        way, threads, value = line.split()
        rates[way, int(threads)] = float(value)
    return rates, done.stats
