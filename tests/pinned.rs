//! Pinned host memory from the pool, on the simulated driver: the stress of
//! `tests/programs/pinned_stress.c` with every policy and its negative control, the cap, giving back,
//! and the figures. What programs are answered is compared in `tests/programs.rs`.

#[path = "support/commanded.rs"]
mod commanded;
#[path = "programs/stats.rs"]
mod stats;
mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use commanded::{Commanded, figure, figures, gpupool};
use stats::{number, statistics};
use support::{Folder, Outcome, Run, library, no_grace_library, run_program, simulated_driver};

const MIB: u64 = 1 << 20;

fn stress(flavour: &str, blocks: u64, library: PathBuf, folder: &Folder) -> Run {
    run_program("pinned_stress", flavour)
        .args(["--iterations", &blocks.to_string()])
        .env("LD_PRELOAD", library)
        .env("GPUPOOL_STATS", folder.path().join("stats.json"))
        .limit(Duration::from_secs(150))
}

#[track_caller]
fn no_violation(outcome: &Outcome, folder: &Folder, blocks: u64) {
    assert_eq!(outcome.code(), 0, "{outcome:#?}");
    let line = format!("blocks {blocks} violations 0\n");
    assert_eq!(
        (outcome.stdout.as_str(), outcome.stderr.as_str()),
        (line.as_str(), "")
    );
    let reissues = number(&statistics(folder), "/pinned/reissues");
    assert!(
        reissues * 2 > blocks,
        "too few reissues for a test of them: {reissues} of {blocks}"
    );
}

// covers: grace pinned
#[test]
fn stress_shared() {
    let (folder, blocks) = (Folder::new("pinned-stress"), 60_000);
    no_violation(
        &stress("shared", blocks, library(), &folder).run(),
        &folder,
        blocks,
    );
}

#[test]
fn stress_with_frees_that_order_or_wait() {
    for policy in ["ordered", "strict"] {
        let (folder, blocks) = (Folder::new(&format!("pinned-{policy}")), 4_000);
        let run = stress("shared", blocks, library(), &folder).env("GPUPOOL_FREE", policy);
        no_violation(&run.args(["--seed", "3"]).run(), &folder, blocks);
    }
}

/// Little may wait, or nothing: the allocation then waits for the CPU to see the fence pass.
#[test]
fn stress_with_little_waiting() {
    for limit in ["0", "1M"] {
        let (folder, blocks) = (Folder::new(&format!("pinned-waiting-{limit}")), 4_000);
        let run = stress("shared", blocks, library(), &folder).env("GPUPOOL_INFLIGHT", limit);
        no_violation(&run.args(["--seed", "4"]).run(), &folder, blocks);
    }
}

// covers: GPUPOOL_HOST_MAX
#[test]
fn stress_under_a_cap() {
    let (folder, blocks) = (Folder::new("pinned-cap"), 4_000);
    let outcome = stress("shared", blocks, library(), &folder)
        .env("GPUPOOL_HOST_MAX", "4M")
        .run();
    assert_eq!(outcome.code(), 0, "{outcome:#?}");
    assert_eq!(outcome.stderr, "");
    let stats = statistics(&folder);
    assert!(
        number(&stats, "/pinned/reserved_bytes") <= 4 * MIB,
        "{stats}"
    );
    assert!(number(&stats, "/pinned/reissues") > 100, "{stats}");
    // Beyond the cap the driver serves.
    let calls = number(&stats, "/pinned/driver/alloc_calls");
    assert!(calls > number(&stats, "/pinned/segment_allocs"), "{stats}");
}

/// A driver without context-wide events: frees may wait for the GPU, as natively all do.
#[test]
fn stress_on_a_driver_without_context_events() {
    let (folder, blocks) = (Folder::new("pinned-old"), 1_000);
    let old = simulated_driver().with_file_name("sim-old");
    let path = format!("{}:{}", old.display(), simulated_driver().display());
    let outcome = stress("shared", blocks, library(), &folder)
        .env("SIMCUDA_VERSION", "12040")
        .env("LD_LIBRARY_PATH", path)
        .run();
    assert_eq!(outcome.code(), 0, "{outcome:#?}");
    assert!(!outcome.stderr.contains("VIOLATION"), "{outcome:#?}");
    assert!(number(&statistics(&folder), "/pinned/hits") > blocks / 2);
}

