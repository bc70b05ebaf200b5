//! `gpupool run`: the program in place of this process, with the library.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpupool::config::{Config, PREFIX, WarningKind};

use crate::{Failure, failure};

pub const EXAMPLES: &str = "VAR is a name from `gpupool env`, with or without GPUPOOL_.

Examples:
  gpupool run -- ./app
  gpupool run --stats -- python3 infer.py
  gpupool run --set FREE=ordered --set MAX=8G -- ./app
  gpupool run --set GPUPOOL_STATS=/tmp/%p.json -- mpirun -n 4 ./app
  nsys profile gpupool run --set NVTX=on -- ./app

Which options would help this program:
  gpupool run --set TRACE=./app.trace -- ./app
  gpupool tune app.trace

The library is GPUPOOL_LIB if that is set, else libgpupool.so beside this
command or in ../lib from there.";

const LIBRARY: &str = "libgpupool.so";

#[derive(clap::Args)]
pub struct Args {
    /// Set an option of the library; may be given several times
    #[arg(long = "set", value_name = "VAR=VALUE")]
    set: Vec<OsString>,
    /// Print all counters to stderr when the program ends, not only a summary
    #[arg(long)]
    stats: bool,
    /// No summary on stderr when the program ends
    #[arg(long, conflicts_with = "stats")]
    quiet: bool,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Replaces this process with the program; comes back only on failure, with the
/// exit status that shells have for it: 127 not found, 126 found but not
/// started, 2 wrong use.
pub fn run(args: Args) -> Failure {
    match prepare(args) {
        Ok(mut command) => {
            let error = command.exec();
            let name = command.get_program().to_string_lossy().into_owned();
            if error.kind() == ErrorKind::NotFound {
                let cure = "check the name, or give the path";
                failure(127, format!("there is no program {name:?}: {cure}"))
            } else {
                failure(126, format!("cannot start {name:?}: {error}"))
            }
        }
        Err(failure) => failure,
    }
}

fn prepare(args: Args) -> Result<Command, Failure> {
    let options = options(&args)?;
    let mut command = command(&args.command)?;
    if !args.quiet && env::var_os("GPUPOOL_STATS").is_none() {
        command.env("GPUPOOL_STATS", "summary");
    }
    command.envs(options);
    Ok(command)
}

/// A program and its arguments, prepared to start with the library.
pub fn command(words: &[OsString]) -> Result<Command, Failure> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(failure(
            2,
            String::from("no program given: write it behind --"),
        ));
    };
    let library = library_path()?;
    let preload = preload(&library, env::var_os("LD_PRELOAD"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .env_remove("GPUPOOL_LIB");
    Ok(command)
}

/// The variables that `--set` and `--stats` ask for, checked. A later one of
/// the same name wins, and each wins over `--stats`.
fn options(args: &Args) -> Result<Vec<(OsString, OsString)>, Failure> {
    let mut options = Vec::new();
    if args.stats {
        options.push((OsString::from("GPUPOOL_STATS"), OsString::from("stderr")));
    }
    options.extend(settings(&args.set)?);
    Ok(options)
}

/// What `--set` asks for, checked, with the full names.
pub fn settings(set: &[OsString]) -> Result<Vec<(OsString, OsString)>, Failure> {
    let mut options = Vec::new();
    for setting in set {
        let (name, value) = split(setting)?;
        let (_, warnings) = Config::parse(std::iter::once((name.clone(), value.clone())));
        for warning in warnings {
            match warning.kind {
                // The library itself says so when the program starts.
                WarningKind::NotYet => {}
                WarningKind::UnknownName | WarningKind::BadValue => {
                    return Err(failure(2, format!("--set: {warning}")));
                }
            }
        }
        options.push((name, value));
    }
    Ok(options)
}

fn split(setting: &OsStr) -> Result<(OsString, OsString), Failure> {
    let bytes = setting.as_bytes();
    match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) if at > 0 => {
            let name = OsStr::from_bytes(&bytes[..at]);
            let mut full = OsString::new();
            if !name.as_bytes().starts_with(PREFIX.as_bytes()) {
                full.push(PREFIX);
            }
            full.push(name);
            Ok((full, OsStr::from_bytes(&bytes[at + 1..]).to_owned()))
        }
        _ => Err(failure(
            2,
            format!(
                "--set {:?}: write it as VAR=VALUE, for example --set MAX=8G",
                setting
            ),
        )),
    }
}

/// The library's absolute path: GPUPOOL_LIB, or beside this command.
pub fn library_path() -> Result<PathBuf, Failure> {
    library(env::var_os("GPUPOOL_LIB"), env::current_exe().ok())
}

