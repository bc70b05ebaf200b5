"""Training over batches of varied shapes, and a loop that empties PyTorch's cache each time:
lines of `NAME VALUE [CHECKSUM]`, times in milliseconds an iteration, memory in bytes.

Usage: torch_train.py [steps]"""

import random
import sys
import time

import torch

WIDTH, HEADS, LAYERS = 1024, 16, 8
LINEAR = 4096


def timed(iterations, step):
    """Milliseconds that one iteration takes, with the GPU done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(iterations):
        step(i)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / iterations * 1e3


@torch.inference_mode()
def empty_cache():
    """Linear layers over inputs of several lengths; the cache kept, then emptied each time."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(LINEAR, LINEAR, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers).eval()

    def forward(i):
        model(torch.randn(512 + 64 * (i % 16), LINEAR, device="cuda", dtype=torch.bfloat16))

    def forward_and_empty(i):
        forward(i)
        torch.cuda.empty_cache()

    timed(16, forward)
    print(f"cache-kept {timed(48, forward):.4f}", flush=True)
    print(f"cache-emptied {timed(48, forward_and_empty):.4f}", flush=True)


def train(steps):
    """AdamW on a transformer; batch and length differ in each step, the same on every run."""
    torch.manual_seed(0)
    shapes = random.Random(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, device="cuda",
                                             dtype=torch.bfloat16)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(_):
        batch, length = shapes.randint(4, 48), shapes.randint(32, 768)
        x = torch.randn(batch, length, WIDTH, device="cuda", dtype=torch.bfloat16)
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step(0)
    print(f"train {timed(steps, step):.4f}", flush=True)
    # Without its cache PyTorch counts nothing.
    for name, value in (("allocated", torch.cuda.max_memory_allocated()),
                        ("reserved", torch.cuda.max_memory_reserved())):
        if value:
            print(f"{name} {value}", flush=True)


def main():
    empty_cache()
    train(int(sys.argv[1]) if len(sys.argv) > 1 else 40)


if __name__ == "__main__":
    main()
