//! Getting a thread of the process to make calls: which thread, and when.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::Failure;
use super::image::{Image, images};
use super::injected::{CallFailed, Injected};
use super::memory::{self, Mapping, Memory, free_place};
use super::safe::{Code, top_of_stack};
use super::seccomp::{self, Verdict};
use super::stub::{self, REGION};
use super::target::Target;
use super::threads::{self, Stopped, Thread};

/// How long one thread may take to stop, before another is asked.
const STOP: Duration = Duration::from_millis(20);
/// How long the stub has to begin.
const BEGIN: Duration = Duration::from_secs(2);

fn failure(message: String) -> Failure {
    Failure { message, code: 1 }
}

/// The process's objects, and what was mapped when they were read.
pub struct Objects {
    pub maps: Vec<Mapping>,
    pub images: Vec<Image>,
}

impl Objects {
    pub fn read(pid: i32, memory: &Memory) -> io::Result<Self> {
        let maps = memory::mappings(pid)?;
        Ok(Self {
            images: images(&maps, memory),
            maps,
        })
    }

    /// Whether code was loaded or unloaded since.
    fn is_old(&self, maps: &[Mapping]) -> bool {
        let code = |maps: &[Mapping]| -> Vec<(u64, u64)> {
            maps.iter()
                .filter(|mapping| mapping.executable && mapping.file.1 != 0)
                .map(|mapping| (mapping.range.start, mapping.range.end))
                .collect()
        };
        code(&self.maps) != code(maps)
    }

    /// A function that one of the objects with such a name exports.
    pub fn function(&self, names: &[&str], function: &str, memory: &Memory) -> Option<u64> {
        self.images
            .iter()
            .filter(|image| names.iter().any(|name| image.name().starts_with(name)))
            .find_map(|image| image.symbol(function, memory))
            .map(|range| range.start)
    }
}

/// What the process lets us do, found out at the first thread that was stopped.
pub struct Rights {
    pub memory_file: bool,
}

