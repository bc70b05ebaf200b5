//! Negative controls: each safety mechanism is switched off in a build that no release is, and the
//! test of it must notice. The same build with the mechanism on passes, so that it is the mechanism
//! that makes the difference. See `src/config/control.rs`.
//!
//! The controls of grace periods (tests/stress.rs, tests/differential.rs), of the memory fences behind
//! them (scripts/loom) and of the gate for captures (tests/behaviour.rs) stand with their tests.

mod support;

use std::time::Duration;

use support::{Folder, Outcome, Run, no_grace_library, run_program};

/// A run with the controls' library, grace on, and `off` switched off.
fn controlled(name: &str, flavour: &str, arguments: &[&str], off: Option<&str>) -> Run {
    let run = run_program(name, flavour)
        .args(arguments)
        .env("LD_PRELOAD", no_grace_library())
        .env("GPUPOOL_TEST_KEEP_GRACE", "1");
    match off {
        Some(off) => run.env(off, "1"),
        None => run,
    }
}

#[track_caller]
fn good(outcome: Outcome) -> Outcome {
    let outcome = outcome.expect_success();
    assert_eq!(outcome.stderr, "");
    outcome
}

/// The calls that ask for events take long, so that many are under way when a context is destroyed.
#[test]
fn events_of_ending_contexts_are_noticed() {
    const NOTICED: &str = "VIOLATION ending-context";
    let run = |off| {
        controlled("ending_contexts", "driver", &[], off)
            .env("SIMCUDA_SLOW", "cuEventQuery:1ms,cuCtxRecordEvent:1ms")
            .env("GPUPOOL_INFLIGHT", "1M")
            .run()
    };
    good(run(None));
    let without = run(Some("GPUPOOL_TEST_NO_HOLD"));
    assert!(without.stderr.contains(NOTICED), "{without:#?}");
}

#[test]
fn exported_memory_that_is_handed_out_is_noticed() {
    const GOOD: &str = "later blocks in what was exported: 0";
    for (how, backend) in [
        ("ipc", "driver"),
        ("dmabuf", "driver"),
        ("token", "driver"),
        ("sync", "driver"),
        ("dmabuf", "vmm"),
        ("token", "vmm"),
    ] {
        let run = |off| {
            controlled("exported", "shared", &[how], off)
                .env("GPUPOOL_BACKEND", backend)
                // In one segment: a block of its own segment goes back with it, and then the
                // driver may have its address for a new one.
                .env("GPUPOOL_PREALLOC", "1G")
                .run()
        };
        let with = good(run(None));
        assert!(with.stdout.lines().all(|line| line.ends_with(GOOD)));
        let without = run(Some("GPUPOOL_TEST_NO_RETIRE"));
        assert!(
            !without.stdout.lines().any(|line| line.ends_with(GOOD)),
            "{how}, {backend}: {without:#?}"
        );
    }
}

/// Mapped memory that peers were given no access to.
#[test]
fn peers_without_access_are_noticed() {
    let run = |off| {
        controlled("peer", "shared", &[], off)
            .env("GPUPOOL_BACKEND", "vmm")
            .env("SIMCUDA_DEVICES", "2")
            .run()
    };
    good(run(None));
    let without = run(Some("GPUPOOL_TEST_NO_PEERS"));
    let noticed = "VIOLATION no-access";
    assert!(without.stderr.contains(noticed), "{without:#?}");
}

/// Without a limit an allocation waits for a fence that waits for this very thread.
#[test]
fn waits_without_a_limit_are_noticed() {
    for option in [("GPUPOOL_INFLIGHT", "4M"), ("GPUPOOL_INFLIGHT", "0")] {
        let run = |off, seconds| {
            controlled("gated_kernel", "shared", &[], off)
                .env(option.0, option.1)
                .limit(Duration::from_secs(seconds))
                .run()
        };
        good(run(None, 90));
        let without = run(Some("GPUPOOL_TEST_NO_WAIT_LIMIT"), 5);
        assert!(without.timed_out, "{option:?}: {without:#?}");
    }
}

