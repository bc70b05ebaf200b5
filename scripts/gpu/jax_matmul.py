"""Products in JAX; prints a checksum. The allocator is chosen by XLA_PYTHON_CLIENT_ALLOCATOR."""

import jax
import jax.numpy as jnp


@jax.jit
def step(x, w):
    for _ in range(8):
        x = jnp.tanh(x @ w)
    return x


def main():
    x = jnp.ones((1024, 1024), jnp.bfloat16)
    w = jnp.ones((1024, 1024), jnp.bfloat16) * 0.001
    y = step(x, w)
    for i in range(100):
        y = step(x, w) + i
    y.block_until_ready()
    print(jax.devices()[0].platform, float(jnp.float32(y).sum()))


if __name__ == "__main__":
    main()
