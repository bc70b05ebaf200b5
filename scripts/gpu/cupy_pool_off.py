"""CuPy with its own pools off: every array is a cudaMalloc. Prints checksums.
cupy_pool_off.py [iterations]"""

import sys

import cupy


def main():
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    total = 0.0
    for i in range(iterations):
        n = 200 + (i * 37) % 300
        a = cupy.arange(n * n, dtype=cupy.float64).reshape(n, n) % 17
        b = (a @ a.T) + cupy.sin(a)  # cuBLAS and elementwise kernels
        c = cupy.fft.fft(b[0])       # cuFFT
        d = cupy.sort(cupy.abs(c))
        value = float(d.sum()) / n**3
        if i < 100:
            total += value
    print(f"sum of the first 100: {total:.9f}")


if __name__ == "__main__":
    main()
