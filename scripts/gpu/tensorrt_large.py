"""Builds and runs a TensorRT engine whose output has 96 MB, some times, and prints checksums: the same
on every run."""

import sys

import numpy
import tensorrt as trt
import torch

SHAPE = (8, 3, 1024, 1024)


def main():
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    x = network.add_input("x", trt.float32, SHAPE)
    # Small whole numbers, so that no way to compute rounds.
    kernel = trt.Weights(numpy.ones((3, 3, 1, 1), dtype=numpy.float32))
    convolution = network.add_convolution_nd(x, 3, (1, 1), kernel)
    activation = network.add_activation(convolution.get_output(0), trt.ActivationType.RELU)
    total = network.add_elementwise(activation.get_output(0), x, trt.ElementWiseOperation.SUM)
    total.get_output(0).name = "y"
    network.mark_output(total.get_output(0))
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        print("no engine")
        return 1
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    stream = torch.cuda.Stream()
    for i in range(4):
        source = (torch.arange(SHAPE[1] * SHAPE[2] * SHAPE[3], device="cuda") % (5 + i) - 2).float()
        source = source.reshape(1, *SHAPE[1:]).expand(*SHAPE).contiguous()
        result = torch.empty(SHAPE, device="cuda")
        torch.cuda.synchronize()
        context.set_tensor_address("x", source.data_ptr())
        context.set_tensor_address("y", result.data_ptr())
        if not context.execute_async_v3(stream.cuda_stream):
            print("not run")
            return 1
        stream.synchronize()
        expected = torch.relu(source.sum(1, keepdim=True).expand_as(source)) + source
        print(f"run {i}: sum {float(result.double().sum())}, wrong {int((result != expected).sum())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
