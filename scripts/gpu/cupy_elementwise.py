"""Element-wise CuPy operations over arrays of changing sizes, which leave temporaries behind:
`elementwise MILLISECONDS CHECKSUM`, and `reserved BYTES` of CuPy's own pool.

Usage: cupy_elementwise.py own|off [iterations]     off: every array is a cudaMalloc of its own"""

import sys
import time

import cupy


def step(i):
    n = (1 << 18) + 4096 * (i * 37 % 64)
    x = cupy.arange(n, dtype=cupy.float32) / n
    y = cupy.sin(x) * 2 + x * x - cupy.sqrt(x + 1)
    return cupy.maximum(y, x) - cupy.minimum(y, x)


def main():
    own = sys.argv[1] == "own"
    iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    if not own:
        cupy.cuda.set_allocator(None)
        cupy.cuda.set_pinned_memory_allocator(None)
    for i in range(64):
        last = step(i)
    best = float("inf")
    for _ in range(3):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        for i in range(iterations):
            last = step(i)
        cupy.cuda.Device().synchronize()
        best = min(best, (time.perf_counter() - start) / iterations * 1e3)
    print(f"elementwise {best:.5f} {float(last.sum(dtype=cupy.float64)):.6f}", flush=True)
    if own:
        print(f"reserved {cupy.get_default_memory_pool().total_bytes()}", flush=True)


if __name__ == "__main__":
    main()
