//! GPUPOOL_PROFILE: what one run needed is there when the next one begins.

#[path = "support/commanded.rs"]
mod commanded;
mod support;

use std::fs;
use std::path::Path;
use std::process::Stdio;

use commanded::{Commanded, figure, figures};
use support::Folder;

const WORK: &[&str] = &[
    "alloc 1000",
    "alloc 500000",
    "alloc 40000000",
    "alloc 3000000",
    "alloc 900000000",
    "alloc 700000",
    "free",
    "free",
    "alloc 200000000",
];

/// Does the work; the driver's allocations after the first of it, and in all.
fn run(profile: &Path) -> (u64, u64) {
    let profile = profile.to_str().expect("UTF-8");
    let mut program = Commanded::start(&[("GPUPOOL_PROFILE", profile)]);
    program.tell_all(&["init", WORK[0]]);
    let calls = |program: &Commanded| figure(&figures(program), "/driver/alloc_calls");
    let first = calls(&program);
    program.tell_all(&WORK[1..]);
    let all = calls(&program);
    program.end();
    (all - first, all)
}

// covers: GPUPOOL_PROFILE
#[test]
fn the_second_run_makes_no_allocation_on_its_way() {
    let folder = Folder::new("profile");
    let file = folder.path().join("app.profile");
    let (on_the_way, _) = run(&file);
    assert!(on_the_way > 0, "the control: the first run grows");
    let text = fs::read_to_string(&file).unwrap();
    let profile: serde_json::Value = serde_json::from_str(&text).unwrap();
    let segments = profile["devices"][0]["segments"].as_array().unwrap();
    let count: u64 = segments.iter().map(|s| s["count"].as_u64().unwrap()).sum();
    // And one for what may wait at once.
    assert_eq!(run(&file), (0, count + 1), "{text}");
    assert_eq!(run(&file), (0, count + 1), "the same again: {text}");
    // What is not needed any more is not kept for ever.
    let mut small = Commanded::start(&[("GPUPOOL_PROFILE", file.to_str().unwrap())]);
    small.tell_all(&["init", "alloc 1000"]);
    assert!(figure(&figures(&small), "/reserved_bytes") > 900_000_000);
    small.end();
    let mut small = Commanded::start(&[("GPUPOOL_PROFILE", file.to_str().unwrap())]);
    small.tell_all(&["init", "alloc 1000"]);
    assert_eq!(figure(&figures(&small), "/reserved_bytes"), 2 << 20);
    small.end();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// What was given back before the end counts, as it was needed.
#[test]
fn the_peak_counts_and_not_the_end() {
    let folder = Folder::new("profile-peak");
    let file = folder.path().join("app.profile");
    let mut program = Commanded::start(&[
        ("GPUPOOL_PROFILE", file.to_str().unwrap()),
        ("GPUPOOL_HELPER", "on"),
    ]);
    program.tell_all(&["init", "alloc 900000000", "free", "sync"]);
    commanded::gpupool(&["trim", &program.pid()])
        .run()
        .expect_success();
    assert_eq!(figure(&figures(&program), "/reserved_bytes"), 0);
    program.end();
    let profile: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert!(
        figure(&profile, "/devices/0/bytes") >= 900_000_000,
        "{profile}"
    );
}

#[test]
fn a_file_that_is_no_profile_is_told_and_written_anew() {
    let folder = Folder::new("profile-bad");
    let file = folder.path().join("app.profile");
    fs::write(&file, "{\"gpupool_profile\": 77}").unwrap();
    let variables = [("GPUPOOL_PROFILE", file.to_str().unwrap())];
    let mut program = Commanded::start_with(&variables, Stdio::piped());
    program.tell_all(&["init", "alloc 1000"]);
    let log = program.end();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(
        log.contains("its format is 77") && log.contains("app.profile"),
        "{log}"
    );
    assert!(
        fs::read_to_string(&file)
            .unwrap()
            .contains("\"gpupool_profile\": 1")
    );
    // One that cannot be written is told too.
    let variables = [("GPUPOOL_PROFILE", "/no/such/folder/app.profile")];
    let mut program = Commanded::start_with(&variables, Stdio::piped());
    program.tell_all(&["init", "alloc 1000"]);
    let log = program.end();
    assert!(
        log.contains("cannot write /no/such/folder/app.profile"),
        "{log}"
    );
}

/// A profile of a larger device, or one that was edited, is taken as far as it goes.
#[test]
fn more_than_the_device_has_is_left_out() {
    let folder = Folder::new("profile-large");
    let file = folder.path().join("app.profile");
    fs::write(
        &file,
        "{\"gpupool_profile\": 1, \"devices\": [{\"device\": 0, \"segments\": [
            {\"kind\": \"large\", \"bytes\": 33554432, \"count\": 2},
            {\"kind\": \"large\", \"bytes\": 12345, \"count\": 1},
            {\"kind\": \"dedicated\", \"bytes\": 109951162777600, \"count\": 1}]}]}",
    )
    .unwrap();
    let mut program = Commanded::start(&[("GPUPOOL_PROFILE", file.to_str().unwrap())]);
    program.tell_all(&["init", "alloc 5000000", "churn 100 6000000"]);
    let seen = figures(&program);
    assert_eq!(figure(&seen, "/reserved_bytes"), 2 * 33_554_432, "{seen}");
    program.end();
}
