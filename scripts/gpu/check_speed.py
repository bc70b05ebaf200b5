"""What is measured. Everything is a ratio of two things measured in one run, one after the
other in turns, and the best of the turns counts: clocks and neighbours change between runs."""

import common
import measure
from check_programs import Check
from common import Fail, need_module

TURNS = 3
# A neighbour on the machine can take the processor for seconds: so many turns, while it looks too slow.
MOST_TURNS = 8
# An unmodified PyTorch without its cache must not be slower than with it by more than this.
TORCH_LIMIT = 1.05
STREAM_LIMIT = 0.80
STREAM_MEMORY = 512 << 20


def torch_infer():
    need_module("torch")
    lines = measure.torch_infer(TURNS, ["own", "pool"])
    for _ in range(TURNS, MOST_TURNS):
        if all(by["pool"].value <= by["own"].value * TORCH_LIMIT for by in lines.values()):
            break
        measure.torch_infer(1, ["own", "pool"], lines=lines)
    text, slow = [], []
    for name, by in lines.items():
        if by["own"].checksum != by["pool"].checksum:
            raise Fail(f"{name}: checksum {by['own'].checksum} and {by['pool'].checksum}")
        ratio = by["pool"].value / by["own"].value
        text.append(f"{name} {by['pool'].value:.2f}/{by['own'].value:.2f} ms = {ratio:.3f}")
        if ratio > TORCH_LIMIT:
            slow.append(name)
    if slow:
        raise Fail(f"over {TORCH_LIMIT}: {', '.join(slow)}; " + ", ".join(text))
    return ", ".join(text)


def multi_stream(linked):
    best = {}
    peak = 0
    program = common.nvcc(common.HERE / "multi_stream.cu", common.WORK / f"multi_stream_{linked}", "-cudart", linked)
    for _ in range(TURNS):
        rates, stats = measure.multi_stream(program, ["malloc", "preallocated"], common.LIBRARY)
        peak = max(peak, int(stats.get("peak_reserved_bytes", 0)))
        ratio = rates["malloc", 8] / rates["preallocated", 8]
        if not best or ratio > best["ratio"]:
            best = {"ratio": ratio, "rates": rates}
    text = (f"{best['rates']['malloc', 8]:.0f} of {best['rates']['preallocated', 8]:.0f} kernels/s = "
            f"{best['ratio']:.2f}, peak {peak / 2**20:.0f} MiB")
    if best["ratio"] < STREAM_LIMIT:
        raise Fail(f"under {STREAM_LIMIT}: {text}")
    if not 0 < peak <= STREAM_MEMORY:
        raise Fail(f"holds more than 512 MiB, or wrote no statistics: {text}")
    return text


def checks() -> list[Check]:
    return [
        Check("multi_stream_static", lambda: multi_stream("static"), "speed"),
        Check("multi_stream_shared", lambda: multi_stream("shared"), "speed"),
        Check("torch_infer", torch_infer, "speed"),
    ]
