//! What the library's options and statistics do to a running program, and what a driver that fails
//! does not do to it: on the simulated driver, with `tests/programs/churn.c`.

#[path = "programs/stats.rs"]
mod stats;
mod support;

use stats::{number, statistics};
use support::{Folder, Run, no_grace_library, run_program};

// ---- what the statistics and options say ---------------------------------------------------------

fn churn(folder: &Folder, count: &str) -> Run {
    run_program("churn", "shared")
        .arg(count)
        .with_lib(true)
        .env("GPUPOOL_STATS", folder.path().join("stats.json"))
}

// covers: GPUPOOL_STATS
#[test]
fn statistics_add_up() {
    let folder = Folder::new("stats");
    churn(&folder, "4000").run().expect_success();
    let stats = statistics(&folder);
    let (hits, misses) = (number(&stats, "/hits"), number(&stats, "/misses"));
    assert!(hits + misses >= 4000, "{stats}");
    assert!(hits > 20 * misses, "{stats}");
    assert!(number(&stats, "/reissues") <= hits, "{stats}");
    assert!(
        number(&stats, "/driver/alloc_calls") * 100 <= 4000,
        "a hundred times fewer: {stats}"
    );
    assert!(number(&stats, "/driver/fence_records") > 0, "{stats}");
    assert!(
        number(&stats, "/peak_reserved_bytes") >= number(&stats, "/peak_live_bytes"),
        "{stats}"
    );
    assert_eq!(
        number(&stats, "/live_bytes"),
        0,
        "everything was freed: {stats}"
    );
    assert!(
        number(&stats, "/waiting_bytes") <= number(&stats, "/reserved_bytes"),
        "{stats}"
    );
    assert_eq!(stats["mode"], "pool");
}

// covers: kept-memory
#[test]
fn cap_is_kept() {
    let folder = Folder::new("cap");
    churn(&folder, "3000")
        .env("GPUPOOL_MAX", "16M")
        .run()
        .expect_success();
    let stats = statistics(&folder);
    assert!(
        number(&stats, "/peak_reserved_bytes") <= 16 << 20,
        "{stats}"
    );
    assert!(number(&stats, "/hits") > 0, "{stats}");
}

#[test]
fn preallocation_is_taken_at_the_start() {
    let folder = Folder::new("prealloc");
    churn(&folder, "3")
        .env("GPUPOOL_PREALLOC", "256M")
        .run()
        .expect_success();
    let stats = statistics(&folder);
    assert!(
        number(&stats, "/peak_reserved_bytes") >= 256 << 20,
        "{stats}"
    );
}

#[test]
fn observe_counts_and_changes_nothing() {
    let folder = Folder::new("observe");
    churn(&folder, "1000")
        .env("GPUPOOL_MODE", "observe")
        .run()
        .expect_success();
    let stats = statistics(&folder);
    assert_eq!(number(&stats, "/hits"), 0, "{stats}");
    // Each native call counts once.
    assert_eq!(number(&stats, "/driver/alloc_calls"), 1000, "{stats}");
    assert_eq!(number(&stats, "/calls/alloc"), 1000, "{stats}");
    assert_eq!(stats["mode"], "observe");
}

/// Garbage in each variable: one line that names it, and the program runs.
#[test]
fn garbage_in_each_variable() {
    let plain = run_program("churn", "shared")
        .arg("50")
        .run()
        .expect_success();
    for option in gpupool::config::OPTIONS {
        // Any text is the name of a file for these.
        if ["GPUPOOL_STATS", "GPUPOOL_PROFILE", "GPUPOOL_TRACE"].contains(&option.name) {
            continue;
        }
        let run = run_program("churn", "shared")
            .arg("50")
            .with_lib(true)
            .env(option.name, "%$garbage=,");
        let outcome = run.run().expect_success();
        assert_eq!(outcome.stdout, plain.stdout, "{}", option.name);
        assert_eq!(
            outcome.stderr.lines().count(),
            1,
            "{}: one line: {}",
            option.name,
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains(option.name),
            "{}: {}",
            option.name,
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains("%$garbage=,"),
            "{}: {}",
            option.name,
            outcome.stderr
        );
    }
    let run = run_program("churn", "shared")
        .arg("50")
        .with_lib(true)
        .env("GPUPOOL_NOSUCH", "1");
    let outcome = run.run().expect_success();
    assert_eq!(outcome.stdout, plain.stdout);
    assert_eq!(
        outcome
            .stderr
            .lines()
            .filter(|l| l.contains("GPUPOOL_NOSUCH"))
            .count(),
        1,
        "{}",
        outcome.stderr
    );
}

// ---- faults of the driver ------------------------------------------------------------------------

// covers: no-harm
/// Fences cannot be recorded any more: nothing is reissued on a guess, nothing hangs, and the
/// program gets its memory all the same.
#[test]
fn failing_fences_do_no_harm() {
    let plain = run_program("churn", "shared")
        .arg("2000")
        .run()
        .expect_success();
    for fault in [
        "cuCtxRecordEvent:1@10+",
        "cuCtxRecordEvent:1@10",
        "cuEventCreate:2@3+",
    ] {
        let run = run_program("churn", "shared")
            .arg("2000")
            .with_lib(true)
            .env("SIMCUDA_FAULT", fault);
        let outcome = run.run().expect_success();
        assert_eq!(outcome.stdout, plain.stdout, "{fault}");
        assert!(
            !outcome.stderr.contains("VIOLATION"),
            "{fault}: {}",
            outcome.stderr
        );
    }
}

