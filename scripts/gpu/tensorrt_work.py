"""A TensorRT process as there are many: an engine of changing shapes, buffers made for each request.
Needs tensorrt, numpy and a runtime library (CUDART names one), no PyTorch.

  tensorrt_work.py serve    endless requests, each with an execution context of its own, as servers
                            make that keep none: `RATE CHECKSUM` for each half second, until standard
                            input ends
  tensorrt_work.py large    an output of 96 MiB, a few times, and checksums"""

import ctypes
import os
import sys

import attach_loops
import numpy
import tensorrt as trt

runtime = ctypes.CDLL(os.environ.get("CUDART", "libcudart.so"))
TO_DEVICE, TO_HOST = 1, 2


def check(code):
    if code:
        sys.exit(f"CUDA error {code}")


def device_memory(count):
    pointer = ctypes.c_void_p()
    check(runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(count)))
    return pointer


def copy(to, source, count, way):
    check(runtime.cudaMemcpy(to, source, ctypes.c_size_t(count), way))


def engine(channels, most):
    """Two layers of small whole numbers, so that no way to compute rounds."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1)  # an explicit batch
    x = network.add_input("x", trt.float32, (-1, 3, -1, -1))
    kernels = [numpy.ones((channels, 3, 1, 1), numpy.float32), numpy.ones((3, channels, 1, 1), numpy.float32)]
    for kernel in kernels:
        layer = network.add_convolution_nd(x, kernel.shape[0], (1, 1), trt.Weights(kernel), trt.Weights())
        x = network.add_activation(layer.get_output(0), trt.ActivationType.RELU).get_output(0)
    x.name = "y"
    network.mark_output(x)
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 3, 32, 32), (4, 3, 128, 128), most)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    # The runtime has to outlive its engine.
    loader = trt.Runtime(logger)
    return loader, loader.deserialize_cuda_engine(plan)


def request(loaded, context, stream, shape, channels):
    """One request; the sum of its output, which is known."""
    data = (numpy.arange(numpy.prod(shape)) % 5 - 1).astype(numpy.float32).reshape(shape)
    result = numpy.empty(shape, numpy.float32)
    context = context or loaded.create_execution_context()
    context.set_optimization_profile_async(0, stream.value)
    context.set_input_shape("x", shape)
    source, target = device_memory(data.nbytes), device_memory(result.nbytes)
    copy(source, data.ctypes.data_as(ctypes.c_void_p), data.nbytes, TO_DEVICE)
    context.set_tensor_address("x", source.value)
    context.set_tensor_address("y", target.value)
    if not context.execute_async_v3(stream.value):
        sys.exit("not run")
    check(runtime.cudaStreamSynchronize(stream))
    copy(result.ctypes.data_as(ctypes.c_void_p), target, result.nbytes, TO_HOST)
    check(runtime.cudaFree(source))
    check(runtime.cudaFree(target))
    expected = numpy.maximum(data.sum(1, keepdims=True), 0) * channels
    wrong = int((result != expected).sum())
    if wrong:
        sys.exit(f"{wrong} wrong values at {shape}")
    return float(result.sum(dtype=numpy.float64))


def main():
    stream = ctypes.c_void_p()
    check(runtime.cudaStreamCreate(ctypes.byref(stream)))
    if sys.argv[1] == "large":
        shape = (8, 3, 1024, 1024)
        _loader, loaded = engine(8, shape)
        context = loaded.create_execution_context()
        for _ in range(4):
            print(f"sum {request(loaded, context, stream, shape, 8)}")
        return
    shapes = [(1, 3, 64, 64), (2, 3, 96, 96), (4, 3, 128, 128), (1, 3, 32, 32), (8, 3, 96, 96)]
    _loader, loaded = engine(16, (16, 3, 256, 256))
    turn = 0

    def step():
        nonlocal turn
        request(loaded, None, stream, shapes[turn % len(shapes)], 16)
        turn += 1

    attach_loops.stretches(step, lambda: check(runtime.cudaDeviceSynchronize()),
                           lambda: request(loaded, None, stream, shapes[0], 16))


if __name__ == "__main__":
    main()
