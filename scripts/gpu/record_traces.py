#!/usr/bin/env python3
"""Records allocation traces of programs like real ones, the frameworks' own pools off, for
`gpupool replay`: one NAME.trace.xz each.

  record_traces.py [--out FOLDER] [--seconds S] [--calls N] [NAME...]

Needs a GPU, PyTorch (and CuPy for `tables` and `mixed`), and the library (GPUPOOL_LIB, else the
release build). A program stops after S seconds, or when its trace has about N calls."""

import argparse
import lzma
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

# What a call takes in a trace, in about.
BYTES_A_CALL = 12


class Limits:
    """Says when a program has done enough."""

    def __init__(self, seconds, calls):
        self.end = time.monotonic() + seconds
        self.bytes = calls * BYTES_A_CALL
        self.trace = os.environ.get("GPUPOOL_TRACE", "")

    def more(self):
        try:
            written = os.path.getsize(self.trace)
        except OSError:
            written = 0
        return time.monotonic() < self.end and written < self.bytes


# ---- the programs: each draws its sizes from a generator with a fixed seed ------------------------


def kv_cache(limits):
    """Serving a language model: requests come and go, and the key-value cache of each grows."""
    import torch

    draw, layers, heads, width = random.Random(1), 8, 16, 1024
    projections = [torch.randn(width, 3 * width, device="cuda", dtype=torch.bfloat16) / 32 for _ in range(layers)]
    out = torch.randn(width, 32000, device="cuda", dtype=torch.bfloat16) / 32
    requests = []
    with torch.inference_mode():
        while limits.more():
            while len(requests) < 12 and draw.random() < 0.5:
                batch, prompt = draw.choice((1, 1, 2, 4)), draw.randint(16, 700)
                shape = (batch, heads, prompt, width // heads)
                caches = [(torch.randn(shape, device="cuda", dtype=torch.bfloat16),
                           torch.randn(shape, device="cuda", dtype=torch.bfloat16)) for _ in range(layers)]
                requests.append([caches, torch.randn(batch, 1, width, device="cuda", dtype=torch.bfloat16),
                                 draw.randint(10, 200)])
            for request in requests:
                caches, x, _ = request
                for layer in range(layers):
                    q, k, v = (x @ projections[layer]).view(x.shape[0], 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
                    keys, values = caches[layer]
                    caches[layer] = keys, values = torch.cat((keys, k), 2), torch.cat((values, v), 2)
                    y = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
                    x = torch.nn.functional.layer_norm(x + y.transpose(1, 2).reshape(x.shape), (width,))
                (x @ out).argmax(-1)
                request[1] = x
                request[2] -= 1
            requests = [request for request in requests if request[2] > 0]
        torch.cuda.synchronize()


def batch_sweep(limits):
    """Inference and training of one model with batches from 1 to 256, as one looks for the best."""
    import torch

    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 8192),
                                torch.nn.GELU(), torch.nn.Linear(8192, 1000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    while limits.more():
        for batch in batches + batches[::-1]:
            for step in range(4):
                x = torch.randn(batch * 8, 2048, device="cuda")
                if step < 2:
                    with torch.no_grad():
                        model(x).softmax(-1).argmax(-1)
                else:
                    optimizer.zero_grad(set_to_none=True)
                    model(x).square().mean().backward()
                    optimizer.step()
            if not limits.more():
                break
    torch.cuda.synchronize()


def diffusion(limits):
    """An image model: a U-net with attention, many steps a picture, then a decoder; sizes change."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inside, outside):
            super().__init__()
            self.first, self.second = nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 3, padding=1)
            self.norm, self.skip = nn.GroupNorm(8, outside), nn.Conv2d(inside, outside, 1)

        def forward(self, x):
            return self.skip(x) + self.second(nn.functional.silu(self.norm(self.first(x))))

    class Unet(nn.Module):
        def __init__(self, widths=(128, 256, 512)):
            super().__init__()
            self.enter = nn.Conv2d(4, widths[0], 3, padding=1)
            self.down = nn.ModuleList(Block(a, b) for a, b in zip(widths, widths[1:]))
            self.attention = nn.MultiheadAttention(widths[-1], 8, batch_first=True)
            self.up = nn.ModuleList(Block(a + a, b) for a, b in zip(widths[::-1], widths[-2::-1]))
            self.leave = nn.Conv2d(widths[0], 4, 3, padding=1)

        def forward(self, x):
            x, kept = self.enter(x), []
            for block in self.down:
                x = block(x)
                kept.append(x)
                x = nn.functional.avg_pool2d(x, 2)
            y = x.flatten(2).transpose(1, 2)
            x = x + self.attention(y, y, y, need_weights=False)[0].transpose(1, 2).view(x.shape)
            for block in self.up:
                x = nn.functional.interpolate(x, scale_factor=2)
                x = block(torch.cat((x, kept.pop()), 1))
            return self.leave(x)

    torch.manual_seed(3)
    draw, model = random.Random(3), Unet().cuda().half().eval()
    decoder = nn.Sequential(nn.Conv2d(4, 256, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2),
                            nn.Conv2d(256, 128, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=4),
                            nn.Conv2d(128, 3, 3, padding=1)).cuda().half()
    with torch.inference_mode():
        while limits.more():
            batch, size = draw.choice((1, 1, 2, 4)), draw.choice((64, 64, 96, 128))
            x = torch.randn(batch, 4, size, size, device="cuda", dtype=torch.half)
            for _ in range(draw.choice((10, 20, 30))):
                both = model(torch.cat((x, x)))  # with and without the prompt
                x = x - 0.05 * (both[:batch] + 3 * (both[batch:] - both[:batch]))
            decoder(x).clamp(0, 1).cpu()


def tables(limits):
    """Columns of changing length: filters, joins, groups, and boosted trees on histograms."""
    import cupy

    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    cupy.random.seed(4)
    draw = random.Random(4)
    while limits.more():
        rows = draw.randint(20_000, 3_000_000)
        key = cupy.random.randint(0, rows // 10 + 1, rows)
        value, other = cupy.random.rand(rows), cupy.random.rand(rows, dtype=cupy.float32)
        keep = (value > draw.random() * 0.7) & (other < 0.9)
        key, value = key[keep], value[keep]
        order = cupy.argsort(key)
        key, value = key[order], value[order]
        groups, starts = cupy.unique(key, return_index=True)
        sums = cupy.diff(cupy.concatenate((cupy.zeros(1), cupy.cumsum(value)))[cupy.append(starts, len(value))])
        right = cupy.unique(cupy.random.randint(0, rows // 5 + 1, rows // 20 + 1))
        at = cupy.searchsorted(right, groups).clip(0, len(right) - 1)
        joined = sums[right[at] == groups]
        float(joined.sum())
        features, bins = draw.randint(4, 24), 64
        samples = draw.randint(5_000, 200_000)
        data = cupy.random.randint(0, bins, (features, samples)).astype(cupy.uint8)
        target = cupy.random.rand(samples)
        margin = cupy.zeros(samples)
        for _ in range(draw.randint(2, 6)):
            gradient = margin - target
            for feature in range(features):
                histogram = cupy.bincount(data[feature], weights=gradient, minlength=bins)
                split = int(cupy.abs(cupy.cumsum(histogram)).argmax())
                margin -= 0.1 * cupy.where(data[feature] <= split, histogram.mean(), -histogram.mean()) / samples


def transformer(torch, width, layers):
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, device="cuda",
                                             dtype=torch.bfloat16)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def two_models(limits):
    """Two models in one process, each in a thread and on a stream of its own."""
    import torch

    torch.manual_seed(5)
    language = transformer(torch, 512, 6)
    pictures = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, stride=2, padding=3), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 3, padding=1),
        torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(128, 256, 3, padding=1), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(256, 1000)).cuda().eval()

    def serve(model, inputs, seed):
        draw, stream = random.Random(seed), torch.cuda.Stream()
        with torch.inference_mode(), torch.cuda.stream(stream):
            while limits.more():
                model(inputs(draw)).float().mean().item()

    jobs = [(language, lambda draw: torch.randn(draw.choice((1, 2, 4, 8)), draw.randint(16, 512), 512, device="cuda",
                                                dtype=torch.bfloat16), 51),
            (pictures, lambda draw: torch.randn(draw.randint(1, 32), 3, *([draw.choice((160, 192, 224, 288))] * 2),
                                                device="cuda"), 52)]
    threads = [threading.Thread(target=serve, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()


def mixed(limits):
    """PyTorch and CuPy in one process, in two threads: training, inference, FFTs, sorts."""
    import cupy
    import torch

    cupy.cuda.set_allocator(None)
    torch.manual_seed(6)
    model = transformer(torch, 384, 4)
    head = torch.nn.Linear(384, 100).cuda()
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-2)

    def signals():
        draw = random.Random(61)
        with cupy.cuda.Stream(non_blocking=True):
            while limits.more():
                n = draw.randint(1_000, 2_000_000)
                wave = cupy.random.rand(n, dtype=cupy.float32)
                spectrum = cupy.fft.rfft(wave)
                float(cupy.sort(cupy.abs(spectrum))[-10:].sum())

    thread = threading.Thread(target=signals)
    thread.start()
    draw = random.Random(62)
    while limits.more():
        x = torch.randn(draw.randint(1, 16), draw.randint(16, 384), 384, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            features = model(x).float().mean(1)
        if draw.random() < 0.5:
            loss = torch.nn.functional.cross_entropy(head(features), torch.randint(0, 100, (len(x),), device="cuda"))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    thread.join()
    torch.cuda.synchronize()


PROGRAMS = {program.__name__: program for program in (kv_cache, batch_sweep, diffusion, tables, two_models, mixed)}


# ---- recording ------------------------------------------------------------------------------------


def library():
    """The library's path."""
    root = Path(__file__).resolve().parents[2]
    path = Path(os.environ.get("GPUPOOL_LIB") or root / "target/release/libgpupool.so").resolve()
    if not path.is_file():
        sys.exit(f"record_traces.py: {path} is no file: build the library, or name it in GPUPOOL_LIB")
    return path


def record(name, command, folder, limit):
    """Runs `command` with the library, and leaves FOLDER/NAME.trace.xz. Returns a line about it."""
    trace, result = folder / f"{name}.trace", folder / f"{name}.trace.xz"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
    environment |= {"LD_PRELOAD": str(library()), "GPUPOOL_TRACE": str(trace), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    trace.unlink(missing_ok=True)
    done = subprocess.run(command, env=environment, timeout=limit, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, check=False)
    if done.returncode != 0 or not trace.exists():
        reason = " / ".join(done.stderr.strip().splitlines()[-3:]) or "no trace was written"
        trace.unlink(missing_ok=True)
        raise RuntimeError(f"exit status {done.returncode}: {reason}")
    size = trace.stat().st_size
    with open(trace, "rb") as plain, lzma.open(result, "wb", preset=9 | lzma.PRESET_EXTREME) as packed:
        while block := plain.read(1 << 20):
            packed.write(block)
    trace.unlink()
    return f"{result}: {size} bytes, {result.stat().st_size} packed"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}; all unless given")
    parser.add_argument("--out", type=Path, default=Path("traces"))
    parser.add_argument("--seconds", type=float, default=7)
    parser.add_argument("--calls", type=int, default=60_000)
    parser.add_argument("--program", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        PROGRAMS[options.program](Limits(options.seconds, options.calls))
        return
    unknown = [name for name in options.names if name not in PROGRAMS]
    if unknown:
        parser.error(f"there is no program {unknown[0]!r}: take {', '.join(PROGRAMS)}")
    library()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in options.names or PROGRAMS:
        command = [sys.executable, str(Path(__file__).resolve()), "--program", name, "--seconds",
                   str(options.seconds), "--calls", str(options.calls)]
        try:
            print(record(name, command, options.out, options.seconds + 120), flush=True)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed = True
            print(f"{name}: FAILED: {error}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
