//! Checking a program or library that does not run yet.

use std::ffi::{CString, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::elf::{self, Bytes, Kind};
use super::search::System;
use super::{Report, Weight, file_name, say_driver, say_way, ways};
use crate::run;

/// glibc that the library needs.
const GLIBC: (u32, u32) = (2, 28);

/// The report on `path`; `command` is what the user would run.
pub fn report(path: &Path, command: &[OsString]) -> Report {
    let mut report = Report::default();
    let mut path = path.to_owned();
    // Scripts name their interpreter, which may be one too.
    for _ in 0..4 {
        let Some(interpreter) = script_interpreter(&path) else {
            break;
        };
        let text = format!("{} is run by {}", path.display(), interpreter.display());
        report.say("script", Weight::Note, text);
        path = interpreter;
    }
    library(&mut report);
    preload(&mut report, &path);
    if !report.is_blocked() {
        objects(&mut report, &path);
    }
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let words = words.join(" ");
    report.next = Some(if report.is_blocked() {
        String::from("see what is marked NO")
    } else if report.reached {
        format!("gpupool run -- {words}")
    } else {
        format!("gpupool run -- {words}, and `gpupool check PID` while it runs")
    });
    report
}

fn script_interpreter(path: &Path) -> Option<PathBuf> {
    let mut begin = [0; 256];
    let length = fs::File::open(path).ok()?.read(&mut begin).ok()?;
    let line = begin[..length].strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line).into_owned();
    let mut words = line.split_whitespace();
    let interpreter = words.next()?;
    if Path::new(interpreter).file_name()? == "env" {
        let program = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        let found = super::find(&OsString::from(program)).ok()?;
        return Some(found);
    }
    Some(PathBuf::from(interpreter))
}

/// Where the library is.
fn library(report: &mut Report) {
    match run::library_path() {
        Ok(path) => report.say("library", Weight::Good, path.display().to_string()),
        Err(why) => report.say("library", Weight::Bad, why.message),
    }
    if std::env::var_os("GPUPOOL_MODE").is_some_and(|mode| mode == "off") {
        report.say(
            "library",
            Weight::Bad,
            "GPUPOOL_MODE is off in this environment: unset it",
        );
    }
}

/// Whether the dynamic linker will read LD_PRELOAD.
fn preload(report: &mut Report, path: &Path) {
    let bytes = match Bytes::of(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let text = format!("{} cannot be read: {error}", path.display());
            return report.say("preload", Weight::Bad, text);
        }
    };
    match elf::kind(&bytes) {
        Kind::X86_64 => {}
        Kind::Other(machine, bits) => {
            let text = format!(
                "it is a program of {bits} bits for machine {machine}; the library is for 64-bit x86"
            );
            return report.say("preload", Weight::Bad, text);
        }
        Kind::NotElf => {
            let text = format!("{} is neither an ELF file nor a script", path.display());
            return report.say("preload", Weight::Bad, text);
        }
    }
    let Some(object) = elf::object(&bytes) else {
        return report.say("preload", Weight::Bad, "the file is damaged");
    };
    let is_library = file_name(path).contains(".so");
    match &object.interpreter {
        None if is_library => {
            report.say(
                "preload",
                Weight::Note,
                "a library: what counts is the program that loads it",
            );
        }
        None => {
            let text =
                "it is linked statically: no dynamic linker runs, so nothing reads LD_PRELOAD";
            return report.say("preload", Weight::Bad, text);
        }
        Some(linker) if linker.contains("musl") => {
            let text = format!("its C library is musl ({linker}); the library needs glibc");
            return report.say("preload", Weight::Bad, text);
        }
        Some(_) => {}
    }
    if let Some(why) = secure(path) {
        let text = format!(
            "{why}: the dynamic linker ignores LD_PRELOAD; start it as a user who needs no such right"
        );
        return report.say("preload", Weight::Bad, text);
    }
    if object
        .needed
        .iter()
        .any(|name| name.starts_with("libasan.so"))
    {
        let text = "gcc's shared AddressSanitizer refuses every preload: link it with -static-libasan, or use clang's";
        return report.say("preload", Weight::Bad, text);
    }
    let system = System::here();
    let libc = system.find("libc.so.6", path, &object);
    let version = libc
        .and_then(|libc| Bytes::of(&libc).ok())
        .and_then(|bytes| elf::glibc_version(&bytes));
    match version {
        Some(version) if version < GLIBC => {
            let text = format!(
                "glibc is {}.{}; the library needs {}.{}",
                version.0, version.1, GLIBC.0, GLIBC.1
            );
            report.say("preload", Weight::Bad, text);
        }
        Some((major, minor)) => {
            let text = format!("glibc {major}.{minor} reads LD_PRELOAD");
            report.say("preload", Weight::Good, text);
        }
        None => report.say(
            "preload",
            Weight::Note,
            "the glibc that it will use was not found",
        ),
    }
}

/// What makes the kernel start a program in secure mode.
fn secure(path: &Path) -> Option<&'static str> {
    let metadata = fs::metadata(path).ok()?;
    // SAFETY: no arguments, no failure.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    if metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != user {
        return Some("it is set-user-id");
    }
    if metadata.mode() & libc::S_ISGID != 0 && metadata.gid() != group {
        return Some("it is set-group-id");
    }
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: both names are terminated; with no room the call tells the size.
    let size = unsafe {
        libc::getxattr(
            name.as_ptr(),
            c"security.capability".as_ptr(),
            std::ptr::null_mut(),
            0,
        )
    };
    (size > 0).then_some("it has file capabilities")
}

/// The ways to CUDA of the program and the libraries that it is linked to, and
/// the driver.
fn objects(report: &mut Report, path: &Path) {
    let system = System::here();
    let Some(object) = Bytes::of(path).ok().and_then(|bytes| elf::object(&bytes)) else {
        return;
    };
    let libraries = system.closure(path, &object);
    let missing: Vec<&str> = libraries
        .iter()
        .filter(|library| library.path.is_none())
        .map(|library| library.name.as_str())
        .collect();
    let mut paths = vec![path.to_owned()];
    paths.extend(libraries.iter().filter_map(|library| library.path.clone()));
    for path in &paths {
        let Ok(bytes) = Bytes::of(path) else { continue };
        let needed = elf::object(&bytes).unwrap_or_default().needed;
        for way in ways(path, &bytes, &needed) {
            say_way(report, way, &file_name(path));
        }
    }
    if !missing.is_empty() {
        let text = format!(
            "not found on this machine, so not looked into: {}",
            missing.join(", ")
        );
        report.say("unseen", Weight::Note, text);
    }
    report.say(
        "unseen",
        Weight::Note,
        "what it loads while it runs, and programs that it starts",
    );
    match system.find("libcuda.so.1", path, &object) {
        Some(driver) => say_driver(report, &driver),
        None => report.say(
            "driver",
            Weight::Note,
            "there is no libcuda.so.1 on this machine: the library does nothing here",
        ),
    }
}
