//! `gpupool attach` and `detach` on running programs, on the simulated driver: all threads of the
//! target are busy, and whatever is killed in the middle, what is left runs on and is right.

mod attach_target;
mod support;

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use attach_target::{Target, command, fails, random, succeeds};
use serde_json::Value;
use support::{Folder, library};

/// How many targets the repeated tests take: `GP_TEST_ATTACH` of them, 10 unless said.
fn targets() -> u64 {
    std::env::var("GP_TEST_ATTACH")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(10)
}

fn flavour(number: u64) -> &'static str {
    if number.is_multiple_of(2) {
        "shared"
    } else {
        "static"
    }
}

/// The milliseconds that the command says all threads were stopped.
fn pause(text: &str) -> f64 {
    let line = text.lines().find(|line| line.contains("were stopped for"));
    line.and_then(|line| line.split_whitespace().nth(5)?.parse().ok())
        .unwrap_or_else(|| panic!("no pause in {text}"))
}

fn statistics(folder: &Folder, pid: u32) -> Value {
    let path = folder.path().join(format!("{pid}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
    serde_json::from_str(&text).unwrap_or_else(|why| panic!("{path:?}: {why}"))
}

fn count(statistics: &Value, name: &str) -> u64 {
    statistics[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {statistics}"))
}

#[test]
fn busy_targets_are_attached_observed_detached_and_attached_again() {
    let folder = Folder::new("attach");
    let stats = format!("STATS={}/%p.json", folder.path().display());
    for number in 0..targets() {
        let mut target = Target::start(flavour(number), &["churn"]);
        let pid = target.pid();
        if number % 3 == 2 {
            // Some are given time, and some are not.
            target.expect_progress();
        }
        let text = succeeds(&["attach", "--observe", "--set", &stats], pid);
        assert!(text.contains("counted and timed"), "{text}");
        // The command takes no pause that is longer.
        assert!(pause(&text) > 0.0, "{text}");
        target.expect_progress();
        assert_eq!(target.ask("pooled"), "pooled 0");

        assert!(succeeds(&["detach"], pid).contains("does nothing any more"));
        target.expect_progress();

        let text = succeeds(&["attach"], pid);
        assert!(text.contains("until the program synchronises"), "{text}");
        // It does so all the time.
        target.expect_soon("pooled", "pooled 8");
        assert_eq!(target.ask("hold 20"), "held 20 pooled 20");
        target.expect_progress();

        let text = succeeds(&["detach"], pid);
        assert!(text.contains("as the program frees it"), "{text}");
        assert_eq!(target.ask("pooled"), "pooled 0");
        target.expect_progress();

        // With pooled blocks from before: at any stage.
        let text = succeeds(&["attach"], pid);
        assert!(text.contains("the pool serves"), "{text}");
        assert_eq!(target.ask("pooled"), "pooled 8");
        assert_eq!(target.ask("drop"), "dropped");
        target.expect_progress();
        assert_eq!(target.end(), "");
        let seen = statistics(&folder, pid);
        assert!(count(&seen, "hits") > 50, "{seen}");
        assert_eq!(seen["mode"], "pool", "{seen}");
    }
}

#[test]
fn after_a_detach_all_memory_goes_back() {
    let folder = Folder::new("detach");
    let stats = format!("STATS={}/%p.json", folder.path().display());
    let mut target = Target::start("shared", &[]);
    let pid = target.pid();
    let text = succeeds(&["attach", "--no-graphs", "--set", &stats], pid);
    assert!(text.contains("the pool serves"), "{text}");
    assert_eq!(target.ask("hold 100"), "held 100 pooled 100");
    succeeds(&["detach"], pid);
    assert_eq!(target.ask("hold 10"), "held 110 pooled 0");
    assert_eq!(target.ask("drop"), "dropped");
    // Each of these calls gives back what has become empty, every now and then.
    for _ in 0..20 {
        assert_eq!(target.ask("pooled"), "pooled 0");
        std::thread::sleep(Duration::from_millis(15));
    }
    target.end();
    let seen = statistics(&folder, pid);
    assert!(count(&seen, "peak_reserved_bytes") >= 100 << 20, "{seen}");
    assert_eq!(count(&seen, "reserved_bytes"), 0, "{seen}");
    assert_eq!(
        count(&seen, "segment_allocs"),
        count(&seen, "segment_frees"),
        "{seen}"
    );
}

#[test]
fn a_command_that_is_killed_leaves_a_target_that_runs() {
    let mut killed = 0;
    for number in 0..targets() {
        let mut target = Target::start(flavour(number), &["churn"]);
        for _ in 0..3 {
            let mut child = Command::new(command())
                .args(["attach", &target.pid().to_string()])
                .env("GPUPOOL_LIB", library())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("the command starts");
            // Short times more often: that is when most happens.
            let time = random(1000) * random(1000) * 80;
            std::thread::sleep(Duration::from_nanos(time));
            let _ = child.kill();
            let status = child.wait().expect("it can be waited for");
            killed += u32::from(status.code().is_none());
            target.expect_progress();
        }
        // It can be attached to as if nothing had happened.
        let text = succeeds(&["attach"], target.pid());
        assert!(text.contains("attached"), "{text}");
        target.expect_soon("pooled", "pooled 8");
        target.expect_progress();
        target.end();
    }
    assert!(killed > 0, "no command was killed in time");
}

#[test]
fn a_target_that_is_killed_leaves_nothing_behind() {
    let left = || {
        ["/tmp", "/var/tmp", "/dev/shm"]
            .iter()
            .filter_map(|folder| std::fs::read_dir(folder).ok())
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("libgpupool-"))
            .collect::<Vec<_>>()
    };
    let before = left();
    for number in 0..targets() {
        let mut target = Target::start(flavour(number), &["churn"]);
        let pid = target.pid();
        let attach = std::thread::spawn(move || {
            attach_target::gpupool(&["attach"])
                .arg(pid.to_string())
                .run()
        });
        std::thread::sleep(Duration::from_nanos(random(1000) * random(1000) * 60));
        target.kill();
        let outcome = attach.join().expect("it is waited for");
        assert!(!outcome.timed_out, "{outcome:#?}");
        // Attached before it was killed, or told that it has ended.
        let told = outcome.code() == 1 && !outcome.stderr.is_empty();
        assert!(outcome.code() == 0 || told, "{outcome:#?}");
        assert_eq!(left(), before);
    }
}

#[test]
fn a_capture_that_was_open_before_is_not_broken() {
    let mut target = Target::start("shared", &[]);
    assert_eq!(target.ask("begin"), "capturing");
    succeeds(&["attach"], target.pid());
    // As many frees as would call for fences.
    assert_eq!(target.ask("hold 600"), "held 600 pooled 0");
    assert_eq!(target.ask("drop"), "dropped");
    assert_eq!(target.ask("end"), "captured 0");
    assert_eq!(target.ask("sync"), "synchronised");
    assert_eq!(target.ask("pooled"), "pooled 8");
    // Those that begin later are seen.
    assert_eq!(target.ask("begin"), "capturing");
    assert_eq!(target.ask("hold 600"), "held 600 pooled 600");
    assert_eq!(target.ask("drop"), "dropped");
    assert_eq!(target.ask("end"), "captured 0");
    target.end();
}

/// The negative control of the test above: what `--no-graphs` says must be true.
#[test]
fn without_graphs_an_open_capture_is_broken() {
    let mut target = Target::start("shared", &[]);
    assert_eq!(target.ask("begin"), "capturing");
    succeeds(&["attach", "--no-graphs"], target.pid());
    assert_eq!(target.ask("hold 600"), "held 600 pooled 600");
    assert_eq!(target.ask("drop"), "dropped");
    assert_eq!(target.ask("end"), "captured 901");
    target.end();
}

#[test]
fn the_pool_steps_aside_for_a_context_that_it_does_not_know() {
    let mut target = Target::start("shared", &["context"]);
    succeeds(&["attach"], target.pid());
    assert_eq!(target.ask("sync"), "synchronised");
    assert_eq!(target.ask("hold 4"), "held 4 pooled 4");
    assert_eq!(target.ask("other"), "other pooled 0");
    assert_eq!(target.ask("pooled"), "pooled 0");
    assert_eq!(target.ask("drop"), "dropped");
    let errors = target.end();
    assert!(errors.contains("steps aside"), "{errors}");
}

#[test]
fn a_target_without_cuda_is_served_once_it_has_it() {
    for flavour in ["shared", "static"] {
        let mut target = Target::start(flavour, &["late"]);
        let text = succeeds(&["attach"], target.pid());
        assert!(text.contains("no CUDA yet"), "{text}");
        assert!(succeeds(&["attach"], target.pid()).contains("no CUDA yet"));
        // Everything is seen from the start, so that nothing has to be waited for.
        assert_eq!(target.ask("pooled"), "pooled 8");
        target.end();
    }
    let mut target = Target::start("static", &["late"]);
    succeeds(&["attach"], target.pid());
    assert!(succeeds(&["detach"], target.pid()).contains("nothing will be pooled"));
    assert_eq!(target.ask("pooled"), "pooled 0");
    assert!(succeeds(&["attach"], target.pid()).contains("the pool serves"));
    assert_eq!(target.ask("pooled"), "pooled 8");
    target.end();
}

#[test]
fn options_are_those_of_the_environment_and_stay() {
    let mut target = Target::start("shared", &[]);
    let pid = target.pid();
    assert!(fails(&["attach", "--set", "MAX=lots"], pid).contains("GPUPOOL_MAX"));
    assert!(fails(&["attach", "--set", "NOTHING=1"], pid).contains("GPUPOOL_NOTHING"));
    assert!(fails(&["attach", "--set", "MODE=off"], pid).contains("gpupool detach"));
    let text = succeeds(
        &["attach", "--no-graphs", "--set", "MAX=0", "--set", "MAX=8M"],
        pid,
    );
    assert!(text.contains("the pool serves"), "{text}");
    let held = target.ask("hold 20");
    let pooled: u32 = held
        .rsplit(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    assert!((1..=8).contains(&pooled), "{held}");
    succeeds(&["detach"], pid);
    let said = fails(&["attach", "--set", "MAX=16M"], pid);
    assert!(
        said.contains("the first attach") && said.contains("--set"),
        "{said}"
    );
    succeeds(&["attach", "--set", "MAX=0", "--set", "MAX=8M"], pid);
    assert_eq!(target.ask("drop"), "dropped");
    target.end();
}

/// Who has access to whose memory is not known there: nothing is mapped.
#[test]
fn an_attached_process_has_the_drivers_segments() {
    let folder = Folder::new("attach-vmm");
    let file = folder.path().join("report");
    let mut target = Target::with("shared", &[], &[("SIMCUDA_REPORT", file.as_os_str())]);
    let pid = target.pid();
    succeeds(&["attach", "--no-graphs", "--set", "BACKEND=vmm"], pid);
    assert_eq!(target.ask("hold 20"), "held 20 pooled 20");
    assert_eq!(target.ask("drop"), "dropped");
    let said = target.end();
    assert!(said.contains("acts as driver"), "{said}");
    let text = std::fs::read_to_string(&file).expect("a report");
    let last: Value = serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON");
    assert!(last["calls"]["cuMemAlloc_v2"].as_u64() > Some(0), "{last}");
    assert!(last["calls"]["cuMemCreate"].is_null(), "{last}");
}

#[test]
fn observing_waits_until_the_pool_holds_nothing() {
    let mut target = Target::start("shared", &[]);
    let pid = target.pid();
    succeeds(&["attach", "--no-graphs"], pid);
    assert_eq!(target.ask("hold 3"), "held 3 pooled 3");
    assert!(fails(&["attach", "--observe"], pid).contains("detach"));
    succeeds(&["detach"], pid);
    let said = fails(&["attach", "--observe"], pid);
    assert!(said.contains("still holds"), "{said}");
    assert_eq!(target.ask("drop"), "dropped");
    for _ in 0..20 {
        assert_eq!(target.ask("pooled"), "pooled 0");
        std::thread::sleep(Duration::from_millis(15));
    }
    succeeds(&["attach", "--observe"], pid);
    assert!(succeeds(&["attach", "--observe"], pid).contains("already"));
    assert_eq!(target.ask("hold 3"), "held 3 pooled 0");
    // Captures were not followed meanwhile, so that a new proof is needed.
    succeeds(&["attach"], pid);
    assert_eq!(target.ask("pooled"), "pooled 0");
    assert_eq!(target.ask("sync"), "synchronised");
    assert_eq!(target.ask("pooled"), "pooled 8");
    target.end();
}

#[test]
fn a_program_that_was_started_with_the_library_is_known() {
    let library = library();
    let preload: &[(&str, &OsStr)] = &[("LD_PRELOAD", library.as_os_str())];
    let mut target = Target::with("shared", &[], preload);
    let pid = target.pid();
    assert_eq!(target.ask("hold 2"), "held 2 pooled 2");
    let said = succeeds(&["attach"], pid);
    assert!(said.contains("started with the library"), "{said}");
    succeeds(&["detach"], pid);
    assert_eq!(target.ask("pooled"), "pooled 0");
    assert!(fails(&["attach", "--set", "MAX=8G"], pid).contains("program's start"));
    assert!(succeeds(&["attach"], pid).contains("the pool serves"));
    assert_eq!(target.ask("pooled"), "pooled 8");
    target.end();

    let mut target = Target::with("static", &["late"], preload);
    let said = succeeds(&["attach"], target.pid());
    assert!(said.contains("waits for CUDA"), "{said}");
    assert_eq!(target.ask("pooled"), "pooled 8");
    target.end();

    let off = [preload[0], ("GPUPOOL_MODE", OsStr::new("off"))];
    let mut target = Target::with("shared", &[], &off);
    assert_eq!(target.ask("pooled"), "pooled 0");
    let said = fails(&["attach"], target.pid());
    assert!(said.contains("GPUPOOL_MODE=off"), "{said}");
    assert_eq!(target.ask("pooled"), "pooled 0");
    target.end();
}
