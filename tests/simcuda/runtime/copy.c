/* Copies and memsets. */
#include "runtime.h"

#include <string.h>

API cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    BEGIN;
    if (bytes == 0) return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice: RETURN(driver.cuMemcpyHtoD_(PTR(dst), src, bytes));
    case cudaMemcpyDeviceToHost: RETURN(driver.cuMemcpyDtoH_(dst, PTR(src), bytes));
    case cudaMemcpyDeviceToDevice: RETURN(driver.cuMemcpyDtoD_(PTR(dst), PTR(src), bytes));
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault: RETURN(driver.cuMemcpy_(PTR(dst), PTR(src), bytes));
    }
    return finish(cudaErrorInvalidMemcpyDirection);
}

API cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes,
                                enum cudaMemcpyKind kind, cudaStream_t stream)
{
    BEGIN;
    if (bytes == 0) return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice: RETURN(driver.cuMemcpyHtoDAsync_(PTR(dst), src, bytes, stream));
    case cudaMemcpyDeviceToHost: RETURN(driver.cuMemcpyDtoHAsync_(dst, PTR(src), bytes, stream));
    case cudaMemcpyDeviceToDevice:
        RETURN(driver.cuMemcpyDtoDAsync_(PTR(dst), PTR(src), bytes, stream));
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault: RETURN(driver.cuMemcpyAsync_(PTR(dst), PTR(src), bytes, stream));
    }
    return finish(cudaErrorInvalidMemcpyDirection);
}

static CUmemorytype source_type(enum cudaMemcpyKind kind)
{
    if (kind == cudaMemcpyDefault) return CU_MEMORYTYPE_UNIFIED;
    return kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost ? CU_MEMORYTYPE_HOST
                                                                          : CU_MEMORYTYPE_DEVICE;
}

static CUmemorytype target_type(enum cudaMemcpyKind kind)
{
    if (kind == cudaMemcpyDefault) return CU_MEMORYTYPE_UNIFIED;
    return kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost ? CU_MEMORYTYPE_HOST
                                                                          : CU_MEMORYTYPE_DEVICE;
}

static CUDA_MEMCPY2D flat(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                          size_t height, enum cudaMemcpyKind kind)
{
    CUDA_MEMCPY2D c;
    memset(&c, 0, sizeof c);
    c.srcMemoryType = source_type(kind);
    c.srcHost = src;
    c.srcDevice = PTR(src);
    c.srcPitch = spitch;
    c.dstMemoryType = target_type(kind);
    c.dstHost = dst;
    c.dstDevice = PTR(dst);
    c.dstPitch = dpitch;
    c.WidthInBytes = width;
    c.Height = height;
    return c;
}

API cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch,
                             size_t width, size_t height, enum cudaMemcpyKind kind)
{
    BEGIN;
    if (width > dpitch || width > spitch) return finish(cudaErrorInvalidPitchValue);
    CUDA_MEMCPY2D c = flat(dst, dpitch, src, spitch, width, height, kind);
    RETURN(driver.cuMemcpy2DUnaligned_(&c));
}

API cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                                  size_t width, size_t height, enum cudaMemcpyKind kind,
                                  cudaStream_t stream)
{
    BEGIN;
    if (width > dpitch || width > spitch) return finish(cudaErrorInvalidPitchValue);
    CUDA_MEMCPY2D c = flat(dst, dpitch, src, spitch, width, height, kind);
    RETURN(driver.cuMemcpy2DAsync_(&c, stream));
}

static CUDA_MEMCPY3D box(const struct cudaMemcpy3DParms *p)
{
    CUDA_MEMCPY3D c;
    memset(&c, 0, sizeof c);
    c.srcXInBytes = p->srcPos.x;
    c.srcY = p->srcPos.y;
    c.srcZ = p->srcPos.z;
    c.srcMemoryType = source_type(p->kind);
    c.srcHost = p->srcPtr.ptr;
    c.srcDevice = PTR(p->srcPtr.ptr);
    c.srcPitch = p->srcPtr.pitch;
    c.srcHeight = p->srcPtr.ysize;
    c.dstXInBytes = p->dstPos.x;
    c.dstY = p->dstPos.y;
    c.dstZ = p->dstPos.z;
    c.dstMemoryType = target_type(p->kind);
    c.dstHost = p->dstPtr.ptr;
    c.dstDevice = PTR(p->dstPtr.ptr);
    c.dstPitch = p->dstPtr.pitch;
    c.dstHeight = p->dstPtr.ysize;
    c.WidthInBytes = p->extent.width;
    c.Height = p->extent.height;
    c.Depth = p->extent.depth;
    return c;
}

