//! `gpupool trim` and `set`, the helper thread and GPUPOOL_IDLE_RELEASE: on the simulated driver.

#[path = "support/commanded.rs"]
mod commanded;
mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use commanded::{Commanded, figure, figures, gpupool};
use support::Outcome;

const MIB: u64 = 1 << 20;
const HELPER: &[(&str, &str)] = &[("GPUPOOL_HELPER", "on")];
/// More than a cache keeps, so that each allocation leaves the fast path.
const LARGE: &str = "churn 1 100000000";

fn trim(program: &Commanded) -> Outcome {
    gpupool(&["trim", &program.pid()]).run()
}

fn set(program: &Commanded, setting: &str) -> Outcome {
    gpupool(&["set", &program.pid(), setting]).run()
}

#[track_caller]
fn refuses(outcome: &Outcome, part: &str) {
    assert_eq!(outcome.stdout, "", "{outcome:?}");
    assert!(matches!(outcome.code(), 1 | 2), "{outcome:?}");
    assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
}

/// Waits until `reached` says so of the figures.
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

#[test]
fn an_idle_process_with_a_helper_gives_back_at_once() {
    let mut program = Commanded::start(HELPER);
    program.tell_all(&["init", "alloc 1000", "alloc 50000000", "free"]);
    let before = figures(&program);
    assert_eq!(before["helper"], true);
    assert!(figure(&before, "/reserved_bytes") > 50_000_000);
    let outcome = trim(&program).expect_success();
    assert!(outcome.stdout.contains("gave back"), "{outcome:?}");
    let after = figures(&program);
    assert_eq!(figure(&after, "/live_bytes"), 1024, "{after}");
    assert_eq!(figure(&after, "/reserved_bytes"), 2 * MIB, "{after}");
    assert_eq!(figure(&after, "/segment_frees"), 1, "{after}");
    program.tell("free");
    trim(&program).expect_success();
    assert_eq!(figure(&figures(&program), "/reserved_bytes"), 0);
    program.tell_all(&["alloc 1000", "free"]);
    program.end();
}

#[test]
fn an_idle_process_without_a_helper_is_told_apart_and_not_changed_later() {
    let mut program = Commanded::start(&[]);
    program.tell_all(&["init", LARGE, "sync"]);
    let outcome = gpupool(&["trim", &program.pid(), "--wait", "50ms"]).run();
    refuses(&outcome, "GPUPOOL_HELPER=on");
    // The request was withdrawn: nobody does it when nobody waits any more.
    program.tell_all(&[LARGE, "churn 600 4096", "sync", LARGE]);
    let seen = figures(&program);
    assert!(figure(&seen, "/reserved_bytes") >= 100_000_000, "{seen}");
    assert_eq!(figure(&seen, "/segment_frees"), 0, "{seen}");
    program.end();
}

#[test]
fn a_busy_process_does_it_in_its_next_call_off_the_fast_path() {
    let mut program = Commanded::start(&[]);
    program.tell_all(&["init", "alloc 50000000", "free"]);
    let pid = program.pid();
    let asked = std::thread::spawn(move || gpupool(&["trim", &pid, "--wait", "60s"]).run());
    while !asked.is_finished() {
        program.tell(LARGE);
    }
    let outcome = asked.join().unwrap().expect_success();
    assert!(outcome.stdout.contains("gave back"), "{outcome:?}");
    assert!(figure(&figures(&program), "/segment_frees") > 0);
    program.end();
}

/// The fast path alone reaches a fence now and then, which is off it.
#[test]
fn settings_reach_a_process_that_only_hits() {
    let mut program = Commanded::start(&[]);
    program.tell_all(&["init", "churn 10 4096"]);
    let pid = program.pid();
    let asked =
        std::thread::spawn(move || gpupool(&["set", &pid, "WAIT=7ms", "--wait", "60s"]).run());
    while !asked.is_finished() {
        program.tell("churn 1000 4096");
    }
    asked.join().unwrap().expect_success();
    program.end();
}

#[test]
fn the_pool_is_switched_off_and_on_again() {
    let mut program = Commanded::start(HELPER);
    program.tell_all(&[
        "init",
        "alloc 1000",
        "alloc 50000000",
        "alloc 60000000",
        "free",
    ]);
    let outcome = set(&program, "MODE=off").expect_success();
    assert!(outcome.stdout.contains("GPUPOOL_MODE=off"), "{outcome:?}");
    let off = figures(&program);
    assert_eq!(off["mode"], "off");
    program.tell_all(&["alloc 70000000", "churn 10 4096"]);
    let later = figures(&program);
    assert_eq!(
        figure(&later, "/driver/alloc_calls"),
        figure(&off, "/driver/alloc_calls") + 11,
        "each is the driver's: {later}"
    );
    assert_eq!(figure(&later, "/hits"), figure(&off, "/hits"), "{later}");
    // What is the pool's stays the pool's: freed once each, and then given back.
    program.tell_all(&["free", "free", "free"]);
    trim(&program).expect_success();
    assert_eq!(figure(&figures(&program), "/reserved_bytes"), 0);
    let outcome = set(&program, "GPUPOOL_MODE=pool").expect_success();
    assert!(outcome.stdout.contains("serves"), "{outcome:?}");
    let on = figures(&program);
    assert_eq!(on["mode"], "pool");
    program.tell_all(&["churn 10 4096"]);
    let last = figures(&program);
    assert_eq!(
        figure(&last, "/hits") + figure(&last, "/misses"),
        figure(&on, "/hits") + figure(&on, "/misses") + 10,
        "{last}"
    );
    program.end();
}

