//! `GPUPOOL_BACKEND=vmm` beside what the table of programs runs: a driver that
//! cannot, and memory that the driver does not take back by itself.

#[path = "programs/stats.rs"]
mod stats;
mod support;

use serde_json::Value;
use stats::{number, statistics};
use support::{Folder, Outcome, Run, run_program};

/// Runs, and returns what the simulated driver counted as well.
fn counted(run: Run, folder: &Folder) -> (Outcome, Value) {
    let file = folder.path().join("report");
    let outcome = run
        .with_lib(true)
        .env("GPUPOOL_BACKEND", "vmm")
        .env("GPUPOOL_STATS", folder.path().join("stats.json"))
        .env("SIMCUDA_REPORT", &file)
        .run()
        .expect_success();
    let report = std::fs::read_to_string(&file).expect("a report");
    let last = report.lines().last().expect("a summary");
    (outcome, serde_json::from_str(last).expect("JSON"))
}

fn calls(report: &Value, name: &str) -> u64 {
    report["calls"][name].as_u64().unwrap_or(0)
}

// covers: GPUPOOL_BACKEND
#[test]
fn segments_are_mapped() {
    let folder = Folder::new("vmm-mapped");
    let run = run_program("churn", "shared").arg("2000");
    let (outcome, report) = counted(run, &folder);
    assert_eq!(outcome.stderr, "");
    assert_eq!(calls(&report, "cuMemAlloc_v2"), 0, "{report}");
    let created = calls(&report, "cuMemCreate");
    assert!(created > 0, "{report}");
    assert_eq!(calls(&report, "cuMemMap"), created, "{report}");
    assert_eq!(calls(&report, "cuMemSetAccess"), created, "{report}");
    // One range of addresses lasts.
    assert_eq!(calls(&report, "cuMemAddressReserve"), 1, "{report}");
    let stats = statistics(&folder);
    assert_eq!(number(&stats, "/driver/alloc_calls"), created, "{stats}");
    assert!(number(&stats, "/hits") > 1000, "{stats}");
}

/// One warning, and the driver's own allocations.
#[test]
fn a_driver_without_virtual_memory_management_is_served_as_before() {
    for (name, value) in [
        ("SIMCUDA_VMM", "0"),
        ("SIMCUDA_FAULT", "cuMemGetAllocationGranularity:801"),
    ] {
        let folder = Folder::new(&format!("vmm-without-{name}"));
        let run = run_program("churn", "shared").arg("2000").env(name, value);
        let (outcome, report) = counted(run, &folder);
        let told: Vec<&str> = outcome.stderr.lines().collect();
        assert!(
            told.len() == 1 && told[0].contains("acts as driver"),
            "{told:?}"
        );
        assert_eq!(calls(&report, "cuMemCreate"), 0, "{report}");
        assert!(calls(&report, "cuMemAlloc_v2") > 0, "{report}");
        assert!(number(&statistics(&folder), "/hits") > 1000);
    }
}

/// The driver keeps mapped memory when its context ends.
#[test]
fn ended_contexts_leave_nothing_behind() {
    let folder = Folder::new("vmm-ended");
    let (_, report) = counted(run_program("ending_contexts", "driver"), &folder);
    let ended = calls(&report, "cuCtxDestroy_v2");
    assert!(ended >= 10, "{report}");
    // The primary context is left at the end of the process.
    assert_eq!(calls(&report, "cuMemAddressReserve"), ended + 1, "{report}");
    assert_eq!(calls(&report, "cuMemAddressFree"), ended, "{report}");
    assert!(calls(&report, "cuMemRelease") >= ended, "{report}");
}

/// The memory fails in each of the calls that make it, for want of memory or for
/// another reason: the driver answers, and nothing is lost on the way.
#[test]
fn memory_that_cannot_be_mapped_is_the_drivers() {
    for call in [
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
    ] {
        for error in ["2", "801"] {
            let folder = Folder::new(&format!("vmm-fails-{call}-{error}"));
            let run = run_program("churn", "shared")
                .arg("500")
                .env("SIMCUDA_FAULT", format!("{call}:{error}"));
            let (outcome, report) = counted(run, &folder);
            assert!(!outcome.stderr.contains("VIOLATION"), "{outcome:#?}");
            assert!(calls(&report, "cuMemAlloc_v2") > 0, "{call}: {report}");
            let bytes = report["device_bytes"][0].as_u64();
            assert_eq!(bytes, Some(0), "{call}: {report}");
        }
    }
}

/// A failure that passes does not end the pool.
#[test]
fn one_failure_is_not_the_end() {
    let folder = Folder::new("vmm-fails-once");
    let run = run_program("churn", "shared")
        .arg("2000")
        .env("SIMCUDA_FAULT", "cuMemMap:801@3");
    counted(run, &folder);
    let stats = statistics(&folder);
    assert!(number(&stats, "/hits") > 1000, "{stats}");
}
