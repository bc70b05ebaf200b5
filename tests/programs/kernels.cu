// The kernels of the test programs. `make-kernels` compiles this file into
// kernels.ptx and kernels_ptx.h, which are committed so that the programs can
// be built without NVIDIA's compiler. The simulated driver knows the same
// names and does the same work on the CPU.
//
// Every kernel is right for any launch shape: work is shared out by
// grid-stride loops, and each thread waits by itself before its part.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ __forceinline__ u64 now_ns()
{
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

static __device__ __forceinline__ void wait_ns(u64 delay_ns)
{
    if (delay_ns == 0)
        return;
    u64 start = now_ns();
    while (now_ns() - start < delay_ns) {
    }
}

static __device__ __forceinline__ u64 first() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ __forceinline__ u64 stride() { return (u64)gridDim.x * blockDim.x; }

// Waits, then writes `value` to every 32-bit word and its low byte to the tail bytes.
extern "C" __global__ void gp_fill(u64 ptr, u64 bytes, u32 value, u64 delay_ns)
{
    wait_ns(delay_ns);
    volatile u32 *words = (volatile u32 *)ptr;
    u64 count = bytes / 4;
    for (u64 i = first(); i < count; i += stride())
        words[i] = value;
    volatile u8 *tail = (volatile u8 *)(ptr + count * 4);
    for (u64 i = first(); i < (bytes & 3); i += stride())
        tail[i] = (u8)value;
}

// Waits, then adds the number of words (and tail bytes) that differ from `value`
// to the counter at `errors`, which may lie in pinned host memory.
extern "C" __global__ void gp_check(u64 ptr, u64 bytes, u32 value, u64 errors, u64 delay_ns)
{
    wait_ns(delay_ns);
    const volatile u32 *words = (const volatile u32 *)ptr;
    u64 count = bytes / 4, wrong = 0;
    for (u64 i = first(); i < count; i += stride())
        wrong += words[i] != value;
    const volatile u8 *tail = (const volatile u8 *)(ptr + count * 4);
    for (u64 i = first(); i < (bytes & 3); i += stride())
        wrong += tail[i] != (u8)value;
    if (wrong)
        atomicAdd_system((u64 *)errors, wrong);
}

// Occupies its stream for a while.
extern "C" __global__ void gp_spin(u64 delay_ns) { wait_ns(delay_ns); }

// Occupies its stream until the word at `flag` holds `value`. The flag may lie
// in pinned host memory that the CPU writes, or be written by another stream.
extern "C" __global__ void gp_wait(u64 flag, u32 value)
{
    while (*(volatile u32 *)flag != value) {
    }
}

// Waits, then copies.
extern "C" __global__ void gp_copy(u64 dst, u64 src, u64 bytes, u64 delay_ns)
{
    wait_ns(delay_ns);
    volatile u8 *to = (volatile u8 *)dst;
    const volatile u8 *from = (const volatile u8 *)src;
    for (u64 i = first(); i < bytes; i += stride())
        to[i] = from[i];
}

// Writes to an address that no allocation can have: the context is lost.
extern "C" __global__ void gp_fault() { *(volatile u32 *)16 = 1; }
