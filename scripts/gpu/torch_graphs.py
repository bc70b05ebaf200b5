"""Captures a model into a CUDA graph while another thread allocates and frees by cudaMalloc, and
replays it with eager work between.

  torch_graphs.py global|thread_local    how the capture treats other threads' calls
  torch_graphs.py caching-off            with PYTORCH_NO_CUDA_MEMORY_CACHING=1: how it fails

Prints what is the same on every run; exits 1 if a replay is wrong."""

import ctypes
import sys
import threading

import torch


def traffic(stop, counts):
    """cudaMalloc and cudaFree of changing sizes, and a copy into each block."""
    runtime = ctypes.CDLL("libcudart.so.13")
    runtime.cudaSetDevice(0)
    counter = 0
    while not stop.is_set():
        p = ctypes.c_void_p()
        size = 4096 * (1 + counter % 700)
        code = runtime.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(size))
        if code:
            counts["failed"] += 1
            runtime.cudaGetLastError()
        elif runtime.cudaFree(p):
            counts["failed"] += 1
            runtime.cudaGetLastError()
        counter += 1
    counts["calls"] = counter


def model_and_input():
    torch.manual_seed(3)
    model = torch.nn.Sequential(*[m for _ in range(6) for m in (torch.nn.Linear(1024, 1024), torch.nn.GELU())])
    return model.cuda().eval(), torch.randn(64, 1024, device="cuda")


def caching_off():
    model, x = model_and_input()
    with torch.inference_mode():
        model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                model(x)
            print("captured")
        except Exception as why:
            print(type(why).__name__, str(why).splitlines()[0])


def captured(mode):
    model, static = model_and_input()
    inputs = [torch.randn(64, 1024, device="cuda") for _ in range(20)]
    with torch.inference_mode():
        want = [model(x).clone() for x in inputs]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(static)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        stop, counts = threading.Event(), {"failed": 0, "calls": 0}
        thread = threading.Thread(target=traffic, args=(stop, counts))
        thread.start()
        try:
            for attempt in range(5):  # several captures, each of them beside the traffic
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode=mode):
                    out = model(static)
                worst = 0.0
                for x, right in zip(inputs, want):
                    static.copy_(x)
                    graph.replay()
                    eager = torch.randn(500, 500, device="cuda")  # traffic between the replays
                    (eager @ eager).sum().item()
                    worst = max(worst, float((out - right).abs().max()))
                print(f"capture {attempt}: replays right {worst < 1e-3}", flush=True)
                if worst >= 1e-3:
                    sys.exit(1)
        finally:
            stop.set()
            thread.join()
    print(f"calls of the other thread that failed: {counts['failed']}")
    sys.exit(0 if counts["calls"] > 100 else 1)


if __name__ == "__main__":
    if sys.argv[1] == "caching-off":
        caching_off()
    else:
        captured(sys.argv[1])