/// Has a thread of the process begin the stub, as soon as one is where that is
/// safe, within `limit`.
///
/// # Errors
/// Until the stub has begun the process is as before.
pub fn inject<'a>(
    target: &Target,
    memory: &'a Memory,
    limit: Duration,
) -> Result<(Injected<'a>, Rights), Failure> {
    let until = Instant::now() + limit;
    let mut why = String::from("no thread was seen");
    let mut rights = None;
    let read = || Objects::read(target.pid, memory).map_err(super::library::gone);
    let mut objects = read()?;
    let mut attempt = u64::from(std::process::id()) % 16;
    'objects: while Instant::now() < until {
        let maps = memory::mappings(target.pid).map_err(super::library::gone)?;
        if objects.is_old(&maps) {
            objects = read()?;
        }
        let errno = objects.function(&["libc.so.6", "libc-2."], "__errno_location", memory);
        let room = stub_room(target, &objects, memory)?;
        let mut code = Code::new(&objects.images, &objects.maps, memory);
        while Instant::now() < until {
            let maps = memory::mappings(target.pid).map_err(super::library::gone)?;
            if objects.is_old(&maps) {
                continue 'objects;
            }
            let tids = threads::list(target.pid).map_err(super::library::gone)?;
            for tid in tids {
                let Some(thread) = stop(target, tid)? else {
                    why = format!("thread {tid} does not stop");
                    continue;
                };
                if rights.is_none() {
                    match ask_filters(target, thread.tid) {
                        Ok(found) => rights = Some(found),
                        Err(refused) => {
                            thread.release(target.pid);
                            return Err(refused);
                        }
                    }
                }
                let Ok(registers) = thread.registers() else {
                    continue;
                };
                let verdict = if thread.is_undisturbed(target.pid) {
                    code.check(&registers, thread.restartable_sequence())
                } else {
                    Err("has a signal on its way".to_owned())
                };
                if let Err(refused) = verdict {
                    why = format!("thread {tid} {refused}");
                    thread.release(target.pid);
                    continue;
                }
                attempt += 1;
                let Some(region) = free_place(&maps, REGION, attempt) else {
                    thread.release(target.pid);
                    return Err(failure("the process has no free addresses left".to_owned()));
                };
                let injected = Injected::start(
                    memory,
                    target.pid,
                    thread,
                    &registers,
                    &room,
                    region,
                    errno.unwrap_or(0),
                )
                .map_err(|error| failure(format!("{}: {error}", target.called())))?;
                match injected.await_start(BEGIN) {
                    Ok(()) => {
                        let rights = rights.unwrap_or(Rights { memory_file: true });
                        return Ok((injected, rights));
                    }
                    Err(_) if target.has_ended() => {
                        return Err(failure(format!("{} has ended", target.called())));
                    }
                    Err(_) => {
                        why = format!("thread {tid} got no memory");
                        if !injected.has_left(target.pid, Instant::now() + BEGIN) {
                            return Err(failure(format!(
                                "{}: thread {tid} does not go on within {BEGIN:?}: is the machine overloaded? try again",
                                target.called()
                            )));
                        }
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    Err(failure(format!(
        "{}: no thread came to a safe place within {limit:?} (the last one {why}); nothing was changed: try again, or with a longer --limit",
        target.called()
    )))
}

/// Where the stub goes: objects that are there for good come first, and places
/// where no earlier one was left.
fn stub_room(target: &Target, objects: &Objects, memory: &Memory) -> Result<Range<u64>, Failure> {
    let program = std::fs::read_link(format!("/proc/{}/exe", target.pid)).unwrap_or_default();
    let lasts = |image: &Image| {
        std::path::Path::new(&image.path) == program
            || image.is_linker
            || ["libc.so.6", "libc-2.", "libpthread", "libdl"]
                .iter()
                .any(|name| image.name().starts_with(name))
    };
    let objects_that_last = objects.images.iter().filter(|image| lasts(image));
    let mut rooms = stub::rooms(objects_that_last, &objects.maps);
    let is_used = |room: &&Range<u64>| stub::left_in(room, memory).is_some();
    if rooms.is_empty() {
        rooms = stub::rooms(objects.images.iter(), &objects.maps);
    }
    rooms
        .iter()
        .find(|room| !is_used(room))
        .or_else(|| rooms.iter().find(|room| is_abandoned(target, memory, room)))
        .cloned()
        .ok_or_else(|| {
            failure(format!(
                "{}: no object has {} bytes free behind its code: start the program with the library instead (gpupool run)",
                target.called(),
                stub::size()
            ))
        })
}

/// Whether no thread is in an earlier stub there, or returns to it.
fn is_abandoned(target: &Target, memory: &Memory, room: &Range<u64>) -> bool {
    const PAUSE: Duration = Duration::from_millis(40);
    const TOP: usize = 64 << 10;
    let Ok(stopped) = Stopped::all(target.pid, PAUSE) else {
        return false;
    };
    stopped.threads().all(|thread| {
        thread.registers().is_ok_and(|registers| {
            !room.contains(&registers.rip)
                && !top_of_stack(memory, &registers, TOP)
                    .iter()
                    .any(|word| room.contains(word))
        })
    })
}

/// Waits until no thread runs a stub of an attach that was killed: it may just
/// be loading the library.
pub fn await_others(target: &Target, memory: &Memory, limit: Duration) -> Result<(), Failure> {
    let until = Instant::now() + limit;
    loop {
        let objects = Objects::read(target.pid, memory).map_err(super::library::gone)?;
        let runs = |room: &Range<u64>| stub::left_in(room, memory).is_some_and(|left| left.runs);
        if !stub::rooms(objects.images.iter(), &objects.maps)
            .iter()
            .any(runs)
        {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(failure(format!(
                "{}: an attach that was killed has not come to its end within {limit:?}: try again later",
                target.called()
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Stops one thread; `None` if it does not stop in time.
fn stop(target: &Target, tid: i32) -> Result<Option<Thread>, Failure> {
    match Thread::seize(tid) {
        Ok(mut thread) => {
            thread.interrupt();
            Ok(thread.wait_stopped(Instant::now() + STOP).then_some(thread))
        }
        Err(error) if threads::has_ended(target.pid, tid, &error) && !target.has_ended() => {
            Ok(None)
        }
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && !target.has_ended() => {
            // Traced since it was looked at, or never allowed.
            let now = Target::open(target.pid)?;
            Err(failure(now.no_right(&error)))
        }
        Err(_) if target.has_ended() => Err(failure(format!("{} has ended", target.called()))),
        Err(_) => Ok(None),
    }
}

fn ask_filters(target: &Target, tid: i32) -> Result<Rights, Failure> {
    let own = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match seccomp::verdict(tid, &target.status, &own) {
        Ok(Verdict::Allowed { memory_file }) => Ok(Rights { memory_file }),
        Ok(Verdict::Forbidden(call)) => Err(failure(format!(
            "{} has a seccomp filter that forbids {call}, which an attach needs: start the program with the library instead (gpupool run)",
            target.called()
        ))),
        Err(why) => Err(failure(format!("{}: {why}", target.called()))),
    }
}

/// A call that did not succeed, for people.
pub fn call_failed(target: &Target, what: &str, limit: Duration, failed: CallFailed) -> Failure {
    let who = target.called();
    failure(match failed {
        CallFailed::Gone(_) if target.has_ended() => format!("{who} has ended during {what}"),
        CallFailed::Gone(error) => format!(
            "{who}: {what}: the thread waited no longer for this command, which was too slow ({error}): is the machine overloaded? try again"
        ),
        CallFailed::NoMemory => format!("{who}: {what}: the thread got no memory"),
        CallFailed::Late => format!(
            "{who}: {what} took longer than {limit:?}; the library may remain loaded, and does nothing"
        ),
    })
}
