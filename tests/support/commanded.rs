//! `tests/programs/commanded.c`: a program that does what a test tells it, and the `gpupool` command
//! beside it.

#![allow(dead_code)]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::support::{Run, built_last, library, program, simulated_driver};

/// How long an answer may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The `gpupool` command: of the release and the debug build the one built last.
///
/// # Panics
/// If neither was built.
pub fn command() -> PathBuf {
    built_last("gpupool")
}

/// Prepares a run of the command.
pub fn gpupool(arguments: &[&str]) -> Run {
    Run::new(command()).args(arguments)
}

/// The program, running. Killed when it is dropped.
pub struct Commanded {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Commanded {
    /// Starts it under the library, with these variables.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        Self::start_with(variables, Stdio::inherit())
    }

    /// The same, with its stderr somewhere.
    pub fn start_with(variables: &[(&str, &str)], stderr: Stdio) -> Self {
        let mut command = Command::new(program("commanded", "shared"));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("GPUPOOL_") || text.starts_with("SIMCUDA_") {
                command.env_remove(&name);
            }
        }
        command
            .env("LD_LIBRARY_PATH", simulated_driver())
            .env("LD_PRELOAD", library())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr);
        Self::of(command.spawn().expect("it starts"))
    }

    fn of(mut child: Child) -> Self {
        let output: ChildStdout = child.stdout.take().expect("a pipe");
        let (say, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if say.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            input: child.stdin.take(),
            child,
            lines,
        }
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Says a line, and returns the answer.
    #[track_caller]
    pub fn tell(&mut self, line: &str) -> String {
        self.say(line);
        match self.lines.recv_timeout(LIMIT) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => panic!("{line}: no answer"),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{line}: it has ended: {:?}", self.child.wait())
            }
        }
    }

    /// Says a line without waiting for the answer.
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("not ended");
        writeln!(input, "{line}").expect("it reads");
    }

    /// Says lines that are answered with `ok`.
    #[track_caller]
    pub fn tell_all(&mut self, lines: &[&str]) {
        for line in lines {
            assert_eq!(self.tell(line), "ok", "{line}");
        }
    }

    /// Ends its input, and waits until it has ended with 0; what it wrote to stderr, if that was
    /// piped.
    #[track_caller]
    pub fn end(mut self) -> String {
        drop(self.input.take());
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut text).expect("text");
        }
        let status = self.child.wait().expect("it was started");
        assert!(status.success(), "{status}: {text}");
        text
    }

    /// Kills it as nothing can prevent.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was started");
    }
}

impl Drop for Commanded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The figures of `program`, as `gpupool stat --json` gives them.
#[track_caller]
pub fn figures(program: &Commanded) -> serde_json::Value {
    let outcome = gpupool(&["stat", &program.pid(), "--json"])
        .run()
        .expect_success();
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|why| panic!("{why}: {outcome:?}"))
}

/// One of its numbers, by JSON pointer.
#[track_caller]
pub fn figure(figures: &serde_json::Value, path: &str) -> u64 {
    figures
        .pointer(path)
        .and_then(serde_json::Value::as_u64)
        .unwrap_or_else(|| panic!("no {path} in {figures}"))
}
