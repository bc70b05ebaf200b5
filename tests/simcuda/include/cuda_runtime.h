/* The runtime's umbrella header. In plain C it is the C interface alone. */
#ifndef SIMCUDA_CUDA_RUNTIME_H
#define SIMCUDA_CUDA_RUNTIME_H
#include "cuda_runtime_api.h"
#endif
