//! Random CUDA programs (`tests/programs/differential.c`) on the simulated driver, without and with
//! the library: all that a program can see has to be the same, but for the differences that
//! the README documents. Each of those is one rule here, and has to be met in a run, so that none
//! outlives its reason.
//!
//! `scripts/differential COUNT [FIRST]` runs many.

// How often each rule was met is worth seeing.
#![allow(clippy::print_stderr)]

#[path = "differential/compare.rs"]
mod compare;
#[path = "differential/run.rs"]
mod run;
mod support;

use compare::RULES;
use run::{Setting, differ, no_grace_library};

/// Programs of the default settings, enough to meet every rule.
fn all_rules_are_met(setting: &Setting, first: u64, count: u64) {
    let hits = differ(setting, first, count);
    for rule in RULES.iter().filter(|rule| !rule.after_a_fault) {
        let number = hits.get(rule.name).copied().unwrap_or(0);
        eprintln!("{number:8} times: {}", rule.name);
        assert!(
            number > 0,
            "`{}` was never met in {count} programs: is it still true?",
            rule.name
        );
    }
}

// covers: same-answers free-at-once old-data past-the-end capture-elsewhere
#[test]
fn differential_shared() {
    all_rules_are_met(&Setting::pooled("shared"), 0, 6_000);
}

/// The static runtime reaches the library at the driver's entry points only.
#[test]
fn differential_static() {
    all_rules_are_met(&Setting::pooled("static"), 1_000_000, 3_000);
}

/// With these options two of the differences are gone, so their rules do not hold.
#[test]
fn differential_strict_and_zeroed() {
    let setting = Setting::pooled("shared")
        .option("GPUPOOL_FREE", "strict")
        .option("GPUPOOL_FILL", "zero")
        .without("a free returns at once")
        .without("reissued memory holds old data");
    differ(&setting, 2_000_000, 400);
}

#[test]
fn differential_ordered() {
    let setting = Setting::pooled("static").option("GPUPOOL_FREE", "ordered");
    differ(&setting, 3_000_000, 300);
}

/// Nothing may wait for grace, so allocations wait all the time; and the pool may hold little, so
/// many are served outside it.
#[test]
fn differential_little_memory() {
    let setting = Setting::pooled("shared")
        .option("GPUPOOL_INFLIGHT", "0")
        .option("GPUPOOL_MAX", "48M");
    differ(&setting, 4_000_000, 300);
}

/// A library that only watches changes nothing: no rule holds.
#[test]
fn differential_observe() {
    let mut setting = Setting::pooled("shared").option("GPUPOOL_MODE", "observe");
    for rule in RULES {
        setting = setting.without(rule.name);
    }
    differ(&setting, 5_000_000, 300);
}

// covers: hit-after-fault
/// Each program in a process of its own, as a fault is the end of it.
#[test]
fn differential_after_a_fault() {
    let setting = Setting::pooled("shared").fault();
    let mut met = 0;
    for seed in 0..40 {
        met += differ(&setting, seed, 1)
            .iter()
            .filter(|(name, _)| {
                RULES
                    .iter()
                    .any(|rule| rule.after_a_fault && rule.name == **name)
            })
            .map(|(_, hits)| hits)
            .sum::<u64>();
    }
    assert!(met > 0, "no call succeeded between a fault and its fence");
}

/// The negative control: without grace periods contents must differ.
#[test]
fn differential_finds_missing_grace() {
    let setting = Setting::pooled("shared").library(no_grace_library());
    let wrong = run::differences(&setting, 0, 400)
        .into_iter()
        .filter(|difference| difference.is_of_content())
        .count();
    assert!(
        wrong > 0,
        "memory is reissued too early, and no program noticed"
    );
}

/// For `scripts/differential`.
#[test]
#[ignore = "takes as long as one wants"]
fn differential_many() {
    let number = |name: &str, usual: u64| {
        let value = std::env::var(name).unwrap_or_default();
        value.parse().unwrap_or(usual)
    };
    let (first, count) = (
        number("DIFFERENTIAL_FIRST", 0),
        number("DIFFERENTIAL_COUNT", 10_000),
    );
    // One in four with the static runtime.
    let shared = count - count / 4;
    all_rules_are_met(&Setting::pooled("shared"), first, shared);
    all_rules_are_met(&Setting::pooled("static"), first + shared, count / 4);
}
