//! The page of figures, and `gpupool stat`: on the simulated driver.

#[path = "support/commanded.rs"]
mod commanded;
#[path = "support/exposition.rs"]
mod exposition;
mod support;

use std::fs;

use commanded::{Commanded, figure, figures, gpupool};
use support::{Folder, Run, library};

const MIB: u64 = 1 << 20;

#[track_caller]
fn refused(program: &Commanded, part: &str) {
    let outcome = gpupool(&["stat", &program.pid()]).run();
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (1, ""));
    assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
}

/// The link of the page's descriptor, if the process has one.
fn page_of(pid: &str) -> Option<std::path::PathBuf> {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            fs::read_link(path)
                .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:gpupool"))
        })
}

#[test]
fn figures_are_exact_while_the_program_runs() {
    let mut program = Commanded::start(&[]);
    refused(&program, "not used CUDA");
    assert!(page_of(&program.pid()).is_none());
    program.tell_all(&["init", "alloc 1048576", "alloc 3145728"]);
    let first = figures(&program);
    assert_eq!(figure(&first, "/calls/alloc"), 2, "{first}");
    assert_eq!(figure(&first, "/live_bytes"), 4 * MIB, "{first}");
    assert_eq!(figure(&first, "/devices/0/live_bytes"), 4 * MIB, "{first}");
    // Fast-path hits and frees, none of which touches a lock or the driver.
    program.tell_all(&["sync", "churn 100 1048576"]);
    let second = figures(&program);
    assert_eq!(figure(&second, "/calls/alloc"), 102, "{second}");
    assert_eq!(figure(&second, "/frees"), 100, "{second}");
    assert_eq!(figure(&second, "/live_bytes"), 4 * MIB, "{second}");
    assert_eq!(
        figure(&second, "/hits") + figure(&second, "/misses"),
        102,
        "{second}"
    );
    program.tell_all(&["free", "free"]);
    let last = figures(&program);
    assert_eq!(figure(&last, "/live_bytes"), 0, "{last}");
    assert!(figure(&last, "/waiting_bytes") >= 4 * MIB, "{last}");
    assert_eq!(figure(&last, "/peak_live_bytes"), 5 * MIB, "{last}");
    assert_eq!(last["mode"], "pool");
    program.end();
}

/// What the process itself writes at its end, and what was seen of it from outside just before.
#[test]
fn the_page_and_the_statistics_at_exit_agree() {
    let folder = Folder::new("stat-agree");
    let file = folder.path().join("stats.json");
    let mut program = Commanded::start(&[("GPUPOOL_STATS", file.to_str().unwrap())]);
    program.tell_all(&[
        "init",
        "alloc 5000000",
        "churn 500 70000",
        "churn 3 90000000",
    ]);
    let outside = figures(&program);
    program.end();
    let inside: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    for (name, value) in inside.as_object().unwrap() {
        // The time goes on, and the runtime's own handlers end the context.
        if !["age_ns", "devices", "driver"].contains(&name.as_str()) {
            assert_eq!(&outside[name], value, "{name}");
        }
    }
    for path in [
        "/driver/alloc_calls",
        "/devices/0/reserved_bytes",
        "/devices/0/peak_live_bytes",
        "/devices/0/inflight_limit_bytes",
        "/devices/0/segments",
    ] {
        assert_eq!(outside.pointer(path), inside.pointer(path), "{path}");
    }
}

#[test]
fn the_page_is_its_owners_and_ends_with_the_process() {
    let mut program = Commanded::start(&[]);
    program.tell("init");
    let pid = program.pid();
    let page = page_of(&pid).expect("it has one");
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(&page).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let before = fs::read_dir("/dev/shm").map_or(0, Iterator::count);
    program.kill();
    let outcome = gpupool(&["stat", &pid]).run();
    assert_eq!(outcome.code(), 1);
    assert!(outcome.stderr.contains("no such process"), "{outcome:?}");
    assert_eq!(fs::read_dir("/dev/shm").map_or(0, Iterator::count), before);
}

