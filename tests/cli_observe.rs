//! `gpupool observe`, and the summary of `gpupool run`: on the simulated driver.

#[path = "support/commanded.rs"]
mod commanded;
mod support;

use commanded::gpupool;
use support::{Folder, Run, library, program, run_program, simulated_driver};

fn on_simulated_driver(arguments: &[&str]) -> Run {
    gpupool(arguments)
        .env("LD_LIBRARY_PATH", simulated_driver())
        .env("GPUPOOL_LIB", library())
}

fn path(name: &str) -> String {
    program(name, "shared").to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_program_that_allocates_all_the_time_is_worth_it() {
    let folder = Folder::new("observe-worth");
    let file = folder.path().join("report.json");
    let churn = path("churn");
    let plain = run_program("churn", "shared").arg("2000").run();
    let outcome = on_simulated_driver(&[
        "observe",
        "--json",
        file.to_str().unwrap(),
        "--",
        &churn,
        "2000",
    ])
    .run()
    .expect_success();
    assert_eq!(outcome.stdout, plain.stdout);
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let number = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{report}"));
    assert_eq!(number("processes"), 1);
    assert!(number("allocs") >= 2000, "{report}");
    assert_eq!(number("frees"), number("allocs"), "{report}");
    assert!(number("saves_at_least_ns") <= number("saves_at_most_ns"));
    assert!(number("saves_at_most_ns") <= number("alloc_ns") + number("free_ns"));
    assert!(number("free_wall_ns") <= number("span_ns"), "{report}");
    let classes = report["classes"].as_array().unwrap();
    let sum: u64 = classes
        .iter()
        .map(|class| class["allocs"].as_u64().unwrap())
        .sum();
    assert_eq!(sum, number("allocs"), "{report}");
    let next = format!("gpupool run -- {churn} 2000");
    assert_eq!(report["next"], next.as_str(), "{report}");
    assert!(
        outcome.stderr.contains(&format!("next: {next}\n")),
        "{outcome:?}"
    );
    // How to keep it, in full.
    let keep = format!(
        "LD_PRELOAD={}\n",
        library().canonicalize().unwrap().display()
    );
    assert!(outcome.stderr.contains(&keep), "{outcome:?}");
    assert_eq!(
        outcome.stderr.matches("orth").count(),
        1,
        "one verdict: {outcome:?}"
    );
}

#[test]
fn a_program_without_allocations_has_nothing_to_gain() {
    let outcome = on_simulated_driver(&["observe", "--", "sh", "-c", "echo here; exit 7"]).run();
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (7, "here\n"));
    assert!(outcome.stderr.contains("Nothing to gain"), "{outcome:?}");
    assert!(
        outcome.stderr.contains("next: gpupool check"),
        "{outcome:?}"
    );
}

#[test]
fn processes_that_the_program_starts_count() {
    let churn = path("churn");
    let script = format!("{churn} 100 & {churn} 100 & wait");
    let outcome = on_simulated_driver(&["observe", "--", "sh", "-c", &script])
        .run()
        .expect_success();
    assert!(outcome.stderr.contains("of 2 processes"), "{outcome:?}");
}

#[test]
fn a_program_that_dies_by_a_signal_ends_as_shells_say() {
    let outcome = on_simulated_driver(&["observe", "--", "sh", "-c", "kill -TERM $$"]).run();
    assert_eq!(outcome.code(), 128 + 15, "{outcome:?}");
    let outcome = on_simulated_driver(&["observe", "--", "/no/such/program"]).run();
    assert_eq!(outcome.code(), 127, "{outcome:?}");
    assert!(outcome.stderr.contains("/no/such/program"), "{outcome:?}");
}

/// What is sent to the command reaches the program.
#[test]
fn signals_are_passed_on() {
    let script = "trap 'echo caught; exit 3' TERM; kill -TERM $PPID; while :; do sleep 0.05; done";
    let outcome = on_simulated_driver(&["observe", "--", "sh", "-c", script]).run();
    assert_eq!(
        (outcome.code(), outcome.stdout.as_str()),
        (3, "caught\n"),
        "{outcome:?}"
    );
}

#[test]
fn a_run_ends_with_a_summary_unless_it_is_quiet() {
    let churn = path("churn");
    let plain = run_program("churn", "shared").arg("500").run();
    let outcome = on_simulated_driver(&["run", "--", &churn, "500"])
        .run()
        .expect_success();
    assert_eq!(outcome.stdout, plain.stdout);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(
        lines[0].starts_with("gpupool[") && lines[0].contains("served without the driver"),
        "{outcome:?}"
    );
    // One about waits, and one about the counter in pinned memory.
    assert!(lines.len() <= 3, "{outcome:?}");
    assert!(lines.iter().any(|line| line.contains("pinned memory: 1 ")));
    let quiet = on_simulated_driver(&["run", "--quiet", "--", &churn, "500"])
        .run()
        .expect_success();
    assert_eq!(quiet.stderr, "");
    // A program without CUDA says nothing.
    let outcome = on_simulated_driver(&["run", "--", "true"])
        .run()
        .expect_success();
    assert_eq!(outcome.stderr, "");
    // What the environment asks for stays.
    let outcome = on_simulated_driver(&["run", "--", &churn, "500"])
        .env("GPUPOOL_STATS", "off")
        .run()
        .expect_success();
    assert_eq!(outcome.stderr, "");
}
