//! The cross-stream stress of `tests/programs/stress.c` on the simulated driver, with every policy
//! that decides when memory is issued again, and the negative control: without grace periods the
//! same stress must report violations.

#[path = "programs/stats.rs"]
mod stats;
mod support;

use std::path::PathBuf;
use std::time::Duration;

use stats::{number, statistics};
use support::{Folder, Outcome, Run, library, no_grace_library, run_program, simulated_driver};

/// How many blocks; STRESS_ITERATIONS asks for another number.
fn iterations(usual: u64) -> u64 {
    std::env::var("STRESS_ITERATIONS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(usual)
}

fn stress(flavour: &str, blocks: u64, library: PathBuf, folder: &Folder) -> Run {
    run_program("stress", flavour)
        .args([
            "--iterations",
            &blocks.to_string(),
            "--max-size",
            "32M",
            "--window",
            "4096",
            "--delay-us",
            "400",
        ])
        .env("LD_PRELOAD", library)
        .env("GPUPOOL_STATS", folder.path().join("stats.json"))
        // The simulated GPU shares the processors with whatever else runs on the machine.
        .env("GPUPOOL_WAIT", "20s")
        .limit(Duration::from_secs(150))
}

#[track_caller]
fn no_violation(outcome: &Outcome, folder: &Folder, blocks: u64) {
    assert_eq!(outcome.code(), 0, "{outcome:#?}");
    assert!(
        outcome
            .stdout
            .contains(&format!("blocks {blocks} violations 0")),
        "{outcome:#?}"
    );
    assert_eq!(outcome.stderr, "");
    let reissues = number(&statistics(folder), "/reissues");
    assert!(
        reissues * 2 > blocks,
        "too few reissues for a test of them: {reissues} of {blocks}"
    );
}

// covers: grace
#[test]
fn stress_shared() {
    let (folder, blocks) = (Folder::new("stress-shared"), iterations(1_100_000));
    no_violation(
        &stress("shared", blocks, library(), &folder).run(),
        &folder,
        blocks,
    );
}

#[test]
fn stress_static() {
    let (folder, blocks) = (Folder::new("stress-static"), iterations(100_000));
    no_violation(
        &stress("static", blocks, library(), &folder)
            .args(["--seed", "2"])
            .run(),
        &folder,
        blocks,
    );
}

#[test]
fn stress_with_ordered_frees() {
    let (folder, blocks) = (Folder::new("stress-ordered"), iterations(100_000));
    let run = stress("shared", blocks, library(), &folder)
        .args(["--seed", "3"])
        .env("GPUPOOL_FREE", "ordered");
    no_violation(&run.run(), &folder, blocks);
}

#[test]
fn stress_with_a_small_limit_in_flight() {
    let (folder, blocks) = (Folder::new("stress-limit"), iterations(100_000));
    let run = stress("shared", blocks, library(), &folder)
        .args(["--seed", "4"])
        .env("GPUPOOL_INFLIGHT", "8M");
    no_violation(&run.run(), &folder, blocks);
}

// covers: grace case-6
/// The record of a fence takes long; other threads allocate meanwhile, and must not get the blocks
/// that it covers.
#[test]
fn stress_with_slow_fences() {
    let (folder, blocks) = (Folder::new("stress-slow"), iterations(5_000));
    let run = stress("shared", blocks, library(), &folder)
        .args(["--seed", "5"])
        .env("SIMCUDA_SLOW", "cuCtxRecordEvent:2ms");
    no_violation(&run.run(), &folder, blocks);
}

#[test]
fn stress_with_stream_ordered_calls_between() {
    let (folder, blocks) = (Folder::new("stress-async"), iterations(100_000));
    let run = stress("shared", blocks, library(), &folder).args(["--seed", "6", "--async", "20"]);
    no_violation(&run.run(), &folder, blocks);
}

/// The device is nearly full all the time: memory that waits for the GPU has to be waited for, and free
/// segments given back, before a request fails. Without the library this runs in the same memory.
#[test]
fn stress_in_little_memory() {
    let (folder, blocks) = (Folder::new("stress-little"), iterations(20_000));
    let run = stress("shared", blocks, library(), &folder)
        .args(["--seed", "8", "--budget", "256M"])
        .env("SIMCUDA_MEMORY", "768M");
    no_violation(&run.run(), &folder, blocks);
}

/// Mapped segments go while the GPU works: never those that it works on.
#[test]
fn stress_of_mapped_segments() {
    let (folder, blocks) = (Folder::new("stress-mapped"), iterations(100_000));
    let run = stress("shared", blocks, library(), &folder)
        .args(["--seed", "9"])
        .env("GPUPOOL_BACKEND", "vmm");
    no_violation(&run.run(), &folder, blocks);
    let frees = number(&statistics(&folder), "/driver/free_calls");
    assert!(frees > 20, "no segment was unmapped: {frees}");
}

#[test]
fn stress_of_mapped_segments_in_little_memory() {
    let (folder, blocks) = (Folder::new("stress-mapped-little"), iterations(20_000));
    let run = stress("shared", blocks, library(), &folder)
        .args(["--seed", "10", "--budget", "256M"])
        .env("GPUPOOL_BACKEND", "vmm")
        // Longer than a loaded machine holds the simulated GPU's threads up.
        .env("GPUPOOL_WAIT", "10s")
        .env("SIMCUDA_MEMORY", "768M");
    no_violation(&run.run(), &folder, blocks);
}

/// The negative control of both: without grace periods memory is unmapped while
/// kernels are on it, and handed out too early.
#[test]
fn stress_of_mapped_segments_without_grace_reports_violations() {
    let folder = Folder::new("stress-mapped-no-grace");
    let outcome = stress("shared", 5_000, no_grace_library(), &folder)
        .env("GPUPOOL_BACKEND", "vmm")
        .run();
    assert_eq!(outcome.code(), 1, "the stress finds nothing: {outcome:#?}");
    for kind in ["early-reissue", "unmapped-in-use"] {
        let text = format!("VIOLATION {kind}");
        assert!(outcome.stderr.contains(&text), "no {kind}: {outcome:#?}");
    }
}

/// A driver without context-wide events: slower, never less safe.
#[test]
fn stress_on_a_driver_without_context_events() {
    let (folder, blocks) = (Folder::new("stress-old"), iterations(2_000));
    let old = simulated_driver().with_file_name("sim-old");
    assert!(
        old.join("libcuda.so.1").exists(),
        "{} is not there: run scripts/test, which builds it",
        old.display()
    );
    let path = format!("{}:{}", old.display(), simulated_driver().display());
    let outcome = stress("shared", blocks, library(), &folder)
        .args(["--seed", "7"])
        .env("SIMCUDA_VERSION", "12040")
        .env("LD_LIBRARY_PATH", path)
        .run();
    assert_eq!(outcome.code(), 0, "{outcome:#?}");
    assert!(
        outcome
            .stdout
            .contains(&format!("blocks {blocks} violations 0")),
        "{outcome:#?}"
    );
    assert!(!outcome.stderr.contains("VIOLATION"), "{outcome:#?}");
}

/// The negative control: with grace periods switched off (a build of its own), the same stress
/// reports violations, both by the patterns and by the simulated driver's books.
#[test]
fn stress_without_grace_reports_violations() {
    let folder = Folder::new("stress-no-grace");
    let path = no_grace_library();
    let outcome = stress("shared", 5_000, path, &folder).run();
    assert_eq!(outcome.code(), 1, "the stress finds nothing: {outcome:#?}");
    assert!(
        outcome.stdout.contains("blocks 5000 violations "),
        "{outcome:#?}"
    );
    assert!(
        outcome.stderr.contains("VIOLATION"),
        "the simulated driver saw nothing: {outcome:#?}"
    );
}

/// Without any library the simulated driver and the stress agree that all is well.
#[test]
fn stress_without_the_library() {
    let outcome = run_program("stress", "shared")
        .args(["--iterations", "1000", "--delay-us", "100"])
        .run();
    assert!(
        outcome
            .expect_success()
            .stdout
            .contains("blocks 1000 violations 0")
    );
}
