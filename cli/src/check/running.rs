//! Checking a process.

use std::fs;
use std::path::{Path, PathBuf};

use gpupool::process::page::watch::{Unseen, Watch};

use super::elf::{self, Bytes};
use super::{Report, Weight, file_name, say_driver, say_way, ways};
use crate::{Failure, failure};

/// The report on a process.
pub fn report(pid: u32) -> Result<Report, Failure> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|error| {
        let why = Unseen::from(error);
        failure(1, format!("process {pid}: {why}"))
    })?;
    if maps.is_empty() {
        let why = "it has no memory of its own: a kernel thread, or it has ended";
        return Err(failure(1, format!("process {pid}: {why}")));
    }
    let objects = objects(&maps);
    let mut report = Report::default();
    for path in &objects {
        let seen = seen_from_here(pid, path);
        let Ok(bytes) = Bytes::of(&seen) else {
            continue;
        };
        let needed = elf::object(&bytes).unwrap_or_default().needed;
        for way in ways(path, &bytes, &needed) {
            say_way(&mut report, way, &file_name(path));
        }
    }
    let driver = objects
        .iter()
        .find(|path| file_name(path).starts_with("libcuda.so"));
    match driver {
        Some(driver) => say_driver(&mut report, &seen_from_here(pid, driver)),
        None => report.say("driver", Weight::Note, "libcuda is not loaded (yet)"),
    }
    library(&mut report, pid, &objects, driver.is_some());
    Ok(report)
}

/// Whether the library is in it and works.
fn library(report: &mut Report, pid: u32, objects: &[PathBuf], has_driver: bool) {
    let library = objects
        .iter()
        .find(|path| file_name(path).starts_with("libgpupool"));
    match Watch::open(pid) {
        Ok(watch) => {
            let snapshot = watch.read();
            let mode = format!("{:?}", snapshot.mode).to_lowercase();
            let text = format!("version {} is in it, mode {mode}", snapshot.version);
            report.say("library", Weight::Good, text);
            if snapshot.inert {
                let text = "it has stepped aside, or the process ends: every call is the driver's";
                report.say("library", Weight::Bad, text);
            }
            if snapshot.contexts.iter().any(|context| context.lost) {
                let text = "a context was lost to a fault: the driver answers in it";
                report.say("library", Weight::Note, text);
            }
            report.next = Some(format!("gpupool stat {pid}"));
        }
        Err(Unseen::NoPage { .. }) if library.is_none() => {
            if asan(objects) {
                let text = "gcc's shared AddressSanitizer is in it, which refuses every preload";
                report.say("library", Weight::Bad, text);
            } else if secure(pid) {
                let text = "it was started in secure mode (set-user-id or capabilities), where LD_PRELOAD is ignored";
                report.say("library", Weight::Bad, text);
            } else {
                report.say("library", Weight::Bad, "it is not in it");
            }
            report.next = Some(format!(
                "start it by `gpupool run -- CMD`, or `gpupool attach {pid}`"
            ));
        }
        Err(Unseen::NoPage { .. }) if !has_driver => {
            let text = "it is in it, and waits for the driver";
            report.say("library", Weight::Good, text);
        }
        Err(Unseen::NoPage { .. }) => {
            let text = "it is in it, and CUDA was not used so far, or GPUPOOL_MODE is off";
            report.say("library", Weight::Note, text);
        }
        Err(why) => report.say("library", Weight::Note, why.to_string()),
    }
}

/// The files that are mapped as code.
fn objects(maps: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        let mut fields = line.splitn(6, ' ');
        let rights = fields.nth(1).unwrap_or_default();
        let path = fields.nth(3).unwrap_or_default().trim_start();
        if !rights.contains('x') || !path.starts_with('/') {
            continue;
        }
        let path = PathBuf::from(path.strip_suffix(" (deleted)").unwrap_or(path));
        if !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

/// A path of the process, which may live in another root.
fn seen_from_here(pid: u32, path: &Path) -> PathBuf {
    let below = path.strip_prefix("/").unwrap_or(path);
    let there = Path::new("/proc")
        .join(pid.to_string())
        .join("root")
        .join(below);
    if there.exists() {
        there
    } else {
        path.to_owned()
    }
}

fn asan(objects: &[PathBuf]) -> bool {
    objects
        .iter()
        .any(|path| file_name(path).starts_with("libasan.so"))
}

/// AT_SECURE of the auxiliary vector.
fn secure(pid: u32) -> bool {
    const AT_SECURE: u64 = 23;
    let vector = fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    vector
        .chunks_exact(16)
        .filter_map(|entry| {
            let (tag, value) = entry.split_at(8);
            Some((
                u64::from_le_bytes(tag.try_into().ok()?),
                u64::from_le_bytes(value.try_into().ok()?),
            ))
        })
        .any(|(tag, value)| tag == AT_SECURE && value != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_code_is_listed_once() {
        let maps = "\
7f00-7f01 r--p 00000000 08:01 1                          /usr/lib/libx.so
7f01-7f02 r-xp 00001000 08:01 1                          /usr/lib/libx.so
7f02-7f03 r-xp 00001000 08:01 1                          /usr/lib/libx.so
7f03-7f04 r-xp 00000000 08:01 2                          /tmp/with blank.so (deleted)
7f04-7f05 r-xp 00000000 00:00 0                          [vdso]
";
        assert_eq!(
            objects(maps),
            [
                PathBuf::from("/usr/lib/libx.so"),
                PathBuf::from("/tmp/with blank.so")
            ]
        );
        assert!(!secure(std::process::id()));
    }
}
