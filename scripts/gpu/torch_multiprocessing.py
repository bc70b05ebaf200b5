"""Shares CUDA tensors between two processes in both directions, small and large, views and
non-contiguous ones, many rounds, and writes to them on either side.

  torch_multiprocessing.py [plain-child]    plain-child: the other process has no preloaded library

Prints what is the same on every run; exits 1 if a value is wrong."""

import os
import queue
import sys

import torch
import torch.multiprocessing as mp

ROUNDS = 6
PATIENCE = 25  # seconds; without a cache of its own PyTorch shares nothing, and a queue stays empty
SIZES = [1 << 8, 1 << 18, (1 << 18) + 777, 1 << 24]  # floats: 1 KiB, 1 MiB, a little more, 64 MiB


def tensors(seed):
    """Tensors of which each element is known."""
    made = [torch.full((size,), float(seed * 100 + i), device="cuda") for i, size in enumerate(SIZES)]
    base = torch.full((64, 1024), float(seed * 100 + 50), device="cuda")
    # Four neighbours, a view with an offset, and one that is not contiguous.
    made += [torch.full((16384,), float(seed * 100 + 60 + i), device="cuda") for i in range(4)]
    made += [base[17], base[3:40].t()]
    return made


def values(seed):
    return ([float(seed * 100 + i) for i in range(len(SIZES))] + [float(seed * 100 + 60 + i) for i in range(4)]
            + [float(seed * 100 + 50)] * 2)


def wrong(found, expected):
    return sum(int((t != value).sum()) for t, value in zip(found, expected)) + abs(len(found) - len(expected))


def child(inbox, outbox):
    """Checks what comes, adds one to it in place, and sends tensors of its own."""
    for seed in range(ROUNDS):
        got = inbox.get()
        bad = wrong(got, values(seed))
        # Views share their base: adding to one of them twice would count twice.
        for t in got[:-2]:
            t += 1
        torch.cuda.synchronize()
        mine = tensors(seed + 1000)
        torch.cuda.synchronize()
        outbox.put((bad, mine))
        # The memory is this process's: it keeps it until the other one is done with it.
        assert inbox.get() == "done"
        bad = wrong(mine[:-2], [v + 2 for v in values(seed + 1000)[:-2]])
        outbox.put(bad)
        del got, mine


def main():
    plain = "plain-child" in sys.argv[1:]
    context = mp.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    torch.cuda.init()
    kept = tensors(1)  # the pool is in use before anything is shared
    if plain:
        os.environ.pop("LD_PRELOAD", None)
    process = context.Process(target=child, args=(there, back))
    process.start()
    bad = 0
    for seed in range(ROUNDS):
        mine = tensors(seed)
        torch.cuda.synchronize()
        there.put(mine)
        seen_wrong, got = back.get(timeout=PATIENCE)
        bad += seen_wrong
        torch.cuda.synchronize()
        bad += wrong(mine[:-2], [v + 1 for v in values(seed)[:-2]])
        bad += wrong(got, values(seed + 1000))
        for t in got[:-2]:
            t += 2
        torch.cuda.synchronize()
        del got
        there.put("done")
        bad += back.get(timeout=PATIENCE)
        # Given up while the other process may still map it, and asked for again.
        del mine
        again = [torch.full((size,), -1.0, device="cuda") for size in SIZES]
        bad += wrong(again, [-1.0] * len(SIZES))
        del again
        print(f"round {seed}: wrong elements {bad}", flush=True)
    process.join(60)
    bad += wrong(kept, values(1))
    print(f"the other process ended with {process.exitcode}, wrong elements in all {bad}")
    return bad != 0 or process.exitcode != 0


if __name__ == "__main__":
    try:
        code = main()
    except queue.Empty:
        print("nothing came", flush=True)
        code = 1
    if code:
        for process in mp.active_children():
            process.kill()
        os._exit(1)
