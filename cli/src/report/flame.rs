//! The stacks of a trace as a flamegraph, or folded for other tools that draw.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;

use gpupool::trace::Call;
use inferno::flamegraph;

use super::feed::Outline;
use super::figures::Tally;
use super::names::Names;

/// What the width of a frame stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Weight {
    /// Bytes that allocations asked for
    Bytes,
    /// Number of allocations and frees
    Calls,
    /// Nanoseconds inside these calls
    Time,
}

impl Weight {
    fn of(self, tally: &Tally) -> u64 {
        match self {
            Weight::Bytes => tally.bytes,
            Weight::Calls => tally.calls(),
            Weight::Time => tally.ns,
        }
    }

    /// As it is asked for.
    fn word(self) -> &'static str {
        match self {
            Weight::Time => "time",
            other => other.unit(),
        }
    }

    /// What is counted, for people.
    fn unit(self) -> &'static str {
        match self {
            Weight::Bytes => "bytes",
            Weight::Calls => "calls",
            Weight::Time => "ns",
        }
    }
}

/// Writes the stacks to `path`: as folded lines if it ends in `.folded`, else as
/// SVG. `done` is told how many calls have been seen.
pub fn write(
    outline: &Outline<'_>,
    weight: Weight,
    name: &str,
    path: &Path,
    mut done: impl FnMut(u64),
) -> io::Result<()> {
    let mut tallies: HashMap<(u32, u64, bool), Tally> = HashMap::new();
    let mut seen = 0;
    let Ok(()) = outline.each(|call| {
        done(seen);
        seen += 1;
        let place = (call.stack, call.site, call.is_free);
        tallies.entry(place).or_default().add(&tally(call));
        Ok::<(), std::convert::Infallible>(())
    });
    let lines = fold(outline, weight, &tallies);
    let mut out = io::BufWriter::new(std::fs::File::create(path)?);
    if path
        .extension()
        .is_some_and(|extension| extension == "folded")
    {
        for line in &lines {
            writeln!(out, "{line}")?;
        }
    } else {
        let mut options = flamegraph::Options::default();
        options.title = format!("Allocation calls of {name}, by {}", weight.word());
        options.count_name = weight.unit().to_owned();
        options.name_type = String::from("Function:");
        options.deterministic = true;
        flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut out)?;
    }
    out.flush()
}

fn tally(call: &Call) -> Tally {
    Tally {
        allocs: u64::from(!call.is_free),
        frees: u64::from(call.is_free),
        bytes: if call.result == 0 { call.size } else { 0 },
        ns: call.took_ns,
    }
}

/// A line for each stack: its functions from the outermost on, `;` between them,
/// and what it weighs. Without a recorded stack the call site alone.
fn fold(
    outline: &Outline<'_>,
    weight: Weight,
    tallies: &HashMap<(u32, u64, bool), Tally>,
) -> Vec<String> {
    let mut names = Names::of(outline);
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (&(stack, site, is_free), tally) in tallies {
        let amount = weight.of(tally);
        if amount == 0 {
            continue;
        }
        let known = outline.stacks.get(&stack);
        let frames = known.map_or(std::slice::from_ref(&site), Vec::as_slice);
        let mut words: Vec<String> = Vec::new();
        for &frame in frames.iter().rev() {
            let functions = &names.place(frame).functions;
            if functions.is_empty() {
                words.push(plain(&outline.site(frame)));
            }
            words.extend(functions.iter().rev().map(|name| plain(name)));
        }
        // Frees have no bytes.
        if weight != Weight::Bytes {
            words.push(String::from(if is_free { "[free]" } else { "[allocate]" }));
        }
        *lines.entry(words.join(";")).or_default() += amount;
    }
    lines
        .into_iter()
        .map(|(stack, amount)| format!("{stack} {amount}"))
        .collect()
}

/// A name without what has a meaning in a folded line.
fn plain(name: &str) -> String {
    name.replace(';', ":").replace(['\n', '\r'], " ")
}
