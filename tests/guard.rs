//! GPUPOOL_GUARD on the simulated driver: each fault of `tests/programs/guard.c` is reported once,
//! with the right block and the right places; programs without a fault give no report and the same
//! output; without the option nothing is reported.

#[path = "programs/stats.rs"]
mod stats;
mod support;

use std::sync::atomic::{AtomicU32, Ordering};

use stats::{number, statistics};
use support::{Folder, Outcome, Run, program, run_program, simulated_driver};

/// A run that keeps its statistics in `folder`. The simulated driver would report the guard's reading
/// of freed memory, and the program's faults.
fn run(folder: &Folder, name: &str, flavour: &str, arguments: &[&str]) -> Run {
    run_program(name, flavour)
        .args(arguments)
        .with_lib(true)
        .env("SIMCUDA_ALLOW", "use-after-free")
        .env("GPUPOOL_STATS", folder.path().join("stats.json"))
}

/// What was reported: each finding's line, with the lines of its call sites.
#[derive(Debug)]
struct Finding {
    line: String,
    allocated: Vec<String>,
    freed: Vec<String>,
}

/// The findings on stderr. Any other line there is a failure.
#[track_caller]
fn findings(outcome: &Outcome) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for line in outcome.stderr.lines() {
        let text = line.split_once("] error: guard: ");
        let (_, text) = text.unwrap_or_else(|| panic!("on stderr: {line}"));
        if let Some(frame) = text.strip_prefix("    allocated by #") {
            found
                .last_mut()
                .expect("a finding first")
                .allocated
                .push(frame.to_owned());
        } else if let Some(frame) = text.strip_prefix("    freed by #") {
            found
                .last_mut()
                .expect("a finding first")
                .freed
                .push(frame.to_owned());
        } else {
            found.push(Finding {
                line: text.to_owned(),
                allocated: vec![],
                freed: vec![],
            });
        }
    }
    found
}

/// The value behind `key ` at the beginning of a line that the program printed.
#[track_caller]
fn printed<'a>(outcome: &'a Outcome, key: &str) -> Vec<&'a str> {
    let lines = outcome.stdout.lines();
    let mut values = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let value = values
        .next()
        .unwrap_or_else(|| panic!("no {key}: {outcome:#?}"));
    value.split(' ').collect()
}

fn address(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address")
}

/// Runs a fault of `guard.c`, which must give one finding, and returns both.
#[track_caller]
fn fault(name: &str, flavour: &str) -> (Outcome, Finding) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    // Several tests run the same fault.
    let number_of_run = RUNS.fetch_add(1, Ordering::Relaxed);
    let folder = Folder::new(&format!("guard-{number_of_run}"));
    let outcome = run(&folder, "guard", flavour, &[name])
        .env("GPUPOOL_GUARD", "on")
        .run()
        .expect_success();
    let mut found = findings(&outcome);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(number(&statistics(&folder), "/guard_findings"), 1);
    (outcome, found.remove(0))
}

/// Checks that a finding is about the bytes `[first, last]` of the victim, counted from its start.
#[track_caller]
fn about(outcome: &Outcome, finding: &Finding, begins: &str, first: u64, last: u64) {
    let victim = printed(outcome, "victim");
    let start = address(victim[0]);
    let begins = begins.replace(
        "BLOCK",
        &format!("the {}-byte block at {}", victim[1], victim[0]),
    );
    assert!(
        finding.line.starts_with(&begins),
        "{begins} … in {finding:#?}"
    );
    let extent = format!(
        "first wrong byte at {:#x} (offset {first}), last at {:#x} (offset {last})",
        start + first,
        start + last
    );
    assert!(finding.line.contains(&extent), "{extent} in {finding:#?}");
}

/// The function that called, innermost first, is among the first frames.
#[track_caller]
fn called_in(frames: &[String], function: &str) {
    let name = format!(" in {function}+0x");
    assert!(
        frames.iter().take(3).any(|frame| frame.contains(&name)),
        "{function} in {frames:#?}"
    );
}

/// An overrun that is noticed at the free of the victim.
fn overrun(name: &str, flavour: &str, size: u64, written: u64, bytes: &str) {
    let (outcome, finding) = fault(name, flavour);
    assert_eq!(printed(&outcome, "victim")[1], size.to_string());
    let begins = format!("overrun: {bytes} written 0 bytes past the end of BLOCK: ");
    about(&outcome, &finding, &begins, size, size + written - 1);
    assert!(
        finding.line.contains("; noticed at its free"),
        "{finding:?}"
    );
    called_in(&finding.allocated, "allocate_victim");
    assert!(finding.freed.is_empty());
}

