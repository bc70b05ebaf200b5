//! `gpupool tune` on recorded traces, and on made-up ones for which the right
//! answer is known.
#![allow(clippy::unwrap_used, reason = "tests may fail loudly")]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn gpupool(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpupool"))
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn stdout(args: &[&str]) -> String {
    let output = gpupool(args);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    assert_eq!(stderr, "", "{args:?}");
    text(&output.stdout)
}

fn tune(args: &[&str]) -> Value {
    let args = [&["tune"], args, &["--json"]].concat();
    serde_json::from_str(&stdout(&args)).unwrap()
}

fn trace(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/traces");
    path.join(format!("{name}.csv.xz"))
        .to_str()
        .unwrap()
        .to_owned()
}

/// A file that goes with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str, content: &[u8]) -> Self {
        let name = format!("gpupool-tune-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Two hundred blocks of 8 MiB, one a millisecond, kept to the end.
fn growing(name: &str) -> File {
    let mut table = String::new();
    for block in 0..200_u64 {
        let (at, address) = (block * 1000, (block + 1) << 23);
        writeln!(table, "a,1,{at},{address:x},{}", 8 << 20).unwrap();
    }
    File::new(name, table.as_bytes())
}

/// One block of `bytes` again and again, free for 0.9 ms of each.
fn steady(name: &str, bytes: u64) -> File {
    let mut table = String::new();
    for round in 0..1000 {
        let at = round * 1000;
        writeln!(table, "a,1,{at},100000,{bytes}").unwrap();
        writeln!(table, "f,1,{},100000,0", at + 100).unwrap();
    }
    File::new(name, table.as_bytes())
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap()
}

/// What `gpupool replay` makes of the settings of an answer, in the answer's
/// terms.
fn replayed(path: &str, delay: &str, answer: &Value) -> [u64; 3] {
    let mut args = vec!["replay", path, "--delay", delay, "--json"];
    let set: Vec<String> = answer["set"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap()))
        .collect();
    for setting in &set {
        args.extend(["--set", setting]);
    }
    let whole: Value = serde_json::from_str(&stdout(&args)).unwrap();
    let figures = &whole["variants"][0];
    let driver = &figures["driver"];
    [
        number(figures, "peak_reserved_bytes"),
        number(driver, "alloc_calls") + number(driver, "free_calls"),
        number(figures, "waited_ns"),
    ]
}

fn costs(value: &Value) -> [u64; 3] {
    ["peak_reserved_bytes", "driver_calls", "waited_ns"].map(|name| number(value, name))
}

#[test]
fn a_program_that_only_grows_is_told_to_preallocate() {
    let file = growing("growing");
    let answer = tune(&[file.path()]);
    let set = answer["set"].as_object().unwrap();
    assert_eq!(set.keys().collect::<Vec<_>>(), ["GPUPOOL_PREALLOC"]);
    assert_eq!(set["GPUPOOL_PREALLOC"], "1600M", "{answer:#}");
    assert!(number(&answer["before"], "driver_calls") >= 12);
    // The preallocation itself: memory comes in pieces of 1 GiB.
    assert_eq!(number(&answer["after"], "driver_calls"), 2);
    assert_eq!(number(&answer["after"], "peak_reserved_bytes"), 1600 << 20);
    let line = "GPUPOOL_PREALLOC=1600M gpupool run -- CMD";
    assert_eq!(answer["command"], line);
    let table = stdout(&["tune", file.path()]);
    for part in ["defaults", "PREALLOC=1600M", "peak reserved", "1600.0 MiB"] {
        assert!(table.contains(part), "{part:?} is missing in\n{table}");
    }
    assert_eq!(table.lines().last(), Some(line), "{table}");
}

/// A fence follows every quarter of what may wait: with less of it, fewer
/// blocks lie there that have long been free.
#[test]
fn a_program_that_could_reuse_one_block_is_told_to_let_less_wait() {
    let file = steady("large", 1 << 20);
    let answer = tune(&[file.path()]);
    let set = answer["set"].as_object().unwrap();
    assert_eq!(set.keys().collect::<Vec<_>>(), ["GPUPOOL_INFLIGHT"]);
    assert_eq!(set["GPUPOOL_INFLIGHT"], "32M", "{answer:#}");
    let reserved = |when: &str| number(&answer[when], "peak_reserved_bytes");
    assert!(reserved("after") <= 16 << 20, "{answer:#}");
    assert!(
        reserved("before") >= reserved("after") + (32 << 20),
        "{answer:#}"
    );
}

