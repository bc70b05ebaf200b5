//! Whether the process's seccomp filters let through what an attach makes it
//! do. A filter can kill the process for a call, so that trying is no way to
//! find out: the filters are read and run here.

use std::io;

use libc::c_long;

use super::stub::REGION;

/// `AUDIT_ARCH_X86_64`.
const ARCHITECTURE: u32 = 0xc000_003e;
const ACTION: u32 = 0xffff_0000;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
/// Most filters that one process has.
const FILTERS: usize = 64;

/// The calls, with arguments as they will be.
fn calls() -> Vec<(&'static str, c_long, [u64; 6])> {
    let place = 0x1000_0000_0000;
    vec![
        (
            "mmap",
            libc::SYS_mmap,
            [place, REGION, 3, 0x10_4022, u64::MAX, 0],
        ),
        ("mmap", libc::SYS_mmap, [0, 1 << 20, 5, 2, 3, 0]),
        (
            "rt_sigprocmask",
            libc::SYS_rt_sigprocmask,
            [2, place, place, 8, 0, 0],
        ),
        ("ppoll", libc::SYS_ppoll, [0, 0, place, 0, 8, 0]),
        ("munmap", libc::SYS_munmap, [place, REGION, 0, 0, 0, 0]),
        (
            "openat",
            libc::SYS_openat,
            [(-100_i64) as u64, place, 0x8_0000, 0, 0, 0],
        ),
        ("read", libc::SYS_read, [3, place, 832, 0, 0, 0]),
        (
            "newfstatat",
            libc::SYS_newfstatat,
            [3, place, place, 0x1000, 0, 0],
        ),
        ("mprotect", libc::SYS_mprotect, [place, 4096, 1, 0, 0, 0]),
        ("mprotect", libc::SYS_mprotect, [place, 4096, 5, 0, 0, 0]),
        ("close", libc::SYS_close, [3, 0, 0, 0, 0, 0]),
        ("gettid", libc::SYS_gettid, [0; 6]),
        ("futex", libc::SYS_futex, [place, 128, 0, 0, 0, 0]),
    ]
}

/// One instruction of a classic BPF program (linux/filter.h).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

/// A filter's answer for a call. `None` if the program is not understood.
fn run(filter: &[Instruction], call: c_long, arguments: &[u64; 6]) -> Option<u32> {
    // struct seccomp_data: number, architecture, instruction pointer, arguments.
    let mut data = Vec::with_capacity(64);
    data.extend((call as u32).to_le_bytes());
    data.extend(ARCHITECTURE.to_le_bytes());
    data.extend(0_u64.to_le_bytes());
    arguments
        .iter()
        .for_each(|word| data.extend(word.to_le_bytes()));
    let (mut a, mut x, mut at) = (0_u32, 0_u32, 0_usize);
    let mut scratch = [0_u32; 16];
    loop {
        let Instruction {
            code,
            if_true,
            if_false,
            value,
        } = *filter.get(at)?;
        at += 1;
        let operand = if code & 8 != 0 { x } else { value };
        match code {
            // Loads: of the data, a constant, a scratch word, the length.
            0x20 => {
                let start = value as usize;
                a = u32::from_le_bytes(data.get(start..start + 4)?.try_into().ok()?);
            }
            0x00 => a = value,
            0x01 => x = value,
            0x60 => a = *scratch.get(value as usize)?,
            0x61 => x = *scratch.get(value as usize)?,
            0x80 => a = 64,
            0x81 => x = 64,
            0x02 => *scratch.get_mut(value as usize)? = a,
            0x03 => *scratch.get_mut(value as usize)? = x,
            0x07 => x = a,
            0x87 => a = x,
            // Arithmetic.
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c => a = a.checked_div(operand)?,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.checked_shl(operand)?,
            0x74 | 0x7c => a = a.checked_shr(operand)?,
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= operand,
            // Jumps, only forward.
            0x05 => at += value as usize,
            0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                let holds = match code & 0xf0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    _ => a & operand != 0,
                };
                at += usize::from(if holds { if_true } else { if_false });
            }
            0x06 => return Some(value),
            0x16 => return Some(a),
            _ => return None,
        }
    }
}

/// What the filters allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything; `memory_file`: also a file in memory (memfd_create).
    Allowed { memory_file: bool },
    /// Not this call.
    Forbidden(&'static str),
}

/// Runs all filters for all calls.
fn judge(filters: &[Vec<Instruction>]) -> Verdict {
    let allowed = |call, arguments: &[u64; 6]| {
        filters.iter().all(|filter| {
            run(filter, call, arguments)
                .is_some_and(|answer| matches!(answer & ACTION, ALLOW | LOG))
        })
    };
    for (name, call, arguments) in calls() {
        if !allowed(call, &arguments) {
            return Verdict::Forbidden(name);
        }
    }
    let arguments = [0x1000_0000_0000, 1, 0, 0, 0, 0];
    Verdict::Allowed {
        memory_file: allowed(libc::SYS_memfd_create, &arguments),
    }
}

