"""Looks functions up in the libraries that have them, as plugins do, and uses some: each address must
lie in the library that was asked. Prints what is the same on every run."""

import ctypes
import os


class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]


LIBC = ctypes.CDLL(None)

WANTED = [
    ("libcuda.so.1", ["cuInit", "cuMemAlloc_v2", "cuGetProcAddress_v2"]),
    ("libcudnn.so.9", ["cudnnCreate", "cudnnConvolutionForward"]),
    ("libcublas.so.13", ["cublasCreate_v2"]),
    ("libcublas.so.12", ["cublasCreate_v2"]),
    ("libcudart.so.13", ["cudaMalloc", "cudaFree"]),
    ("libcudart.so.12", ["cudaMalloc", "cudaFree"]),
    ("libcurl.so.4", ["curl_easy_init"]),
    ("libm.so.6", ["sin"]),
]


def file_of(function):
    info = Info()
    address = ctypes.cast(function, ctypes.c_void_p)
    return os.path.basename(info.file.decode()) if LIBC.dladdr(address, ctypes.byref(info)) else "nowhere"


def main():
    try:
        import torch

        x = torch.arange(2 * 3 * 32 * 32, device="cuda", dtype=torch.float32).reshape(2, 3, 32, 32) % 7
        w = torch.ones(4, 3, 3, 3, device="cuda")
        print("convolution", float(torch.nn.functional.conv2d(x, w).double().sum()))
        print("product", float((x.reshape(-1, 32) @ x.reshape(-1, 32).t()).double().sum()))
    except ImportError:
        print("no torch")
    for library, names in WANTED:
        try:
            handle = ctypes.CDLL(library)
        except OSError:
            print(library, "absent")
            continue
        for name in names:
            try:
                # The file behind a link has a longer name.
                found = file_of(getattr(handle, name))
                print(library, name, found.split(".so")[0])
            except AttributeError:
                print(library, name, "absent")


if __name__ == "__main__":
    main()
