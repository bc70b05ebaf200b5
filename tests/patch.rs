//! Patches functions that are assembled in memory, and calls them: through the hook, and through the
//! trampoline.

#[path = "support/code.rs"]
mod code;

use std::sync::atomic::Ordering;

use code::{Code, ONE_AT_A_TIME, PAGE, call, entry, other_hook, prologues, rights_at};
use gpupool::hooks::patch::{self, Entry};

#[test]
fn every_prologue_reaches_the_hook_and_the_original() {
    let _one = ONE_AT_A_TIME.lock();
    for (name, code, argument, expected) in prologues() {
        // Aligned as compilers do, and across an aligned word, where one store is not enough.
        for offset in [0, 64, 5] {
            let memory = Code::new(1, &[(offset, &code)]);
            assert_eq!(
                memory.call(offset, argument),
                expected,
                "{name} is assembled right"
            );
            let before = memory.bytes();
            let entry = entry(name, memory.start + offset, true);
            let installed = patch::install(&[entry]).expect(name);
            assert_eq!(installed.patched, [name]);
            assert!(installed.skipped.is_empty() && installed.rights_left_open.is_none());
            assert_eq!(
                memory.call(offset, argument),
                argument + 1000,
                "{name} at +{offset}: the hook"
            );
            let original = entry.original.load(Ordering::Acquire);
            assert_eq!(
                call(original, argument),
                expected,
                "{name} at +{offset}: the original"
            );
            assert_eq!(rights_at(original), "r-xp");
            assert_eq!(
                memory.bytes()[offset + 5..],
                before[offset + 5..],
                "{name}: only five bytes change"
            );

            patch::uninstall(&installed).expect(name);
            assert_eq!(memory.bytes(), before, "{name}: uninstalled");
            assert_eq!(
                memory.call(offset, argument),
                expected,
                "{name} at +{offset}: uninstalled"
            );
            assert_eq!(
                call(original, argument),
                expected,
                "{name}: the trampoline outlives the patch"
            );
        }
    }
}

#[test]
fn rip_relative_operand_reads_the_same_word() {
    let _one = ONE_AT_A_TIME.lock();
    // cmp dword [rip+data],41; sete al; movzx eax,al; ret. The data is the next page's first word.
    let mut code = vec![
        0x81, 0x3d, 0, 0, 0, 0, 41, 0, 0, 0, 0x0f, 0x94, 0xc0, 0x0f, 0xb6, 0xc0, 0xc3,
    ];
    code[2..6].copy_from_slice(&((PAGE - 10) as u32).to_le_bytes());
    let memory = Code::new(1, &[(0, &code)]);
    assert_eq!(memory.call(0, 0), 1);
    let entry = entry("cmp", memory.start, true);
    patch::install(&[entry]).expect("patched");
    let original = entry.original.load(Ordering::Acquire);
    assert_eq!(memory.call(0, 7), 1007);
    assert_eq!(call(original, 0), 1);
    // SAFETY: the data page of this mapping, writable.
    unsafe { *((memory.start + PAGE) as *mut u32) = 40 };
    assert_eq!(call(original, 0), 0, "it is the same word, not a copy");
}

#[test]
fn an_optional_entry_that_is_refused_is_left_alone() {
    let _one = ONE_AT_A_TIME.lock();
    let code = prologues()[0].1.clone();
    let memory = Code::new(1, &[(0, &code), (64, &[0x89, 0xf8, 0xc3])]);
    let short = entry("short", memory.start + 64, false);
    let nowhere = entry("nowhere", 16, false);
    let good = entry("good", memory.start, true);
    let installed = patch::install(&[short, nowhere, good]).expect("patched");
    assert_eq!(installed.patched, ["good"]);
    let skipped: Vec<_> = installed
        .skipped
        .iter()
        .map(|refused| refused.entry)
        .collect();
    assert_eq!(skipped, ["short", "nowhere"]);
    assert!(
        installed.skipped[0].why.contains("only 3 bytes"),
        "{}",
        installed.skipped[0]
    );
    assert!(
        installed.skipped[1].why.contains("not mapped"),
        "{}",
        installed.skipped[1]
    );
    assert_eq!(memory.call(64, 5), 5);
    assert_eq!(short.original.load(Ordering::Acquire), 0);
    assert_eq!(memory.call(0, 5), 1005);
}