#[test]
fn limits_hold_from_then_on() {
    let mut program = Commanded::start(HELPER);
    program.tell_all(&["init", "alloc 1000"]);
    let held = figure(&figures(&program), "/reserved_bytes");
    set(&program, "MAX=0").expect_success();
    program.tell_all(&["alloc 50000000", "free"]);
    let seen = figures(&program);
    assert_eq!(figure(&seen, "/reserved_bytes"), held, "{seen}");
    assert!(figure(&seen, "/bypasses") > 0, "{seen}");
    set(&program, "MAX=100%").expect_success();
    program.tell_all(&["alloc 50000000", "free"]);
    assert!(figure(&figures(&program), "/reserved_bytes") > 50_000_000);
    set(&program, "INFLIGHT=12M").expect_success();
    let limit = figure(&figures(&program), "/devices/0/inflight_limit_bytes");
    assert_eq!(limit, 12 * MIB);
    program.end();
}

#[test]
fn the_log_changes_while_the_program_runs() {
    let mut program = Commanded::start_with(HELPER, Stdio::piped());
    program.tell_all(&["init", "alloc 1000"]);
    set(&program, "LOG=debug").expect_success();
    trim(&program).expect_success();
    set(&program, "LOG=off").expect_success();
    trim(&program).expect_success();
    let log = program.end();
    assert_eq!(log.matches("asked from outside: trim").count(), 1, "{log}");
}

#[test]
fn what_cannot_change_is_refused_and_changes_nothing() {
    let mut program = Commanded::start(HELPER);
    program.tell_all(&["init", "alloc 1000"]);
    for (setting, part) in [
        ("MODE=observe", "gpupool observe"),
        ("MODE=of", "pool, observe or off"),
        ("MAX=lots", "a size"),
        ("IPC=deny", "cannot change"),
        ("NONSENSE=1", "cannot change"),
        ("MAX", "VAR=VALUE"),
    ] {
        refuses(&set(&program, setting), part);
    }
    // All are checked before the first is sent.
    let both = gpupool(&["set", &program.pid(), "MODE=off", "MAX=lots"]).run();
    refuses(&both, "a size");
    assert_eq!(figures(&program)["mode"], "pool");
    program.end();
    let mut observer = Commanded::start(&[("GPUPOOL_MODE", "observe"), HELPER[0]]);
    observer.tell_all(&["init", "alloc 1000"]);
    refuses(&set(&observer, "MODE=off"), "started to observe");
    refuses(&trim(&observer), "only observes");
    observer.end();
}

// covers: GPUPOOL_HELPER
#[test]
fn only_an_option_starts_a_thread() {
    let threads = |variables: &[(&str, &str)]| {
        let mut program = Commanded::start(variables);
        program.tell_all(&["init", "alloc 1000", "churn 100 70000000"]);
        let threads: u32 = program.tell("threads").parse().unwrap();
        program.end();
        threads
    };
    let native = threads(&[("LD_PRELOAD", "")]);
    assert_eq!(threads(&[]), native);
    assert_eq!(threads(HELPER), native + 1);
    assert_eq!(threads(&[("GPUPOOL_IDLE_RELEASE", "30s")]), native + 1);
    assert_eq!(threads(&[("GPUPOOL_MODE", "off"), HELPER[0]]), native);
}

const IDLE: &[(&str, &str)] = &[("GPUPOOL_IDLE_RELEASE", "100ms")];

// covers: GPUPOOL_IDLE_RELEASE kept-memory
#[test]
fn unused_segments_go_back_by_themselves_and_used_ones_stay() {
    let mut program = Commanded::start(IDLE);
    program.tell_all(&["init", "alloc 1000", "alloc 50000000", "free"]);
    assert!(figure(&figures(&program), "/reserved_bytes") > 50_000_000);
    until(&program, "what is unused goes back", |seen| {
        figure(seen, "/reserved_bytes") == 2 * MIB
    });
    program.tell("free");
    until(&program, "all goes back", |seen| {
        figure(seen, "/reserved_bytes") == 0
    });
    program.tell_all(&["alloc 50000000", "free"]);
    program.end();
    // The control: without the option it stays.
    let mut program = Commanded::start(HELPER);
    program.tell_all(&["init", "alloc 50000000", "free"]);
    std::thread::sleep(Duration::from_millis(500));
    assert!(figure(&figures(&program), "/reserved_bytes") > 50_000_000);
    program.end();
}

/// The driver would wait for the kernel, and hold every thread's launches back meanwhile.
#[test]
fn nothing_goes_back_while_the_gpu_is_busy() {
    let mut program = Commanded::start(IDLE);
    program.tell_all(&["init", "alloc 50000000", "free", "sync", "spin 1500"]);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(700) {
        let seen = figures(&program);
        let held = figure(&seen, "/reserved_bytes");
        if start.elapsed() < Duration::from_millis(1300) {
            assert!(held > 50_000_000, "{seen}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    program.tell("sync");
    until(&program, "then it does", |seen| {
        figure(seen, "/reserved_bytes") == 0
    });
    program.end();
}
