//! Is compute-sanitizer watching this process?

/// Whether compute-sanitizer has put itself into this process: the launcher
/// sets these variables (seen with CUDA 13.0), and its library is mapped.
#[must_use]
pub fn is_loaded() -> bool {
    let announced = std::env::var_os("NV_SANITIZER_INJECTION_PORT_BASE").is_some();
    let injected = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"]
        .iter()
        .any(|name| {
            std::env::var_os(name).is_some_and(|path| path.to_string_lossy().contains("sanitizer"))
        });
    announced
        || injected
        || std::fs::read_to_string("/proc/self/maps")
            .is_ok_and(|maps| maps.contains("libsanitizer-"))
}
