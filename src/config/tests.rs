use super::*;

fn parse(vars: &[(&str, &str)]) -> (Config, Vec<Warning>) {
    Config::parse(
        vars.iter()
            .map(|&(name, value)| (name.into(), value.into())),
    )
}

fn one(name: &str, value: &str) -> Config {
    let (config, warnings) = parse(&[(name, value)]);
    assert_eq!(warnings, [], "{name}={value}");
    config
}

fn refused(name: &str, value: &str) {
    let (config, warnings) = parse(&[(name, value)]);
    assert_eq!(
        config,
        Config::default(),
        "{name}={value} changed something"
    );
    let kinds: Vec<_> = warnings.iter().map(|warning| warning.kind).collect();
    assert_eq!(kinds, [WarningKind::BadValue], "{name}={value}");
}

const GIB: u64 = 1 << 30;

#[test]
fn sizes() {
    for (text, bytes) in [
        ("0", 0),
        ("1", 1),
        ("4k", 4096),
        (" 64M ", 64 << 20),
        ("1.5G", 3 * GIB / 2),
        ("2 T", 2048 * GIB),
        ("18446744073709551615", u64::MAX),
        ("16777215T", 16_777_215 << 40),
    ] {
        assert_eq!(
            one("GPUPOOL_PREALLOC", text).prealloc,
            Size::Bytes(bytes),
            "{text}"
        );
    }
    for text in [
        "-1",
        "+1",
        "1e30",
        "1e3",
        "inf",
        "nan",
        "NaN%",
        "inf%",
        "0x10",
        "1_000",
        "1,5G",
        "G",
        "%",
        ".",
        "1.",
        ".5G",
        "1.2.3",
        "1GB",
        "1P",
        "18446744073709551616",
        "16777216T",
        "16777216.0T",
        "999999999999999999999999999G",
        "101%",
        "100.001%",
        "-5%",
        "1%%",
        "10% G",
    ] {
        refused("GPUPOOL_PREALLOC", text);
    }
}

#[test]
fn shares_of_a_device() {
    let of = |text: &str, total| one("GPUPOOL_MAX", text).max.of(total);
    // 143771 MiB, what an H200 has: more than f64 arithmetic must not lose.
    let h200 = 143_771 << 20;
    assert_eq!(of("100%", h200), h200);
    assert_eq!(of("100%", u64::MAX), u64::MAX);
    assert!(of("99.9999%", h200) < h200);
    assert_eq!(of("50%", h200), h200 / 2);
    assert_eq!(of("0%", h200), 0);
    assert_eq!(of("12.5 %", 8 * GIB), GIB);
    assert_eq!(of("3G", GIB), 3 * GIB, "a fixed size is not cut");
}

#[test]
fn times() {
    for (text, nanos) in [
        ("0", 0),
        ("0ms", 0),
        ("1ns", 1),
        ("500us", 500_000),
        ("100ms", 100_000_000),
        ("1.5s", 1_500_000_000),
        ("1m", 60_000_000_000),
        ("24h", 86_400_000_000_000),
    ] {
        let wait = one("GPUPOOL_WAIT", text).wait;
        assert_eq!(wait, Duration::from_nanos(nanos), "{text}");
    }
    for text in [
        "100",
        "-1s",
        "1e3s",
        "s",
        "1d",
        "1 minute",
        "25h",
        "1e30s",
        "inf",
        "99999999999999h",
    ] {
        refused("GPUPOOL_WAIT", text);
    }
}

#[test]
fn keywords_in_any_case_and_switches() {
    assert_eq!(one("GPUPOOL_MODE", "Observe").mode, Mode::Observe);
    assert_eq!(one("GPUPOOL_FREE", " strict ").free, FreePolicy::Strict);
    assert_eq!(one("GPUPOOL_FILL", "POISON").fill, Fill::Poison);
    refused("GPUPOOL_GUARD", "yes");
    let (config, _) = parse(&[("GPUPOOL_GUARD", "1"), ("GPUPOOL_HOST", "0")]);
    assert!(config.guard && !config.host);
}

#[test]
fn paths() {
    use std::path::Path;
    let Stats::File(template) = one("GPUPOOL_STATS", "/tmp/%p-%%p-%x.json%").stats else {
        panic!("not a file");
    };
    assert_eq!(template.expand(42), Path::new("/tmp/42-%p-%x.json%"));
    for text in ["garbage", "1", "on", "stdout", "/tmp/"] {
        refused("GPUPOOL_STATS", text);
    }
    // A path need not be UTF-8.
    let raw = OsStr::from_bytes(b"/tmp/\xff%p");
    let (config, warnings) =
        Config::parse(std::iter::once(("GPUPOOL_STATS".into(), raw.to_owned())));
    assert_eq!(warnings, []);
    let Stats::File(template) = config.stats else {
        panic!("not a file")
    };
    assert_eq!(template.expand(7).as_os_str().as_bytes(), b"/tmp/\xff7");
}

