"""A convolution network (cuDNN) and a linear one (cuBLAS), forward and training steps, made
deterministic: prints checksums, the same on every run.   torch_model.py [iterations]"""

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch


def main():
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(1)
    pictures = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(64 * 16 * 16, 10)).cuda()
    numbers = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.AdamW([*pictures.parameters(), *numbers.parameters()], lr=1e-3)
    side = torch.cuda.Stream()
    for i in range(iterations):
        batch = 8 + i % 5 * 4
        x = torch.randn(batch, 3, 32, 32, device="cuda")
        target = torch.randint(0, 10, (batch,), device="cuda")
        loss = torch.nn.functional.cross_entropy(pictures(x), target)
        loss = loss + torch.nn.functional.cross_entropy(numbers(torch.randn(batch, 512, device="cuda")), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # a second stream, with tensors of its own
            y = torch.randn(256 + 32 * (i % 3), 256, device="cuda", dtype=torch.float64)
            z = (y @ y.T).diagonal().sum()
        torch.cuda.current_stream().wait_stream(side)
        if i == 19:
            print(f"after 20: loss {loss.item():.7f} product {z.item():.6f}", flush=True)
    weights = sum(float(p.double().abs().sum()) for p in [*pictures.parameters(), *numbers.parameters()])
    print(f"weights {weights:.6f}", flush=True)


if __name__ == "__main__":
    main()