/* Arrays cannot be made through this runtime, so none can be named. */
API cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *params)
{
    BEGIN;
    if (!params || params->srcArray || params->dstArray) return finish(cudaErrorInvalidValue);
    CUDA_MEMCPY3D c = box(params);
    RETURN(driver.cuMemcpy3D_(&c));
}

API cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *params, cudaStream_t stream)
{
    BEGIN;
    if (!params || params->srcArray || params->dstArray) return finish(cudaErrorInvalidValue);
    CUDA_MEMCPY3D c = box(params);
    RETURN(driver.cuMemcpy3DAsync_(&c, stream));
}

static cudaError_t peer_box(const struct cudaMemcpy3DPeerParms *p, CUDA_MEMCPY3D_PEER *c)
{
    if (!p || p->srcArray || p->dstArray) return cudaErrorInvalidValue;
    struct cudaMemcpy3DParms plain;
    memset(&plain, 0, sizeof plain);
    plain.srcPos = p->srcPos;
    plain.srcPtr = p->srcPtr;
    plain.dstPos = p->dstPos;
    plain.dstPtr = p->dstPtr;
    plain.extent = p->extent;
    plain.kind = cudaMemcpyDeviceToDevice;
    CUDA_MEMCPY3D flat_box = box(&plain);
    memcpy(c, &flat_box, sizeof *c);
    cudaError_t error = primary_context(p->srcDevice, &c->srcContext);
    return error != cudaSuccess ? error : primary_context(p->dstDevice, &c->dstContext);
}

API cudaError_t cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms *params)
{
    BEGIN;
    CUDA_MEMCPY3D_PEER c;
    cudaError_t error = peer_box(params, &c);
    if (error != cudaSuccess) return finish(error);
    RETURN(driver.cuMemcpy3DPeer_(&c));
}

API cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *params,
                                      cudaStream_t stream)
{
    BEGIN;
    CUDA_MEMCPY3D_PEER c;
    cudaError_t error = peer_box(params, &c);
    if (error != cudaSuccess) return finish(error);
    RETURN(driver.cuMemcpy3DPeerAsync_(&c, stream));
}

API cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device,
                               size_t bytes)
{
    BEGIN;
    CUcontext d, s;
    cudaError_t error = primary_context(dst_device, &d);
    if (error == cudaSuccess) error = primary_context(src_device, &s);
    if (error != cudaSuccess) return finish(error);
    RETURN(driver.cuMemcpyPeer_(PTR(dst), d, PTR(src), s, bytes));
}

API cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device,
                                    size_t bytes, cudaStream_t stream)
{
    BEGIN;
    CUcontext d, s;
    cudaError_t error = primary_context(dst_device, &d);
    if (error == cudaSuccess) error = primary_context(src_device, &s);
    if (error != cudaSuccess) return finish(error);
    RETURN(driver.cuMemcpyPeerAsync_(PTR(dst), d, PTR(src), s, bytes, stream));
}

API cudaError_t cudaMemset(void *ptr, int value, size_t bytes)
{
    BEGIN;
    RETURN(driver.cuMemsetD8_(PTR(ptr), (unsigned char)value, bytes));
}

API cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes, cudaStream_t stream)
{
    BEGIN;
    RETURN(driver.cuMemsetD8Async_(PTR(ptr), (unsigned char)value, bytes, stream));
}

API cudaError_t cudaMemset2D(void *ptr, size_t pitch, int value, size_t width, size_t height)
{
    BEGIN;
    RETURN(driver.cuMemsetD2D8_(PTR(ptr), pitch, (unsigned char)value, width, height));
}

API cudaError_t cudaMemset2DAsync(void *ptr, size_t pitch, int value, size_t width, size_t height,
                                  cudaStream_t stream)
{
    BEGIN;
    RETURN(driver.cuMemsetD2D8Async_(PTR(ptr), pitch, (unsigned char)value, width, height, stream));
}