/// Children that are not off call the driver, which fails there.
#[test]
fn forked_children_that_go_on_are_noticed() {
    let run = |off| {
        controlled("fork", "shared", &["child-frees", "20"], off)
            .limit(Duration::from_secs(100))
            .run()
    };
    good(run(None));
    let without = run(Some("GPUPOOL_TEST_NO_FORK"));
    assert!(
        without.code() != 0 && without.stderr.contains("VIOLATION forked-child"),
        "{without:#?}"
    );
}

/// After the driver's own exit handlers every call of it fails, and so would a free that asks it.
#[test]
fn calls_after_the_end_are_noticed() {
    let run = |off| {
        controlled("exit_handlers", "shared", &["codes"], off)
            .env("SIMCUDA_DEINIT", "1")
            .run()
    };
    let refused = |outcome: &Outcome| {
        let line = "frees refused after the driver's end: ";
        let found = outcome.stdout.lines().find_map(|l| l.strip_prefix(line));
        found.and_then(|n| n.parse::<u32>().ok())
    };
    assert_eq!(refused(&good(run(None))), Some(0));
    let without = run(Some("GPUPOOL_TEST_NO_EXIT"));
    assert!(refused(&without) > Some(0), "{without:#?}");
}

// covers: checkpoints
/// What a checkpoint has to copy: without the pool 4 MiB.
#[test]
fn idle_memory_in_a_checkpoint_is_noticed() {
    let folder = Folder::new("checkpoint");
    let copied = |off| {
        let file = folder.path().join("report");
        let outcome = controlled("checkpoint", "shared", &["alone"], off)
            .env("GPUPOOL_WAIT", "20s")
            .env("SIMCUDA_REPORT", &file)
            .run();
        good(outcome);
        let text = std::fs::read_to_string(&file).expect("the report");
        std::fs::remove_file(&file).expect("the report");
        let line: serde_json::Value = serde_json::from_str(text.trim()).expect("one line");
        line["checkpointed_bytes"].as_u64().expect("a number") >> 20
    };
    // Three checkpoints, with 128 MiB freed before each; a segment or two are left.
    let (with, without) = (copied(None), copied(Some("GPUPOOL_TEST_NO_CHECKPOINT")));
    assert!(with < 100, "{with} MiB were copied");
    assert!(without > 300, "only {without} MiB were copied");
}

/// A fiber's stack lies elsewhere than its thread's: whatever reads it does not know where it ends.
#[test]
fn stacks_that_are_not_the_threads_own_are_noticed() {
    let folder = Folder::new("control-stacks");
    let run = |off| {
        let path = folder.path().join("fiber.trace");
        let outcome = controlled("fiber", "shared", &[], off)
            .env("GPUPOOL_TRACE", &path)
            .env("GPUPOOL_TRACE_STACKS", "on")
            .run();
        let bytes = std::fs::read(&path).expect("a trace");
        let trace = gpupool::trace::Trace::read(&bytes).expect("a whole one");
        let foreign = |call: &&gpupool::trace::Call| call.size == 8192 && call.stack != 0;
        (outcome.code(), trace.calls.iter().filter(foreign).count())
    };
    assert_eq!(run(None), (0, 0));
    let (code, followed) = run(Some("GPUPOOL_TEST_NO_STACK_CHECK"));
    assert!(code != 0 || followed > 0, "{code} {followed}");
}

/// The switches do nothing in a release: the library does not know the names.
#[test]
fn a_release_has_no_switches() {
    let outcome = run_program("exported", "shared")
        .with_lib(true)
        .env("GPUPOOL_TEST_NO_RETIRE", "1")
        .run()
        .expect_success();
    assert!(!outcome.stdout.lines().any(|line| !line.ends_with(": 0")));
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(
        lines.len() == 1 && lines[0].contains("GPUPOOL_TEST_NO_RETIRE"),
        "{lines:?}"
    );
}
