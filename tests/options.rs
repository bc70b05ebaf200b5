//! Walks the option table: the README tells of every option, every default
//! means itself, and every mistake is told once.
#![allow(clippy::unwrap_used, reason = "tests may fail loudly")]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use gpupool::config::{Config, OPTIONS, Opt, Warning, WarningKind};

/// A value that is neither the default nor a mistake, for each option.
const OTHER: &[(&str, &str)] = &[
    ("GPUPOOL_MODE", "observe"),
    ("GPUPOOL_MAX", "50%"),
    ("GPUPOOL_PREALLOC", "256M"),
    ("GPUPOOL_INFLIGHT", "64M"),
    ("GPUPOOL_WAIT", "2s"),
    ("GPUPOOL_FREE", "ordered"),
    ("GPUPOOL_IDLE_RELEASE", "30s"),
    ("GPUPOOL_HELPER", "on"),
    ("GPUPOOL_ASYNC", "pool"),
    ("GPUPOOL_HOST", "off"),
    ("GPUPOOL_HOST_MAX", "1G"),
    ("GPUPOOL_IPC", "deny"),
    ("GPUPOOL_BACKEND", "vmm"),
    ("GPUPOOL_FILL", "zero"),
    ("GPUPOOL_GUARD", "on"),
    ("GPUPOOL_PROFILE", "/tmp/gpupool.profile"),
    ("GPUPOOL_TRACE", "./trace.%p"),
    ("GPUPOOL_TRACE_STACKS", "on"),
    ("GPUPOOL_STATS", "/tmp/%p.json"),
    ("GPUPOOL_LOG", "debug"),
    ("GPUPOOL_NVTX", "on"),
];

/// What no option accepts.
const GARBAGE: &[&str] = &[
    "garbage", "-1", "1e30", "101%", "nan", "0x10", "=", "%", ",", "\n", "-5%",
];

fn parse(name: &str, value: impl Into<OsString>) -> (Config, Vec<Warning>) {
    Config::parse(std::iter::once((OsString::from(name), value.into())))
}

fn other(option: &Opt) -> &'static str {
    let found = OTHER.iter().find(|(name, _)| *name == option.name);
    found
        .unwrap_or_else(|| panic!("OTHER has no value for {}", option.name))
        .1
}

#[test]
fn every_default_parses_to_itself() {
    for option in OPTIONS {
        assert_eq!(
            option.show(&Config::default()),
            option.default,
            "{}",
            option.name
        );
        // Another value first: a parser that ignores the text would pass otherwise.
        let (changed, _) = parse(option.name, other(option));
        assert_eq!(option.show(&changed), other(option), "{}", option.name);
        assert_ne!(changed, Config::default(), "{}", option.name);
        assert_eq!(
            parse(option.name, option.default),
            (Config::default(), vec![]),
            "{}",
            option.name
        );
    }
    assert_eq!(OTHER.len(), OPTIONS.len());
}

#[test]
fn one_option_changes_nothing_but_itself() {
    for option in OPTIONS {
        let (changed, _) = parse(option.name, other(option));
        for untouched in OPTIONS.iter().filter(|row| row.name != option.name) {
            assert_eq!(
                untouched.show(&changed),
                untouched.default,
                "{} by {}",
                untouched.name,
                option.name
            );
        }
    }
}

#[test]
fn garbage_gives_one_warning_and_leaves_the_default() {
    let no_text = OsString::from_vec(vec![0xff, 0xfe]);
    let huge = OsString::from("9".repeat(1 << 20));
    for option in OPTIONS {
        let values = GARBAGE
            .iter()
            .map(OsString::from)
            .chain([no_text.clone(), huge.clone()]);
        for value in values {
            let (config, warnings) = parse(option.name, value.clone());
            assert_eq!(config, Config::default(), "{}={value:.40?}", option.name);
            assert_eq!(
                warnings.len(),
                1,
                "{}={value:.40?}: {warnings:?}",
                option.name
            );
            assert_eq!(warnings[0].kind, WarningKind::BadValue);
            let line = warnings[0].to_string();
            for part in [option.name, option.accepts, option.default] {
                assert!(line.contains(part), "{part:?} is missing in {line:?}");
            }
            assert!(!line.contains('\n') && line.len() < 600, "{line:?}");
        }
    }
}

#[test]
fn garbage_in_all_of_them_at_once_gives_one_warning_each() {
    let all = OPTIONS
        .iter()
        .map(|option| (option.name.into(), "garbage".into()));
    let (config, warnings) = Config::parse(all);
    assert_eq!(config, Config::default());
    let variables: Vec<_> = warnings
        .iter()
        .map(|warning| warning.variable.as_str())
        .collect();
    assert_eq!(
        variables,
        OPTIONS.iter().map(|option| option.name).collect::<Vec<_>>()
    );
}

// covers: not-yet
#[test]
fn a_feature_that_is_not_there_yet_says_so_once() {
    for option in OPTIONS {
        let (_, warnings) = parse(option.name, other(option));
        if option.implemented() {
            assert_eq!(warnings, [], "{}", option.name);
        } else {
            assert_eq!(warnings.len(), 1, "{}: {warnings:?}", option.name);
            assert_eq!(warnings[0].kind, WarningKind::NotYet, "{}", option.name);
            assert!(warnings[0].to_string().contains("has no effect"));
        }
    }
}

/// The table in README.md: `| GPUPOOL_X | default | … |`, with or without
/// backquotes. `gpupool env --markdown` prints it.
#[test]
fn the_readme_documents_every_option_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let bare = |cell: &str| cell.trim().trim_matches('`').to_owned();
    let rows: Vec<(String, String)> = readme
        .lines()
        .filter_map(|line| line.strip_prefix('|'))
        .map(|line| {
            let mut cells = line.split('|').map(bare);
            (
                cells.next().unwrap_or_default(),
                cells.next().unwrap_or_default(),
            )
        })
        .filter(|(name, _)| name.starts_with("GPUPOOL_"))
        .collect();
    for option in OPTIONS {
        let defaults: Vec<_> = rows
            .iter()
            .filter(|(name, _)| name == option.name)
            .map(|(_, default)| default)
            .collect();
        let expected = if option.default.is_empty() {
            "–"
        } else {
            option.default
        };
        assert_eq!(
            defaults,
            [expected],
            "README.md's rows for {}: `gpupool env --markdown` prints the right one",
            option.name
        );
    }
    for (name, _) in &rows {
        assert!(
            OPTIONS.iter().any(|option| option.name == name),
            "README.md has {name}, which is no option"
        );
    }
}
