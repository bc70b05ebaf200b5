//! `libgpupool.so`: the symbols that the library exports, its constructor, and nothing else.
//!
//! | export | why |
//! |---|---|
//! | `dlsym` | whoever opened libcuda looks something up next: the moment to patch it |
//! | `cuInit` | the same, for what was linked to libcuda |
//! | `dlopen` | sees RTLD_DEEPBIND, with which a plugin looks up past `dlsym` above |
//! | `cudaMalloc`, `cudaFree`, `cudaFreeHost`, `cudaMallocPitch`, `cudaMalloc3D` | the fast path of programs with the shared runtime |
//!
//! Everything is decided in the `gpupool` crate; what is here are a few instructions each, in
//! assembly, because a compiled function could not leave the stack and the return address as the
//! caller made them. The crate itself exports nothing, so that tests and the command-line program
//! can be linked with it.
//!
//! All code is for x86-64, System V calling convention: arguments in rdi, rsi, rdx, rcx, r8, r9,
//! return address at `[rsp]`, and `rsp` a multiple of 16 just before a call.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

use gpupool_core::hooks::{arrival, attach, deepbind, runtime};

/// Runs once, when the dynamic linker has loaded the library, before `main`.
extern "C" fn on_load() {
    attach::set_trigger(dlsym as *const () as usize);
    if attach::is_attached() {
        // Other code runs already: nothing happens until `gpupool attach` asks for it.
        return;
    }
    deepbind::set_ours(dlsym as *const () as usize);
    gpupool_core::process::start();
    arrival::check_at_load();
}

// SAFETY: the section holds pointers to functions that the dynamic linker calls with (argc, argv,
// envp), which a function without parameters may ignore.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// `void *dlsym(void *handle, const char *name)`: lets the library see whether libcuda has arrived,
/// then jumps to the real one, which never notices.
///
/// The real one looks at its return address to find out what `RTLD_NEXT` means; a jump leaves the
/// program's there. Both arguments are kept over the call, so the result is always the real one.
///
/// # Safety
/// As libc's: `name` is a terminated string.
// SAFETY: the name is that of the function whose contract this keeps.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const std::ffi::c_char) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {before_dlsym}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        ".cfi_endproc",
        before_dlsym = sym before_dlsym,
    )
}

/// Where the exported `dlsym` goes on. 0, which it then returns as "not found", only where libc has
/// no `dlsym` at all; nothing could have been linked to it there.
extern "C" fn before_dlsym() -> usize {
    arrival::check();
    arrival::real_dlsym()
}

/// `void *dlopen(const char *file, int flags)`: looks at the flags, then jumps to the real one, for
/// which the caller stays the program's: its `$ORIGIN` and search path count.
///
/// # Safety
/// As libc's: `file` is a terminated string or null.
// SAFETY: the name is that of the function whose contract this keeps.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(file: *const std::ffi::c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {before_dlopen}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        ".cfi_endproc",
        before_dlopen = sym before_dlopen,
    )
}

/// Where the exported `dlopen` goes on. 0, "not found", only where libc has no `dlopen` at all.
extern "C" fn before_dlopen(_file: *const std::ffi::c_char, flags: c_int) -> usize {
    deepbind::opening(flags);
    arrival::real_dlopen()
}

/// `CUresult cuInit(unsigned int flags)`: as `dlsym`, for programs and libraries that were linked to
/// libcuda and so never look anything up.
///
/// # Safety
/// As the driver's.
// SAFETY: the name is that of the function whose contract this keeps.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn cuInit(flags: std::ffi::c_uint) -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "call {before_cu_init}",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp rax",
        ".cfi_endproc",
        before_cu_init = sym before_cu_init,
    )
}

/// Where the exported `cuInit` goes on.
extern "C" fn before_cu_init() -> usize {
    arrival::check();
    arrival::real_cu_init().unwrap_or(no_driver as *const () as usize)
}

/// Answers `cuInit` in a process that has no driver library.
///
/// Natively there would be no `cuInit` to call: a weak reference would be null, and a lookup would
/// fail. A program that calls what it found must be told that it cannot use a GPU, by the code that
/// it surely handles: CUDA_ERROR_NO_DEVICE (cuda.h), what `cuInit` says on a machine without one.
extern "C" fn no_driver(_flags: std::ffi::c_uint) -> c_int {
    const NO_DEVICE: c_int = 100;
    NO_DEVICE
}

/// Defines an exported function of the runtime: the return address becomes one more argument, in
/// the register named, and the rest is a jump. The stack stays as it is, so arguments on it do too.
macro_rules! with_return_address {
    ($(#[$doc:meta])* $name:ident => $target:path, $register:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the runtime's. Declared without its parameters: the code below passes them on unseen.
        // SAFETY: the name is that of the function whose contract the target keeps.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                ".cfi_startproc",
                "endbr64",
                concat!("mov ", $register, ", [rsp]"),
                "jmp {target}",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    };
}

with_return_address! {
    /// `cudaError_t cudaMalloc(void **pointer, size_t size)`.
    cudaMalloc => runtime::cuda_malloc, "rdx"
}
with_return_address! {
    /// `cudaError_t cudaFree(void *pointer)`.
    cudaFree => runtime::cuda_free, "rsi"
}
with_return_address! {
    /// `cudaError_t cudaFreeHost(void *pointer)`.
    cudaFreeHost => runtime::cuda_free_host, "rsi"
}
with_return_address! {
    /// `cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)`.
    cudaMallocPitch => runtime::cuda_malloc_pitch, "r8"
}
with_return_address! {
    /// `cudaError_t cudaMalloc3D(cudaPitchedPtr *pointer, cudaExtent extent)`. The extent, three
    /// words by value, lies on the stack.
    cudaMalloc3D => runtime::cuda_malloc_3d, "rsi"
}