#[test]
fn where_the_defaults_do_nothing_is_suggested() {
    let file = steady("small", 4096);
    for delay in ["0ms", "0.2ms"] {
        let answer = tune(&[file.path(), "--delay", delay]);
        assert!(answer["set"].as_object().unwrap().is_empty(), "{answer:#}");
        assert_eq!(answer["before"], answer["after"]);
        assert!(number(&answer, "replays") > 1);
    }
    let table = stdout(&["tune", file.path()]);
    assert!(table.contains("The defaults do"), "{table}");
    assert!(!table.contains("GPUPOOL_"), "{table}");
    assert_eq!(table.lines().last(), Some("gpupool run -- CMD"), "{table}");
}

/// Whatever is suggested for a recorded program betters one figure by the
/// margin and worsens none by it, and the figures are those of `replay`.
#[test]
fn suggestions_are_what_a_replay_shows() {
    let mut suggested = 0;
    for (name, delay) in [
        ("cupy", "0.2ms"),
        ("cupy", "2ms"),
        ("infer", "0ms"),
        ("vision", "0.2ms"),
        ("train", "0ms"),
    ] {
        let path = trace(name);
        let args = [path.as_str(), "--delay", delay];
        let answer = tune(&args);
        assert!(number(&answer, "replays") <= 16, "{answer:#}");
        let (before, after) = (costs(&answer["before"]), costs(&answer["after"]));
        let defaults = serde_json::json!({ "set": {} });
        assert_eq!(before, replayed(&path, delay, &defaults), "{answer:#}");
        assert_eq!(after, replayed(&path, delay, &answer), "{answer:#}");
        let tenth = |at: usize| before[at] / 10;
        assert!(
            (0..3).all(|at| after[at] <= before[at] + tenth(at).max([32 << 20, 10, 1_000_000][at]))
        );
        if answer["set"].as_object().unwrap().is_empty() {
            assert_eq!(before, after);
        } else {
            suggested += 1;
            assert!(
                (0..3).any(|at| before[at].saturating_sub(after[at]) > tenth(at)),
                "{answer:#}"
            );
        }
    }
    assert!(suggested > 0);
}

/// The GPU is far behind: what may wait decides about the time.
#[test]
fn waits_are_told_apart_from_driver_calls() {
    let path = trace("cupy");
    let answer = tune(&[&path, "--delay", "2ms"]);
    assert!(answer["set"]["GPUPOOL_INFLIGHT"].is_string(), "{answer:#}");
    let waited = |when: &str| number(&answer[when], "waited_ns");
    assert!(waited("after") * 10 < waited("before"), "{answer:#}");
    // Where nothing waits, the variable is none.
    let at_once = tune(&[&path, "--delay", "0ms"]);
    assert!(at_once["set"]["GPUPOOL_INFLIGHT"].is_null(), "{at_once:#}");
    assert!(number(&at_once, "replays") < number(&answer, "replays"));
}

#[test]
fn the_same_trace_gives_the_same_answer() {
    let path = trace("cupy");
    assert_eq!(tune(&[&path]), tune(&[&path]));
}

#[test]
fn a_device_without_room_is_told() {
    let file = growing("no-room");
    let table = stdout(&["tune", file.path(), "--memory", "1G"]);
    assert!(table.contains("allocations fail"), "{table}");
    let answer = tune(&[file.path(), "--memory", "1G"]);
    let failed = |when: &str| number(&answer[when], "failed");
    assert!(failed("before") > 0 && failed("after") <= failed("before"));
}

#[test]
fn errors_name_the_file_and_what_is_accepted() {
    let frees = File::new("frees", b"f,1,0,10,0\n");
    let bad = File::new("bad", b"a,1,0,10,512\na,1,x,20,512\n");
    let good = File::new("good", b"a,1,0,10,512\n");
    for (args, parts) in [
        (vec!["/no/such/file"], ["/no/such/file: ", "No such file"]),
        (vec![frees.path()], [frees.path(), "no allocation"]),
        (vec![bad.path()], [":2: ", "microseconds \"x\""]),
        (vec![good.path(), "--delay", "5"], ["--delay", "100ms"]),
        (vec![good.path(), "--memory", "lots"], ["--memory", "lots"]),
    ] {
        let output = gpupool(&[&["tune"], &args[..]].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        for part in parts {
            assert!(
                stderr.contains(part),
                "{args:?}: {part:?} is missing in {stderr:?}"
            );
        }
    }
}
