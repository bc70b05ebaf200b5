//! Writing the jumps and the library's state, with all threads stopped.

use std::time::{Duration, Instant};

use gpupool::process::State;
use gpupool::process::attach::{GIVEN, Jump, PASS, Phase, SERVE};

use super::Failure;
use super::image::Image;
use super::library::{Loaded, gone};
use super::memory::Memory;
use super::safe::top_of_stack;
use super::target::Target;
use super::threads::{NotStopped, Registers, Stopped};

/// Longest that stopping the threads may take.
const PAUSE: Duration = Duration::from_millis(35);
/// The same, with what is looked at before anything is written, which takes a
/// fraction of a millisecond.
const LONGEST: Duration = Duration::from_millis(45);
/// How much of each stack is searched for places that are about to change.
const TOP: usize = 64 << 10;

/// What the library is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Serve from the pool, once no capture can be open that it does not know.
    /// `no_graphs`: there is none.
    Serve { no_graphs: bool },
    /// Count and time.
    Observe,
    /// Leave allocations to the driver.
    Pass,
}

/// What was done.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Jumps that were written.
    pub jumps: usize,
    /// The library's state afterwards.
    pub state: State,
    /// How long the threads were stopped.
    pub pause: Duration,
}

fn failure(message: String) -> Failure {
    Failure { message, code: 1 }
}

/// Stops all threads, writes what is missing of the library's jumps and sets
/// its state, within `limit`.
///
/// Should this command die in between, the threads run on, with some of the
/// jumps: they lead to hooks that pass everything on until the state, which is
/// written last, says otherwise.
pub fn patch(
    target: &Target,
    memory: &Memory,
    loaded: &Loaded<'_>,
    libc: &Image,
    goal: Goal,
    limit: Duration,
) -> Result<Done, Failure> {
    let until = Instant::now() + limit;
    let jumps = if loaded.phase().map_err(gone)? == Phase::InForce as u32 {
        Vec::new()
    } else {
        loaded.jumps().map_err(gone)?
    };
    let exit = libc.symbol("exit", memory);
    let mut why;
    loop {
        match Stopped::all(target.pid, PAUSE) {
            Ok(stopped) => match obstacle(&stopped, memory, &jumps, exit.as_ref()) {
                None if stopped.pause() > LONGEST => {
                    why = format!("stopping its threads took longer than {LONGEST:?}");
                }
                None => {
                    let state = write(target, memory, loaded, &jumps, goal)?;
                    let pause = stopped.release();
                    return Ok(Done {
                        jumps: jumps.len(),
                        state,
                        pause,
                    });
                }
                Some(obstacle) => why = obstacle,
            },
            Err(NotStopped::Late(tids)) => {
                why = format!(
                    "{} of its threads did not stop within {PAUSE:?}, thread {} for one",
                    tids.len(),
                    tids.first().copied().unwrap_or(0)
                );
            }
            Err(NotStopped::Error(_)) if target.has_ended() => {
                return Err(failure(format!("{} has ended", target.called())));
            }
            Err(NotStopped::Error(error)) => return Err(failure(target.no_right(&error))),
        }
        if Instant::now() >= until {
            let left = if jumps.is_empty() {
                "the library does what it did before"
            } else {
                "nothing was patched, the library is loaded and does nothing"
            };
            return Err(failure(format!(
                "{}: {why}, and again for {limit:?}; {left}: try again, or with a longer --limit",
                target.called()
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What is against writing the jumps now.
fn obstacle(
    stopped: &Stopped,
    memory: &Memory,
    jumps: &[Jump],
    exit: Option<&std::ops::Range<u64>>,
) -> Option<String> {
    let lowest = jumps.iter().map(|jump| jump.address).min().unwrap_or(0);
    let highest = jumps.iter().map(|jump| jump.address).max().unwrap_or(0) + 64;
    // Behind the first byte: a thread that is about to begin there takes the jump.
    let displaced = |address: u64| {
        (lowest..highest).contains(&address)
            && jumps.iter().any(|jump| {
                address > jump.address && address < jump.address + u64::from(jump.displaced)
            })
    };
    let exits = |address: u64| exit.is_some_and(|exit| address > exit.start && address < exit.end);
    for thread in stopped.threads() {
        let Ok(registers) = thread.registers() else {
            return Some(format!("thread {} cannot be looked at", thread.tid));
        };
        let registers: Registers = registers;
        if displaced(registers.rip) {
            return Some(format!("thread {} is where a jump goes", thread.tid));
        }
        for word in top_of_stack(memory, &registers, TOP) {
            if displaced(word) {
                return Some(format!(
                    "thread {} returns to where a jump goes",
                    thread.tid
                ));
            }
            if exits(word) {
                return Some(format!("thread {} is ending the process", thread.tid));
            }
        }
    }
    None
}

/// With all threads stopped: the jumps, and last the state.
fn write(
    target: &Target,
    memory: &Memory,
    loaded: &Loaded<'_>,
    jumps: &[Jump],
    goal: Goal,
) -> Result<State, Failure> {
    let before = loaded.state().map_err(gone)?;
    if before == State::Inert {
        return Err(failure(format!(
            "{}: the library in it has ended: the process is ending, or was forked from one that had it",
            target.called()
        )));
    }
    let mut missing = Vec::new();
    for jump in jumps {
        let mut now = [0; 5];
        memory.read(jump.address, &mut now).map_err(gone)?;
        if now == jump.old {
            missing.push(jump);
        } else if now != jump.new {
            return Err(failure(format!(
                "{}: somebody else has changed the code at {:#x} meanwhile; nothing was patched",
                target.called(),
                jump.address
            )));
        }
    }
    for jump in missing {
        memory.write(jump.address, &jump.new).map_err(gone)?;
    }
    set(loaded, goal, before).map_err(gone)
}

fn set(loaded: &Loaded<'_>, goal: Goal, before: State) -> std::io::Result<State> {
    let phase = loaded.phase()?;
    loaded.set_observe(goal == Goal::Observe)?;
    loaded.set_wanted(if goal == Goal::Pass { PASS } else { SERVE })?;
    if phase == Phase::Waiting as u32 {
        // libcuda is not there: what follows is the library's, when it comes.
        return Ok(before);
    }
    if phase == Phase::Ready as u32 {
        loaded.set_phase(Phase::InForce)?;
    }
    let state = match goal {
        Goal::Observe => State::Observe,
        Goal::Pass => match before {
            State::Pool | State::Passing => State::Passing,
            _ => State::Off,
        },
        Goal::Serve { no_graphs } => {
            if no_graphs {
                loaded.set_proof(GIVEN)?;
            }
            if loaded.proof()? == GIVEN {
                State::Pool
            } else {
                State::Passing
            }
        }
    };
    loaded.set_state(state)?;
    Ok(state)
}
