//! `gpupool attach` and `gpupool detach`: the library in a process that runs
//! already.
//!
//! Two steps. First one thread, stopped where it holds no lock of malloc's or
//! the loader's (`safe`), loads the library and has it make everything ready,
//! while all others run on (`inject`, `stub`); the library does nothing yet.
//! Then all threads are stopped for a few milliseconds, the jumps are written,
//! and the library's state is set (`patch`).

mod image;
mod inject;
mod injected;
mod library;
mod load;
mod memory;
mod patch;
mod safe;
mod seccomp;
mod stub;
mod target;
mod threads;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use gpupool::process::State;
use gpupool::process::attach::Phase;

use crate::Failure;
use crate::run;
use image::Image;
use inject::{Objects, await_others, inject};
use library::{Loaded, gone};
use memory::Memory;
use patch::{Done, Goal, patch};
use target::Target;

pub const DETACH_EXAMPLES: &str = "Examples:
  gpupool detach 4711
  gpupool attach 4711     # and back again";

pub const EXAMPLES: &str = "VAR is a name from `gpupool env`, with or without GPUPOOL_.

Examples:
  gpupool attach 4711
  gpupool attach --observe 4711
  gpupool attach --set MAX=50% --set STATS=/tmp/%p.json 4711
  gpupool detach 4711

Allocations pass to the driver until the program has synchronised its device
(cudaDeviceSynchronize, torch.cuda.synchronize): that shows that no stream is
being captured. --no-graphs goes without.";

#[derive(clap::Args)]
pub struct AttachArgs {
    /// Set an option of the library; may be given several times
    #[arg(long = "set", value_name = "VAR=VALUE")]
    set: Vec<OsString>,
    /// Only count and time the program's own calls: would the pool help?
    #[arg(long)]
    observe: bool,
    /// The program captures no CUDA graphs at this moment: serve at once. A
    /// capture that is open all the same would be broken
    #[arg(long)]
    no_graphs: bool,
    /// Longest that each step may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// The process
    #[arg(value_name = "PID")]
    pid: i32,
}

#[derive(clap::Args)]
pub struct DetachArgs {
    /// Longest that it may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// The process
    #[arg(value_name = "PID")]
    pid: i32,
}

fn failure(message: String) -> Failure {
    Failure { message, code: 1 }
}

/// `gpupool attach`; what to print.
pub fn attach(args: &AttachArgs) -> Result<String, Failure> {
    let options = options(args)?;
    let goal = if args.observe {
        Goal::Observe
    } else {
        Goal::Serve {
            no_graphs: args.no_graphs,
        }
    };
    let session = Session::open(args.pid, Duration::from_secs(args.limit))?;
    session.attach(goal, &options)
}

/// `gpupool detach`; what to print.
pub fn detach(args: &DetachArgs) -> Result<String, Failure> {
    Session::open(args.pid, Duration::from_secs(args.limit))?.detach()
}

/// The options for the library, checked.
fn options(args: &AttachArgs) -> Result<Vec<(OsString, OsString)>, Failure> {
    let mut options = run::settings(&args.set)?;
    let is_mode = |option: &(OsString, OsString)| option.0 == OsStr::new("GPUPOOL_MODE");
    if let Some(mode) = options.iter().find(|option| is_mode(option)) {
        let cure = "--observe observes, without it the pool serves, and gpupool detach ends either";
        return Err(Failure {
            message: format!("--set MODE={:?} is not for an attach: {cure}", mode.1),
            code: 2,
        });
    }
    // Of a name that is given twice the last one counts, in the library the first.
    options.reverse();
    Ok(options)
}

/// The right to be the only one. The lock is on the process's folder in /proc,
/// so that it ends with this command, however that ends.
fn lock(target: &Target) -> Result<File, Failure> {
    let folder = File::open(format!("/proc/{}", target.pid)).map_err(gone)?;
    // SAFETY: the descriptor is open.
    let taken = unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    let busy = std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock;
    if taken != 0 && busy {
        return Err(failure(format!(
            "another gpupool command is just attaching to or detaching from {}: try again",
            target.called()
        )));
    }
    Ok(folder)
}

struct Session {
    /// Held: only one command at a time is at a process.
    _lock: File,
    target: Target,
    memory: Memory,
    limit: Duration,
}

impl Session {
    fn open(pid: i32, limit: Duration) -> Result<Self, Failure> {
        let target = Target::open(pid)?;
        let lock = lock(&target)?;
        let memory = Memory::open(pid).map_err(|error| {
            failure(if target.has_ended() {
                format!("{} has ended", target.called())
            } else {
                target.no_right(&error)
            })
        })?;
        Ok(Self {
            _lock: lock,
            target,
            memory,
            limit,
        })
    }

