//! What can be asked of a running process: giving memory back, and changing
//! options.

use super::{State, attach, change_config, change_state, config, page, state};
use crate::config::{Config, Mode};
use crate::cuda::above;
use crate::cuda::context::{self, Context};
use crate::cuda::host;
use crate::pool::{Device, Policy, Pool, stats};
use std::sync::atomic::Ordering;

/// Does what `request` says: `trim`, or `set VAR=VALUE`. The result in words.
/// `may_wait`: the calling thread may wait for the GPU, up to GPUPOOL_WAIT.
/// One at a time.
pub fn act(request: &str, may_wait: bool) -> Result<String, String> {
    match request.split_once(' ') {
        None if request == "trim" => trim(may_wait),
        Some(("set", setting)) => set(setting, may_wait),
        _ => Err(format!(
            "{request:?} is not known to version {}: use the command of that version",
            env!("CARGO_PKG_VERSION")
        )),
    }
}

fn serving() -> impl Iterator<Item = &'static Context> {
    context::all()
        .into_iter()
        .filter(|context| context.serves())
}

fn trim_pool<D: Device>(pool: &Pool, device: &D, may_wait: bool) -> u64 {
    if may_wait {
        pool.trim(device)
    } else {
        pool.trim_at_once(device)
    }
}

fn trim(may_wait: bool) -> Result<String, String> {
    if state() == State::Observe {
        return Err(String::from(
            "there is no pool in this process: it only observes",
        ));
    }
    let given: u64 = serving()
        .map(|context| trim_pool(&context.pool, &context, may_wait))
        .chain(host::serving().map(|host| trim_pool(&host.pool, &host, may_wait)))
        .sum();
    let (mut left, mut live, mut unused) = (0, 0, 0);
    let pools = serving().map(|context| &context.pool);
    let pinned = host::serving().map(|host| &host.pool);
    for usage in pools.chain(pinned).map(Pool::usage) {
        left += usage.reserved;
        live += usage.live;
        unused += usage.unowned;
    }
    let why = match (left, unused) {
        (0, _) => "nothing is left",
        (_, 0) => "each segment that is left has a block of the program in it",
        _ => "the rest is kept because the GPU was busy: try again when it is idle",
    };
    Ok(format!(
        "gave back {}; {} reserved, {} with the program: {why}",
        stats::bytes(given),
        stats::bytes(left),
        stats::bytes(live)
    ))
}

fn set(setting: &str, may_wait: bool) -> Result<String, String> {
    let Some((name, value)) = setting.split_once('=') else {
        return Err(format!("{setting:?} is not VAR=VALUE"));
    };
    let before = config();
    let mut changed = before.clone();
    changed.change(name, value)?;
    let mode = changed.mode;
    let mode_said = if mode == before.mode {
        None
    } else {
        Some(switch(mode)?)
    };
    if changed.log != before.log {
        crate::logging::set_filter(&changed.log);
    }
    let limits = |config: &Config| (config.max, config.host_max, config.inflight, config.wait);
    let new_limits = limits(&changed) != limits(before);
    change_config(changed);
    if new_limits {
        for context in context::all() {
            let policy = Policy {
                mapped: context.mapped.is_some(),
                ..above::policy(config(), context.total)
            };
            context.pool.set_policy(policy);
        }
        for host in host::all() {
            let policy = above::host_policy(config(), host::memory());
            host.pool.set_policy(policy);
        }
    }
    if let Some(page) = page::own() {
        page.set_mode(mode);
    }
    let said = mode_said.unwrap_or_default();
    if mode == Mode::Off && before.mode != Mode::Off {
        return trim(may_wait).map(|trimmed| format!("{name}={value}{said}; {trimmed}"));
    }
    Ok(format!("{name}={value}{said}"))
}

/// Switches the pool on or off. The hooks of the observer are others: it cannot
/// be switched to.
fn switch(mode: Mode) -> Result<&'static str, String> {
    match (mode, state()) {
        (_, State::Observe) => Err(String::from(
            "GPUPOOL_MODE cannot change here: this process was started to observe",
        )),
        (Mode::Observe, _) => Err(String::from(
            "GPUPOOL_MODE=observe needs a start of its own: gpupool observe -- CMD",
        )),
        (Mode::Off, _) => {
            attach::WANTED.store(attach::PASS, Ordering::Release);
            change_state(State::Pool, State::Passing);
            Ok(": allocations go to the driver, and pooled memory goes back as it is freed")
        }
        (Mode::Pool, _) => {
            attach::WANTED.store(attach::SERVE, Ordering::Release);
            if attach::is_late() && attach::PROOF.load(Ordering::Acquire) == attach::MISSING {
                return Ok(": the pool serves when the program has next synchronised");
            }
            change_state(State::Passing, State::Pool);
            Ok(": the pool serves")
        }
    }
}