#[test]
fn a_forked_child_has_none_and_the_parent_keeps_its_own() {
    let mut program = Commanded::start(&[]);
    program.tell_all(&["init", "alloc 1048576"]);
    let child = program.tell("fork");
    let outcome = gpupool(&["stat", &child]).run();
    assert_eq!(outcome.code(), 1, "{outcome:?}");
    assert!(outcome.stderr.contains("forked child"), "{outcome:?}");
    // The child gives it up as it begins to run, which the parent does not wait for.
    let start = std::time::Instant::now();
    while page_of(&child).is_some() {
        assert!(start.elapsed() < std::time::Duration::from_secs(60));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    program.tell("alloc 1048576");
    assert_eq!(figure(&figures(&program), "/live_bytes"), 2 * MIB);
    program.end();
}

#[test]
fn processes_without_figures_are_told_why() {
    let off = Commanded::start(&[("GPUPOOL_MODE", "off")]);
    let mut off = off;
    off.tell_all(&["init", "alloc 1000"]);
    refused(&off, "GPUPOOL_MODE is off");
    let mut native = Commanded::start(&[("LD_PRELOAD", "")]);
    native.tell("init");
    refused(&native, "the library is not in it");
    let absent = gpupool(&["stat", "1073741824"]).run();
    assert_eq!(absent.code(), 1);
    assert!(absent.stderr.contains("no such process"), "{absent:?}");
    let nothing = gpupool(&["stat"]).run();
    assert_eq!(nothing.code(), 2);
}

/// A daemon closes every descriptor: the program goes on, and the figures are out of reach but for
/// those who may open mappings.
#[test]
fn a_closed_descriptor_harms_nobody() {
    let mut program = Commanded::start(&[]);
    program.tell_all(&["init", "alloc 1048576", "close", "churn 100 4096"]);
    let outcome = gpupool(&["stat", &program.pid(), "--json"]).run();
    if outcome.code() == 0 {
        let seen: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(figure(&seen, "/calls/alloc"), 101, "{seen}");
    } else {
        assert!(outcome.stderr.contains("closed"), "{outcome:?}");
    }
    program.tell("fork");
    program.end();
}

#[test]
fn observed_programs_have_figures_too() {
    let mut program = Commanded::start(&[("GPUPOOL_MODE", "observe")]);
    program.tell_all(&["init", "alloc 1048576", "churn 9 70000"]);
    let seen = figures(&program);
    assert_eq!(seen["mode"], "observe");
    assert_eq!(figure(&seen, "/calls/alloc"), 10, "{seen}");
    assert_eq!(figure(&seen, "/live_bytes"), MIB, "{seen}");
    let classes = seen["observed"]["classes"].as_array().unwrap();
    let of = |bytes: u64| classes.iter().find(|class| class["up_to_bytes"] == bytes);
    assert_eq!(of(131_072).unwrap()["allocs"], 9, "{seen}");
    assert_eq!(of(131_072).unwrap()["frees"], 9, "{seen}");
    assert_eq!(of(MIB).unwrap()["allocs"], 1, "{seen}");
    program.end();
}

/// What a label's value may hold, and has to be escaped.
const ODD: &str = "a\"b\\\\c\nd} 1";

/// Negative control: the reader refuses what Prometheus would.
#[test]
fn the_reader_of_metrics_is_strict() {
    let good =
        "# HELP a_total B.\n# TYPE a_total counter\na_total{x=\"1\",y=\"\\\"}\"} 5\na_total 6\n";
    assert_eq!(exposition::parse(good).unwrap().len(), 2);
    for (from, to) in [
        ("a_total 6\n", "a_total 6"),
        ("a_total 6", "b_total 6"),
        ("a_total 6", "a_total{x=\"1\",y=\"\\\"}\"} 6"),
        ("a_total 6", "a_total six"),
        ("a_total 6", "a_total 6 7 8"),
        ("a_total 6", "a-total 6"),
        ("y=\"", "x=\""),
        ("\\\"}", "\"}"),
        (" counter", " gauge"),
        ("# TYPE a_total counter\n", ""),
        ("# HELP", "# HELP a_total B.\n# HELP"),
        ("{x=", "{1x="),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good);
        assert!(exposition::parse(&bad).is_err(), "{bad}");
    }
}

#[test]
fn prometheus_metrics_are_well_formed_and_replace_their_file() {
    let folder = Folder::new("stat-prometheus");
    let file = folder.path().join("gpupool.prom");
    fs::write(&file, "old").unwrap();
    let mut first = Commanded::start(&[("LOCAL_RANK", "0"), ("SLURM_JOB_ID", "77")]);
    let mut second = Commanded::start(&[("LOCAL_RANK", "1"), ("SLURM_JOB_ID", ODD)]);
    first.tell_all(&["init", "alloc 1048576"]);
    second.tell_all(&["init", "alloc 3145728"]);
    let name = file.to_str().unwrap();
    gpupool(&["stat", "--all", "--prometheus", "--output", name])
        .run()
        .expect_success();
    let text = fs::read_to_string(&file).unwrap();
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing else is left: {left:?}");
    let line = |metric: &str, label: &str| {
        let begin = format!("gpupool_{metric}{{");
        text.lines()
            .find(|line| line.starts_with(&begin) && line.contains(label))
            .unwrap_or_else(|| panic!("no {metric} with {label}: {text}"))
            .to_owned()
    };
    let of_first = format!("pid=\"{}\"", first.pid());
    let live = line("live_bytes", &of_first);
    assert!(live.ends_with(" 1048576"), "{live}");
    for label in [
        "local_rank=\"0\"",
        "slurm_job_id=\"77\"",
        "device=\"0\"",
        "command=\"commanded\"",
    ] {
        assert!(live.contains(label), "{live}");
    }
    assert!(line("live_bytes", "local_rank=\"1\"").ends_with(" 3145728"));
    assert!(line("wait_seconds_total", &of_first).ends_with(" 0"));
    // As Prometheus reads it, whatever the environment holds.
    let samples = exposition::parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    let odd = samples
        .iter()
        .find(|one| one.name == "gpupool_live_bytes" && one.labels["pid"] == second.pid());
    assert_eq!(odd.unwrap().labels["slurm_job_id"], ODD, "{text}");
    let bad = gpupool(&[
        "stat",
        "--all",
        "--prometheus",
        "--output",
        "/no/such/folder/x",
    ])
    .run();
    assert_eq!(bad.code(), 1);
    assert!(bad.stderr.contains("/no/such/folder/x"), "{bad:?}");
}

/// Programs that never touch CUDA have no descriptor more than without the library.
#[test]
fn a_process_without_cuda_has_no_page() {
    let script = "ls -l /proc/self/fd | grep -c memfd; true";
    let outcome = Run::new("sh")
        .args(["-c", script])
        .with_lib(true)
        .run()
        .expect_success();
    assert_eq!(outcome.stdout, "0\n", "{}", library().display());
}
