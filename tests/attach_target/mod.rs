//! Processes to attach to, and the command that does.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::support::{self, library, simulated_driver};

/// Longest that a target may take to answer or to end, on a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The `gpupool` command, the one built last.
pub fn command() -> PathBuf {
    support::built_last("gpupool")
}

/// Prepares `gpupool ARGUMENTS`.
pub fn gpupool(arguments: &[&str]) -> support::Run {
    support::Run::new(command())
        .env("GPUPOOL_LIB", library())
        .args(arguments)
}

/// Runs `gpupool ARGUMENTS PID`, which has to succeed; what it prints. On a loaded machine the threads
/// of a target can be stopped where a jump goes many times in a row.
#[track_caller]
pub fn succeeds(arguments: &[&str], pid: u32) -> String {
    let mut run = gpupool(arguments);
    if arguments[0] == "attach" && !arguments.contains(&"--limit") {
        run = run.args(["--limit", "60"]);
    }
    let outcome = run.arg(pid.to_string()).run();
    let outcome = outcome.expect_success();
    assert_eq!(outcome.stderr, "", "{outcome:#?}");
    outcome.stdout
}

/// Runs `gpupool ARGUMENTS PID`, which has to fail; what it says.
#[track_caller]
pub fn fails(arguments: &[&str], pid: u32) -> String {
    let outcome = gpupool(arguments).arg(pid.to_string()).run();
    assert!(matches!(outcome.code(), 1 | 2), "{outcome:#?}");
    assert_eq!(outcome.stdout, "", "{outcome:#?}");
    outcome.stderr
}

/// A random number, as different as the clock.
pub fn random(below: u64) -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut x = time.map_or(1, |time| time.as_nanos() as u64) | 1;
    for shift in [12, 25, 27] {
        x ^= if shift == 25 { x << shift } else { x >> shift };
    }
    x.wrapping_mul(2_685_821_657_736_338_717) % below
}

/// A running program, killed at the end of the test.
pub struct Target {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Target {
    /// Starts `attach_target WORDS` on the simulated driver, and waits for its first line.
    pub fn start(flavour: &str, words: &[&str]) -> Self {
        Self::with(flavour, words, &[])
    }

    /// The same with some variables in its environment.
    pub fn with(flavour: &str, words: &[&str], variables: &[(&str, &OsStr)]) -> Self {
        let mut command = Command::new(support::program("attach_target", flavour));
        command
            .args(words)
            .env("LD_LIBRARY_PATH", simulated_driver())
            .envs(variables.iter().copied());
        Self::of(command)
    }

    /// Starts a program that prints a line when it is ready.
    pub fn of(mut command: Command) -> Self {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("GPUPOOL_") || text.starts_with("SIMCUDA_") {
                command.env_remove(&name);
            }
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|why| panic!("{command:?}: {why}"));
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut target = Self {
            child,
            input,
            output,
        };
        target.line();
        target
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("it can be waited for")
            .is_some()
    }

    /// The next line that it prints. A target that hangs is killed by the test runner's limit.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        assert!(read.is_ok_and(|length| length > 0), "{}", self.last_words());
        line.trim_end().to_owned()
    }

    fn last_words(&mut self) -> String {
        let _ = self.child.kill();
        let status = self.child.wait();
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        format!("the target ended: {status:?}, {text}")
    }

    /// Has it obey a line; its answer.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        let input = self.input.as_mut().expect("it was not ended");
        if writeln!(input, "{line}").is_err() {
            panic!("{}", self.last_words());
        }
        self.line()
    }

    /// How often each of its threads has gone round.
    #[track_caller]
    pub fn rounds(&mut self) -> Vec<u64> {
        let answer = self.ask("rounds");
        let numbers: Vec<u64> = answer
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        assert_eq!(numbers.last(), Some(&0), "{answer}");
        numbers[..5].to_vec()
    }

    /// Waits until each of its threads has gone round again.
    #[track_caller]
    pub fn expect_progress(&mut self) {
        let before = self.rounds();
        let until = Instant::now() + LIMIT;
        loop {
            let now = self.rounds();
            if now.iter().zip(&before).all(|(now, before)| now > before) {
                return;
            }
            assert!(Instant::now() < until, "no progress: {before:?}, {now:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it answers so.
    #[track_caller]
    pub fn expect_soon(&mut self, line: &str, answer: &str) {
        let until = Instant::now() + LIMIT;
        loop {
            let now = self.ask(line);
            if now == answer {
                return;
            }
            assert!(Instant::now() < until, "{line}: {now}, not {answer}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it; it has to find everything right. What it wrote to stderr.
    #[track_caller]
    pub fn end(mut self) -> String {
        let mut input = self.input.take().expect("it was not ended");
        let _ = writeln!(input, "quit");
        drop(input);
        let mut rest = String::new();
        let _ = self.output.read_to_string(&mut rest);
        let mut errors = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut errors);
        }
        let status = self.child.wait().expect("it can be waited for");
        assert!(status.success(), "{status:?}: {rest}{errors}");
        assert_eq!(rest, "end wrong 0\n", "{errors}");
        errors
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
