//! The report when an allocation fails for lack of memory: on the simulated driver.

#[path = "support/commanded.rs"]
mod commanded;
mod support;

use std::process::Stdio;

use commanded::Commanded;

/// What is said with every report on.
fn reports(variables: &[(&str, &str)], lines: &[&str]) -> Vec<String> {
    let told = [&[("GPUPOOL_LOG", "info")], variables].concat();
    reports_with(&told, lines)
}

fn reports_with(variables: &[(&str, &str)], lines: &[&str]) -> Vec<String> {
    let mut program = Commanded::start_with(variables, Stdio::piped());
    program.tell("init");
    for line in lines {
        program.tell(line);
    }
    let log = program.end();
    log.lines()
        .filter(|line| line.contains("out of memory on device 0"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_event_is_told_once() {
    let once = reports(&[], &["fill"]);
    assert_eq!(once.len(), 1, "{once:#?}");
    assert!(once[0].contains("info: "), "{once:#?}");
    assert!(
        once[0].contains("64 MiB (67108864 bytes) asked for"),
        "{once:#?}"
    );
    let lack = reports(&[], &["alloc 4000000000", "ask 7000000000"]);
    assert_eq!(lack.len(), 1, "{lack:#?}");
    assert!(
        lack[0].contains("the program needs more than there is"),
        "{lack:#?}"
    );
    // The same request again and again is one event; another one after a success is another.
    let asked = reports(
        &[],
        &[
            "alloc 4000000000",
            "ask 7000000000",
            "ask 7000000000",
            "ask 6000000000",
        ],
    );
    assert_eq!(asked.len(), 1, "{asked:#?}");
    let twice = reports(
        &[],
        &[
            "alloc 4000000000",
            "ask 7000000000",
            "ask 1000",
            "ask 7000000000",
        ],
    );
    assert_eq!(twice.len(), 2, "{twice:#?}");
}

/// No memory is short then, and natively nothing is said either.
#[test]
fn a_request_for_more_than_there_is_on_earth_is_no_event() {
    assert!(reports(&[], &["ask 9000000000", "ask 18446744073709551615"]).is_empty());
}

#[test]
fn a_program_that_goes_on_failing_is_told_no_more() {
    let mut lines = vec!["alloc 4000000000"];
    for _ in 0..30 {
        lines.extend(["ask 7000000000", "ask 1000"]);
    }
    let told = reports(&[], &lines);
    assert_eq!(told.len(), 10, "{told:#?}");
    assert!(
        told[9].contains("further reports are left out"),
        "{told:#?}"
    );
}

#[test]
fn pieces_are_told_from_lack() {
    // Every other block is free, in segments that are kept by the ones between.
    let told = reports(&[], &["holes 1000000", "ask 3000000000"]);
    let last = told.last().expect("a report");
    assert!(last.contains("not in one piece"), "{told:#?}");
    assert!(last.contains("warn: "), "{told:#?}");
}

/// Natively nothing is said when the device is full; a shortage that the pool has a part in is.
#[test]
fn a_full_device_is_not_worth_a_warning() {
    assert!(reports_with(&[], &["fill"]).is_empty());
    assert!(reports_with(&[], &["alloc 4000000000", "ask 7000000000"]).is_empty());
    assert!(!reports_with(&[], &["holes 1000000", "ask 3000000000"]).is_empty());
}

#[test]
fn memory_of_others_is_told() {
    // A quarter for the pool; what else there is the driver serves past it.
    let told = reports(&[("GPUPOOL_MAX", "0")], &["fill"]);
    assert!(told[0].contains("other allocators"), "{told:#?}");
}

#[test]
fn nothing_is_said_below_the_log_level() {
    assert!(reports(&[("GPUPOOL_LOG", "error")], &["fill"]).is_empty());
    assert!(reports(&[("GPUPOOL_MODE", "off")], &["fill"]).is_empty());
}
