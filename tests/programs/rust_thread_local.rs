// build: shared
//! Frees in the destructors of Rust's thread-locals: when threads end, and when the process does (in
//! the main thread by `exit`, in a thread that is still there by nothing). Exit status 0 and the same
//! output every time.
//!
//!   rust_thread_local threads | main | exit-in-thread

use std::cell::RefCell;
use std::ffi::{c_int, c_void};

unsafe extern "C" {
    safe fn cudaSetDevice(device: c_int) -> c_int;
    fn cudaMalloc(out: *mut *mut c_void, bytes: usize) -> c_int;
    fn cudaFree(pointer: *mut c_void) -> c_int;
}

const COUNT: usize = 16;
const BYTES: usize = 100_000;

/// Blocks that are freed when it is dropped.
#[derive(Default)]
struct Holder(Vec<*mut c_void>);

fn allocate() -> Option<*mut c_void> {
    let mut block = std::ptr::null_mut();
    // SAFETY: the output is valid for a write.
    (unsafe { cudaMalloc(&raw mut block, BYTES) } == 0).then_some(block)
}

fn free(block: *mut c_void) -> c_int {
    // SAFETY: the block came from cudaMalloc, and its owner gives it up here.
    unsafe { cudaFree(block) }
}

impl Holder {
    fn fill(&mut self) {
        assert_eq!(cudaSetDevice(0), 0);
        for _ in 0..COUNT {
            let first = allocate().expect("memory");
            assert_eq!(free(first), 0);
            self.0.push(allocate().expect("memory"));
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // At process end the native driver may answer with an error or not: no matter.
        for block in self.0.drain(..) {
            free(block);
        }
        if let Some(block) = allocate() {
            free(block);
        }
    }
}

thread_local! {
    static BLOCKS: RefCell<Holder> = RefCell::default();
}

fn fill() {
    BLOCKS.with(|holder| holder.borrow_mut().fill());
}

fn main() {
    let how = std::env::args().nth(1).unwrap_or_else(|| "main".to_owned());
    fill();
    match how.as_str() {
        "threads" => {
            let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(fill)).collect();
            for thread in threads {
                thread.join().expect("no panic");
            }
        }
        "exit-in-thread" => {
            let thread = std::thread::spawn(|| {
                fill();
                println!("ends in a thread");
                std::process::exit(0);
            });
            let _ = thread.join();
        }
        _ => {}
    }
    println!("main ends: {how}");
}