/// Every call that the table of hooks has because it needs device memory: what lies empty in the pool
/// goes back for it. Without the pool the program sees the error, which shows that the fault hits the
/// call.
// covers: other-kinds
#[test]
fn whatever_needs_device_memory_gets_it_from_the_pool() {
    // The simulated driver does without these: what counts is that the call is made again.
    let refused = |call: &str| call.contains("External") || call == "cuGraphAddMemAllocNode";
    let calls: Vec<&str> = include_str!("../src/hooks/entry.rs")
        .split(";\n")
        .filter(|entry| {
            [
                "serve::or_give_back",
                "serve::context_created",
                "serve::green_created",
            ]
            .iter()
            .any(|retried| entry.contains(retried))
        })
        .filter_map(|entry| entry.trim_start().split('(').next())
        .map(|before| before.rsplit(char::is_whitespace).next().unwrap_or(before))
        .collect();
    assert!(calls.len() > 45, "{calls:?}");
    for call in calls {
        let answer = |mode: &str| {
            run_program("other_needs", "shared")
                .with_lib(true)
                .arg(call)
                .env("SIMCUDA_DEVICES", "2")
                .env("SIMCUDA_FAULT", format!("{call}:2@1"))
                .env("GPUPOOL_MODE", mode)
                .run()
                .expect_success()
                .stdout
        };
        let again = if refused(call) { 801 } else { 0 };
        assert_eq!(answer("pool"), format!("{call}: {again}\n"));
        assert_eq!(answer("off"), format!("{call}: 2\n"));
    }
}

/// One driver allocation fails: the program does not see it as long as a retry succeeds.
#[test]
fn single_failed_driver_allocation_is_retried() {
    for call in [1, 2, 3] {
        let run = run_program("churn", "shared").arg("2000").with_lib(true);
        let outcome = run
            .env("SIMCUDA_FAULT", format!("cuMemAlloc_v2:2@{call}"))
            .run();
        assert!(outcome.expect_success().stdout.contains("wrong words 0"));
    }
}

/// The driver gives less than the device has, as where MPS sets a limit: what the pool has goes on
/// being used, and where that does not do the program sees the driver's own error.
// covers: limits
#[test]
fn a_limit_below_the_devices_memory() {
    let folder = Folder::new("limit");
    let limited = |limit: &str| {
        churn(&folder, "2000")
            .env("SIMCUDA_LIMIT", limit)
            .env("GPUPOOL_LOG", "error")
    };
    // Natively it runs with 64 MiB.
    for (limit, bytes) in [("96M", 96 << 20), ("128M", 128 << 20)] {
        let outcome = limited(limit).run().expect_success();
        assert!(outcome.stdout.contains("wrong words 0"), "{outcome:#?}");
        assert_eq!(outcome.stderr, "");
        let stats = statistics(&folder);
        assert!(number(&stats, "/peak_reserved_bytes") <= bytes, "{stats}");
    }
    let outcome = limited("1M").run();
    assert_eq!(outcome.code(), 1, "{outcome:#?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("error 2 "), "{outcome:#?}");
}

/// As [`a_limit_below_the_devices_memory`], where the driver's answers about the device tell of the
/// limit, as under MPS: percentages are of what the driver says, and all growth ends there.
// covers: limits
#[test]
fn a_limit_that_the_driver_tells_of() {
    let folder = Folder::new("told-limit");
    let peak = |shown: &str, option: &str, value: &str| {
        let outcome = churn(&folder, "2000")
            .env("SIMCUDA_MEMORY", "64G")
            .env("SIMCUDA_LIMIT", "1G")
            .env("SIMCUDA_LIMIT_SHOWN", shown)
            .env(option, value)
            .env("GPUPOOL_LOG", "error")
            .run();
        assert!(outcome.expect_success().stdout.contains("wrong words 0"));
        number(&statistics(&folder), "/peak_reserved_bytes") >> 20
    };
    assert_eq!(peak("1", "GPUPOOL_PREALLOC", "50%"), 512);
    // A control: half of 64 GiB is more than the limit, which preallocation then runs into.
    assert!(peak("0", "GPUPOOL_PREALLOC", "50%") > 900);
    assert!(peak("1", "GPUPOOL_MAX", "10%") <= 102);
    assert!(peak("0", "GPUPOOL_MAX", "10%") > 102);
}

// ---- negative control: fences that fall into captures --------------------------------------------

/// With the gate that keeps fences out of captures switched off, `capture.c` meets calls that succeed
/// and yet break a capture: `call 0 capture 901`. Natively and with the gate there is no such line.
#[test]
fn without_the_gate_captures_are_broken() {
    const BROKEN: &str = "call 0 capture 901";
    let capture = || run_program("capture", "shared").env("GPUPOOL_FREE", "ordered");
    let gated = capture().with_lib(true).run().expect_success();
    assert!(!gated.stdout.contains(BROKEN), "{}", gated.stdout);
    let ungated = capture()
        .env("LD_PRELOAD", no_grace_library())
        .env("GPUPOOL_TEST_NO_GATE", "1")
        .env("SIMCUDA_ALLOW", "use-after-free,early-reissue")
        .run();
    assert!(
        ungated.stdout.contains(BROKEN),
        "capture.c does not notice fences in captures: {}",
        ungated.stdout
    );
}
