//! The command as a user starts it.
#![allow(clippy::unwrap_used, reason = "tests may fail loudly")]

use std::process::{Command, Output};

use gpupool::config::OPTIONS;

fn gpupool(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpupool"));
    command
        .args(args)
        .env_remove("LD_PRELOAD")
        .env_remove("GPUPOOL_LIB");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn good(mut command: Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{:?}: {}",
        command,
        text(&output.stderr)
    );
    output
}

/// A shared object that can be preloaded without harm: this process's own libc.
fn harmless_library() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps
        .lines()
        .find(|line| line.ends_with("/libc.so.6"))
        .unwrap();
    std::fs::canonicalize(&line[line.find('/').unwrap()..])
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}

#[test]
fn version_and_help() {
    let version = text(&good(gpupool(&["--version"])).stdout);
    assert_eq!(version, format!("gpupool {}\n", env!("CARGO_PKG_VERSION")));
    let help = text(&good(gpupool(&["--help"])).stdout);
    assert!(help.contains("Examples:"), "{help}");
    let commands: Vec<_> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    for known in [
        "run",
        "check",
        "observe",
        "stat",
        "top",
        "trim",
        "set",
        "env",
        "completions",
        "man",
    ] {
        assert!(commands.contains(&known), "{known}: {help}");
    }
    // Each of them says how it is used, in a page of its own too.
    for command in commands.iter().filter(|command| **command != "help") {
        let help = text(&good(gpupool(&[command, "--help"])).stdout);
        assert!(help.contains("gpupool"), "{command}: {help}");
        if *command != "detach" {
            assert!(help.contains("Examples:"), "{command}: {help}");
        }
        let page = text(&good(gpupool(&["man", command])).stdout);
        let title = format!(".TH gpupool-{command} 1");
        assert!(page.contains(&title), "{command}: {page}");
    }
}

#[test]
fn completions_and_pages_are_of_this_very_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&good(gpupool(&["completions", shell])).stdout);
        for word in ["observe", "prometheus", "completions"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let bash = good(gpupool(&["completions", "bash"])).stdout;
    let mut check = Command::new("bash")
        .args(["-n", "/dev/stdin"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut check.stdin.take().unwrap(), &bash).unwrap();
    assert!(check.wait().unwrap().success(), "bash does not parse it");
    let page = text(&good(gpupool(&["man"])).stdout);
    assert!(
        page.contains(".TH gpupool 1") && page.contains("observe"),
        "{page}"
    );
    let absent = gpupool(&["man", "nothing"]).output().unwrap();
    assert_eq!(absent.status.code(), Some(2));
    assert!(text(&absent.stderr).contains("completions"));
}

#[test]
fn env_lists_every_option_in_each_form() {
    let plain = text(&good(gpupool(&["env"])).stdout);
    let markdown = text(&good(gpupool(&["env", "--markdown"])).stdout);
    let json = text(&good(gpupool(&["env", "--json"])).stdout);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(rows.len(), OPTIONS.len());
    for (option, row) in OPTIONS.iter().zip(&rows) {
        assert_eq!(row["name"], option.name);
        assert_eq!(row["default"], option.default);
        assert_eq!(row["implemented"], option.implemented());
        assert!(
            plain.lines().any(|line| line == option.name),
            "{}",
            option.name
        );
        let in_table = |line: &&str| line.starts_with(&format!("| {} |", option.name));
        let line = markdown.lines().find(in_table).unwrap();
        assert_eq!(line.matches('|').count(), 4, "{line}");
    }
}

#[test]
fn run_becomes_the_program_with_the_library_before_other_preloads() {
    let library = harmless_library();
    let script = "echo \"$LD_PRELOAD,$GPUPOOL_MAX,$GPUPOOL_STATS,${GPUPOOL_LIB-gone},$1\"; exit 7";
    let mut command = gpupool(&[
        "run", "--stats", "--set", "MAX=1G", "--", "sh", "-c", script, "sh", "--stats",
    ]);
    command
        .env("GPUPOOL_LIB", &library)
        .env("LD_PRELOAD", &library);
    let output = command.output().unwrap();
    assert_eq!(
        text(&output.stdout),
        format!("{library},1G,stderr,gone,--stats\n")
    );
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn errors_name_the_thing_and_the_cure() {
    let library = harmless_library();
    for (args, code, parts) in [
        (
            vec!["run", "--set", "MAX=lots", "--", "true"],
            2,
            vec!["GPUPOOL_MAX", "lots", "bytes"],
        ),
        (
            vec!["run", "--set", "MOED=off", "--", "true"],
            2,
            vec!["GPUPOOL_MODE"],
        ),
        (
            vec!["run", "--", "/no/such/program"],
            127,
            vec!["/no/such/program", "path"],
        ),
        (vec!["run", "--", "/"], 126, vec!["\"/\""]),
        (vec!["run"], 2, vec!["CMD"]),
    ] {
        let output = gpupool(&args)
            .env("GPUPOOL_LIB", &library)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        let stderr = text(&output.stderr);
        for part in parts {
            assert!(
                stderr.contains(part),
                "{args:?}: {part:?} is missing in {stderr:?}"
            );
        }
    }
    let mut absent = gpupool(&["run", "--", "true"]);
    let output = absent
        .env("GPUPOOL_LIB", "/no/such/lib.so")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/no/such/lib.so"));
}
