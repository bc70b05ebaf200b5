//! The simulated driver's own test suite: the facts about NVIDIA's driver hold on it (the program
//! that checks them runs on a real driver too), its checks find what they are for, and its knobs
//! do what they say.

mod support;

use serde_json::Value;
use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use support::{Folder, Outcome, run_program, simulated_driver};

/// The lines that the driver wrote to its report.
fn report(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the driver writes its report");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("each line is JSON"))
        .collect()
}

/// The kinds of violation in a report.
fn kinds(lines: &[Value]) -> Vec<String> {
    lines
        .iter()
        .filter_map(|line| Some(line.get("violation")?.as_str()?.to_owned()))
        .collect()
}

fn has_line(outcome: &Outcome, line: &str) -> bool {
    outcome.stdout.lines().any(|l| l == line)
}

#[test]
fn facts_hold_on_the_simulated_driver() {
    let folder = Folder::new("driver-facts");
    let file = folder.path().join("report");
    let outcome = run_program("driver_facts", "shared")
        .env("SIMCUDA_REPORT", &file)
        // A second free of a pointer is one of the facts.
        .env("SIMCUDA_ALLOW", "double-free")
        .run();
    let failed: Vec<&str> = outcome
        .stdout
        .lines()
        .filter(|line| !line.starts_with("PASS "))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}\n{outcome:#?}");
    assert_eq!(outcome.code(), 0, "{outcome:#?}");
    let passed = outcome.stdout.lines().count();
    assert!(passed > 150, "only {passed} facts: {outcome:#?}");
    assert_eq!(kinds(&report(&file)), Vec::<String>::new());
    assert_eq!(outcome.stderr, "");
}

#[test]
fn each_kind_of_misuse_is_reported() {
    let folder = Folder::new("driver-misuse");
    for (misuse, kind) in [
        ("early-reissue", "early-reissue"),
        ("still-owned", "early-reissue"),
        ("use-after-free", "use-after-free"),
        ("past-the-block", "use-after-free"),
        ("freed-while-owned", "freed-while-owned"),
        ("double-free", "double-free"),
        ("invalid-access", "invalid-access"),
        ("unmapped-in-use", "unmapped-in-use"),
        ("no-access", "no-access"),
        ("forked-child", "forked-child"),
    ] {
        let file = folder.path().join(misuse);
        let outcome = run_program("driver_facts", "shared")
            .args(["misuse", misuse])
            .env("SIMCUDA_REPORT", &file)
            .run()
            .expect_success();
        assert_eq!(kinds(&report(&file)), [kind], "{misuse}: {outcome:#?}");
        let text = format!("simcuda: VIOLATION {kind}: ");
        assert!(outcome.stderr.starts_with(&text), "{misuse}: {outcome:#?}");
    }
}

#[test]
fn proper_use_is_not_reported() {
    let folder = Folder::new("driver-proper-use");
    let file = folder.path().join("report");
    let outcome = run_program("driver_facts", "shared")
        .args(["misuse", "none"])
        .env("SIMCUDA_REPORT", &file)
        .env("SIMCUDA_STRICT", "1")
        .run()
        .expect_success();
    assert_eq!(outcome.stderr, "");
    let lines = report(&file);
    assert_eq!(kinds(&lines), Vec::<String>::new());
    let summary = lines.last().expect("a summary");
    assert_eq!(summary["violations"], 0);
    assert_eq!(summary["calls"]["cuMemAlloc_v2"], 1);
    assert_eq!(summary["calls"]["cuLaunchKernel"], 2);
    assert_eq!(summary["peak_device_bytes"][0], 8 << 20);
}

#[test]
fn strict_ends_the_process_at_the_first_violation() {
    let outcome = run_program("driver_facts", "shared")
        .args(["misuse", "early-reissue"])
        .env("SIMCUDA_STRICT", "1")
        .run();
    assert_eq!(outcome.code(), 99, "{outcome:#?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:#?}");
}

#[test]
fn faults_come_at_the_call_that_was_named() {
    let probe = |fault: &str| {
        let outcome = run_program("driver_facts", "shared")
            .arg("probe")
            .env("SIMCUDA_FAULT", fault)
            .run()
            .expect_success();
        (1..=4)
            .map(|i| has_line(&outcome, &format!("allocation {i}: 2")))
            .collect::<Vec<bool>>()
    };
    assert_eq!(probe("cuMemAlloc_v2:2@2"), [false, true, false, false]);
    assert_eq!(probe("cuMemAlloc_v2:2@3+"), [false, false, true, true]);
    assert_eq!(probe("cuMemFree_v2:1@99"), [false; 4]);
}

#[test]
fn devices_memory_and_version_are_as_asked_for() {
    let outcome = run_program("driver_facts", "shared")
        .arg("probe")
        .args(["cuCtxRecordEvent", "cuMemAlloc", "cuCtxGetId"])
        .env("SIMCUDA_DEVICES", "3")
        .env("SIMCUDA_MEMORY", "40M")
        .env("SIMCUDA_VERSION", "12040")
        .env("SIMCUDA_MISSING", "cuCtxGetId")
        .run()
        .expect_success();
    for line in [
        "devices 3",
        "version 12040",
        "memory 41943040",
        "allocation 2: 0",
        "allocation 3: 2",
        "cuCtxRecordEvent: missing",
        "cuMemAlloc: found",
        "cuCtxGetId: missing",
    ] {
        assert!(has_line(&outcome, line), "{line}: {outcome:#?}");
    }
}

#[test]
fn calls_after_the_drivers_end_answer_so_if_asked_for() {
    let at_exit = |deinit: &str| {
        let outcome = run_program("driver_facts", "shared")
            .arg("probe")
            .env("SIMCUDA_DEINIT", deinit)
            .run()
            .expect_success();
        outcome.stdout.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(at_exit("0"), "at exit: 0");
    assert_eq!(at_exit("1"), "at exit: 4");
}

/// (address, name) of the functions that a library exports.
fn exported(library: &Path) -> Vec<(u64, String)> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output()
        .expect("nm runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            Some((address, words.nth(1)?.to_owned()))
        })
        .collect()
}

#[test]
fn every_entry_point_is_a_function_of_its_own() {
    let driver = simulated_driver().join("libcuda.so.1");
    let all = exported(&driver);
    let entries: Vec<_> = all.iter().filter(|(_, n)| n.starts_with("cu")).collect();
    assert!(entries.len() > 200, "{}", entries.len());
    let addresses: HashSet<u64> = all.iter().map(|(a, _)| *a).collect();
    assert_eq!(addresses.len(), all.len(), "two names share an address");
    for (address, name) in entries {
        assert_eq!(address % 16, 0, "{name}");
    }
}

#[test]
fn the_old_driver_lacks_only_what_is_newer() {
    let names = |folder: &str| -> HashSet<String> {
        let library = simulated_driver()
            .with_file_name(folder)
            .join("libcuda.so.1");
        exported(&library).into_iter().map(|(_, n)| n).collect()
    };
    let (new, old) = (names("sim"), names("sim-old"));
    let mut lacking: Vec<&String> = new.difference(&old).collect();
    lacking.sort();
    assert_eq!(
        lacking,
        [
            "cuCtxGetId",
            "cuCtxRecordEvent",
            "cuCtxWaitEvent",
            "cuGreenCtxRecordEvent",
            "cuGreenCtxWaitEvent"
        ]
    );
    assert!(old.is_subset(&new));
}