#[test]
fn log_filters() {
    for filter in [
        "warn",
        "DEBUG",
        "off",
        "gpupool",
        "gpupool=trace",
        "off,gpupool::pool=debug",
        "warn, gpupool::cuda= info",
        "debug/fence",
    ] {
        assert_eq!(one("GPUPOOL_LOG", filter).log, filter);
    }
    for filter in [
        "wran",
        "garbage",
        "gpupool=loud",
        "gpupool =info",
        "gpupoolx",
        "a/b/c",
        "warn/x/y",
        "warn,,",
        ",",
        "/x",
    ] {
        refused("GPUPOOL_LOG", filter);
    }
}

#[test]
fn values_that_are_no_text_are_refused_everywhere_but_in_paths() {
    for option in OPTIONS {
        let raw = OsStr::from_bytes(b"\xff\xfe");
        let (_, warnings) = Config::parse(std::iter::once((option.name.into(), raw.to_owned())));
        assert_eq!(warnings.len(), 1, "{}", option.name);
        assert_eq!(warnings[0].kind, WarningKind::BadValue, "{}", option.name);
    }
}

#[test]
fn unknown_names() {
    let warning = |name: &str| {
        let (config, warnings) = parse(&[(name, "1")]);
        assert_eq!(config, Config::default());
        assert_eq!(warnings.len(), 1, "{name}");
        assert_eq!(warnings[0].kind, WarningKind::UnknownName, "{name}");
        warnings[0].to_string()
    };
    assert!(warning("GPUPOOL_MOED").contains("did you mean GPUPOOL_MODE"));
    assert!(warning("GPUPOOL_max").contains("did you mean GPUPOOL_MAX"));
    assert!(warning("GPUPOOL_PREALOC").contains("did you mean GPUPOOL_PREALLOC"));
    assert!(warning("GPUPOOL_").contains("gpupool env"));
    assert!(warning("GPUPOOL_SOMETHING_ELSE").contains("gpupool env"));
    assert!(warning(&format!("GPUPOOL_{}", "A".repeat(100_000))).len() < 400);
    // Not ours, or not the library's.
    assert_eq!(
        parse(&[
            ("GPUPOOLX", "1"),
            ("gpupool_mode", "1"),
            ("GPUPOOL_LIB", "x")
        ])
        .1,
        []
    );
}

#[test]
fn the_tests_own_names_are_known_only_in_test_builds() {
    let (_, warnings) = parse(&[("GPUPOOL_TEST_ANYTHING", "1")]);
    let expected = usize::from(!cfg!(feature = "unsafe-no-grace"));
    assert_eq!(warnings.len(), expected);
}

#[test]
fn features_to_come_warn_unless_the_value_describes_this_release() {
    for (name, value, warns) in [
        ("GPUPOOL_ASYNC", "tune", false),
        ("GPUPOOL_ASYNC", "pass", false),
        ("GPUPOOL_ASYNC", "pool", true),
        ("GPUPOOL_HOST", "off", false),
        ("GPUPOOL_HOST_MAX", "1G", false),
        ("GPUPOOL_IDLE_RELEASE", "30s", false),
        ("GPUPOOL_TRACE", "./trace", false),
        ("GPUPOOL_NVTX", "on", false),
    ] {
        let (_, warnings) = parse(&[(name, value)]);
        let kinds: Vec<_> = warnings.iter().map(|warning| warning.kind).collect();
        let expected: &[WarningKind] = if warns { &[WarningKind::NotYet] } else { &[] };
        assert_eq!(kinds, expected, "{name}={value}");
    }
}

#[test]
fn a_warning_is_one_short_line_that_names_everything() {
    let nasty = format!("a\nb\x1b[2J{}", "x".repeat(1 << 20));
    let (_, warnings) = parse(&[("GPUPOOL_FREE", &nasty)]);
    let line = warnings[0].to_string();
    assert!(!line.chars().any(char::is_control), "{line:?}");
    assert!(line.len() < 400, "{} bytes", line.len());
    for part in [
        "GPUPOOL_FREE",
        "a\\nb",
        "fenced, ordered or strict",
        "stays: fenced",
    ] {
        assert!(line.contains(part), "{part:?} is missing in {line:?}");
    }
}

#[test]
fn the_first_of_two_counts_and_an_empty_value_is_the_default() {
    assert_eq!(
        parse(&[("GPUPOOL_MODE", "off"), ("GPUPOOL_MODE", "observe")])
            .0
            .mode,
        Mode::Off
    );
    for option in OPTIONS {
        assert_eq!(
            parse(&[(option.name, "")]),
            (Config::default(), vec![]),
            "{}",
            option.name
        );
    }
}