    fn objects(&self) -> Result<Objects, Failure> {
        Objects::read(self.target.pid, &self.memory).map_err(|error| {
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                failure(self.target.no_right(&error))
            } else {
                gone(error)
            }
        })
    }

    fn refuse(&self, why: &str) -> Failure {
        failure(format!("{}: {why}", self.target.called()))
    }

    fn attach(&self, goal: Goal, options: &[(OsString, OsString)]) -> Result<String, Failure> {
        let encoded = library::encode(options)?;
        let objects = self.objects()?;
        self.target.libc(&objects.images)?;
        await_others(&self.target, &self.memory, self.limit)?;
        let objects = self.objects()?;
        let libc = self.target.libc(&objects.images)?;
        if let Some(loaded) = Loaded::find(&objects.maps, &self.memory)? {
            if !loaded.is_complete(&objects.maps) {
                return Err(self.refuse("the library is just being loaded into it: try again"));
            }
            return self.attach_again(&loaded, libc, goal, options, &encoded);
        }
        let path = run::library_path()?;
        let copy = library::marked_copy(&path)?;
        self.load(&objects, libc, goal, &copy, &encoded)
    }

    /// The library is there already.
    fn attach_again(
        &self,
        loaded: &Loaded<'_>,
        libc: &Image,
        goal: Goal,
        options: &[(OsString, OsString)],
        encoded: &[u8],
    ) -> Result<String, Failure> {
        let begun = Instant::now();
        let phase = loaded.phase().map_err(gone)?;
        let state = loaded.state().map_err(gone)?;
        let attached = loaded.is_attached().map_err(gone)?;
        let first = attached && phase == Phase::Loaded as u32;
        if !first && !options.is_empty() && loaded.options() != encoded {
            return Err(Failure {
                message: format!(
                    "{}: the library was loaded before, and its options stay those of {}: leave --set away",
                    self.target.called(),
                    if attached {
                        "the first attach"
                    } else {
                        "the program's start"
                    }
                ),
                code: 2,
            });
        }
        match (state, goal) {
            (State::Inert, _) => {
                return Err(self.refuse(
                    "the library in it has ended: the process is ending, or was forked from one that had it",
                ));
            }
            (State::Pool, Goal::Serve { .. }) => {
                return Ok(self.say(if attached {
                    "the library is attached and serves already: nothing to do"
                } else {
                    "the program was started with the library, which serves: nothing to do"
                }));
            }
            (State::Observe, Goal::Observe) => {
                return Ok(self.say("the library observes already: nothing to do"));
            }
            (State::Pool, Goal::Observe) => {
                return Err(self.refuse("the pool serves it; to observe, gpupool detach it first"));
            }
            (State::Off, _) if !attached && !self.has_driver()? => {
                return Ok(self.say(
                    "the program was started with the library, which waits for CUDA: nothing to do",
                ));
            }
            _ => {}
        }
        let books_are_kept = phase == Phase::InForce as u32 && state == State::Passing;
        if !books_are_kept || goal == Goal::Observe {
            let (mut injected, _) = inject(&self.target, &self.memory, self.limit)?;
            let objects = self.objects()?;
            let options = first.then_some(encoded);
            let prepared = self.prepare(&mut injected, loaded, libc, goal, options, &objects);
            injected.finish(self.target.pid, self.limit);
            prepared?;
            let held = loaded.reserved().map_err(gone)?;
            if goal == Goal::Observe && held > 0 {
                return Err(self.refuse(&format!(
                    "the pool still holds {held} bytes from before; they go back as the program frees them: try again then"
                )));
            }
        }
        self.commit(loaded, libc, goal, begun.elapsed())
    }

    fn has_driver(&self) -> Result<bool, Failure> {
        let is_driver = |image: &Image| {
            let rest = image.name().strip_prefix("libcuda.so");
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        Ok(self.objects()?.images.iter().any(is_driver))
    }

    fn commit(
        &self,
        loaded: &Loaded<'_>,
        libc: &Image,
        goal: Goal,
        before: Duration,
    ) -> Result<String, Failure> {
        let done = patch(&self.target, &self.memory, loaded, libc, goal, self.limit)?;
        let waiting = loaded.phase().map_err(gone)? == Phase::Waiting as u32;
        let what = match (waiting, done.state) {
            (true, _) => {
                "attached; it has no CUDA yet, and libcuda's entry points are patched when it comes"
            }
            (false, State::Pool) => "attached; the pool serves",
            (false, State::Observe) => "attached; its calls are counted and timed",
            _ => {
                "attached; allocations pass to the driver until the program synchronises its device, which shows that no CUDA graph is being captured (or attach with --no-graphs)"
            }
        };
        Ok(self.report(what, &done, Some(before)))
    }

    fn detach(&self) -> Result<String, Failure> {
        let objects = self.objects()?;
        let libc = self.target.libc(&objects.images)?;
        let Some(loaded) = Loaded::find(&objects.maps, &self.memory)? else {
            return Err(self.refuse("the library is not loaded in it: there is nothing to detach"));
        };
        let phase = loaded.phase().map_err(gone)?;
        if !matches!(phase, p if p == Phase::InForce as u32 || p == Phase::Waiting as u32) {
            return Ok(self.say("the library is loaded and does nothing: nothing to do"));
        }
        let done = patch(
            &self.target,
            &self.memory,
            &loaded,
            libc,
            Goal::Pass,
            self.limit,
        )?;
        let what = if phase == Phase::Waiting as u32 {
            "detached; it has no CUDA yet, and nothing will be pooled when it comes"
        } else if done.state == State::Passing {
            "detached; allocations are the driver's, and pooled memory goes back as the program frees it"
        } else {
            "detached; the library does nothing any more"
        };
        Ok(self.report(what, &done, None))
    }

    fn say(&self, what: &str) -> String {
        format!("{}: {what}\n", self.target.called())
    }

    fn report(&self, what: &str, done: &Done, before: Option<Duration>) -> String {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let mut text = self.say(what);
        if let Some(before) = before {
            text.push_str(&format!(
                "  prepared in {:.1} ms while it ran, {} jumps written\n",
                ms(before),
                done.jumps
            ));
        }
        text.push_str(&format!(
            "  all threads were stopped for {:.1} ms\n",
            ms(done.pause)
        ));
        text
    }
}