/// The library's absolute path. `asked` is GPUPOOL_LIB, `command` the path of
/// this executable.
fn library(asked: Option<OsString>, command: Option<PathBuf>) -> Result<PathBuf, Failure> {
    if let Some(path) = asked.filter(|path| !path.is_empty()) {
        return match Path::new(&path).canonicalize() {
            Ok(found) if found.is_file() => Ok(found),
            Ok(_) => Err(failure(
                2,
                format!("GPUPOOL_LIB={path:?} is no file: name {LIBRARY} itself"),
            )),
            Err(error) => {
                let cure =
                    format!("correct it, or unset it to use the {LIBRARY} beside this command");
                Err(failure(2, format!("GPUPOOL_LIB={path:?}: {error}; {cure}")))
            }
        };
    }
    let folder = command
        .as_deref()
        .and_then(Path::parent)
        .unwrap_or(Path::new("."));
    let places = [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    for place in &places {
        if let Ok(found) = place.canonicalize()
            && found.is_file()
        {
            return Ok(found);
        }
    }
    Err(failure(
        2,
        format!(
            "{LIBRARY} is neither {:?} nor {:?}: put it there, or name it in GPUPOOL_LIB",
            places[0], places[1]
        ),
    ))
}

/// `library` before what was preloaded already.
fn preload(library: &Path, before: Option<OsString>) -> Result<OsString, Failure> {
    let path = library.as_os_str();
    // ld.so(8): blanks and colons separate, and nothing quotes them.
    if path
        .as_bytes()
        .iter()
        .any(|byte| byte.is_ascii_whitespace() || *byte == b':')
    {
        return Err(failure(
            2,
            format!(
                "LD_PRELOAD cannot hold {library:?}, which has a blank or a colon in it: move {LIBRARY}"
            ),
        ));
    }
    let mut value = path.to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        let mut others = before
            .as_bytes()
            .split(|byte| byte.is_ascii_whitespace() || *byte == b':');
        // Started by another `gpupool run`: once is enough.
        if others.any(|other| other == path.as_bytes()) {
            return Ok(before);
        }
        value.push(":");
        value.push(before);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T>(result: Result<T, Failure>) -> String {
        match result {
            Ok(_) => panic!("succeeded"),
            Err(failure) => failure.message,
        }
    }

    fn set(settings: &[&str], stats: bool) -> Result<Vec<(OsString, OsString)>, Failure> {
        options(&Args {
            set: settings.iter().map(OsString::from).collect(),
            stats,
            quiet: false,
            command: vec![OsString::from("true")],
        })
    }

    #[test]
    fn settings_are_checked_and_may_leave_out_the_prefix() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let Ok(options) = set(&["MAX=8G", "GPUPOOL_FREE=strict", "STATS=./a=b.json"], true) else {
            panic!("refused");
        };
        assert_eq!(
            options,
            [
                pair("GPUPOOL_STATS", "stderr"),
                pair("GPUPOOL_MAX", "8G"),
                pair("GPUPOOL_FREE", "strict"),
                pair("GPUPOOL_STATS", "./a=b.json"),
            ]
        );
        assert!(message(set(&["MAX=lots"], false)).contains("GPUPOOL_MAX=\"lots\""));
        assert!(message(set(&["MOED=off"], false)).contains("did you mean GPUPOOL_MODE"));
        assert!(message(set(&["MAX"], false)).contains("VAR=VALUE"));
        assert!(message(set(&["=8G"], false)).contains("VAR=VALUE"));
    }

    #[test]
    fn the_library_is_looked_for_beside_the_command_and_in_lib() {
        let root = env::temp_dir().join(format!("gpupool-cli-{}", std::process::id()));
        let (bin, lib) = (root.join("bin"), root.join("lib"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&lib).unwrap();
        let find = |asked: Option<&Path>| {
            library(
                asked.map(|path| path.as_os_str().to_owned()),
                Some(bin.join("gpupool")),
            )
        };
        assert!(message(find(None)).contains("GPUPOOL_LIB"));
        let in_lib = lib.join(LIBRARY);
        std::fs::write(&in_lib, "").unwrap();
        assert_eq!(find(None).ok(), in_lib.canonicalize().ok());
        let beside = bin.join(LIBRARY);
        std::fs::write(&beside, "").unwrap();
        assert_eq!(find(None).ok(), beside.canonicalize().ok());
        assert_eq!(find(Some(&in_lib)).ok(), in_lib.canonicalize().ok());
        assert!(message(find(Some(&root.join("absent.so")))).contains("absent.so"));
        assert!(message(find(Some(&root))).contains("no file"));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_library_comes_first_and_once() {
        let join = |before: Option<&str>| {
            preload(Path::new("/opt/libgpupool.so"), before.map(OsString::from)).ok()
        };
        assert_eq!(join(None), Some("/opt/libgpupool.so".into()));
        assert_eq!(join(Some("")), Some("/opt/libgpupool.so".into()));
        assert_eq!(
            join(Some("a.so b.so")),
            Some("/opt/libgpupool.so:a.so b.so".into())
        );
        assert_eq!(
            join(Some("a.so:/opt/libgpupool.so")),
            Some("a.so:/opt/libgpupool.so".into())
        );
        assert!(message(preload(Path::new("/my folder/libgpupool.so"), None)).contains("blank"));
    }
}
