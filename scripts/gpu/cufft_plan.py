"""Most of the device was allocated and freed by cudaMalloc; then cuFFT, which carries a runtime of its
own, makes a plan that needs more than is left. Prints what is the same on every run; exit code 77:
there is no cuFFT here."""

import ctypes
import glob
import os
import sys

LEFT = 3 << 30
POINTS = 1 << 28  # double complex numbers: 4 GiB, and as much for the work area
Z2Z = 0x69


def load(pattern):
    for entry in sys.path:
        for path in sorted(glob.glob(os.path.join(entry, "nvidia", "*", "lib", pattern))):
            return ctypes.CDLL(path)
    for home in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        for path in sorted(glob.glob(os.path.join(home, "lib64", pattern))):
            return ctypes.CDLL(path)
    print(f"no {pattern}")
    sys.exit(77)


def main():
    runtime, cufft = load("libcudart.so.1?"), load("libcufft.so.1?")

    def check(code):
        if code:
            print(f"runtime: error {code}")
            sys.exit(1)

    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)))
    if free.value < 4 * LEFT:
        print("too small a device")
        sys.exit(77)
    part = (free.value - LEFT) // 16
    blocks = []
    for _ in range(16):
        p = ctypes.c_void_p()
        check(runtime.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(part)))
        blocks.append(p)
    for p in blocks:
        check(runtime.cudaFree(p))
    check(runtime.cudaDeviceSynchronize())
    plan, size = ctypes.c_int(), ctypes.c_size_t()
    code = cufft.cufftPlan1d(ctypes.byref(plan), POINTS, Z2Z, 1)
    print("plan", code)
    print("work area", cufft.cufftGetSize(plan, ctypes.byref(size)), size.value)
    data = ctypes.c_void_p()
    check(runtime.cudaMalloc(ctypes.byref(data), ctypes.c_size_t(POINTS * 16)))
    check(runtime.cudaMemset(data, 0, ctypes.c_size_t(POINTS * 16)))
    # The transform of one 1 among zeros is 1 everywhere.
    one = (ctypes.c_double * 2)(1.0, 0.0)
    check(runtime.cudaMemcpy(data, one, ctypes.c_size_t(16), 1))
    print("transform", cufft.cufftExecZ2Z(plan, data, data, -1))
    last = (ctypes.c_double * 2)()
    check(runtime.cudaMemcpy(last, ctypes.c_void_p(data.value + (POINTS - 1) * 16), ctypes.c_size_t(16), 2))
    print("last", round(last[0], 6), round(abs(last[1]), 6))
    print("destroyed", cufft.cufftDestroy(plan), runtime.cudaFree(data))
    return code


if __name__ == "__main__":
    sys.exit(main())
