//! `gpupool observe`: runs a program unchanged, with its allocation calls
//! counted and timed, and says what the pool would change.

mod verdict;

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

use serde_json::Value;

use crate::{Failure, failure, run};
use verdict::Observation;

pub const EXAMPLES: &str = "Examples:
  gpupool observe -- ./app
  gpupool observe --json /tmp/app.json -- python3 serve.py
  gpupool observe -- torchrun --nproc-per-node 4 train.py

The report goes to stderr when the program has ended; the exit status is the
program's. Processes that the program starts are observed too. What ends by a
signal or by _exit leaves no figures.";

#[derive(clap::Args)]
pub struct Args {
    /// Write the report to a file as JSON as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command; the exit status to end with.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let folder = Folder::new()?;
    let mut command = run::command(&args.command)?;
    let mut stats = folder.0.clone().into_os_string();
    stats.push("/%p.json");
    command
        .env("GPUPOOL_MODE", "observe")
        .env("GPUPOOL_STATS", stats);
    let status = wait_for(command)?;
    let mut seen = Vec::new();
    for entry in fs::read_dir(&folder.0).map_err(|error| unreadable(&folder.0, &error))? {
        let path = entry.map_err(|error| unreadable(&folder.0, &error))?.path();
        let text = fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| failure(1, format!("{}: {error}", path.display())))?;
        seen.push(value);
    }
    let observation = Observation::of(&seen);
    let report = observation.text(&args.command, &run::library_path()?);
    let _ = std::io::stderr().write_all(report.as_bytes());
    if let Some(path) = &args.json {
        let body = format!("{:#}\n", observation.json(&args.command));
        fs::write(path, body).map_err(|error| {
            let path = path.display();
            failure(
                1,
                format!("--json {path}: {error}; name a file that can be written"),
            )
        })?;
    }
    Ok(code(status))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    failure(
        1,
        format!("cannot read what was seen in {}: {error}", path.display()),
    )
}

/// As shells have it.
fn code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The program that signals are passed on to.
static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: libc::c_int) {
    let child = CHILD.load(Ordering::Relaxed);
    if child > 0 {
        // SAFETY: a child that has not been waited for keeps its number.
        unsafe { libc::kill(child, signal) };
    }
}

/// What the terminal sends to both.
extern "C" fn leave_to_child(_signal: libc::c_int) {}

/// Installs the handlers, with the signals blocked; the mask from before.
fn catch_signals() -> libc::sigset_t {
    const PASSED_ON: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
    // SAFETY: sigset_t is plain data; both handlers are valid for good, and make
    // one system call or none.
    unsafe {
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut blocked);
        for signal in PASSED_ON {
            libc::sigaddset(&raw mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before);
        for signal in PASSED_ON {
            libc::signal(signal, pass_on as *const () as libc::sighandler_t);
        }
        for signal in [libc::SIGINT, libc::SIGQUIT] {
            libc::signal(signal, leave_to_child as *const () as libc::sighandler_t);
        }
        before
    }
}

/// Runs it to its end. What the terminal sends reaches the program by itself;
/// what is sent to this process alone is passed on.
fn wait_for(mut command: Command) -> Result<ExitStatus, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Before it starts, so that none is lost; exec gives the child the defaults.
    let before = catch_signals();
    let restore = move || {
        // SAFETY: the mask is a valid one, and pthread_sigmask may be called
        // between fork and exec.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
        };
    };
    // SAFETY: as `restore` says; it touches nothing else.
    unsafe {
        command.pre_exec(move || {
            restore();
            Ok(())
        });
    }
    let started = command.spawn();
    if let Ok(child) = &started {
        CHILD.store(child.id() as i32, Ordering::Relaxed);
    }
    restore();
    let mut child = started.map_err(|error| {
        if error.kind() == ErrorKind::NotFound {
            failure(
                127,
                format!("there is no program {name:?}: check the name, or give the path"),
            )
        } else {
            failure(126, format!("cannot start {name:?}: {error}"))
        }
    })?;
    let status = child
        .wait()
        .map_err(|error| failure(1, format!("cannot wait for {name:?}: {error}")));
    CHILD.store(0, Ordering::Relaxed);
    status
}

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("gpupool-observe-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| {
            failure(
                1,
                format!(
                    "cannot make {}: {error}; set TMPDIR to a folder that can be written",
                    path.display()
                ),
            )
        })?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
