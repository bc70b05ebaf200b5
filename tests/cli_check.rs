//! `gpupool check`: programs, libraries and processes of every kind that matters.

#[path = "support/commanded.rs"]
mod commanded;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use commanded::{Commanded, gpupool};
use support::{Folder, Outcome, Run, compile, library, program, simulated_driver};

fn check(target: impl AsRef<Path>) -> Run {
    let target = target.as_ref().to_str().expect("UTF-8").to_owned();
    gpupool(&["check", &target])
        .env("GPUPOOL_LIB", library())
        .env("LD_LIBRARY_PATH", simulated_driver())
}

#[track_caller]
fn says(outcome: &Outcome, code: i32, parts: &[&str]) {
    assert_eq!(outcome.code(), code, "{outcome:?}");
    for part in parts {
        assert!(outcome.stdout.contains(part), "{part}: {}", outcome.stdout);
    }
}

#[test]
fn each_way_to_cuda_is_told() {
    for (name, flavour, part) in [
        ("churn", "shared", "the shared runtime, libcudart.so.13"),
        ("churn", "static", "the runtime is inside churn-static"),
        (
            "driver_only",
            "driver",
            "driver_only is linked to the driver",
        ),
        ("dlsym_driver", "driver", "dlsym_driver"),
    ] {
        let path = program(name, flavour);
        let outcome = check(&path).run();
        let next = format!("next: gpupool run -- {}", path.display());
        let reached = "verdict: the pool reaches it";
        says(&outcome, 0, &[part, "reads LD_PRELOAD", reached, &next]);
        says(
            &outcome,
            0,
            &["has cuCtxRecordEvent", "what it loads while it runs"],
        );
        assert!(!outcome.stdout.contains("NO "), "{outcome:?}");
    }
}

#[test]
fn drivers_are_told_apart() {
    let old = simulated_driver().parent().unwrap().join("sim-old");
    let outcome = check(program("churn", "shared"))
        .env("LD_LIBRARY_PATH", old)
        .run();
    says(&outcome, 0, &["older than 12.5"]);
    let folder = Folder::new("check-no-driver");
    let name = "libcudart.so.13";
    fs::copy(simulated_driver().join(name), folder.path().join(name)).unwrap();
    let outcome = check(program("churn", "shared"))
        .env("LD_LIBRARY_PATH", folder.path())
        .run();
    if outcome.stdout.contains("ok driver") {
        println!("SKIP: this machine has a driver");
    } else {
        says(&outcome, 0, &["there is no libcuda.so.1 on this machine"]);
    }
    let outcome = check(program("churn", "shared"))
        .env("LD_LIBRARY_PATH", "/nowhere")
        .run();
    says(&outcome, 0, &["not looked into: libcudart.so.13"]);
}

#[test]
fn what_ignores_a_preload_is_told() {
    let folder = Folder::new("check-preload");
    let source = "int main(void) { return 0; }\n";
    let plain = compile(&folder, "cc", "plain", source, &[]);
    says(
        &check(&plain).run(),
        0,
        &["whether it uses CUDA was not seen"],
    );
    let fixed = compile(&folder, "cc", "static", source, &["-static"]);
    says(&check(&fixed).run(), 1, &["NO preload", "statically"]);
    // SAFETY: no arguments, no failure.
    if unsafe { libc::getuid() } == 0 {
        // Somebody else's: root's own set-user-id programs are not secure for root.
        let suid = folder.path().join("suid");
        fs::copy(&plain, &suid).unwrap();
        std::os::unix::fs::chown(&suid, Some(12345), Some(12345)).unwrap();
        fs::set_permissions(&suid, fs::Permissions::from_mode(0o4755)).unwrap();
        says(&check(&suid).run(), 1, &["NO preload", "set-user-id"]);
    } else {
        println!("SKIP: only root can make a set-user-id program of another user's");
    }
    let text = folder.path().join("text");
    fs::write(&text, "no program\n").unwrap();
    says(
        &check(&text).run(),
        1,
        &["neither an ELF file nor a script"],
    );
    // The header of a program for another machine.
    let mut bytes = fs::read(&plain).unwrap();
    bytes[18] = 183;
    let other = folder.path().join("other");
    fs::write(&other, bytes).unwrap();
    says(&check(&other).run(), 1, &["machine 183"]);
}

#[test]
fn shared_address_sanitizer_is_told() {
    let folder = Folder::new("check-asan");
    let found = Run::new("cc").args(["-print-file-name=libasan.so"]).run();
    if !found.stdout.starts_with('/') {
        println!("SKIP: cc has no shared AddressSanitizer");
        return;
    }
    let source = "int main(void) { return 0; }\n";
    let shared = compile(&folder, "cc", "asan", source, &["-fsanitize=address"]);
    says(&check(&shared).run(), 1, &["NO preload", "-static-libasan"]);
    // What it says is so: the sanitizer refuses to start.
    let refused = Run::new(&shared).with_lib(true).run();
    assert_ne!(refused.code(), 0);
    assert!(refused.stderr.contains("ASan"), "{refused:?}");
    let flags = ["-fsanitize=address", "-static-libasan"];
    let inside = compile(&folder, "cc", "asan-inside", source, &flags);
    says(&check(&inside).run(), 0, &["ok preload"]);
}

#[test]
fn scripts_are_followed_to_their_interpreter() {
    let folder = Folder::new("check-script");
    let script = folder.path().join("script");
    fs::write(&script, "#!/usr/bin/env -S sh\necho\n").unwrap();
    says(&check(&script).run(), 0, &["is run by", "reads LD_PRELOAD"]);
    let by_name = gpupool(&["check", "--json", "--", "sh", "-c", "echo --json"])
        .env("GPUPOOL_LIB", library())
        .run();
    let report: serde_json::Value = serde_json::from_str(&by_name.stdout).unwrap();
    assert_eq!(report["target"], "sh");
    assert_eq!(report["blocked"], false);
}

#[test]
fn processes_are_looked_into() {
    let mut with = Commanded::start(&[]);
    // It has been started for sure when it answers.
    with.tell("none");
    let outcome = gpupool(&["check", &with.pid()]).run();
    says(&outcome, 0, &["waits for the driver"]);
    with.tell_all(&["init", "alloc 1000"]);
    let outcome = gpupool(&["check", &with.pid()]).run();
    says(
        &outcome,
        0,
        &[
            "is in it, mode pool",
            "the shared runtime",
            "has cuCtxRecordEvent",
            "gpupool stat",
        ],
    );
    assert_eq!(outcome.stdout.matches("ok way").count(), 1, "{outcome:?}");
    let mut without = Commanded::start(&[("LD_PRELOAD", "")]);
    without.tell("init");
    let outcome = gpupool(&["check", &without.pid()]).run();
    says(&outcome, 1, &["NO library", "gpupool attach"]);
    with.end();
    without.end();
}

#[test]
fn wrong_names_are_told() {
    let outcome = check("/no/such/program").run();
    assert_eq!(outcome.code(), 127);
    assert!(outcome.stderr.contains("/no/such/program"), "{outcome:?}");
    let outcome = gpupool(&["check", "1073741824"]).run();
    assert_eq!(outcome.code(), 1);
    assert!(outcome.stderr.contains("no such process"), "{outcome:?}");
    let outcome = check(program("churn", "shared"))
        .env("GPUPOOL_LIB", "/no/such/lib.so")
        .run();
    says(&outcome, 1, &["NO library", "/no/such/lib.so"]);
}
