//! Moving the first instructions of a function somewhere else.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, Instruction,
    InstructionBlock, Mnemonic, OpKind,
};

/// Bytes of `jmp rel32`, which is what replaces the start of a function.
pub const JUMP: usize = 5;

/// How much of a function is looked at for branches back into its first bytes.
pub const LOOK: usize = 64;

/// Longest relocated code: at most five instructions are displaced, and the widest replacement of
/// one (an indirect call through a constant beside it) stays well below a fifth of this.
pub const MOST: usize = 128;

/// The start of a function, ready to be written elsewhere.
#[derive(Debug)]
pub struct Relocated {
    /// How many bytes of the function the instructions took in their old place: 5 to 19.
    pub displaced: usize,
    /// The same instructions for their new place, then a jump to what follows them in the old one.
    pub code: Vec<u8>,
}

/// Moves the instructions at `address` that a five-byte jump would touch to `new`.
///
/// `bytes` is the function's code as mapped, from `address` on, up to [`LOOK`] bytes of it.
/// RIP-relative operands, calls and short branches keep their targets.
///
/// # Errors
/// Says why the function must not be patched: it is too short, cannot be decoded, or something in
/// view jumps into the bytes that would be displaced.
pub fn relocate(bytes: &[u8], address: usize, new: usize) -> Result<Relocated, String> {
    let mut displaced = Vec::new();
    let mut length = 0;
    let start = address as u64;
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    while length < JUMP {
        if !decoder.can_decode() {
            return Err(format!("its code ends after {length} bytes"));
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(format!("its instruction at +{length} is not known"));
        }
        length += instruction.len();
        if ends_flow(&instruction) && length < JUMP {
            return Err(format!("it is only {length} bytes long"));
        }
        if is_call(&instruction) && target(&instruction) == Some(start + length as u64) {
            // `call next; pop reg` asks where the code lies.
            return Err("it takes its own address".to_owned());
        }
        displaced.push(instruction);
    }

    // A linear decode may run into padding or the next function; both look harmless, and what it
    // cannot decode ends it.
    let body = start..start + length as u64;
    let following = std::iter::from_fn(|| decoder.can_decode().then(|| decoder.decode()));
    let seen = displaced
        .iter()
        .copied()
        .chain(following.take_while(|instruction| !instruction.is_invalid()));
    for instruction in seen {
        let Some(target) = target(&instruction) else {
            continue;
        };
        // A call of the function itself is recursion: it may meet the hook. A jump may not.
        let recursion = target == start && is_call(&instruction);
        if body.contains(&target) && !recursion {
            return Err(format!(
                "the branch at +{} leads into its first {length} bytes",
                instruction.ip().wrapping_sub(start)
            ));
        }
    }

    let back =
        Instruction::with_branch(Code::Jmp_rel32_64, body.end).map_err(|why| why.to_string())?;
    displaced.push(back);
    let block = InstructionBlock::new(&displaced, new as u64);
    let code = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE)
        .map_err(|why| format!("its first instructions cannot be moved: {why}"))?
        .code_buffer;
    if code.len() > MOST {
        return Err(format!(
            "its first instructions take {} bytes elsewhere",
            code.len()
        ));
    }
    Ok(Relocated {
        displaced: length,
        code,
    })
}

/// Whether nothing that follows in memory is reached from here.
fn ends_flow(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Jmp
            | Mnemonic::Ret
            | Mnemonic::Retf
            | Mnemonic::Iret
            | Mnemonic::Iretd
            | Mnemonic::Iretq
            | Mnemonic::Int3
            | Mnemonic::Ud0
            | Mnemonic::Ud1
            | Mnemonic::Ud2
            | Mnemonic::Hlt
    )
}

fn is_call(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Call
}

