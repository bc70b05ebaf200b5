"""PyTorch, CuPy and JAX, unmodified, with and without the library: equal results, and the calls
that can be pooled are pooled."""

import common
from check_programs import Check
from common import Fail, compare, expect_ok, need_module, run

WARM = 0.99
CACHING_OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def _python(script, *arguments, library=None, env=None, timeout=150):
    return run(["python3", common.HERE / script, *arguments], library=library, env=env, timeout=timeout)


def _quiet(pooled, native):
    """The library adds nothing to stderr (frameworks may say things of their own there)."""
    said = [l for l in pooled.err.splitlines() if "gpupool" in l.lower()]
    if said:
        raise Fail(f"the library says: {said[0]}")


def _equal(script, *arguments, env=None):
    native = expect_ok(_python(script, *arguments, env=env), "without the library it")
    pooled = expect_ok(_python(script, *arguments, library=common.LIBRARY, env=env), "with the library it")
    compare(native.out, pooled.out)
    _quiet(pooled, native)
    return pooled


def _pooled(script, short, long, env=None):
    """Equal results, and over 99% hits once warm: the longer of two runs tells the two apart."""
    pooled = _equal(script, str(short), env=env)
    longer = expect_ok(_python(script, str(long), library=common.LIBRARY, env=env), "the longer run")
    rate = common.warm_rate(pooled, longer)
    if rate < WARM:
        raise Fail(f"hit rate once warm {rate:.2%}")
    return f"results equal, {rate:.2%} hits once warm"


def torch_caching_off():
    need_module("torch")
    return _pooled("torch_model.py", 200, 600, CACHING_OFF)


def torch_own_allocator():
    need_module("torch")
    pooled = _equal("torch_model.py")
    count, misses = common.hits(pooled)
    return f"results equal, {count + misses} calls reach the library"


def torch_segments():
    need_module("torch")
    pooled = _equal("torch_model.py", env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    return "results equal" if pooled else ""


def cupy_pool_off():
    need_module("cupy")
    return _pooled("cupy_pool_off.py", 200, 800)


def jax(allocator):
    need_module("jax")
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if allocator else {}
    if allocator:
        env["XLA_PYTHON_CLIENT_ALLOCATOR"] = allocator
    pooled = _equal("jax_matmul.py", env=env)
    if not pooled.out.startswith(("gpu", "cuda")):
        raise common.Skip(f"JAX does not use the GPU here: {pooled.out.strip()}")
    return "results equal"


def graphs_beside_traffic(mode):
    need_module("torch")
    pooled = expect_ok(_python("torch_graphs.py", mode, library=common.LIBRARY), "with the library it")
    _quiet(pooled, None)
    if mode == "thread_local":  # legal natively too: the same lines
        native = expect_ok(_python("torch_graphs.py", mode), "without the library it")
        compare(native.out, pooled.out)
    elif "failed: 0" not in pooled.out:
        raise Fail(pooled.out.strip().splitlines()[-1])
    return "5 captures, 100 replays right"


def graphs_caching_off():
    need_module("torch")
    native = _python("torch_graphs.py", "caching-off", env=CACHING_OFF)
    pooled = _python("torch_graphs.py", "caching-off", library=common.LIBRARY, env=CACHING_OFF)
    compare(native.out, pooled.out)
    if native.code != pooled.code:
        raise Fail(f"exits {native.code} without, {pooled.code} with the library: {pooled.tail()}")
    return f"as natively: {native.out.strip()[:120]}"


def checks() -> list[Check]:
    return [
        Check("torch_caching_off", torch_caching_off),
        Check("torch_own_allocator", torch_own_allocator),
        Check("torch_expandable_segments", torch_segments),
        Check("torch_graphs_global", lambda: graphs_beside_traffic("global")),
        Check("torch_graphs_thread_local", lambda: graphs_beside_traffic("thread_local")),
        Check("torch_graphs_caching_off", graphs_caching_off),
        Check("cupy_pool_off", cupy_pool_off),
        # Its default takes three quarters of the device for itself.
        Check("jax_default", lambda: jax(None), "alone"),
        Check("jax_platform", lambda: jax("platform")),
        Check("jax_cuda_async", lambda: jax("cuda_async")),
    ]
