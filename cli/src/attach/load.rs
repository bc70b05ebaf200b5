//! Loading the library into the process, by one of its threads, while all
//! others run on.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpupool::process::attach::Answer;

use super::image::Image;
use super::inject::{Objects, call_failed, inject};
use super::injected::{CallFailed, Injected};
use super::library::{Loaded, gone};
use super::patch::Goal;
use super::{Failure, Session, memory};

impl Session {
    /// The first attach to a process: loads the library.
    pub(super) fn load(
        &self,
        objects: &Objects,
        libc: &Image,
        goal: Goal,
        copy: &[u8],
        options: &[u8],
    ) -> Result<String, Failure> {
        let begun = Instant::now();
        let dlopen = self.dlopen(objects)?;
        let (mut injected, rights) = inject(&self.target, &self.memory, self.limit)?;
        let result = self.load_by(&mut injected, rights.memory_file, objects, dlopen, copy);
        let loaded = match result {
            Ok(loaded) => loaded,
            Err(failed) => {
                injected.finish(self.target.pid, self.limit);
                return Err(failed);
            }
        };
        let prepared = self.prepare(&mut injected, &loaded, libc, goal, Some(options), objects);
        if !injected.finish(self.target.pid, self.limit) && prepared.is_ok() {
            return Err(self.refuse(
                "the thread that loaded the library does not go on; the library is loaded and does nothing",
            ));
        }
        prepared?;
        self.commit(&loaded, libc, goal, begun.elapsed())
    }

    /// `dlopen` and its flags: where glibc has it, which changed with 2.34.
    fn dlopen(&self, objects: &Objects) -> Result<(u64, u64), Failure> {
        const FROM_LIBC: u64 = 0x8000_0000;
        let now = libc::RTLD_NOW as u64;
        let find = |names: &[&str], function| objects.function(names, function, &self.memory);
        find(&["libc.so.6", "libdl.so.2", "libdl-2."], "dlopen")
            .map(|address| (address, now))
            .or_else(|| {
                find(&["libc.so.6", "libc-2."], "__libc_dlopen_mode")
                    .map(|address| (address, now | FROM_LIBC))
            })
            .ok_or_else(|| self.refuse("its C library has no dlopen: it needs glibc 2.28 or later"))
    }

