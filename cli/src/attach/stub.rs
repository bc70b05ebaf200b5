//! Code that one thread of the process runs in between, and that puts the
//! thread back by itself: from the moment it begins, the thread needs nobody.
//!
//! It is written where nothing else is, behind the last byte of some object's
//! code, together with all registers of the thread. It takes memory of its own
//! for a stack, keeps signals away, saves the vector registers and errno, and
//! then makes the calls that this command asks for, one after the other,
//! through a word in that memory. When told to, or when nobody has asked for
//! anything for [`PATIENCE`] (this command may have been killed), it puts
//! everything back, and jumps to where the thread was stopped.

use std::arch::global_asm;
use std::ops::Range;
use std::time::Duration;

use super::image::Image;
use super::memory::{self, Mapping, Memory, PAGE};
use super::threads::{Registers, resumption};

/// Bytes that the stub takes: its words, the vector registers, a stack.
pub const REGION: u64 = 1 << 20;

/// How long the stub waits for the next call; half as long again where the
/// system's timers are slow.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks.
pub const LOOK: Duration = Duration::from_micros(200);

global_asm!(
    r#"
    .pushsection .text.gpupool_stub, "ax", @progbits
    .p2align 4
    .globl gpupool_stub_start, gpupool_stub_leave, gpupool_stub_words, gpupool_stub_end
    .hidden gpupool_stub_start, gpupool_stub_leave, gpupool_stub_words, gpupool_stub_end
gpupool_stub_start:
    mov eax, 9                      # mmap
    mov rdi, [rip + .Lgpupool_w_region]
    mov esi, {region}
    mov edx, 3
    mov r10d, 0x104022              # private, anonymous, no reserve, never in place of another
    mov r8, -1
    xor r9d, r9d
    syscall
    cmp rax, [rip + .Lgpupool_w_region]
    jne .Lgpupool_restore
    mov rbx, rax
    mov eax, 14                     # rt_sigprocmask: block all
    mov edi, 2
    lea rsi, [rip + .Lgpupool_w_all]
    lea rdx, [rbx + 96]
    mov r10d, 8
    syscall
    mov eax, -1
    mov edx, -1
    xsave64 [rbx + 4096]
    lea rsp, [rbx + {region}]
    cld
    fninit
    mov dword ptr [rbx + 104], 0x1f80
    ldmxcsr [rbx + 104]
    mov rax, [rip + .Lgpupool_w_errno]            # __errno_location
    test rax, rax
    jz .Lgpupool_ready
    call rax
    mov ecx, [rax]
    mov [rbx + 112], rax
    mov [rbx + 120], ecx
.Lgpupool_ready:
    xor r13d, r13d                  # the last command done
.Lgpupool_again:
    xor r12d, r12d                  # looks since then
.Lgpupool_look:
    mov rax, [rbx]
    cmp rax, r13
    jne .Lgpupool_command
    inc r12
    cmp r12, [rip + .Lgpupool_w_looks]
    ja .Lgpupool_leave
    mov qword ptr [rbx + 128], 0
    mov qword ptr [rbx + 136], {look}
    mov eax, 271                    # ppoll of nothing: unlike nanosleep it leaves no restart behind
    xor edi, edi
    xor esi, esi
    lea rdx, [rbx + 128]
    xor r10d, r10d
    mov r8d, 8
    syscall
    jmp .Lgpupool_look
.Lgpupool_command:
    mov r13, rax
    mov r11, [rbx + 16]
    test r11, r11
    jz .Lgpupool_leave
    mov rdi, [rbx + 24]
    mov rsi, [rbx + 32]
    mov rdx, [rbx + 40]
    mov rcx, [rbx + 48]
    mov r8, [rbx + 56]
    mov r9, [rbx + 64]
    xor eax, eax
    call r11
    mov [rbx + 72], rax
    mov [rbx + 8], r13
    jmp .Lgpupool_again
gpupool_stub_leave:
.Lgpupool_leave:
    mov rax, [rbx + 112]            # errno as it was
    test rax, rax
    jz .Lgpupool_errno_done
    mov ecx, [rbx + 120]
    mov [rax], ecx
.Lgpupool_errno_done:
    mov eax, -1
    mov edx, -1
    xrstor64 [rbx + 4096]
    mov rax, [rbx + 96]
    mov rsp, [rip + .Lgpupool_w_rsp]
    lea rsp, [rsp - 144]            # below what a leaf function may use
    mov [rsp], rax
    mov eax, 11                     # munmap
    mov rdi, rbx
    mov esi, {region}
    syscall
    mov eax, 14                     # rt_sigprocmask: as before
    mov edi, 2
    mov rsi, rsp
    xor edx, edx
    mov r10d, 8
    syscall
.Lgpupool_restore:
    mov rsp, [rip + .Lgpupool_w_rsp]
    lea rsp, [rsp - 136]
    push qword ptr [rip + .Lgpupool_w_flags]
    popfq
    mov rsp, [rip + .Lgpupool_w_rsp]
    mov rax, [rip + .Lgpupool_w_rax]
    mov rbx, [rip + .Lgpupool_w_rbx]
    mov rcx, [rip + .Lgpupool_w_rcx]
    mov rdx, [rip + .Lgpupool_w_rdx]
    mov rsi, [rip + .Lgpupool_w_rsi]
    mov rdi, [rip + .Lgpupool_w_rdi]
    mov rbp, [rip + .Lgpupool_w_rbp]
    mov r8,  [rip + .Lgpupool_w_r8]
    mov r9,  [rip + .Lgpupool_w_r9]
    mov r10, [rip + .Lgpupool_w_r10]
    mov r11, [rip + .Lgpupool_w_r11]
    mov r12, [rip + .Lgpupool_w_r12]
    mov r13, [rip + .Lgpupool_w_r13]
    mov r14, [rip + .Lgpupool_w_r14]
    mov r15, [rip + .Lgpupool_w_r15]
    jmp qword ptr [rip + .Lgpupool_w_rip]
    .p2align 3
gpupool_stub_words:
.Lgpupool_w_region: .quad 0
.Lgpupool_w_errno: .quad 0
.Lgpupool_w_looks: .quad 0
.Lgpupool_w_all: .quad -1
.Lgpupool_w_rip: .quad 0
.Lgpupool_w_rsp: .quad 0
.Lgpupool_w_flags: .quad 0
.Lgpupool_w_rax: .quad 0
.Lgpupool_w_rbx: .quad 0
.Lgpupool_w_rcx: .quad 0
.Lgpupool_w_rdx: .quad 0
.Lgpupool_w_rsi: .quad 0
.Lgpupool_w_rdi: .quad 0
.Lgpupool_w_rbp: .quad 0
.Lgpupool_w_r8: .quad 0
.Lgpupool_w_r9: .quad 0
.Lgpupool_w_r10: .quad 0
.Lgpupool_w_r11: .quad 0
.Lgpupool_w_r12: .quad 0
.Lgpupool_w_r13: .quad 0
.Lgpupool_w_r14: .quad 0
.Lgpupool_w_r15: .quad 0
gpupool_stub_end:
    .popsection
"#,
    region = const REGION,
    look = const LOOK.as_nanos() as u64,
);

