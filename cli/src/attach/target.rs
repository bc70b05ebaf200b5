//! The process that is to be attached to: whether that is possible at all, and
//! if not, what to do.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::Failure;
use super::image::Image;

/// A running process.
#[derive(Debug)]
pub struct Target {
    pub pid: i32,
    /// As ps has it.
    pub name: String,
    /// The text of `/proc/PID/status` when it was opened.
    pub status: String,
}

fn failure(message: String) -> Failure {
    Failure { message, code: 1 }
}

/// A line of `/proc/PID/status`.
fn line<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

fn status(pid: i32) -> io::Result<String> {
    fs::read(format!("/proc/{pid}/status")).map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// What a process's own name is, for messages.
fn name_of(pid: i32) -> String {
    status(pid)
        .ok()
        .and_then(|status| line(&status, "Name").map(str::to_owned))
        .unwrap_or_default()
}

impl Target {
    /// Looks at the process, without touching it.
    ///
    /// # Errors
    /// Why it cannot be attached to, with what to do.
    pub fn open(pid: i32) -> Result<Self, Failure> {
        if pid <= 0 {
            return Err(failure(format!("{pid} is no process id")));
        }
        if pid == std::process::id() as i32 {
            return Err(failure(format!("process {pid} is this command itself")));
        }
        let status = status(pid).map_err(|_| failure(not_there(pid)))?;
        let name = line(&status, "Name").unwrap_or("").to_owned();
        let target = Self { pid, name, status };
        target.check()?;
        Ok(target)
    }

    /// "process 123 (python3)".
    pub fn called(&self) -> String {
        format!("process {} ({})", self.pid, self.name)
    }

    fn check(&self) -> Result<(), Failure> {
        let who = self.called();
        let get = |name| line(&self.status, name);
        if let Some(group) = get("Tgid").and_then(|id| id.parse::<i32>().ok())
            && group != self.pid
        {
            return Err(failure(format!(
                "{} is a thread of process {group}: name the process",
                self.pid
            )));
        }
        let alone = get("Threads").is_none_or(|count| count == "1" || count == "0");
        match get("State").and_then(|state| state.bytes().next()) {
            // A leader that has ended leaves its other threads running.
            Some(b'Z') if alone => {
                return Err(failure(format!(
                    "{who} has ended; it only waits for its parent (zombie)"
                )));
            }
            Some(b'X') => return Err(failure(format!("{who} is just ending"))),
            Some(b'T') => {
                return Err(failure(format!(
                    "{who} is stopped: continue it first, with kill -CONT {}",
                    self.pid
                )));
            }
            _ => {}
        }
        if let Some(tracer) = get("TracerPid").and_then(|id| id.parse::<i32>().ok())
            && tracer != 0
        {
            return Err(failure(format!(
                "{who} is traced by process {tracer} ({}), a debugger, strace or the like; only one at a time can: end that first",
                name_of(tracer)
            )));
        }
        if get("VmSize").is_none() && alone {
            return Err(failure(format!(
                "{who} has no memory of its own: it is a kernel thread, or just ending"
            )));
        }
        self.check_program()
    }

    /// The kind of program: its file's first bytes.
    fn check_program(&self) -> Result<(), Failure> {
        let who = self.called();
        let mut header = [0; 20];
        let read = fs::File::open(format!("/proc/{}/exe", self.pid))
            .and_then(|mut file| io::Read::read_exact(&mut file, &mut header));
        match read {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(failure(self.no_right(&error)));
            }
            // Gone, or a file that can no longer be read: its memory tells.
            Err(_) => return Ok(()),
        }
        if header[..4] == *b"\x7fELF" {
            let machine = u16::from_le_bytes([header[18], header[19]]);
            if header[4] == 1 {
                return Err(failure(format!(
                    "{who} is a 32-bit program: this is for 64-bit programs on x86-64, as CUDA is"
                )));
            }
            if machine != 62 {
                return Err(failure(format!(
                    "{who} is a program for another processor (ELF machine {machine}): this is for x86-64"
                )));
            }
        }
        Ok(())
    }

    /// Why the kernel does not let this command trace the process.
    pub fn no_right(&self, error: &io::Error) -> String {
        let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
            .ok()
            .and_then(|text| text.trim().parse().ok());
        // SAFETY: no arguments, no failure.
        let own = unsafe { libc::geteuid() };
        let owner = line(&self.status, "Uid")
            .and_then(|ids| ids.split_ascii_whitespace().next()?.parse().ok());
        format!(
            "no right to trace {}: {error}; {}",
            self.called(),
            cure(own, owner.unwrap_or(0), scope)
        )
    }

    /// The objects that matter: libc, and the dynamic linker.
    ///
    /// # Errors
    /// The program has none.
    pub fn libc<'a>(&self, images: &'a [Image]) -> Result<&'a Image, Failure> {
        let is_libc = |image: &&Image| {
            let name = image.name();
            name == "libc.so.6" || (name.starts_with("libc-2.") && name.ends_with(".so"))
        };
        if let Some(libc) = images.iter().find(is_libc) {
            return Ok(libc);
        }
        let musl = images
            .iter()
            .any(|image| image.name().starts_with("ld-musl") || image.name().contains("musl"));
        let who = self.called();
        Err(failure(if musl {
            format!("{who} uses musl as its C library: the library needs glibc")
        } else {
            format!(
                "{who} is statically linked: it has no dynamic linker that could load the library"
            )
        }))
    }

    /// Whether it has ended meanwhile.
    pub fn has_ended(&self) -> bool {
        !status(self.pid).is_ok_and(|status| {
            line(&status, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
        })
    }
}

