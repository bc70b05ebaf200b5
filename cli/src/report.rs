//! `gpupool report`: a recorded trace as a page to read, or as events for a
//! trace viewer.

mod chart;
mod feed;
mod figures;
mod flame;
mod names;
mod page;
mod perfetto;

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::replay::engine::Progress;
use crate::replay::source;
use crate::{Failure, failure, say};

pub const EXAMPLES: &str =
    "TRACE is what `gpupool replay` takes: a file of GPUPOOL_TRACE, or a table of
text; either may be compressed by xz. The page needs no network.

Examples:
  gpupool run --set TRACE=./app.trace -- ./app
  gpupool report app.trace -o app.html
  gpupool report app.trace --perfetto -o app.json
  gpupool run --set TRACE=./app.trace --set TRACE_STACKS=on -- ./app
  gpupool report --flamegraph app.svg --weight time app.trace
  gpupool report app.trace > app.html";

#[derive(clap::Args)]
pub struct Args {
    /// The trace
    trace: PathBuf,
    /// Where to; without it stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Chrome trace events as JSON, for Perfetto and chrome://tracing, instead
    /// of the page
    #[arg(long)]
    perfetto: bool,
    /// A flamegraph of the calls' stacks as SVG instead of the page, or folded
    /// stacks if the name ends in .folded
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "perfetto"])]
    flamegraph: Option<PathBuf>,
    /// What a frame's width stands for in the flamegraph
    #[arg(long, value_enum, default_value = "bytes", requires = "flamegraph")]
    weight: flame::Weight,
}

/// Writes the report.
pub fn run(args: &Args) -> Result<(), Failure> {
    if args.output.is_none() && args.flamegraph.is_none() && io::stdout().is_terminal() {
        let name = if args.perfetto { "json" } else { "html" };
        let what = format!("a report is a file: add -o FILE.{name}");
        return Err(failure(2, what));
    }
    let bad = |error: source::Error| failure(2, format!("{}{error}", args.trace.display()));
    let bytes = source::load(&args.trace).map_err(bad)?;
    let content = feed::Content::of(bytes).map_err(bad)?;
    let outline = feed::Outline::of(&content).map_err(bad)?;
    let mut progress = Progress::new(outline.calls as usize);
    let done = |count: u64| progress.show(count as usize);
    if let Some(path) = &args.flamegraph {
        if is_same(path, &args.trace) {
            return Err(is_the_trace(path));
        }
        let name = args.trace.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let result = flame::write(&outline, args.weight, &name, path, done);
        progress.end();
        result.map_err(|error| {
            let what = format!("{}: cannot write: {error}", path.display());
            failure(1, what)
        })?;
        if outline.stacks.is_empty() {
            say(
                "the trace has no stacks, so that only call sites are shown: record it with \
                 GPUPOOL_TRACE_STACKS=on",
            );
        }
        return Ok(());
    }
    if args.perfetto {
        let mut out = open(args)?;
        let result = perfetto::write(&outline, &mut out, done).and_then(|()| out.flush());
        progress.end();
        result
    } else {
        let figures = figures::gather(&outline, done);
        progress.end();
        let page = page::page(&args.trace, &outline, &figures);
        let mut out = open(args)?;
        out.write_all(page.as_bytes()).and_then(|()| out.flush())
    }
    .map_err(|error| match &args.output {
        Some(path) => failure(1, format!("{}: cannot write: {error}", path.display())),
        // The reader has seen enough, as `head` does.
        None if error.kind() == ErrorKind::BrokenPipe => failure(0, String::new()),
        None => failure(1, format!("cannot write to stdout: {error}")),
    })
}

/// Where the report goes. The trace is never written over.
fn open(args: &Args) -> Result<BufWriter<Box<dyn Write>>, Failure> {
    let Some(path) = &args.output else {
        return Ok(BufWriter::new(Box::new(io::stdout())));
    };
    if is_same(path, &args.trace) {
        return Err(is_the_trace(path));
    }
    match File::create(path) {
        Ok(file) => Ok(BufWriter::new(Box::new(file))),
        Err(error) => {
            let what = format!("{}: cannot be created: {error}", path.display());
            Err(failure(2, what))
        }
    }
}

fn is_the_trace(path: &Path) -> Failure {
    let what = format!("{}: is the trace; name another file", path.display());
    failure(2, what)
}

fn is_same(one: &Path, other: &Path) -> bool {
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => one.dev() == other.dev() && one.ino() == other.ino(),
        _ => false,
    }
}
