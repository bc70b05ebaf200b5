//! Modules and kernels.
//!
//! Any image is accepted; the functions are those that the tests' kernels are
//! called (tests/programs/kernels.ptx has the same for a real GPU).

use crate::abi::{Answer, code, put};
use crate::state;
use crate::stream::{self, Wait};
use crate::work::Work;
use std::ffi::{CStr, c_char, c_void};

const FUNCTIONS: &[&str] = &[
    "gp_fill", "gp_check", "gp_spin", "gp_wait", "gp_copy", "gp_fault",
];
const FIRST: u64 = 0x5606_0000_0000;
const STEP: u64 = 0x40;

pub(crate) fn load(out: *mut u64, image: *const c_void) -> Answer {
    let mut core = state::lock();
    core.current()?;
    if out.is_null() || image.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the program passes an image, which has at least one byte.
    if unsafe { image.cast::<u8>().read() } == 0 {
        return Err(code::INVALID_IMAGE);
    }
    let handle = core.handle();
    core.modules.insert(handle);
    put(out, handle)
}

/// The image lies in a file.
pub(crate) fn load_file(out: *mut u64, path: *const c_char) -> Answer {
    state::lock().current()?;
    if out.is_null() || path.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the program passes a C string.
    let path = unsafe { CStr::from_ptr(path) };
    let mut image =
        std::fs::read(path.to_string_lossy().as_ref()).map_err(|_| code::FILE_NOT_FOUND)?;
    image.push(0);
    load(out, image.as_ptr().cast())
}

/// cuLibraryGetModule: a library is a module here, with a reference more.
pub(crate) fn module_of(out: *mut u64, library: u64) -> Answer {
    let core = state::lock();
    core.current()?;
    if !core.modules.contains(&library) {
        return Err(code::INVALID_HANDLE);
    }
    put(out, library)
}

/// cuLibraryGetKernel, cuKernelGetFunction: a kernel is a function here.
pub(crate) fn function_of(out: *mut u64, kernel: u64) -> Answer {
    loaded(kernel)?;
    put(out, kernel)
}

/// cuFuncLoad: all functions are loaded.
pub(crate) fn loaded(function: u64) -> Answer {
    state::lock().current()?;
    let last = FIRST + (FUNCTIONS.len() as u64 - 1) * STEP;
    if (FIRST..=last).contains(&function) && (function - FIRST).is_multiple_of(STEP) {
        Ok(())
    } else {
        Err(code::INVALID_HANDLE)
    }
}

pub(crate) fn unload(module: u64) -> Answer {
    let mut core = state::lock();
    core.current()?;
    if core.modules.remove(&module) {
        Ok(())
    } else {
        Err(code::INVALID_HANDLE)
    }
}

pub(crate) fn function(out: *mut u64, module: u64, name: *const c_char) -> Answer {
    let core = state::lock();
    core.current()?;
    if out.is_null() || name.is_null() {
        return Err(code::INVALID_VALUE);
    }
    if !core.modules.contains(&module) {
        return Err(code::INVALID_HANDLE);
    }
    // SAFETY: the program passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let found = FUNCTIONS
        .iter()
        .position(|f| f.as_bytes() == name.to_bytes());
    put(out, FIRST + found.ok_or(code::NOT_FOUND)? as u64 * STEP)
}

/// Reads the n-th kernel parameter.
///
/// # Safety
/// `params` is an array of pointers to the parameters, the n-th to a T.
unsafe fn param<T: Copy>(params: *const *const c_void, n: usize) -> T {
    // SAFETY: by the contract of this function.
    unsafe { (*params.add(n)).cast::<T>().read_unaligned() }
}

pub(crate) fn launch(
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    stream: u64,
    params: *const *const c_void,
) -> Answer {
    let index = function.wrapping_sub(FIRST) / STEP;
    if function < FIRST || index >= FUNCTIONS.len() as u64 {
        return Err(code::INVALID_HANDLE);
    }
    let threads = block.iter().map(|n| u64::from(*n)).product::<u64>();
    if grid.contains(&0) || threads == 0 || threads > 1024 {
        return Err(code::INVALID_VALUE);
    }
    if params.is_null() && index != 5 {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the parameters are as the kernel's signature says, which is the
    // program's obligation with NVIDIA's driver too.
    let work = unsafe {
        match index {
            0 => Work::Fill {
                at: param(params, 0),
                bytes: param(params, 1),
                value: param(params, 2),
                delay: param(params, 3),
            },
            1 => Work::Check {
                at: param(params, 0),
                bytes: param(params, 1),
                value: param(params, 2),
                errors: param(params, 3),
                delay: param(params, 4),
            },
            2 => Work::Spin {
                delay: param(params, 0),
            },
            3 => Work::WaitFlag {
                flag: param(params, 0),
                value: param(params, 1),
            },
            4 => Work::KernelCopy {
                dst: param(params, 0),
                src: param(params, 1),
                bytes: param(params, 2),
                delay: param(params, 3),
            },
            _ => Work::Fault,
        }
    };
    stream::submit(stream, work, Wait::No)
}

/// cuLaunchKernelEx: the shape and the stream come in a structure.
pub(crate) fn launch_ex(
    config: *const LaunchConfig,
    function: u64,
    params: *const *const c_void,
    per_thread: bool,
) -> Answer {
    let c = crate::abi::get(config)?;
    let s = if per_thread {
        stream::ptsz(c.stream)
    } else {
        c.stream
    };
    launch(function, c.grid, c.block, s, params)
}

/// CUlaunchConfig.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: u64,
    attributes: u64,
    count: u32,
}
