//! `gpupool tune`: which options are worth setting for a program, by replaying
//! its trace with different values. The same trace and options always give the
//! same answer.

mod search;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use crate::replay::source::{self, Input};
use crate::replay::{engine, policy, settings};
use crate::{Failure, failure};

use search::Setting;

pub const EXAMPLES: &str =
    "TRACE is what `gpupool replay` takes. A few values each of GPUPOOL_PREALLOC,
GPUPOOL_INFLIGHT and GPUPOOL_MAX are tried, in at most 16 replays. A value is
worth setting if it lowers one of three figures by 10% and at least

  the peak of reserved memory       32 MiB
  the calls of the driver           10
  the time in these and in waits    1 ms, and 0.1% of the trace's length

and raises neither of the others by as much. What the pool leaves to the driver
must not become more.

Examples:
  gpupool run --set TRACE=./app.trace -- ./app
  gpupool tune app.trace
  gpupool tune app.trace --delay 2ms --memory 24G --json";

#[derive(clap::Args)]
pub struct Args {
    /// The trace
    trace: PathBuf,
    /// Time of the trace until the GPU is done with freed memory; with 0ms,
    /// GPUPOOL_INFLIGHT is not tried
    #[arg(long, value_name = "TIME", value_parser = crate::replay::time, default_value = "0.2ms")]
    delay: Duration,
    /// Memory of each device
    #[arg(long, value_name = "SIZE", value_parser = crate::replay::size, default_value = "80G")]
    memory: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// What the command prints.
pub fn run(args: &Args) -> Result<String, Failure> {
    let input = source::read(&args.trace)
        .map_err(|error| failure(2, format!("{}{error}", args.trace.display())))?;
    if input.events.iter().all(|event| event.is_free) {
        let trace = args.trace.display();
        return Err(failure(
            2,
            format!("{trace}: no allocation of device memory, so there is nothing to tune"),
        ));
    }
    let mut progress = engine::Progress::new(input.events.len() * search::MOST_REPLAYS);
    let space = search::Space {
        contexts: input.pools.len() as u64,
        memory: args.memory,
        has_delay: !args.delay.is_zero(),
        length_ns: length_ns(&input),
    };
    let answer = search::search(&space, |set| {
        let figures = replay(&input, args, set, &mut progress)?;
        Ok::<_, Failure>(search::Costs {
            reserved: figures.peak_reserved,
            calls: figures.driver.allocs + figures.driver.frees,
            waited_ns: figures.waited_ns,
            needed: figures.peak_live_and_waiting,
            failed: figures.failed,
            bypasses: figures.counts.bypasses,
        })
    });
    progress.end();
    let answer = answer?;
    Ok(if args.json {
        table::json(args, &input, &answer)
    } else {
        table::text(args, &input, &answer)
    })
}

fn replay(
    input: &Input,
    args: &Args,
    set: &[Setting],
    progress: &mut engine::Progress,
) -> Result<engine::Figures, Failure> {
    let pairs: Vec<String> = set.iter().map(Setting::to_string).collect();
    let config = settings(&pairs)?;
    let setup = engine::Setup {
        policy: policy(&config, args.memory),
        prealloc: config.prealloc.of(args.memory),
        delay: Some(args.delay),
    };
    Ok(engine::run_as_part(input, &setup, progress))
}

/// From the first call to the last.
fn length_ns(input: &Input) -> u64 {
    let at = |event: Option<&source::Event>| event.map_or(0, |event| event.at_ns);
    at(input.events.last()).saturating_sub(at(input.events.first()))
}
