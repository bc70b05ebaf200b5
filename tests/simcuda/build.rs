//! Gives the library NVIDIA's SONAME, and keeps it mapped once it is loaded:
//! its worker threads run until the process ends, also after a `dlclose`. As in
//! NVIDIA's, what it knows of its own functions is not another library's.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rerun-if-changed=build.rs");
}