unsafe extern "C" {
    static gpupool_stub_start: u8;
    static gpupool_stub_leave: u8;
    static gpupool_stub_words: u8;
    static gpupool_stub_end: u8;
}

fn code() -> &'static [u8] {
    let start = &raw const gpupool_stub_start;
    // SAFETY: both symbols are the ends of the code above, which is readable
    // and never written.
    unsafe {
        std::slice::from_raw_parts(
            start,
            (&raw const gpupool_stub_end).offset_from(start) as usize,
        )
    }
}

/// Bytes of the stub.
pub fn size() -> usize {
    code().len()
}

/// Where the stub's word of that number lies in it.
pub fn word_at(index: usize) -> u64 {
    (words_at() + 8 * index) as u64
}

/// Where its words begin.
fn words_at() -> usize {
    (&raw const gpupool_stub_words as usize) - (&raw const gpupool_stub_start as usize)
}

/// Where the part begins that puts everything back.
pub fn leave_at() -> u64 {
    (&raw const gpupool_stub_leave as u64) - (&raw const gpupool_stub_start as u64)
}

/// The stub for a thread that is stopped with these registers.
pub fn filled(registers: &Registers, region: u64, errno_location: u64) -> Vec<u8> {
    let r = resumption(registers);
    let looks = PATIENCE.as_micros() as u64 / LOOK.as_micros() as u64;
    let words = [
        region,
        errno_location,
        looks,
        u64::MAX,
        r.rip,
        r.rsp,
        r.eflags,
        r.rax,
        r.rbx,
        r.rcx,
        r.rdx,
        r.rsi,
        r.rdi,
        r.rbp,
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
    ];
    let mut bytes = code().to_vec();
    let at = words_at();
    for (word, place) in words.iter().zip(bytes[at..].chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Places for the stub: executable and used by nobody, behind the last byte of
/// an object's code; the largest first.
pub fn rooms<'a>(images: impl Iterator<Item = &'a Image>, maps: &[Mapping]) -> Vec<Range<u64>> {
    let behind = |image: &Image| {
        image
            .code
            .iter()
            .filter_map(|code| {
                let start = code.end.next_multiple_of(16);
                let mapping = memory::find(maps, code.end.checked_sub(1)?)?;
                let end = code.end.next_multiple_of(PAGE).min(mapping.range.end);
                (mapping.executable && mapping.private && mapping.file.1 != 0 && start < end)
                    .then_some(start..end)
            })
            .max_by_key(|room| room.end - room.start)
    };
    let mut rooms: Vec<Range<u64>> = images
        .filter_map(behind)
        .filter(|room| room.end - room.start >= size() as u64)
        .collect();
    rooms.sort_by_key(|room| room.start.wrapping_sub(room.end));
    rooms
}

/// A stub of an earlier attach that did not come to its end.
pub struct Left {
    /// Whether a thread runs it still, and will for at most [`PATIENCE`] after
    /// its last call.
    pub runs: bool,
}

/// Whether a stub was left in that room.
pub fn left_in(room: &Range<u64>, memory: &Memory) -> Option<Left> {
    let bytes = memory.read_up_to(room.start, size());
    if bytes.get(..words_at())? != &code()[..words_at()] {
        return None;
    }
    let word = bytes.get(words_at()..words_at() + 8)?;
    let region = u64::from_le_bytes(word.try_into().ok()?);
    Some(Left {
        runs: memory.read_u64(region).is_ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stub_is_small_and_holds_the_registers() {
        assert!(size() < 1024, "{}", size());
        assert_eq!(size() - words_at(), 22 * 8);
        // SAFETY: all-zero is a valid value of this plain data.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        registers.orig_rax = u64::MAX;
        registers.rip = 0x1122;
        registers.r15 = 0x3344;
        let bytes = filled(&registers, 0x5566_0000, 0);
        let word = |index: usize| {
            let at = words_at() + 8 * index;
            u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
        };
        assert_eq!((word(0), word(4), word(21)), (0x5566_0000, 0x1122, 0x3344));
        assert_eq!(bytes[..words_at()], code()[..words_at()]);
    }
}
