"""The jobs `pairs:BYTES:1` with CuPy's pool, in one thread, Python's own time included.

Usage: cupy_pairs.py SECONDS JOB...     other jobs are passed over"""

import sys
import time

import cupy


def main():
    seconds = float(sys.argv[1])
    pool = cupy.cuda.MemoryPool()
    for job in sys.argv[2:]:
        kind, size, *threads = job.split(":")
        if kind != "pairs" or threads != ["1"]:
            continue
        size, pairs = int(size), 0
        for _ in range(16):
            pool.malloc(size)
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            for _ in range(100):  # a block that nothing holds goes back at once
                pool.malloc(size)
            pairs += 100
        print(f"{job} {pairs / (time.perf_counter() - start):.6g}", flush=True)


if __name__ == "__main__":
    main()
