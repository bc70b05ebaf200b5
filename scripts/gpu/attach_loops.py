"""Endless work to attach to, with framework caching off.   attach_loops.py torch|cupy

Prints `RATE CHECKSUM` for each stretch of about half a second: iterations per second, and a number
that is the same for every stretch. Ends when its standard input does."""

import sys
import threading
import time


def stretches(step, synchronise, checksum):
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    for _ in range(8):
        step()
    synchronise()
    while not ended.is_set():
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < 0.5:
            step()
            count += 1
            if count % 8 == 0:
                synchronise()
        synchronise()
        rate = count / (time.perf_counter() - start)
        print(f"{rate:.1f} {checksum()}", flush=True)


def torch_loop():
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device="cuda", dtype=torch.bfloat16)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()
    inputs = [torch.randn(4, n, 512, device="cuda", dtype=torch.bfloat16) for n in (64, 96, 128, 256)]
    turn = 0

    def step():
        nonlocal turn
        model(inputs[turn % len(inputs)])
        turn += 1

    def checksum():
        return f"{float(model(inputs[0]).float().abs().mean()):.6f}"

    with torch.inference_mode():
        stretches(step, torch.cuda.synchronize, checksum)


def cupy_loop():
    import cupy

    cupy.cuda.set_allocator(None)
    a = cupy.arange(1 << 18, dtype=cupy.float32)

    def step():
        b = a * 2 + 1
        c = cupy.sqrt(b) - a
        return (c * c).sum()

    stretches(step, cupy.cuda.Device().synchronize, lambda: f"{float(step()):.6e}")


if __name__ == "__main__":
    {"torch": torch_loop, "cupy": cupy_loop}[sys.argv[1]]()
