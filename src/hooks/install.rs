//! From "libcuda has arrived" to "the entry points are patched".

use super::arrival::Libcuda;
use super::attach::BLOCK;
use super::{patch, table};
use crate::config::Mode;
use crate::cuda::driver::ALL;
use crate::process;
use crate::process::attach::Phase;
use std::sync::atomic::Ordering;

/// libcuda is mapped and nobody is inside it: fills the slots and patches the
/// entry points. If one that frees or queries cannot be patched, nothing is,
/// and the program runs natively.
pub fn on_libcuda(libcuda: &Libcuda) {
    if !process::driver_arrived() {
        return;
    }
    let entries = entries(libcuda, false);
    let mut mode = process::config().mode;
    if BLOCK.observe.load(Ordering::Acquire) != 0 {
        mode = Mode::Observe;
        process::set_mode(mode);
    }
    if mode == Mode::Pool && super::sanitizer::is_loaded() {
        log::info!(
            "compute-sanitizer is loaded: allocations stay native, so that its findings are"
        );
        mode = Mode::Observe;
    }
    match patch::install(&entries) {
        Ok(installed) => {
            for skipped in &installed.skipped {
                log::info!("{skipped}; calls of it pass");
            }
            log::info!(
                "{} entry points of {:?} patched, mode {mode:?}",
                installed.patched.len(),
                libcuda.path()
            );
            process::activate(mode);
            BLOCK.phase.store(Phase::InForce as u32, Ordering::Release);
        }
        Err(refused) => log::warn!("the program runs without the pool: {refused}"),
    }
}

/// Fills the slots, and lists what is to be patched. `late`: the driver is in
/// use already.
pub(super) fn entries(libcuda: &Libcuda, late: bool) -> Vec<patch::Entry> {
    for function in ALL {
        if let Some(address) = libcuda.symbol(function.name) {
            function.slot.store(address, Ordering::Release);
        }
    }
    let mut rows = table::rows();
    if late {
        rows.extend(table::late_rows());
    }
    rows.into_iter()
        .filter(|row| row.function.is_available())
        .map(|row| patch::Entry {
            name: row.function.name(),
            address: row.function.address(),
            hook: row.hook,
            original: &row.function.slot,
            required: row.required,
        })
        .collect()
}

/// libcuda was in use before it was first seen here: other threads may be
/// inside it, so it is left alone.
pub fn too_late() {
    log::warn!(
        "the program runs without the pool: the driver was in use before the library saw it arrive"
    );
}
