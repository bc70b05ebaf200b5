//! Shared by the integration tests: where the built artefacts are, and running programs under the
//! library with a limit on their time.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

/// How long a program may run before it counts as hung. Programs finish in seconds; this is for a
/// loaded machine.
const LIMIT: Duration = Duration::from_secs(120);

/// cargo's target folder: two above `target/PROFILE/deps/this-test`.
pub fn target() -> PathBuf {
    let me = std::env::current_exe().expect("a test has a path");
    me.ancestors()
        .nth(3)
        .expect("target/PROFILE/deps/TEST")
        .to_owned()
}

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library without the safety mechanisms (feature `unsafe-no-grace`), for negative controls.
#[allow(dead_code, reason = "not every test has one")]
pub fn no_grace_library() -> PathBuf {
    let path = match std::env::var_os("GPUPOOL_NOGRACE_LIB") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => target().join("no-grace/release/libgpupool.so"),
    };
    assert!(
        path.exists(),
        "{} is not there: run scripts/test, which builds it",
        path.display()
    );
    path
}

/// `libgpupool.so`: the one that `GPUPOOL_LIB` names, else of the release and the debug build the one
/// built last.
///
/// # Panics
/// If neither was built.
pub fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("GPUPOOL_LIB").filter(|path| !path.is_empty()) {
        return path.into();
    }
    built_last("libgpupool.so")
}

/// What cargo built by this name: of the release and the debug build the one
/// built last.
///
/// # Panics
/// If neither was built.
pub fn built_last(name: &str) -> PathBuf {
    let built = |profile: &str| {
        let path = target().join(profile).join(name);
        let time = path
            .metadata()
            .and_then(|data| data.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH);
        (time, path)
    };
    let (time, path) = built("release").max(built("debug"));
    assert!(
        time > SystemTime::UNIX_EPOCH,
        "{} is not there: run scripts/test, which builds it",
        path.display()
    );
    path
}

/// A folder of built artefacts: in the target folder in use, or in the usual one.
fn built(name: &str) -> PathBuf {
    let folder = target().join(name);
    if folder.exists() {
        folder
    } else {
        root().join("target").join(name)
    }
}

/// The folder of the simulated driver and the stand-in runtime.
///
/// # Panics
/// If they were not built.
pub fn simulated_driver() -> PathBuf {
    let folder = built("sim");
    let driver = folder.join("libcuda.so.1");
    assert!(
        driver.exists(),
        "{} is not there: run scripts/test, which builds it",
        driver.display()
    );
    folder
}

/// One of `tests/programs`, compiled: `flavour` is `shared` (or `driver`) for the plain file, or the
/// suffix of another one (`static`).
///
/// # Panics
/// If it was not built.
pub fn program(name: &str, flavour: &str) -> PathBuf {
    let folder = built("programs");
    let suffixed = folder.join(format!("{name}-{flavour}"));
    let path = if suffixed.exists() || !matches!(flavour, "shared" | "driver") {
        suffixed
    } else {
        folder.join(name)
    };
    assert!(
        path.exists(),
        "{} is not there: run scripts/test, which builds it",
        path.display()
    );
    path
}

/// Prepares a run of one of `tests/programs` on the simulated driver, without the library.
pub fn run_program(name: &str, flavour: &str) -> Run {
    Run::new(program(name, flavour)).env("LD_LIBRARY_PATH", simulated_driver())
}

/// A program to be run. No `GPUPOOL_*` or `SIMCUDA_*` variable of the surroundings reaches it.
#[must_use]
pub struct Run {
    command: Command,
    limit: Duration,
}

/// How a program ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// It was killed because it ran past its limit.
    pub timed_out: bool,
}

impl Outcome {
    /// The exit code, or the negated number of the signal that ended it.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .or_else(|| self.status.signal().map(|signal| -signal))
            .unwrap_or(i32::MIN)
    }

    /// Fails the test unless the program exited with 0.
    #[track_caller]
    pub fn expect_success(self) -> Self {
        assert!(self.code() == 0 && !self.timed_out, "{self:#?}");
        self
    }
}

impl Run {
    /// Any program, by path or by name in PATH.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("GPUPOOL_") || text.starts_with("SIMCUDA_") || text == "LD_PRELOAD"
            {
                command.env_remove(&name);
            }
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        Self {
            command,
            limit: LIMIT,
        }
    }

    /// Whether the library is preloaded.
    pub fn with_lib(mut self, with: bool) -> Self {
        if with {
            self.command.env("LD_PRELOAD", library());
        } else {
            self.command.env_remove("LD_PRELOAD");
        }
        self
    }

    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(name);
        self
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(arguments);
        self
    }

    /// How long it may run; two minutes unless said.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it to its end. Past its limit, it and what it started are killed.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run(mut self) -> Outcome {
        let mut child = self
            .command
            .spawn()
            .unwrap_or_else(|why| panic!("{:?}: {why}", self.command));
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        let group = child.id() as i32;
        let (ended, watch) = mpsc::channel::<()>();
        let limit = self.limit;
        let watcher = std::thread::spawn(move || {
            let hung = watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            if hung {
                // SAFETY: kills the process group made for the child, which has not been waited for.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
            hung
        });
        // Read to the end before waiting: a descendant may hold the pipes, and the group's id must
        // stay taken while the watcher can use it.
        let stdout = stdout.join().unwrap_or_default();
        let stderr = stderr.join().unwrap_or_default();
        let waited = wait_without_reaping(group);
        drop(ended);
        let timed_out = watcher.join().unwrap_or(true);
        let status = child
            .wait()
            .unwrap_or_else(|why| panic!("wait: {why} ({waited})"));
        Outcome {
            status,
            stdout,
            stderr,
            timed_out,
        }
    }
}

fn wait_without_reaping(pid: i32) -> i32 {
    // SAFETY: an all-zero siginfo_t is valid, and the output is.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(
            libc::P_PID,
            pid as libc::id_t,
            &mut info,
            libc::WEXITED | libc::WNOWAIT,
        )
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A folder of its own for one test, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpupool-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles C or C++ from text; the result lies in `folder` as `name`.
///
/// # Panics
/// With the compiler's messages if it fails.
pub fn compile(
    folder: &Folder,
    compiler: &str,
    name: &str,
    source: &str,
    flags: &[&str],
) -> PathBuf {
    let file = folder.path().join(format!(
        "{name}.{}",
        if compiler.ends_with("++") { "cc" } else { "c" }
    ));
    let result = folder.path().join(name);
    std::fs::write(&file, source).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
    let outcome = Run::new(compiler)
        .arg("-O1")
        .arg("-o")
        .arg(&result)
        .arg(&file)
        .args(flags)
        .run();
    assert_eq!(outcome.code(), 0, "{compiler} {name}: {}", outcome.stderr);
    result
}