/// Reads the filters of a thread that this command holds stopped.
///
/// # Errors
/// The kernel's: only root of the whole machine may read them.
fn read(tid: i32) -> io::Result<Vec<Vec<Instruction>>> {
    const GET_FILTER: i32 = 0x420c;
    let mut filters = Vec::new();
    for index in 0..FILTERS {
        // SAFETY: with a null pointer the call only says how long the program is.
        let length = unsafe {
            libc::ptrace(
                GET_FILTER as _,
                tid,
                index,
                std::ptr::null_mut::<Instruction>(),
            )
        };
        if length < 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::ENOENT) && index > 0 {
                return Ok(filters);
            }
            return Err(error);
        }
        let none = Instruction {
            code: 0,
            if_true: 0,
            if_false: 0,
            value: 0,
        };
        let mut filter = vec![none; length as usize];
        // SAFETY: there is room for the program, whose length does not change.
        let got = unsafe { libc::ptrace(GET_FILTER as _, tid, index, filter.as_mut_ptr()) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        filters.push(filter);
    }
    Ok(filters)
}

/// The line of `/proc/PID/status` as a number.
fn field(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix(':')?
                .trim()
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

/// What may be made in the process, of which a thread is held stopped.
/// `status` is the text of `/proc/PID/status`, `own` this command's own.
///
/// # Errors
/// Why that cannot be known, with what to do.
pub fn verdict(tid: i32, status: &str, own: &str) -> Result<Verdict, String> {
    match field(status, "Seccomp") {
        0 => return Ok(Verdict::Allowed { memory_file: true }),
        1 => return Ok(Verdict::Forbidden("mmap")),
        _ => {}
    }
    match read(tid) {
        Ok(filters) => Ok(judge(&filters)),
        Err(error) => {
            // In one container all processes usually have the container's filters.
            let filters = |status| field(status, "Seccomp_filters");
            let same = filters(own) > 0 && filters(own) == filters(status);
            if same {
                Ok(Verdict::Allowed { memory_file: true })
            } else {
                Err(format!(
                    "it has a seccomp filter, and what that forbids cannot be read ({error}): run this command as root, on the host and not in a container"
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u16, value: u32, if_true: u8, if_false: u8) -> Instruction {
        Instruction {
            code,
            if_true,
            if_false,
            value,
        }
    }

    /// A filter that answers `answer` for one call and lets all others through.
    fn against(call: c_long, answer: u32) -> Vec<Instruction> {
        vec![
            instruction(0x20, 4, 0, 0),
            instruction(0x15, ARCHITECTURE, 1, 0),
            instruction(0x06, 0, 0, 0),
            instruction(0x20, 0, 0, 0),
            instruction(0x15, call as u32, 0, 1),
            instruction(0x06, answer, 0, 0),
            instruction(0x06, ALLOW, 0, 0),
        ]
    }

    #[test]
    fn what_a_filter_forbids_is_named() {
        const ERRNO: u32 = 0x0005_0001;
        let all = Verdict::Allowed { memory_file: true };
        assert_eq!(judge(&[]), all);
        assert_eq!(judge(&[against(libc::SYS_reboot, ERRNO)]), all);
        for kills in [0, ERRNO, 0x8000_0000, 0x0003_0000] {
            assert_eq!(
                judge(&[
                    against(libc::SYS_reboot, 0),
                    against(libc::SYS_ppoll, kills)
                ]),
                Verdict::Forbidden("ppoll")
            );
        }
        assert_eq!(judge(&[against(libc::SYS_ppoll, LOG)]), all);
        assert_eq!(
            judge(&[against(libc::SYS_memfd_create, ERRNO)]),
            Verdict::Allowed { memory_file: false }
        );
        // Not understood is not allowed.
        assert_eq!(
            judge(&[vec![instruction(0xff, 0, 0, 0)]]),
            Verdict::Forbidden("mmap")
        );
        assert_eq!(judge(&[vec![]]), Verdict::Forbidden("mmap"));
    }

    #[test]
    fn arguments_are_looked_at() {
        // Executable memory by mprotect: the third argument, and 4.
        let filter = vec![
            instruction(0x20, 0, 0, 0),
            instruction(0x15, libc::SYS_mprotect as u32, 0, 4),
            instruction(0x20, 16 + 16, 0, 0),
            instruction(0x54, 4, 0, 0),
            instruction(0x15, 0, 1, 0),
            instruction(0x06, 0, 0, 0),
            instruction(0x06, ALLOW, 0, 0),
        ];
        assert_eq!(judge(&[filter]), Verdict::Forbidden("mprotect"));
    }

    #[test]
    fn the_kinds_of_filtering_are_told_apart() {
        let verdict = |status, own| verdict(i32::MAX, status, own);
        let all = Ok(Verdict::Allowed { memory_file: true });
        assert_eq!(verdict("Seccomp:\t0\n", ""), all);
        assert_eq!(verdict("Seccomp:\t1\n", ""), Ok(Verdict::Forbidden("mmap")));
        let filtered = "Seccomp:\t2\nSeccomp_filters:\t1\n";
        assert!(
            verdict(filtered, "Seccomp:\t0\n")
                .unwrap_err()
                .contains("root")
        );
        assert_eq!(verdict(filtered, filtered), all);
    }
}
