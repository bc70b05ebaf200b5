"""Transformer inference over changing sequence lengths: four lines of `LINE MILLISECONDS CHECKSUM`.

With PYTORCH_NO_CUDA_MEMORY_CACHING=1 every tensor is a cudaMalloc of its own.
Usage: torch_infer.py [repeat [memory]]: each line is the best of `repeat` passes; with `memory`
also `reserved BYTES`, the most that PyTorch's own allocator held."""

import sys
import time

import torch


def line(name, batch, lengths, iterations, streams=1, layers=12, width=1024, repeat=2):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, device="cuda",
                                             dtype=torch.bfloat16)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    inputs = [torch.randn(batch, n, width, device="cuda", dtype=torch.bfloat16) for n in lengths]
    side = [torch.cuda.Stream() for _ in range(streams)] if streams > 1 else [torch.cuda.current_stream()]
    best = float("inf")
    with torch.inference_mode():
        for x in inputs:
            model(x)
        torch.cuda.synchronize()
        for _ in range(repeat):
            start = time.perf_counter()
            for i in range(iterations):
                with torch.cuda.stream(side[i % streams]):
                    y = model(inputs[i % len(inputs)])
            torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - start) / iterations * 1e3)
        checksum = float(y.float().abs().mean())
    print(f"{name} {best:.4f} {checksum:.6f}", flush=True)


def main():
    repeat = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    line("batch-1", 1, (16, 24, 32, 48), 40, repeat=repeat)
    line("batch-8", 8, (128, 256, 384, 512), 40, repeat=repeat)
    line("batch-32", 32, (128, 256, 384, 512), 16, repeat=repeat)
    line("batch-8-streams-4", 8, (128, 256, 384, 512), 40, streams=4, repeat=repeat)
    if sys.argv[2:] == ["memory"] and (reserved := torch.cuda.max_memory_reserved()):
        print(f"reserved {reserved}")


if __name__ == "__main__":
    main()
