/* The stand-in for NVIDIA's runtime: shared between its files.
 *
 * It reaches the driver as NVIDIA's does (observed with CUDA 13.0): it opens
 * libcuda.so.1, takes `cuGetProcAddress_v2` by dlsym, asks that for
 * "cuGetProcAddress" again, and takes every other function through the pointer
 * that it then has. */
#ifndef SIMCUDA_RUNTIME_H
#define SIMCUDA_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#define API __attribute__((visibility("default")))
#define INTERNAL __attribute__((visibility("hidden")))

/* name for cuGetProcAddress, version asked for, the function's type */
#define DRIVER_CALLS(X)                                                       \
    X(cuInit, 2000, cuInit)                                                   \
    X(cuDriverGetVersion, 2020, cuDriverGetVersion)                           \
    X(cuGetErrorName, 6000, cuGetErrorName)                                   \
    X(cuGetErrorString, 6000, cuGetErrorString)                               \
    X(cuDeviceGet, 2000, cuDeviceGet)                                         \
    X(cuDeviceGetCount, 2000, cuDeviceGetCount)                               \
    X(cuDeviceGetName, 2000, cuDeviceGetName)                                 \
    X(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2)                             \
    X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)                            \
    X(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)                       \
    X(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer)                     \
    X(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool)            \
    X(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool)                          \
    X(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool)                          \
    X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)               \
    X(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset_v2) /* as NVIDIA's */ \
    X(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                                 \
    X(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                                 \
    X(cuCtxGetDevice, 2000, cuCtxGetDevice)                                   \
    X(cuCtxSynchronize, 13000, cuCtxSynchronize_v2) /* as NVIDIA's */         \
    X(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange)         \
    X(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess)                     \
    X(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess)                   \
    X(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                    \
    X(cuMemAlloc, 3020, cuMemAlloc_v2)                                        \
    X(cuMemAllocPitch, 3020, cuMemAllocPitch_v2)                              \
    X(cuMemFree, 3020, cuMemFree_v2)                                          \
    X(cuMemAllocManaged, 6000, cuMemAllocManaged)                             \
    X(cuMemHostAlloc, 2020, cuMemHostAlloc)                                   \
    X(cuMemFreeHost, 2000, cuMemFreeHost)                                     \
    X(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)          \
    X(cuMemHostGetFlags, 2030, cuMemHostGetFlags)                             \
    X(cuMemHostRegister, 6050, cuMemHostRegister_v2)                          \
    X(cuMemHostUnregister, 4000, cuMemHostUnregister)                         \
    X(cuMemAllocAsync, 11020, cuMemAllocAsync)                                \
    X(cuMemFreeAsync, 11020, cuMemFreeAsync)                                  \
    X(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync)                \
    X(cuMemPoolCreate, 11020, cuMemPoolCreate)                                \
    X(cuMemPoolDestroy, 11020, cuMemPoolDestroy)                              \
    X(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo)                                \
    X(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute)                    \
    X(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute)                    \
    X(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess)                          \
    X(cuPointerGetAttributes, 7000, cuPointerGetAttributes)                   \
    X(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle)                             \
    X(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2)                       \
    X(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle)                         \
    X(cuMemcpy, 4000, cuMemcpy)                                               \
    X(cuMemcpyAsync, 4000, cuMemcpyAsync)                                     \
    X(cuMemcpyPeer, 4000, cuMemcpyPeer)                                       \
    X(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync)                             \
    X(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2)                                    \
    X(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2)                                    \
    X(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2)                                    \
    X(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2)                          \
    X(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2)                          \
    X(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2)                          \
    X(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2)                      \
    X(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2)                              \
    X(cuMemcpy3D, 3020, cuMemcpy3D_v2)                                        \
    X(cuMemcpy3DAsync, 3020, cuMemcpy3DAsync_v2)                              \
    X(cuMemcpy3DPeer, 4000, cuMemcpy3DPeer)                                   \
    X(cuMemcpy3DPeerAsync, 4000, cuMemcpy3DPeerAsync)                         \
    X(cuMemsetD8, 3020, cuMemsetD8_v2)                                        \
    X(cuMemsetD8Async, 3020, cuMemsetD8Async)                                 \
    X(cuMemsetD2D8, 3020, cuMemsetD2D8_v2)                                    \
    X(cuMemsetD2D8Async, 3020, cuMemsetD2D8Async)                             \
    X(cuStreamCreate, 2000, cuStreamCreate)                                   \
    X(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority)           \
    X(cuStreamDestroy, 4000, cuStreamDestroy_v2)                              \
    X(cuStreamQuery, 2000, cuStreamQuery)                                     \
    X(cuStreamSynchronize, 2000, cuStreamSynchronize)                         \
    X(cuStreamGetPriority, 5050, cuStreamGetPriority)                         \
    X(cuStreamGetFlags, 5050, cuStreamGetFlags)                               \
    X(cuStreamGetId, 12000, cuStreamGetId)                                    \
    X(cuStreamWaitEvent, 3020, cuStreamWaitEvent)                             \
    X(cuStreamAddCallback, 5000, cuStreamAddCallback)                         \
    X(cuLaunchHostFunc, 10000, cuLaunchHostFunc)                              \
    X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2)                   \
    X(cuStreamBeginCaptureToGraph, 12030, cuStreamBeginCaptureToGraph)        \
    X(cuStreamEndCapture, 10000, cuStreamEndCapture)                          \
    X(cuStreamIsCapturing, 10000, cuStreamIsCapturing)                        \
    X(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3)               \
    X(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode) \
    X(cuEventCreate, 2000, cuEventCreate)                                     \
    X(cuEventDestroy, 4000, cuEventDestroy_v2)                                \
    X(cuEventRecord, 2000, cuEventRecord)                                     \
    X(cuEventQuery, 2000, cuEventQuery)                                       \
    X(cuEventSynchronize, 2000, cuEventSynchronize)                           \
    X(cuEventElapsedTime, 2000, cuEventElapsedTime_v2)                        \
    X(cuGraphCreate, 10000, cuGraphCreate)                                    \
    X(cuGraphDestroy, 10000, cuGraphDestroy)                                  \
    X(cuGraphGetNodes, 10000, cuGraphGetNodes)                                \
    X(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags)        \
    X(cuGraphLaunch, 10000, cuGraphLaunch)                                    \
    X(cuGraphExecDestroy, 10000, cuGraphExecDestroy)

/* The table of driver functions: writable data, filled at the first call. */
struct driver_table {
#define X(name, version, type) __typeof__(&type) name##_;
    DRIVER_CALLS(X)
#undef X
    __typeof__(&cuGetProcAddress_v2) get_proc_address;
};
INTERNAL extern struct driver_table driver;

/* Loads the driver; cudaSuccess or what every call then answers. */
INTERNAL cudaError_t load_driver(void);

/* Makes a context current in this thread if there is none: the primary one of
 * the thread's device, retained at first use. */
INTERNAL cudaError_t ensure_context(void);

/* Remembers an error for cudaGetLastError, and returns it. */
INTERNAL cudaError_t finish(cudaError_t error);

/* The primary context of a device, retained. */
INTERNAL cudaError_t primary_context(int device, CUcontext *context);

#define RETURN(call) return finish((cudaError_t)(call))

/* With a context: the start of nearly every call. */
#define BEGIN                                                                 \
    do {                                                                      \
        cudaError_t begin_ = ensure_context();                                \
        if (begin_ != cudaSuccess) return finish(begin_);                     \
    } while (0)

#define PTR(p) ((CUdeviceptr)(uintptr_t)(p))

#endif
