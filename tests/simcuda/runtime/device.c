/* The driver table, errors, devices and contexts. */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

struct driver_table driver;

static cudaError_t load_result;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;

#define MAX_DEVICES 16
/* The primary contexts that this runtime has retained. */
static CUcontext retained[MAX_DEVICES];

static __thread int thread_device;
static __thread cudaError_t last_error;

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    load_result = cudaErrorInsufficientDriver;
    if (!library) return;
    __typeof__(&cuGetProcAddress_v2) first =
        (__typeof__(&cuGetProcAddress_v2))dlsym(library, "cuGetProcAddress_v2");
    if (!first) return;
    /* Asked for in both versions, as NVIDIA's runtime does; the newer counts. */
    void *fn = NULL;
    CUdriverProcAddressQueryResult status;
    if (first("cuGetProcAddress", &fn, 11030, 0, &status) != CUDA_SUCCESS) return;
    if (first("cuGetProcAddress", &fn, 12000, 0, &status) != CUDA_SUCCESS) return;
    memcpy(&driver.get_proc_address, &fn, sizeof fn);
#define X(name, version, type)                                                \
    fn = NULL;                                                                \
    driver.get_proc_address(#name, &fn, version, 0, &status);                 \
    memcpy(&driver.name##_, &fn, sizeof fn);
    DRIVER_CALLS(X)
#undef X
    /* Also looked up in their per-thread form, though unused here. */
    driver.get_proc_address("cuMemcpyAsync", &fn, 4000, 2, &status);
    load_result = driver.cuInit_ ? (cudaError_t)driver.cuInit_(0) : cudaErrorInsufficientDriver;
}

cudaError_t load_driver(void)
{
    pthread_once(&load_once, load);
    return load_result;
}

cudaError_t finish(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

cudaError_t primary_context(int device, CUcontext *context)
{
    int count = 0;
    cudaError_t error = (cudaError_t)driver.cuDeviceGetCount_(&count);
    if (error != cudaSuccess) return error;
    if (device < 0 || device >= count || device >= MAX_DEVICES) return cudaErrorInvalidDevice;
    pthread_mutex_lock(&device_lock);
    if (!retained[device]) {
        error = (cudaError_t)driver.cuDevicePrimaryCtxRetain_(&retained[device], device);
        if (error != cudaSuccess) retained[device] = NULL;
    }
    *context = retained[device];
    pthread_mutex_unlock(&device_lock);
    return error;
}

static int is_stale(CUcontext current)
{
    /* The thread's device was reset: its primary context is current still,
     * but has to be retained anew. */
    unsigned int device = (unsigned int)thread_device;
    static CUcontext known[MAX_DEVICES];
    if (device >= MAX_DEVICES) return 0;
    CUcontext now = __atomic_load_n(&retained[device], __ATOMIC_ACQUIRE);
    if (now) {
        __atomic_store_n(&known[device], now, __ATOMIC_RELAXED);
        return 0;
    }
    return current == __atomic_load_n(&known[device], __ATOMIC_RELAXED);
}

cudaError_t ensure_context(void)
{
    cudaError_t error = load_driver();
    if (error != cudaSuccess) return error;
    CUcontext current = NULL;
    error = (cudaError_t)driver.cuCtxGetCurrent_(&current);
    if (error != cudaSuccess) return error;
    if (current && !is_stale(current)) return cudaSuccess;
    CUcontext primary;
    error = primary_context(thread_device, &primary);
    if (error != cudaSuccess) return error;
    return (cudaError_t)driver.cuCtxSetCurrent_(primary);
}

API cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

API cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

static const struct {
    cudaError_t code;
    const char *name;
} names[] = {
#define N(code) {code, #code}
    N(cudaSuccess), N(cudaErrorInvalidValue), N(cudaErrorMemoryAllocation),
    N(cudaErrorInitializationError), N(cudaErrorInsufficientDriver),
    N(cudaErrorDevicesUnavailable), N(cudaErrorNoDevice), N(cudaErrorInvalidDevice),
    N(cudaErrorDeviceUninitialized), N(cudaErrorAlreadyMapped), N(cudaErrorPeerAccessUnsupported),
    N(cudaErrorInvalidResourceHandle), N(cudaErrorIllegalState), N(cudaErrorSymbolNotFound),
    N(cudaErrorNotReady), N(cudaErrorIllegalAddress), N(cudaErrorPeerAccessAlreadyEnabled),
    N(cudaErrorPeerAccessNotEnabled), N(cudaErrorContextIsDestroyed), N(cudaErrorNotSupported),
    N(cudaErrorStreamCaptureUnsupported), N(cudaErrorStreamCaptureInvalidated),
    N(cudaErrorStreamCaptureMerge), N(cudaErrorStreamCaptureUnmatched),
    N(cudaErrorStreamCaptureUnjoined), N(cudaErrorStreamCaptureIsolation),
    N(cudaErrorStreamCaptureImplicit), N(cudaErrorCapturedEvent),
    N(cudaErrorStreamCaptureWrongThread), N(cudaErrorUnknown),
#undef N
};

API const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == error) return names[i].name;
    return "unrecognized error code";
}

API const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = NULL;
    if (load_driver() == cudaSuccess && driver.cuGetErrorString_((CUresult)error, &text) == 0)
        return text;
    return cudaGetErrorName(error);
}

API cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (!version) return finish(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

API cudaError_t cudaDriverGetVersion(int *version)
{
    if (!version) return finish(cudaErrorInvalidValue);
    load_driver();
    *version = 0;
    if (!driver.cuDriverGetVersion_) return cudaSuccess;
    RETURN(driver.cuDriverGetVersion_(version));
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn,
                                                 unsigned int version, unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *status)
{
    if (!symbol || !fn) return finish(cudaErrorInvalidValue);
    cudaError_t error = load_driver();
    if (error != cudaSuccess) return finish(error);
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult r = driver.get_proc_address(symbol, fn, (int)version, flags, &found);
    if (status) *status = (enum cudaDriverEntryPointQueryResult)found;
    /* That a name is unknown is an answer, not an error. */
    if (r == CUDA_ERROR_NOT_FOUND) r = CUDA_SUCCESS;
    RETURN(r);
}

API cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **fn, unsigned long long flags,
                                        enum cudaDriverEntryPointQueryResult *status)
{
    return cudaGetDriverEntryPointByVersion(symbol, fn, CUDART_VERSION, flags, status);
}

API cudaError_t cudaGetDeviceCount(int *count)
{
    if (!count) return finish(cudaErrorInvalidValue);
    cudaError_t error = load_driver();
    if (error != cudaSuccess) {
        *count = 0;
        return finish(error);
    }
    RETURN(driver.cuDeviceGetCount_(count));
}

API cudaError_t cudaGetDevice(int *device)
{
    if (!device) return finish(cudaErrorInvalidValue);
    cudaError_t error = load_driver();
    if (error != cudaSuccess) return finish(error);
    CUcontext current = NULL;
    driver.cuCtxGetCurrent_(&current);
    if (!current || driver.cuCtxGetDevice_(device) != CUDA_SUCCESS) *device = thread_device;
    return cudaSuccess;
}

API cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = load_driver();
    if (error != cudaSuccess) return finish(error);
    CUcontext primary;
    error = primary_context(device, &primary);
    if (error != cudaSuccess) return finish(error);
    thread_device = device;
    /* Current at once, as from runtime 12.0 on. */
    RETURN(driver.cuCtxSetCurrent_(primary));
}

API cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags)
{
    (void)device_flags;
    (void)flags;
    cudaError_t error = load_driver();
    if (error != cudaSuccess) return finish(error);
    CUcontext primary;
    return finish(primary_context(device, &primary));
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t error = load_driver();
    if (error != cudaSuccess) return finish(error);
    RETURN(driver.cuDeviceGetAttribute_(value, (CUdevice_attribute)attribute, device));
}

static int attribute(int which, int device)
{
    int value = 0;
    driver.cuDeviceGetAttribute_(&value, (CUdevice_attribute)which, device);
    return value;
}

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    cudaError_t error = load_driver();
    if (error != cudaSuccess) return finish(error);
    if (!prop) return finish(cudaErrorInvalidValue);
    memset(prop, 0, sizeof *prop);
    error = (cudaError_t)driver.cuDeviceGetName_(prop->name, sizeof prop->name, device);
    if (error != cudaSuccess) return finish(error);
    driver.cuDeviceGetUuid_((CUuuid *)&prop->uuid, device);
    driver.cuDeviceTotalMem_(&prop->totalGlobalMem, device);
    prop->sharedMemPerBlock = (size_t)attribute(8, device);
    prop->warpSize = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
    prop->maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
    prop->major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    prop->minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    prop->textureAlignment = (size_t)attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, device);
    prop->multiProcessorCount = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    return cudaSuccess;
}

API cudaError_t cudaDeviceSynchronize(void)
{
    BEGIN;
    /* NVIDIA's names the context. */
    CUcontext current = NULL;
    driver.cuCtxGetCurrent_(&current);
    RETURN(driver.cuCtxSynchronize_(current));
}

API cudaError_t cudaDeviceReset(void)
{
    cudaError_t error = load_driver();
    if (error != cudaSuccess) return finish(error);
    int device = thread_device;
    CUcontext current = NULL;
    driver.cuCtxGetCurrent_(&current);
    if (current) driver.cuCtxGetDevice_(&device);
    if (device < 0 || device >= MAX_DEVICES) return finish(cudaErrorInvalidDevice);
    /* So that is_stale knows the handle that it has to look for. */
    if (current) is_stale(current);
    pthread_mutex_lock(&device_lock);
    error = (cudaError_t)driver.cuDevicePrimaryCtxReset_(device);
    __atomic_store_n(&retained[device], NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&device_lock);
    last_error = cudaSuccess;
    return finish(error);
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    cudaError_t error = load_driver();
    if (error != cudaSuccess) return finish(error);
    RETURN(driver.cuDeviceCanAccessPeer_(can, device, peer));
}

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    BEGIN;
    CUcontext other;
    cudaError_t error = primary_context(peer, &other);
    if (error != cudaSuccess) return finish(error);
    RETURN(driver.cuCtxEnablePeerAccess_(other, flags));
}

API cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    BEGIN;
    CUcontext other;
    cudaError_t error = primary_context(peer, &other);
    if (error != cudaSuccess) return finish(error);
    RETURN(driver.cuCtxDisablePeerAccess_(other));
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    BEGIN;
    RETURN(driver.cuCtxGetStreamPriorityRange_(least, greatest));
}

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    BEGIN;
    RETURN(driver.cuDeviceGetDefaultMemPool_(pool, device));
}

API cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    BEGIN;
    RETURN(driver.cuDeviceGetMemPool_(pool, device));
}

API cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool)
{
    BEGIN;
    RETURN(driver.cuDeviceSetMemPool_(device, pool));
}