// covers: GPUPOOL_GUARD past-the-end
#[test]
fn one_byte_by_a_kernel() {
    for flavour in ["shared", "static"] {
        overrun("overrun-byte", flavour, 1000, 1, "1 byte");
        let (_, finding) = fault("overrun-byte", flavour);
        assert!(
            finding.line.contains("; it now reads ab fd fd "),
            "{finding:?}"
        );
    }
}

#[test]
fn by_a_kernel_still_to_run_at_the_free() {
    overrun("overrun-late", "shared", 70_000, 4, "4 bytes");
}

#[test]
fn by_a_memset() {
    overrun("overrun-memset", "shared", (3 << 20) - 100, 24, "24 bytes");
    overrun("overrun-memset", "static", (3 << 20) - 100, 24, "24 bytes");
}

#[test]
fn freed_in_stream_order() {
    overrun("overrun-async", "shared", 1 << 16, 8, "8 bytes");
}

#[test]
fn never_freed() {
    let (outcome, finding) = fault("never-freed", "shared");
    let begins = "overrun: 2 bytes written 0 bytes past the end of BLOCK: ";
    about(&outcome, &finding, begins, 5000, 5001);
    assert!(finding.line.contains("; noticed before the context's end"));
    called_in(&finding.allocated, "allocate_victim");
}

#[test]
fn behind_a_pitched_block() {
    let (outcome, finding) = fault("overrun-pitched", "shared");
    let size: u64 = printed(&outcome, "victim")[1].parse().expect("a size");
    let begins = "overrun: 3 bytes written 0 bytes past the end of BLOCK: ";
    about(&outcome, &finding, begins, size, size + 2);
}

#[test]
fn into_the_next_block() {
    let (outcome, finding) = fault("overrun-next", "shared");
    let next = printed(&outcome, "next")[0];
    let zone = address(next) - address(printed(&outcome, "victim")[0]) - 4096;
    assert!((512..1024).contains(&zone), "the red zone has {zone} bytes");
    let begins = format!("overrun: {zone} bytes written 0 bytes past the end of BLOCK: ");
    about(&outcome, &finding, &begins, 4096, 4096 + zone - 1);
    for part in [
        "; it may go on behind that",
        &format!("; or an underrun of the 4096-byte block at {next} by {zone} bytes"),
    ] {
        assert!(finding.line.contains(part), "{part} in {finding:#?}");
    }
}

#[test]
fn in_front_of_a_block() {
    let (outcome, finding) = fault("underrun", "shared");
    let victim = printed(&outcome, "victim")[0];
    let part = format!("an underrun of the 2000-byte block at {victim}, since freed, by 4 bytes");
    assert!(finding.line.contains(&part), "{part} in {finding:#?}");
    let noticed = "; noticed at the free of the block behind";
    assert!(finding.line.contains(noticed), "{noticed} in {finding:#?}");
    let first = format!("first wrong byte at {:#x} ", address(victim) - 4);
    assert!(finding.line.contains(&first), "{first} in {finding:#?}");
}

/// A write after the free, and when it is noticed.
fn after_free(name: &str, flavour: &str, bytes: &str, first: u64, last: u64, noticed: &str) {
    let (outcome, finding) = fault(name, flavour);
    let begins = format!("use after free: {bytes} written after the free of BLOCK: ");
    about(&outcome, &finding, &begins, first, last);
    assert!(finding.line.contains(noticed), "{noticed} in {finding:#?}");
    called_in(&finding.allocated, "allocate_victim");
    called_in(&finding.freed, "free_victim");
}

#[test]
fn after_the_free_noticed_at_the_next_use() {
    let noticed = "; noticed before the memory was handed out again";
    for flavour in ["shared", "static"] {
        after_free("after-free-reissue", flavour, "64 bytes", 128, 191, noticed);
    }
}

#[test]
fn after_the_free_noticed_at_another_free() {
    let noticed = "; noticed at a later free";
    after_free("after-free-later", "shared", "1 byte", 1, 1, noticed);
}

#[test]
fn after_the_free_noticed_at_the_end_of_the_context() {
    let noticed = "; noticed before the context's end";
    after_free("after-free-reset", "shared", "1 byte", 4999, 4999, noticed);
}

/// And what the driver then makes of the memory is not looked at.
#[test]
fn after_the_free_noticed_when_the_segment_goes_back() {
    let noticed = "; noticed when the memory went back to the driver";
    after_free(
        "after-free-given-back",
        "shared",
        "3 bytes",
        77,
        79,
        noticed,
    );
}

