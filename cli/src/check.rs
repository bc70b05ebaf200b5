//! `gpupool check`: will the pool reach a program, and how.

mod elf;
mod file;
mod running;
mod search;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Failure, failure};
use elf::Bytes;

pub const EXAMPLES: &str = "Examples:
  gpupool check ./app
  gpupool check -- python3 serve.py
  gpupool check 4711
  gpupool check --json /opt/plugin.so

Looks at files and at /proc, and runs nothing. A file shows what it was linked
to; what a program loads later, as Python does, only the running process shows.
The exit status is 0 unless something is in the way.";

#[derive(clap::Args)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// A program with its arguments, a library, or a process id
    #[arg(
        required = true,
        value_name = "CMD|FILE|PID",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    target: Vec<OsString>,
}

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// As it should be.
    Good,
    /// Worth knowing; the pool works or may work.
    Note,
    /// The pool does not reach the program.
    Bad,
}

/// One thing that was found out.
pub struct Finding {
    /// What it is about, in a word.
    about: &'static str,
    weight: Weight,
    text: String,
}

/// All of it.
#[derive(Default)]
pub struct Report {
    findings: Vec<Finding>,
    /// A way to CUDA was seen.
    reached: bool,
    /// What to do next, where it depends on what was found.
    next: Option<String>,
}

impl Report {
    fn say(&mut self, about: &'static str, weight: Weight, text: impl Into<String>) {
        self.findings.push(Finding {
            about,
            weight,
            text: text.into(),
        });
    }

    fn is_blocked(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.weight == Weight::Bad)
    }

    fn verdict(&self) -> &'static str {
        match (self.is_blocked(), self.reached) {
            (true, _) => "the pool does not reach it as it is",
            (false, true) => "the pool reaches it",
            (false, false) => "nothing is in the way; whether it uses CUDA was not seen",
        }
    }

    fn text(&self, name: &str) -> String {
        let mut text = format!("{name}\n");
        for finding in &self.findings {
            let mark = match finding.weight {
                Weight::Good => "ok",
                Weight::Note => "--",
                Weight::Bad => "NO",
            };
            text.push_str(&format!("  {mark} {:<9} {}\n", finding.about, finding.text));
        }
        text.push_str(&format!("verdict: {}\n", self.verdict()));
        if let Some(next) = &self.next {
            text.push_str(&format!("next: {next}\n"));
        }
        text
    }

    fn json(&self, name: &str) -> Value {
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|finding| {
                json!({
                    "about": finding.about,
                    "weight": format!("{:?}", finding.weight).to_lowercase(),
                    "text": finding.text,
                })
            })
            .collect();
        json!({
            "target": name,
            "blocked": self.is_blocked(),
            "reached": self.reached,
            "verdict": self.verdict(),
            "next": self.next,
            "findings": findings,
        })
    }
}

/// Runs the command; the exit status to end with.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let Some(first) = args.target.first() else {
        return Err(failure(
            2,
            String::from("name a program, a file or a process id"),
        ));
    };
    let name = first.to_string_lossy().into_owned();
    let report = match pid(first) {
        Some(pid) => running::report(pid)?,
        None => file::report(&find(first)?, &args.target),
    };
    let text = if args.json {
        format!("{:#}\n", report.json(&name))
    } else {
        report.text(&name)
    };
    crate::print(&text)?;
    Ok(u8::from(report.is_blocked()))
}

/// A number is a process, unless there is a file of that name.
fn pid(word: &OsString) -> Option<u32> {
    let pid = word.to_str()?.parse().ok()?;
    (!Path::new(word).exists()).then_some(pid)
}

/// The file that a shell would run.
fn find(word: &OsString) -> Result<PathBuf, Failure> {
    let path = Path::new(word);
    let found = if word.to_string_lossy().contains('/') {
        path.is_file().then(|| path.to_owned())
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders)
            .map(|folder| folder.join(path))
            .find(|path| path.is_file())
            .or_else(|| path.is_file().then(|| path.to_owned()))
    };
    found.ok_or_else(|| {
        failure(
            127,
            format!("there is no program or file {word:?}: check the name, or give the path"),
        )
    })
}

/// How an object reaches CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It is NVIDIA's shared runtime.
    SharedRuntime,
    /// It has the runtime inside.
    StaticRuntime,
    /// It was linked to the driver.
    LinkedDriver,
    /// It opens the driver by name.
    OpensDriver,
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

/// The ways of one object, by what its file holds.
fn ways(path: &Path, bytes: &[u8], needed: &[String]) -> Vec<Way> {
    let name = file_name(path);
    if name.starts_with("libcuda.so") || name.starts_with("libgpupool") {
        return Vec::new();
    }
    if name.starts_with("libcudart.so") {
        return vec![Way::SharedRuntime];
    }
    let mut ways = Vec::new();
    if needed.iter().any(|name| name.starts_with("libcuda.so")) {
        ways.push(Way::LinkedDriver);
    }
    // The runtime opens the driver by name, and knows the names of all its
    // errors.
    let has = |text: &[u8]| elf::loaded(bytes).any(|part| elf::contains(part, text));
    let is_linked = needed.iter().any(|name| name.starts_with("libcudart.so"));
    if is_linked || !has(b"libcuda.so") {
        return ways;
    }
    if has(b"cudaErrorMemoryAllocation") {
        ways.push(Way::StaticRuntime);
    } else if ways.is_empty() {
        ways.push(Way::OpensDriver);
    }
    ways
}

/// Says which way leads to CUDA.
fn say_way(report: &mut Report, way: Way, name: &str) {
    report.reached = true;
    let text = match way {
        Way::SharedRuntime => {
            format!("the shared runtime, {name}: cudaMalloc is served before it is asked")
        }
        Way::StaticRuntime => format!(
            "the runtime is inside {name} (by the texts in it): served at the driver's entry points"
        ),
        Way::LinkedDriver => {
            format!("{name} is linked to the driver: served at the driver's entry points")
        }
        Way::OpensDriver => {
            format!("{name} opens the driver by itself: served at the driver's entry points")
        }
    };
    report.say("way", Weight::Good, text);
}

/// Says which driver it is and what it can do.
fn say_driver(report: &mut Report, path: &Path) {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    report.say("driver", Weight::Good, real.display().to_string());
    let Ok(bytes) = Bytes::of(&real) else {
        report.say("fence", Weight::Note, "the driver's file cannot be read");
        return;
    };
    if elf::contains(&bytes, b"\0cuCtxRecordEvent\0") {
        report.say(
            "fence",
            Weight::Good,
            "the driver has cuCtxRecordEvent: no free waits",
        );
    } else {
        report.say(
            "fence",
            Weight::Note,
            "the driver is older than 12.5 and has no cuCtxRecordEvent: some frees wait for the GPU, as natively all do",
        );
    }
}