/// What to do about a missing right.
fn cure(own: u32, owner: u32, scope: Option<u32>) -> String {
    match scope {
        Some(3) => "kernel.yama.ptrace_scope is 3, which forbids it to everybody until the next boot: start the program with the library instead (gpupool run)".to_owned(),
        Some(2) if own != 0 => "kernel.yama.ptrace_scope is 2, which leaves it to root: run this command as root".to_owned(),
        _ if own != 0 && own != owner => format!(
            "it belongs to user {owner} and this is user {own}: run this command as root, or as that user"
        ),
        Some(1) if own != 0 => "kernel.yama.ptrace_scope is 1, which allows it to a process's parents only: run this command as root, or set it to 0 (sysctl kernel.yama.ptrace_scope=0)".to_owned(),
        _ if own == 0 => "this root has no CAP_SYS_PTRACE there: in a container start it with --cap-add SYS_PTRACE, or run this command on the host".to_owned(),
        _ => "the process has more rights than this user, or is set not to be dumped (prctl PR_SET_DUMPABLE): run this command as root".to_owned(),
    }
}

/// There is no such process; perhaps it is a number from inside a container.
fn not_there(pid: i32) -> String {
    let inner: Vec<String> = numbers()
        .into_iter()
        .filter_map(|other| {
            let status = status(other).ok()?;
            let ids: Vec<&str> = line(&status, "NSpid")?.split_ascii_whitespace().collect();
            (ids.len() > 1 && ids.last()?.parse() == Ok(pid))
                .then(|| format!("{other} ({})", line(&status, "Name").unwrap_or("")))
        })
        .collect();
    let hint = if inner.is_empty() {
        "processes of other containers have other numbers there than here; ps or nvidia-smi show those that count here".to_owned()
    } else {
        format!(
            "inside a container {pid} is the number of a process that is {} here",
            inner.join(" or ")
        )
    };
    format!("there is no process {pid}: {hint}")
}

fn numbers() -> Vec<i32> {
    let Ok(folder) = fs::read_dir(PathBuf::from("/proc")) else {
        return Vec::new();
    };
    folder
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_right_has_its_cure() {
        assert!(cure(1000, 1000, Some(1)).contains("ptrace_scope=0"));
        assert!(cure(1000, 1000, Some(2)).contains("as root"));
        assert!(cure(0, 0, Some(3)).contains("gpupool run"));
        assert!(cure(1000, 1001, Some(0)).contains("user 1001"));
        assert!(cure(1000, 1001, None).contains("user 1001"));
        assert!(cure(0, 1000, None).contains("SYS_PTRACE"));
        assert!(cure(1000, 1000, Some(0)).contains("dumped"));
    }

    #[test]
    fn numbers_that_are_no_process_are_refused() {
        let message = |pid| Target::open(pid).unwrap_err().message;
        assert!(message(0).contains("no process id"));
        assert!(message(-5).contains("no process id"));
        assert!(message(std::process::id() as i32).contains("itself"));
        assert!(message(i32::MAX).contains("there is no process"));
    }
}