#[test]
fn one_in_each_thread() {
    let folder = Folder::new("guard-threads");
    let outcome = run(&folder, "guard", "shared", &["threads-overrun"])
        .env("GPUPOOL_GUARD", "on")
        .run()
        .expect_success();
    let found = findings(&outcome);
    assert_eq!(found.len(), 8, "{found:#?}");
    for size in 3000..3008 {
        let block =
            format!("overrun: 1 byte written 0 bytes past the end of the {size}-byte block");
        let of_it: Vec<_> = found
            .iter()
            .filter(|f| f.line.starts_with(&block))
            .collect();
        assert_eq!(of_it.len(), 1, "{block} in {found:#?}");
        assert!(!of_it[0].allocated.is_empty());
    }
    assert_eq!(number(&statistics(&folder), "/guard_findings"), 8);
}

/// The object and offset of a frame are what addr2line takes: it also knows functions that are not
/// exported.
#[test]
fn frames_can_be_resolved() {
    let (_, finding) = fault("overrun-byte", "static");
    let object = program("guard", "static");
    let offsets: Vec<&str> = finding
        .allocated
        .iter()
        .filter_map(|frame| {
            frame
                .rsplit_once('(')?
                .1
                .strip_suffix(')')?
                .rsplit_once('+')
        })
        .filter(|(path, _)| {
            std::path::Path::new(path).ends_with(object.file_name().expect("a file"))
        })
        .map(|(_, offset)| offset)
        .collect();
    let functions = Run::new("addr2line")
        .args(["-f", "-i", "-e"])
        .arg(&object)
        .args(&offsets)
        .run()
        .expect_success()
        .stdout;
    let place = |name: &str| functions.lines().position(|line| line == name);
    let callers = ["kit_malloc", "allocate_victim", "overrun_byte", "main"].map(place);
    assert!(
        callers.iter().all(Option::is_some) && callers.is_sorted(),
        "{functions}"
    );
}

/// The control: the same faults without the option.
#[test]
fn nothing_is_reported_without_the_option() {
    for (name, setting) in [
        ("overrun-byte", None),
        ("overrun-memset", Some("off")),
        ("after-free-later", None),
        ("after-free-reset", Some("0")),
        ("threads-overrun", None),
    ] {
        let folder = Folder::new(&format!("guard-control-{name}"));
        let mut run = run(&folder, "guard", "shared", &[name]);
        if let Some(setting) = setting {
            run = run.env("GPUPOOL_GUARD", setting);
        }
        let outcome = run.run().expect_success();
        assert_eq!(outcome.stderr, "", "{name}");
        assert_eq!(number(&statistics(&folder), "/guard_findings"), 0);
    }
}

/// A driver from before context-wide events: frees wait for the context.
#[test]
fn works_on_an_older_driver() {
    let old = simulated_driver().with_file_name("sim-old");
    assert!(old.exists(), "{} is not there", old.display());
    for (name, count) in [("overrun-late", 1), ("after-free-reissue", 1), ("clean", 0)] {
        let folder = Folder::new(&format!("guard-old-{name}"));
        let outcome = run(&folder, "guard", "shared", &[name])
            .env("LD_LIBRARY_PATH", &old)
            .env("GPUPOOL_GUARD", "on")
            .run()
            .expect_success();
        assert_eq!(findings(&outcome).len(), count, "{name}: {outcome:#?}");
    }
}

/// What the guard itself asks of the driver fails: the program does not notice.
#[test]
fn a_driver_that_refuses_does_no_harm() {
    let native = run_program("churn", "shared")
        .arg("300")
        .run()
        .expect_success();
    for fault in [
        "cuMemsetD8Async:2@1+",
        "cuMemsetD8Async:999@100+",
        "cuMemcpyDtoHAsync_v2:2@1+",
        "cuMemcpyDtoHAsync_v2:2@7",
        "cuMemHostRegister_v2:801@1+",
        "cuStreamQuery:999@50",
    ] {
        let folder = Folder::new("guard-refused");
        let outcome = run(&folder, "churn", "shared", &["300"])
            .env("GPUPOOL_GUARD", "on")
            .env("SIMCUDA_FAULT", fault)
            .run()
            .expect_success();
        assert_eq!(outcome.stdout, native.stdout, "{fault}");
        assert!(!outcome.stderr.contains("guard:"), "{fault}: {outcome:#?}");
    }
    // Nothing can be filled, or read back: nothing is found.
    for fault in ["cuMemsetD8Async:2@1+", "cuMemcpyDtoHAsync_v2:2@1+"] {
        let folder = Folder::new("guard-blind");
        let outcome = run(&folder, "guard", "shared", &["overrun-byte"])
            .env("GPUPOOL_GUARD", "on")
            .env("SIMCUDA_FAULT", fault)
            .run()
            .expect_success();
        assert_eq!(outcome.stderr, "", "{fault}");
    }
    // Without pinning it is only slower.
    let folder = Folder::new("guard-pageable");
    let outcome = run(&folder, "guard", "shared", &["overrun-byte"])
        .env("GPUPOOL_GUARD", "on")
        .env("SIMCUDA_FAULT", "cuMemHostRegister_v2:801@1+")
        .run()
        .expect_success();
    assert_eq!(findings(&outcome).len(), 1);
}