/// The negative control: with grace periods switched off the same stress reports violations, by the
/// bytes and by the simulated driver's books; and so does case 7.
#[test]
fn without_grace_violations_are_reported() {
    let folder = Folder::new("pinned-no-grace");
    let outcome = stress("shared", 2_000, no_grace_library(), &folder).run();
    assert_eq!(outcome.code(), 1, "the stress finds nothing: {outcome:#?}");
    assert!(
        outcome.stderr.contains("VIOLATION early-reissue"),
        "{outcome:#?}"
    );
    let copies = run_program("pinned", "shared")
        .env("LD_PRELOAD", no_grace_library())
        .run();
    assert_eq!(copies.code(), 1, "case 7 finds nothing: {copies:#?}");
    // The same build with grace passes.
    let with = stress("shared", 2_000, no_grace_library(), &folder)
        .env("GPUPOOL_TEST_KEEP_GRACE", "1")
        .run();
    no_violation(&with, &folder, 2_000);
}

/// Each way of asking has a pool of its own, and device memory is no part of it.
#[test]
fn figures_are_apart_from_those_of_devices() {
    let mut program = Commanded::start(&[]);
    program.tell_all(&["init", "pin 5000 0", "pin 5000 1", "pin 3000000 1", "unpin"]);
    let seen = figures(&program);
    for (path, value) in [
        ("/calls/alloc", 0),
        ("/live_bytes", 0),
        ("/reserved_bytes", 0),
        ("/driver/alloc_calls", 0),
        ("/pinned/calls/alloc", 3),
        ("/pinned/calls/free", 1),
        ("/pinned/live_bytes", 2 * 8192),
        ("/pinned/driver/alloc_calls", 3),
        ("/pinned/driver/free_calls", 0),
    ] {
        assert_eq!(figure(&seen, path), value, "{path}: {seen}");
    }
    // Two small segments, and one of the large request in steps of 64 KiB.
    let held = figure(&seen, "/pinned/reserved_bytes");
    assert_eq!(held, 4 * MIB + 46 * 65536, "{seen}");
    let flags: Vec<_> = seen["pinned"]["pools"]
        .as_array()
        .expect("pools")
        .iter()
        .map(|pool| pool["flags"].as_u64())
        .collect();
    assert_eq!(flags, [Some(0), Some(1)], "{seen}");
    let text = gpupool(&["stat", &program.pid()])
        .run()
        .expect_success()
        .stdout;
    assert!(
        text.contains("pinned     3 allocations, 1 frees, 3 driver calls"),
        "{text}"
    );
    let text = gpupool(&["stat", &program.pid(), "--prometheus"])
        .run()
        .expect_success()
        .stdout;
    assert!(
        text.lines()
            .any(|l| l.starts_with("gpupool_pinned_live_bytes{") && l.ends_with(" 16384")),
        "{text}"
    );
    program.end();
}

/// The cap is that of all pools together: where one wants memory, the others give back what is idle.
#[test]
fn the_cap_holds_over_all_pools() {
    let mut program = Commanded::start(&[("GPUPOOL_HOST_MAX", "8M"), ("GPUPOOL_HELPER", "on")]);
    program.tell_all(&["init", "pin 6000000 0", "pin 6000000 0"]);
    let seen = figures(&program);
    // The second one went to the driver.
    assert_eq!(figure(&seen, "/pinned/driver/alloc_calls"), 2, "{seen}");
    let held = figure(&seen, "/pinned/reserved_bytes");
    assert!((6_000_000..8 * MIB).contains(&held), "{seen}");
    program.tell_all(&["unpin", "unpin", "pin 6000000 1"]);
    let seen = figures(&program);
    assert_eq!(figure(&seen, "/pinned/driver/free_calls"), 2, "{seen}");
    assert_eq!(figure(&seen, "/pinned/reserved_bytes"), held, "{seen}");
    assert!(figure(&seen, "/pinned/live_bytes") >= 6_000_000, "{seen}");
    // It can be raised while the program runs.
    let pid = program.pid();
    gpupool(&["set", &pid, "GPUPOOL_HOST_MAX=14M"])
        .run()
        .expect_success();
    program.tell_all(&["pin 6000000 0"]);
    let seen = figures(&program);
    assert_eq!(figure(&seen, "/pinned/reserved_bytes"), 2 * held, "{seen}");
    program.end();
}

