/* Allocation, pointers, memory pools, IPC. */
#include "runtime.h"

API cudaError_t cudaMalloc(void **ptr, size_t size)
{
    BEGIN;
    if (!ptr) return finish(cudaErrorInvalidValue);
    if (size == 0) {
        *ptr = NULL;
        return cudaSuccess;
    }
    CUdeviceptr p = 0;
    CUresult r = driver.cuMemAlloc_(&p, size);
    if (r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY) *ptr = (void *)(uintptr_t)p;
    RETURN(r);
}

API cudaError_t cudaFree(void *ptr)
{
    BEGIN;
    RETURN(driver.cuMemFree_(PTR(ptr)));
}

API cudaError_t cudaMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height)
{
    BEGIN;
    if (!ptr || !pitch) return finish(cudaErrorInvalidValue);
    if (width == 0 || height == 0) {
        *ptr = NULL;
        *pitch = 0;
        return cudaSuccess;
    }
    CUdeviceptr p = 0;
    CUresult r = driver.cuMemAllocPitch_(&p, pitch, width, height, 4);
    if (r == CUDA_SUCCESS) *ptr = (void *)(uintptr_t)p;
    RETURN(r);
}

API cudaError_t cudaMalloc3D(struct cudaPitchedPtr *ptr, struct cudaExtent extent)
{
    BEGIN;
    if (!ptr) return finish(cudaErrorInvalidValue);
    void *p = NULL;
    size_t pitch = 0;
    cudaError_t error = cudaMallocPitch(&p, &pitch, extent.width, extent.height * extent.depth);
    if (error != cudaSuccess) return error;
    ptr->ptr = p;
    ptr->pitch = pitch;
    ptr->xsize = extent.width;
    ptr->ysize = extent.height;
    return cudaSuccess;
}

API cudaError_t cudaMallocManaged(void **ptr, size_t size, unsigned int flags)
{
    BEGIN;
    CUdeviceptr p = 0;
    if (!ptr) return finish(cudaErrorInvalidValue);
    CUresult r = driver.cuMemAllocManaged_(&p, size, flags);
    if (r == CUDA_SUCCESS) *ptr = (void *)(uintptr_t)p;
    RETURN(r);
}

API cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned int flags)
{
    BEGIN;
    if (!ptr) return finish(cudaErrorInvalidValue);
    if (size == 0) {
        *ptr = NULL;
        return cudaSuccess;
    }
    RETURN(driver.cuMemHostAlloc_(ptr, size, flags));
}

API cudaError_t cudaMallocHost(void **ptr, size_t size)
{
    return cudaHostAlloc(ptr, size, 0);
}

API cudaError_t cudaFreeHost(void *ptr)
{
    BEGIN;
    if (!ptr) return cudaSuccess;
    RETURN(driver.cuMemFreeHost_(ptr));
}

API cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags)
{
    BEGIN;
    if (!device) return finish(cudaErrorInvalidValue);
    CUdeviceptr p = 0;
    CUresult r = driver.cuMemHostGetDevicePointer_(&p, host, flags);
    if (r == CUDA_SUCCESS) *device = (void *)(uintptr_t)p;
    RETURN(r);
}

API cudaError_t cudaHostGetFlags(unsigned int *flags, void *host)
{
    BEGIN;
    RETURN(driver.cuMemHostGetFlags_(flags, host));
}

API cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
    BEGIN;
    RETURN(driver.cuMemHostRegister_(ptr, size, flags));
}

API cudaError_t cudaHostUnregister(void *ptr)
{
    BEGIN;
    RETURN(driver.cuMemHostUnregister_(ptr));
}

API cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    BEGIN;
    RETURN(driver.cuMemGetInfo_(free, total));
}

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    BEGIN;
    if (!attributes) return finish(cudaErrorInvalidValue);
    unsigned int type = 0, managed = 0;
    int device = -2;
    CUdeviceptr as_device = 0;
    void *as_host = NULL;
    CUpointer_attribute which[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *out[] = {&type, &managed, &device, &as_device, &as_host};
    CUresult r = driver.cuPointerGetAttributes_(5, which, out, PTR(ptr));
    if (r != CUDA_SUCCESS) return finish((cudaError_t)r);
    attributes->type = managed                      ? cudaMemoryTypeManaged
                       : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                       : type == 0                  ? cudaMemoryTypeUnregistered
                                                    : cudaMemoryTypeDevice;
    attributes->device = device;
    attributes->devicePointer = (void *)(uintptr_t)as_device;
    attributes->hostPointer = type == 0 ? (void *)(uintptr_t)ptr : as_host;
    return cudaSuccess;
}

API cudaError_t cudaMallocAsync(void **ptr, size_t size, cudaStream_t stream)
{
    BEGIN;
    if (!ptr) return finish(cudaErrorInvalidValue);
    if (size == 0) {
        *ptr = NULL;
        return cudaSuccess;
    }
    CUdeviceptr p = 0;
    CUresult r = driver.cuMemAllocAsync_(&p, size, stream);
    if (r == CUDA_SUCCESS) *ptr = (void *)(uintptr_t)p;
    RETURN(r);
}

API cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
    BEGIN;
    RETURN(driver.cuMemFreeAsync_(PTR(ptr), stream));
}

API cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t pool,
                                        cudaStream_t stream)
{
    BEGIN;
    if (!ptr) return finish(cudaErrorInvalidValue);
    CUdeviceptr p = 0;
    CUresult r = driver.cuMemAllocFromPoolAsync_(&p, size, pool, stream);
    if (r == CUDA_SUCCESS) *ptr = (void *)(uintptr_t)p;
    RETURN(r);
}

API cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props)
{
    BEGIN;
    RETURN(driver.cuMemPoolCreate_(pool, (const CUmemPoolProps *)props));
}

API cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
    BEGIN;
    RETURN(driver.cuMemPoolDestroy_(pool));
}

API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
    BEGIN;
    RETURN(driver.cuMemPoolTrimTo_(pool, keep));
}

API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                        void *value)
{
    BEGIN;
    RETURN(driver.cuMemPoolSetAttribute_(pool, (CUmemPool_attribute)attribute, value));
}

API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                        void *value)
{
    BEGIN;
    RETURN(driver.cuMemPoolGetAttribute_(pool, (CUmemPool_attribute)attribute, value));
}

API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *map,
                                     size_t count)
{
    BEGIN;
    RETURN(driver.cuMemPoolSetAccess_(pool, (const CUmemAccessDesc *)map, count));
}

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr)
{
    BEGIN;
    RETURN(driver.cuIpcGetMemHandle_((CUipcMemHandle *)handle, PTR(ptr)));
}

API cudaError_t cudaIpcOpenMemHandle(void **ptr, cudaIpcMemHandle_t handle, unsigned int flags)
{
    BEGIN;
    if (!ptr) return finish(cudaErrorInvalidValue);
    CUipcMemHandle h;
    for (int i = 0; i < CUDA_IPC_HANDLE_SIZE; i++) h.reserved[i] = handle.reserved[i];
    CUdeviceptr p = 0;
    CUresult r = driver.cuIpcOpenMemHandle_(&p, h, flags);
    if (r == CUDA_SUCCESS) *ptr = (void *)(uintptr_t)p;
    RETURN(r);
}

API cudaError_t cudaIpcCloseMemHandle(void *ptr)
{
    BEGIN;
    RETURN(driver.cuIpcCloseMemHandle_(PTR(ptr)));
}
