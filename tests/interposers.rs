//! The library beside others that are preloaded, and where it lies: `tests/programs/counting_library.c`
//! counts a program's calls by name and at the driver's entry points.

#[path = "programs/stats.rs"]
mod stats;
mod support;

use std::path::{Path, PathBuf};

use stats::{number, statistics};
use support::{Folder, Run, library, program, run_program};

fn counting_library() -> PathBuf {
    program("driver_only", "driver").with_file_name("libcounting_library.so")
}

/// What the counting library wrote: by name cuMemAlloc, cuMemFree, cudaMalloc, cudaFree, and at entry
/// cuMemAlloc, cuMemFree.
fn counts(folder: &Folder) -> [u64; 6] {
    let text = std::fs::read_to_string(folder.path().join("counts")).expect("counts are written");
    let all: Vec<u64> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    all.try_into().expect("six counts")
}

/// Runs a program with these libraries preloaded; its output has to be the one without.
fn counted(name: &str, flavour: &str, folder: &Folder, preload: &[PathBuf]) -> [u64; 6] {
    let plain = run_program(name, flavour).run().expect_success();
    let preload = std::env::join_paths(preload).expect("no colon in a path");
    let outcome = run_program(name, flavour)
        .env("LD_PRELOAD", preload)
        .env("COUNT_FILE", folder.path().join("counts"))
        .env("GPUPOOL_STATS", folder.path().join("stats.json"))
        .run()
        .expect_success();
    assert_eq!(outcome.stdout, plain.stdout);
    assert_eq!(outcome.stderr, "");
    counts(folder)
}

// covers: case-15
#[test]
fn a_library_that_counts_sees_each_call_once() {
    let folder = Folder::new("counted");
    let (ours, counting) = (library(), counting_library());
    // 2000 rounds of one allocation and one free, by the driver's functions.
    let alone = counted(
        "driver_only",
        "driver",
        &folder,
        std::slice::from_ref(&counting),
    );
    assert_eq!(alone, [2000, 2000, 0, 0, 2000, 2000]);
    // It comes to the entry points after us: what the program calls.
    let after = counted(
        "driver_only",
        "driver",
        &folder,
        &[counting.clone(), ours.clone()],
    );
    assert_eq!(after, alone);
    assert!(number(&statistics(&folder), "/hits") > 1900);
    // It was there before us: what the pool calls, exactly.
    let before = counted("driver_only", "driver", &folder, &[ours, counting]);
    let stats = statistics(&folder);
    let calls = |name: &str| number(&stats, &format!("/driver/{name}"));
    assert_eq!(before[..2], [2000, 2000]);
    assert_eq!(before[4..], [calls("alloc_calls"), calls("free_calls")]);
    assert!(before[4] > 0 && before[4] < 100, "{before:?}");
}

/// A tool that watches the runtime's functions from behind the library sees none of the calls that are
/// served before them; from before it, all.
// covers: profilers
#[test]
fn what_is_served_does_not_reach_the_runtimes_functions() {
    let folder = Folder::new("profiler");
    let (ours, counting) = (library(), counting_library());
    let alone = counted("churn", "shared", &folder, std::slice::from_ref(&counting));
    assert!(alone[2] > 1000 && alone[3] > 1000, "{alone:?}");
    let first = counted(
        "churn",
        "shared",
        &folder,
        &[counting.clone(), ours.clone()],
    );
    assert_eq!(first[2..4], alone[2..4]);
    let behind = counted("churn", "shared", &folder, &[ours, counting]);
    assert!(
        behind[2] * 10 < alone[2] && behind[3] * 10 < alone[3],
        "{behind:?} of {alone:?}"
    );
}

fn same_from(folder: &Path, name: &str, flavour: &str) {
    let copy = folder.join("libgpupool.so");
    std::fs::copy(library(), &copy).expect("writable");
    let plain = run_program(name, flavour).run().expect_success();
    let loaded: Run = run_program(name, flavour).env("LD_PRELOAD", &copy);
    let outcome = loaded.run().expect_success();
    assert_eq!(outcome.stdout, plain.stdout, "{name} {flavour}");
    assert_eq!(outcome.stderr, "", "{name} {flavour}");
}

/// Look-ups by handle find each library's own function, wherever this library lies. (A preload's path
/// can have no blank and no colon in it.)
// covers: case-19
#[test]
fn it_may_lie_in_an_odd_folder() {
    let folder = Folder::new("odd-folder");
    for name in ["a,b;c", "größe", "libcuda.so.1", "libcudart.so", "%p"] {
        let inner = folder.path().join(name);
        std::fs::create_dir(&inner).expect("writable");
        same_from(&inner, "forwarding", "shared");
        same_from(&inner, "dlsym_driver", "driver");
        same_from(&inner, "plugin", "driver");
        same_from(&inner, "unload", "driver");
    }
}