#[track_caller]
fn until(program: &Commanded, what: &str, reached: impl Fn(&serde_json::Value) -> bool) {
    let start = Instant::now();
    loop {
        let seen = figures(program);
        if reached(&seen) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: {seen}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

// covers: GPUPOOL_IDLE_RELEASE
#[test]
fn idle_pinned_memory_goes_back() {
    let mut program = Commanded::start(&[("GPUPOOL_IDLE_RELEASE", "40ms")]);
    program.tell_all(&["init", "pin 100 0", "pin 9000000 1", "unpin"]);
    until(&program, "idle memory is kept", |seen| {
        figure(seen, "/pinned/reserved_bytes") == 2 * MIB
    });
    program.tell_all(&["pin 50 0", "unpin"]);
    let seen = figures(&program);
    assert_eq!(figure(&seen, "/pinned/driver/free_calls"), 1, "{seen}");
    assert_eq!(figure(&seen, "/pinned/live_bytes"), 4096, "{seen}");
    program.end();
}

/// `gpupool trim`, and switching the pool off, while a kernel still uses nothing of it.
#[test]
fn pinned_memory_is_trimmed() {
    let mut program = Commanded::start(&[("GPUPOOL_HELPER", "on")]);
    program.tell_all(&["init", "pin 20000000 0", "unpin", "pin 4096 1"]);
    assert!(figure(&figures(&program), "/pinned/reserved_bytes") > 20_000_000);
    let outcome = gpupool(&["trim", &program.pid()]).run().expect_success();
    assert!(outcome.stdout.contains("gave back"), "{outcome:?}");
    assert_eq!(
        figure(&figures(&program), "/pinned/reserved_bytes"),
        2 * MIB
    );
    let outcome = gpupool(&["set", &program.pid(), "GPUPOOL_MODE=off"]).run();
    outcome.expect_success();
    program.tell_all(&["pin 4096 1", "unpin", "unpin"]);
    let last = figures(&program);
    assert_eq!(figure(&last, "/pinned/driver/alloc_calls"), 3, "{last}");
    // Memory goes back during the program's calls.
    let start = Instant::now();
    while figure(&figures(&program), "/pinned/reserved_bytes") > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "memory is kept");
        std::thread::sleep(Duration::from_millis(10));
        program.tell_all(&["pin 4096 1", "unpin"]);
    }
    program.end();
}

/// Where the host refuses, what the pools have idle goes back before the program is refused.
#[test]
fn a_host_that_refuses_gets_back_what_is_idle() {
    let mut program = Commanded::start(&[("SIMCUDA_HOST", "64M")]);
    program.tell_all(&["init", "pin 40000000 0", "unpin", "pin 40000000 1"]);
    let seen = figures(&program);
    assert!(figure(&seen, "/pinned/driver/free_calls") >= 1, "{seen}");
    program.end();
}

// covers: GPUPOOL_MODE
#[test]
fn an_observer_counts_pinned_memory_apart() {
    let mut program = Commanded::start(&[("GPUPOOL_MODE", "observe")]);
    program.tell_all(&["init", "alloc 1000", "pin 5000 0", "pin 7000 1", "unpin"]);
    let seen = figures(&program);
    for (path, value) in [
        ("/calls/alloc", 1),
        ("/pinned/calls/alloc", 2),
        ("/pinned/calls/free", 1),
        ("/pinned/live_bytes", 5000),
        ("/pinned/peak_live_bytes", 12_000),
        ("/live_bytes", 1000),
    ] {
        assert_eq!(figure(&seen, path), value, "{path}: {seen}");
    }
    assert!(figure(&seen, "/pinned/calls/alloc_ns") > 0, "{seen}");
    program.end();
}

#[test]
fn observe_tells_what_pinned_memory_took() {
    let churn = support::program("pinned_stress", "shared");
    let run = gpupool(&["observe", "--"])
        .arg(&churn)
        .args(["--iterations", "200"])
        .env("LD_LIBRARY_PATH", simulated_driver())
        .env("GPUPOOL_LIB", library());
    let outcome = run.run();
    assert_eq!(outcome.code(), 0, "{outcome:#?}");
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    let line = text
        .lines()
        .find(|line| line.contains("of pinned memory took"));
    assert!(
        line.is_some_and(|l| l.contains(" ms") || l.contains(" s")),
        "{text}"
    );
}

// covers: GPUPOOL_HOST
#[test]
fn without_the_pool_each_call_is_the_drivers() {
    let mut program = Commanded::start(&[("GPUPOOL_HOST", "off")]);
    program.tell_all(&["init", "pin 5000 0", "unpin", "pin 5000 0", "unpin"]);
    let seen = figures(&program);
    assert_eq!(figure(&seen, "/pinned/driver/alloc_calls"), 2, "{seen}");
    assert_eq!(figure(&seen, "/pinned/driver/free_calls"), 2, "{seen}");
    assert_eq!(figure(&seen, "/pinned/hits"), 0, "{seen}");
    program.end();
}
