//! `gpupool trim` and `gpupool set`: asking a running process for something.

use std::time::Duration;

use gpupool::config::{Config, PREFIX};
use gpupool::process::mailbox::Silence;
use gpupool::process::page::watch::Watch;

use crate::{Failure, failure};

pub const TRIM_EXAMPLES: &str = "Examples:
  gpupool trim 4711
  gpupool trim 4711 --wait 10s && cuda-checkpoint --toggle --pid 4711

Memory without a block of the program in it goes back to the driver, and so to
other processes. The process does it at its next allocation that leaves the
fast path, or at once if it was started with GPUPOOL_HELPER=on or
GPUPOOL_IDLE_RELEASE.";

pub const SET_EXAMPLES: &str =
    "VAR is a name from `gpupool env`, with or without GPUPOOL_. What can change in a
running process: MODE (pool, off), MAX, INFLIGHT, WAIT, FREE, FILL and LOG.

Examples:
  gpupool set 4711 MODE=off
  gpupool set 4711 MAX=8G INFLIGHT=256M
  gpupool set 4711 LOG=debug";

/// How long an idle process is waited for.
const PATIENCE: &str = "2s";

#[derive(clap::Args)]
pub struct TrimArgs {
    /// The process
    pid: u32,
    /// How long to wait until the process begins
    #[arg(long, value_name = "TIME", value_parser = crate::args::time, default_value = PATIENCE)]
    wait: Duration,
}

#[derive(clap::Args)]
pub struct SetArgs {
    /// The process
    pid: u32,
    /// What to change
    #[arg(required = true, value_name = "VAR=VALUE")]
    settings: Vec<String>,
    /// How long to wait until the process begins
    #[arg(long, value_name = "TIME", value_parser = crate::args::time, default_value = PATIENCE)]
    wait: Duration,
}

/// Runs `gpupool trim`.
pub fn trim(args: &TrimArgs) -> Result<(), Failure> {
    let answer = ask(args.pid, "trim", args.wait)?;
    crate::print(&format!("{}: {answer}\n", args.pid))
}

/// Runs `gpupool set`. All settings are checked before any is sent.
pub fn set(args: &SetArgs) -> Result<(), Failure> {
    let settings: Vec<(String, &str)> = args
        .settings
        .iter()
        .map(|setting| checked(setting))
        .collect::<Result<_, _>>()?;
    for (name, value) in settings {
        let answer = ask(args.pid, &format!("set {name}={value}"), args.wait)?;
        crate::print(&format!("{}: {answer}\n", args.pid))?;
    }
    Ok(())
}

/// Name in full, and value.
fn checked(setting: &str) -> Result<(String, &str), Failure> {
    let Some((name, value)) = setting.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        return Err(failure(
            2,
            format!("{setting:?}: write it as VAR=VALUE, for example MAX=8G"),
        ));
    };
    let name = if name.starts_with(PREFIX) {
        name.to_owned()
    } else {
        format!("{PREFIX}{name}")
    };
    match Config::default().change(&name, value) {
        Ok(()) => Ok((name, value)),
        Err(why) => Err(failure(2, why)),
    }
}

/// Asks `pid`, and waits for its answer.
pub fn ask(pid: u32, request: &str, wait: Duration) -> Result<String, Failure> {
    let watch = Watch::open(pid).map_err(|why| failure(1, format!("process {pid}: {why}")))?;
    let snapshot = watch.read();
    if snapshot.inert {
        return Err(failure(
            1,
            format!("process {pid}: it ends, or the library has stepped aside: nothing answers"),
        ));
    }
    match watch.ask(request, wait) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(refusal)) => Err(failure(1, format!("process {pid}: {refusal}"))),
        Err(Silence::NotTaken) if snapshot.helper => Err(failure(
            1,
            format!("process {pid}: its helper thread did not answer: is the process stopped?"),
        )),
        Err(Silence::NotTaken) => Err(failure(
            1,
            format!(
                "process {pid}: it makes no allocation that leaves the fast path now, and has no helper thread; nothing was changed. Wait longer with --wait, or start it with GPUPOOL_HELPER=on"
            ),
        )),
        Err(Silence::NotAnswered) => Err(failure(
            1,
            format!("process {pid}: it has begun, and did not finish in time: it may do so yet"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_before_anything_is_asked() {
        let ok = |setting| checked(setting).ok();
        assert_eq!(ok("MAX=8G"), Some((String::from("GPUPOOL_MAX"), "8G")));
        assert_eq!(
            ok("GPUPOOL_LOG=debug"),
            Some((String::from("GPUPOOL_LOG"), "debug"))
        );
        let message =
            |setting| checked(setting).map_or_else(|failure| failure.message, |_| String::new());
        assert!(message("MAX").contains("VAR=VALUE"));
        assert!(message("=8G").contains("VAR=VALUE"));
        assert!(message("MAX=lots").contains("a size"));
        assert!(message("IPC=deny").contains("GPUPOOL_INFLIGHT"));
        assert!(message("MAX=").contains("a size"));
    }
}
