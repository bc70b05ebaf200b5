//! Is compute-sanitizer watching this process?

/// Whether compute-sanitizer has put itself into this process: its library is
/// mapped, or it asked the driver to load it.
#[must_use]
pub fn is_loaded() -> bool {
    let injected = std::env::var_os("CUDA_INJECTION64_PATH").is_some_and(|path| path.to_string_lossy().contains("sanitizer"));
    injected || std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("libsanitizer-"))
}