    fn load_by(
        &self,
        injected: &mut Injected<'_>,
        memory_file: bool,
        objects: &Objects,
        dlopen: (u64, u64),
        copy: &[u8],
    ) -> Result<Loaded<'_>, Failure> {
        let failed = |what| move |why| call_failed(&self.target, what, self.limit, why);
        let place = self.place_copy(injected, memory_file, objects, copy)?;
        let path = injected
            .text(place.path.as_bytes())
            .map_err(failed("loading the library"))?;
        let handle = match injected.call(dlopen.0, &[path, dlopen.1], self.limit) {
            Ok(handle) => handle,
            Err(CallFailed::Late) => return Err(self.give_up_loading(injected, objects)),
            Err(other) => return Err(failed("loading the library")(other)),
        };
        let message = if handle == 0 {
            self.loader_message(injected, objects)
        } else {
            String::new()
        };
        if let Some((close, fd)) = place.close {
            let _ = injected.call(close, &[fd], self.limit);
        }
        if handle == 0 {
            return Err(self.refuse(&format!("the library cannot be loaded there: {message}")));
        }
        let maps = memory::mappings(self.target.pid).map_err(gone)?;
        Loaded::find(&maps, &self.memory)?
            .ok_or_else(|| self.refuse("the library was loaded and is not to be found"))
    }

    /// The call that loads the library has not come back. If all it waits for
    /// is the loader's lock, it has not begun and is taken back.
    fn give_up_loading(&self, injected: &Injected<'_>, objects: &Objects) -> Failure {
        let locks = objects
            .images
            .iter()
            .filter(|image| image.is_linker)
            .find_map(|image| image.symbol("_rtld_global", &self.memory));
        let until = Instant::now() + Duration::from_secs(1);
        if locks.is_some_and(|locks| injected.give_up(self.target.pid, &locks, until)) {
            return self.refuse(&format!(
                "another thread has been inside the loader for {:?} (in a library's constructor, perhaps); nothing was changed: try again later",
                self.limit
            ));
        }
        call_failed(
            &self.target,
            "loading the library",
            self.limit,
            CallFailed::Late,
        )
    }

    fn loader_message(&self, injected: &mut Injected<'_>, objects: &Objects) -> String {
        let names = ["libc.so.6", "libdl.so.2", "libdl-2."];
        objects
            .function(&names, "dlerror", &self.memory)
            .and_then(|dlerror| injected.call(dlerror, &[], self.limit).ok())
            .filter(|text| *text != 0)
            .map_or_else(
                || "the loader gives no reason".to_owned(),
                |text| self.memory.read_text(text, 1024),
            )
    }

    /// Puts the copy where the process can open it: a file in memory, which
    /// vanishes with the process, else a file in a folder of its own root.
    fn place_copy(
        &self,
        injected: &mut Injected<'_>,
        memory_file: bool,
        objects: &Objects,
        copy: &[u8],
    ) -> Result<Place, Failure> {
        let libc = ["libc.so.6", "libc-2."];
        let find = |function| objects.function(&libc, function, &self.memory);
        if memory_file && let (Some(create), Some(close)) = (find("memfd_create"), find("close")) {
            let failed =
                |why| call_failed(&self.target, "making room for the library", self.limit, why);
            let name = injected.text(b"libgpupool.so").map_err(failed)?;
            let flags = u64::from(libc::MFD_CLOEXEC);
            let fd = injected
                .call(create, &[name, flags], self.limit)
                .map_err(failed)? as i32;
            let proc_of_its_own =
                PathBuf::from(format!("/proc/{}/root/proc/self", self.target.pid));
            // A debugger that asks the loader for the path opens it in its own
            // process: such a number is less likely to be anything there. Not
            // above 64, where a process with threads needs a larger table.
            let dup = |injected: &mut Injected<'_>| {
                let dup = u64::from(libc::F_DUPFD_CLOEXEC as u32);
                let fcntl = find("fcntl").filter(|_| fd >= 0)?;
                let high = injected
                    .call(fcntl, &[fd as u64, dup, 60], self.limit)
                    .ok()? as i32;
                (high >= 0).then(|| {
                    let _ = injected.call(close, &[fd as u64], self.limit);
                    high
                })
            };
            let fd = dup(injected).unwrap_or(fd);
            if fd >= 0 {
                let file = format!("/proc/{}/fd/{fd}", self.target.pid);
                let written = OpenOptions::new()
                    .write(true)
                    .open(file)
                    .and_then(|mut file| file.write_all(copy));
                if written.is_ok() && proc_of_its_own.symlink_metadata().is_ok() {
                    return Ok(Place {
                        // Spelt as nobody else does: the loader knows libraries
                        // by their names, and the number will come again.
                        path: format!("/proc/self/fd/../fd/{fd}"),
                        close: Some((close, fd as u64)),
                        remove: None,
                    });
                }
                let _ = injected.call(close, &[fd as u64], self.limit);
            }
        }
        let mut reasons = Vec::new();
        for folder in ["/tmp", "/var/tmp", "/dev/shm"] {
            let path = format!(
                "{folder}/libgpupool-{}-{}.so",
                self.target.pid,
                std::process::id()
            );
            let outside = PathBuf::from(format!("/proc/{}/root{path}", self.target.pid));
            let written = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(&outside)
                .and_then(|mut file| file.write_all(copy));
            match written {
                Ok(()) => {
                    return Ok(Place {
                        path,
                        close: None,
                        remove: Some(outside),
                    });
                }
                Err(error) => reasons.push(format!("{folder}: {error}")),
            }
        }
        Err(self.refuse(&format!(
            "there is no place from which it could load the library (a file in memory is refused; {}): start the program with the library instead (gpupool run)",
            reasons.join("; ")
        )))
    }

    /// Has the library make everything ready.
    pub(super) fn prepare(
        &self,
        injected: &mut Injected<'_>,
        loaded: &Loaded<'_>,
        libc: &Image,
        goal: Goal,
        options: Option<&[u8]>,
        objects: &Objects,
    ) -> Result<(), Failure> {
        let dlsym = libc.symbol("dlsym", &self.memory).map_or_else(
            || objects.function(&["libdl.so.2", "libdl-2."], "dlsym", &self.memory),
            |range| Some(range.start),
        );
        loaded.set_dlsym(dlsym.unwrap_or(0)).map_err(gone)?;
        loaded.set_observe(goal == Goal::Observe).map_err(gone)?;
        if let Some(options) = options {
            loaded.set_options(options).map_err(gone)?;
        }
        let function = loaded.prepare().map_err(gone)?;
        let answer = injected
            .call(function, &[], self.limit)
            .map_err(|why| call_failed(&self.target, "preparing the patches", self.limit, why))?;
        if answer as u32 == Answer::Ready as u32 {
            return Ok(());
        }
        Err(self.refuse(&format!(
            "{}; the library is loaded and does nothing",
            loaded.message()
        )))
    }
}

/// Where the process finds the copy of the library.
struct Place {
    path: String,
    /// The process's `close`, and the number that it is for.
    close: Option<(u64, u64)>,
    /// A file that is not needed once it is loaded.
    remove: Option<PathBuf>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(path) = &self.remove {
            let _ = std::fs::remove_file(path);
        }
    }
}