/// Where a direct branch, of any kind, leads.
fn target(instruction: &Instruction) -> Option<u64> {
    matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    )
    .then(|| instruction.near_branch_target())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: usize = 0x7f00_0000_1000;
    const NEW: usize = 0x7f00_0100_0000;

    fn refusal(bytes: &[u8]) -> String {
        relocate(bytes, OLD, NEW).expect_err("refused")
    }

    fn decoded(relocated: &Relocated) -> Vec<Instruction> {
        Decoder::with_ip(64, &relocated.code, NEW as u64, DecoderOptions::NONE)
            .into_iter()
            .collect()
    }

    #[test]
    fn plain_prologue_is_copied_and_jumps_back() {
        // push rbp; mov rbp,rsp; push r12; sub rsp,8
        let bytes = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08];
        let moved = relocate(&bytes, OLD, NEW).expect("movable");
        assert_eq!(moved.displaced, 6);
        assert_eq!(moved.code[..6], bytes[..6]);
        let last = decoded(&moved).pop().expect("a jump");
        assert_eq!(last.near_branch_target(), (OLD + 6) as u64);
    }

    #[test]
    fn rip_relative_operand_keeps_its_address() {
        // cmp dword [rip+0x100], 0x7 (7+3 bytes)
        let bytes = [
            0x81, 0x3d, 0x00, 0x01, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0xc3,
        ];
        let moved = relocate(&bytes, OLD, NEW).expect("movable");
        assert_eq!(moved.displaced, 10);
        assert_eq!(
            decoded(&moved)[0].ip_rel_memory_address(),
            (OLD + 10 + 0x100) as u64
        );
    }

    #[test]
    fn short_branch_is_widened() {
        // test edi,edi; je +0x20; xor eax,eax
        let bytes = [0x85, 0xff, 0x74, 0x20, 0x31, 0xc0, 0xc3];
        let moved = relocate(&bytes, OLD, NEW).expect("movable");
        assert_eq!(moved.displaced, 6);
        assert_eq!(
            decoded(&moved)[1].near_branch_target(),
            (OLD + 4 + 0x20) as u64
        );
    }

    #[test]
    fn data_out_of_reach_is_refused() {
        let bytes = [
            0x81, 0x3d, 0x00, 0x01, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0xc3,
        ];
        let far = relocate(&bytes, OLD, OLD + (1 << 33)).expect_err("too far");
        assert!(far.contains("cannot be moved"), "{far}");
    }

    #[test]
    fn short_functions_are_refused() {
        assert!(refusal(&[0xc3, 0x90, 0x90, 0x90, 0x90, 0x90]).contains("only 1 bytes"));
        assert!(refusal(&[0xeb, 0x10, 0x90, 0x90, 0x90, 0x90]).contains("only 2 bytes"));
        assert!(refusal(&[0x31, 0xc0]).contains("ends after 2 bytes"));
        assert!(refusal(&[0x06, 0x90, 0x90, 0x90, 0x90, 0x90]).contains("not known"));
    }

    #[test]
    fn a_function_of_exactly_five_bytes_is_movable() {
        // xor eax,eax; nop; nop; ret
        let moved = relocate(&[0x31, 0xc0, 0x90, 0x90, 0xc3], OLD, NEW).expect("movable");
        assert_eq!(moved.displaced, 5);
    }

    #[test]
    fn branches_into_the_displaced_bytes_are_refused() {
        // push rbp; mov rbp,rsp; nop; dec edi; jne +1 (back to the mov)
        let later = [
            0x55, 0x48, 0x89, 0xe5, 0x90, 0xff, 0xcf, 0x75, 0xf8, 0x5d, 0xc3,
        ];
        assert!(
            refusal(&later).contains("+7 leads into"),
            "{}",
            refusal(&later)
        );
        // je to the next displaced instruction
        let within = [0x74, 0x00, 0x31, 0xc0, 0x90, 0xc3];
        assert!(refusal(&within).contains("+0 leads into"));
        // jump back to the very start
        let whole = [0x90, 0x90, 0x90, 0x90, 0x90, 0xeb, 0xf9];
        assert!(refusal(&whole).contains("+5 leads into"));
    }

    #[test]
    fn recursion_is_allowed_and_own_address_is_not() {
        // five nops; call start; ret
        let recursive = [
            0x90, 0x90, 0x90, 0x90, 0x90, 0xe8, 0xf6, 0xff, 0xff, 0xff, 0xc3,
        ];
        assert_eq!(
            relocate(&recursive, OLD, NEW).expect("movable").displaced,
            5
        );
        // call +0; pop rax; ret
        assert!(refusal(&[0xe8, 0, 0, 0, 0, 0x58, 0xc3]).contains("own address"));
    }
}