#[test]
fn a_second_entry_with_the_same_address_shares_the_first() {
    let _one = ONE_AT_A_TIME.lock();
    let code = prologues()[0].1.clone();
    let memory = Code::new(1, &[(0, &code)]);
    let first = entry("first", memory.start, true);
    let second = Entry {
        hook: other_hook as *const () as usize,
        ..entry("second", memory.start, true)
    };
    let installed = patch::install(&[first, second]).expect("patched");
    assert_eq!(installed.patched, ["first", "second"]);
    assert_eq!(memory.call(0, 5), 1005, "the first one's hook");
    assert_eq!(
        first.original.load(Ordering::Acquire),
        second.original.load(Ordering::Acquire)
    );
    assert_eq!(call(second.original.load(Ordering::Acquire), 5), 6);
    patch::uninstall(&installed).expect("unpatched");
    assert_eq!(memory.call(0, 5), 6);
}

#[test]
fn an_entry_inside_the_first_bytes_of_another_is_refused() {
    let _one = ONE_AT_A_TIME.lock();
    // nop; mov eax,edi; nop; nop; nop; ret: a second name for the same code begins at +1.
    let code: &[u8] = &[0x90, 0x89, 0xf8, 0x90, 0x90, 0x90, 0x90, 0xc3];
    let memory = Code::new(1, &[(0, code)]);
    let outer = entry("outer", memory.start, true);
    let inner = entry("inner", memory.start + 1, true);
    let refused = patch::install(&[inner, outer]).expect_err("refused");
    assert_eq!(refused.entry, "outer");
    assert!(refused.why.contains("inner begins inside"), "{refused}");
    assert_eq!(memory.call(0, 5), 5);
}

#[test]
fn a_function_patched_by_someone_else_keeps_both() {
    let _one = ONE_AT_A_TIME.lock();
    let code = prologues()[0].1.clone();
    let memory = Code::new(1, &[(0, &code)]);
    let first = entry("function", memory.start, true);
    patch::install(&[first]).expect("patched");
    let second = Entry {
        hook: other_hook as *const () as usize,
        ..entry("function", memory.start, true)
    };
    let installed = patch::install(&[second]).expect("patched again");
    assert_eq!(memory.call(0, 5), 2005);
    assert_eq!(
        call(second.original.load(Ordering::Acquire), 5),
        1005,
        "then the earlier hook"
    );
    patch::uninstall(&installed).expect("unpatched");
    assert_eq!(memory.call(0, 5), 1005);
}

#[test]
fn many_entries_fill_more_than_one_arena() {
    let _one = ONE_AT_A_TIME.lock();
    let code = prologues()[0].1.clone();
    let pieces: Vec<(usize, &[u8])> = (0..250).map(|index| (index * 32, &code[..])).collect();
    let memory = Code::new(2, &pieces);
    let entries: Vec<Entry> = pieces
        .iter()
        .map(|(offset, _)| entry("one of many", memory.start + offset, true))
        .collect();
    let installed = patch::install(&entries).expect("patched");
    assert_eq!(installed.patched.len(), 250);
    for (index, entry) in entries.iter().enumerate() {
        assert_eq!(call(entry.address, index as u64), index as u64 + 1000);
        assert_eq!(
            call(entry.original.load(Ordering::Acquire), index as u64),
            index as u64 + 1
        );
    }
}

#[test]
fn real_functions_of_libc_can_be_patched() {
    let _one = ONE_AT_A_TIME.lock();
    extern "C" fn hooked(_value: u64) -> u64 {
        12345
    }
    // Compiled code of unknown shape, with every kind of operand, in a file mapping.
    let functions: [(&'static str, usize); 3] = [
        ("a64l", a64l as *const () as usize),
        ("ffsll", ffsll as *const () as usize),
        ("toupper", libc::toupper as *const () as usize),
    ];
    let mut patched = 0;
    for (name, address) in functions {
        let letter = c"b".as_ptr() as u64;
        let argument = if name == "a64l" { letter } else { 97 };
        let expected = call(address, argument);
        let before = rights_at(address);
        let entry = Entry {
            hook: hooked as *const () as usize,
            ..entry(name, address, false)
        };
        let installed = patch::install(&[entry]).expect("optional");
        if installed.patched.is_empty() {
            continue;
        }
        patched += 1;
        assert_eq!(call(address, argument), 12345, "{name}");
        assert_eq!(
            call(entry.original.load(Ordering::Acquire), argument),
            expected,
            "{name}"
        );
        assert_eq!(rights_at(address), before, "{name}");
        patch::uninstall(&installed).expect("unpatched");
        assert_eq!(call(address, argument), expected, "{name}");
    }
    assert!(patched > 0, "not one of them could be patched");
}

unsafe extern "C" {
    fn a64l(text: *const libc::c_char) -> libc::c_long;
    fn ffsll(value: libc::c_longlong) -> libc::c_int;
}