/// GPUPOOL_FILL works on top, and its pattern is no finding.
#[test]
fn new_blocks_are_filled_as_asked() {
    for (fill, expected) in [
        ("zero", "words that were not zero: 0"),
        ("poison", "blocks with old data: 0"),
    ] {
        let folder = Folder::new(&format!("guard-fill-{fill}"));
        let outcome = run(&folder, "fill", "shared", &[fill])
            .env("GPUPOOL_GUARD", "on")
            .env("GPUPOOL_FILL", fill)
            .run()
            .expect_success();
        assert!(outcome.stdout.contains(expected), "{outcome:#?}");
        assert_eq!(outcome.stderr, "");
    }
}

/// A program without a fault, on the guard and natively.
fn without_fault(
    test: &str,
    name: &str,
    flavour: &str,
    arguments: &[&str],
    simulated: &[(&str, &str)],
) {
    let folder = Folder::new(&format!("guard-{test}"));
    let native = simulated
        .iter()
        .fold(run_program(name, flavour).args(arguments), |run, (n, v)| {
            run.env(n, v)
        })
        .run()
        .expect_success();
    let guarded = simulated
        .iter()
        .fold(run(&folder, name, flavour, arguments), |run, (n, v)| {
            run.env(n, v)
        })
        .env("GPUPOOL_GUARD", "on")
        .run()
        .expect_success();
    let (a, b): (Vec<_>, Vec<_>) = (
        native.stdout.lines().collect(),
        guarded.stdout.lines().collect(),
    );
    assert_eq!(a.len(), b.len(), "{native:#?} {guarded:#?}");
    for (native, guarded) in a.iter().zip(&b) {
        // Where a native call breaks a capture, it may not do so here.
        let better = native.starts_with("maybe-better") && guarded.starts_with("maybe-better");
        assert!(
            native == guarded || better,
            "natively `{native}`, with the guard `{guarded}`"
        );
    }
    // The simulated driver's reports of the program's own bad calls.
    let own = ["VIOLATION double-free", "VIOLATION forked-child"];
    let others: Vec<&str> = guarded
        .stderr
        .lines()
        .filter(|line| !own.iter().any(|fault| line.contains(fault)))
        .collect();
    assert!(others.is_empty(), "on stderr: {others:#?}");
    if let Ok(text) = std::fs::read_to_string(folder.path().join("stats.json")) {
        assert!(text.contains("\"guard_findings\": 0,"), "{text}");
    }
}

macro_rules! programs_without_fault {
    ($($test:ident: $name:literal $flavour:literal $arguments:tt $(, $variable:literal = $value:literal)*;)*) => {
        $(#[test] fn $test() { without_fault(stringify!($test), $name, $flavour, &$arguments, &[$(($variable, $value)),*]); })*
    };
}

programs_without_fault! {
    clean: "guard" "shared" ["clean"];
    clean_static: "guard" "static" ["clean"];
    clean_threads: "guard" "shared" ["threads"];
    cross_stream: "cross_stream" "shared" [];
    gated_kernel: "gated_kernel" "shared" [];
    alignment: "alignment" "shared" [];
    bad_frees: "bad_frees" "static" [];
    capture: "capture" "shared" [];
    first_in_capture: "first_in_capture" "static" [];
    memgetinfo: "memgetinfo" "shared" [], "SIMCUDA_MEMORY" = "1G";
    peer: "peer" "shared" [], "SIMCUDA_DEVICES" = "2";
    crosses: "crosses" "shared" [], "SIMCUDA_MEMORY" = "1G";
    ipc: "ipc" "shared" [];
    ranges: "ranges" "shared" [];
    ranges_static: "ranges" "static" [];
    pitched: "pitched" "shared" [];
    contexts: "contexts" "driver" [];
    reset: "reset" "shared" [];
    exit_atexit: "exit_handlers" "shared" ["atexit"];
    exit_destructor: "exit_handlers" "static" ["destructor"];
    exit_detached: "exit_handlers" "shared" ["detached"];
    fork: "fork" "shared" [];
    sticky_error: "fault" "shared" [];
    overlap: "overlap" "shared" [];
    churn: "churn" "shared" ["2000"];
    churn_static: "churn" "static" ["500"];
    driver_only: "driver_only" "driver" [];
    plugin: "plugin" "driver" [];
    foreign: "foreign" "shared" [];
    green_context: "green_context" "driver" [];
    short_threads: "short_threads" "shared" ["200"];
}
