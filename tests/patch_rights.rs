//! What patching does to page rights, and that a refusal leaves the process as it was.

#[path = "support/code.rs"]
mod code;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use code::{
    Code, ONE_AT_A_TIME, PAGE, READ_EXEC, ReadOnlyCode, call, entry, prologues, rights, rights_at,
};
use gpupool::hooks::patch;

#[test]
fn page_rights_are_kept_as_found() {
    let _one = ONE_AT_A_TIME.lock();
    let code = prologues()[0].1.clone();
    // One function in the first page, one across the second and third, one in the fourth; the
    // second page has unusual rights.
    let across = 2 * PAGE - 3;
    let memory = Code::new(4, &[(0, &code), (across, &code), (3 * PAGE + 16, &code)]);
    memory.protect(1, 1, READ_EXEC | libc::PROT_WRITE);
    let before = rights();
    let entries = [
        entry("first", memory.start, true),
        entry("across", memory.start + across, true),
        entry("fourth", memory.start + 3 * PAGE + 16, true),
    ];
    let installed = patch::install(&entries).expect("patched");
    let mut after = rights();
    for entry in &entries {
        assert_eq!(call(entry.address, 1), 1001);
        assert_eq!(call(entry.original.load(Ordering::Acquire), 1), 2);
    }
    for page in 0..5 {
        let address = memory.start + page * PAGE;
        let old = before
            .range(..=address)
            .next_back()
            .expect("mapped")
            .1
            .1
            .clone();
        assert_eq!(rights_at(address), old, "page {page}");
    }
    assert_eq!(rights_at(memory.start), "r-xp");
    assert_eq!(rights_at(memory.start + PAGE), "rwxp");

    // What is new in the process is executable and not writable, and near enough.
    after.retain(|start, range| before.get(start) != Some(range));
    for (start, (_, letters)) in after
        .iter()
        .filter(|(_, (_, letters))| letters.contains('x'))
    {
        assert!(
            !letters.contains('w') || *start == memory.start + PAGE,
            "{start:x} {letters}"
        );
    }
    patch::uninstall(&installed).expect("unpatched");
    patch::uninstall(&installed).expect("twice does no harm");
    assert_eq!(memory.call(across, 1), 2);
    assert_eq!(rights_at(memory.start + PAGE), "rwxp");
}

#[test]
fn a_required_entry_that_is_refused_changes_nothing() {
    let _one = ONE_AT_A_TIME.lock();
    let code = prologues()[0].1.clone();
    // ret; then a function whose loop jumps into its first bytes: push rbp; mov; nop; dec edi; jne
    let looping: &[u8] = &[
        0x55, 0x48, 0x89, 0xe5, 0x90, 0xff, 0xcf, 0x75, 0xf8, 0x5d, 0xc3,
    ];
    let memory = Code::new(1, &[(0, &code), (64, &[0xc3]), (128, looping)]);
    let before = memory.bytes();
    for (offset, reason) in [
        (64, "only 1 bytes"),
        (128, "+7 leads into"),
        (PAGE, "not in executable memory"),
    ] {
        let good = entry("good", memory.start, true);
        let bad = entry("bad", memory.start + offset, true);
        let mapped = rights();
        let refused = patch::install(&[good, bad]).expect_err("refused");
        assert_eq!(refused.entry, "bad");
        assert!(refused.why.contains(reason), "{refused}");
        assert_eq!(memory.bytes(), before);
        assert_eq!(
            good.original.load(Ordering::Acquire),
            0,
            "no slot is published"
        );
        let code_pages = |ranges: &BTreeMap<usize, (usize, String)>| {
            ranges
                .iter()
                .filter(|(_, (_, letters))| letters.contains('x'))
                .map(|(a, b)| (*a, b.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            code_pages(&rights()),
            code_pages(&mapped),
            "no page stays behind"
        );
    }
    assert_eq!(memory.call(0, 5), 6);
}

/// Under a rule that refuses writable code, as SELinux can set: prctl(PR_SET_MDWE), which lasts for
/// the process and its children, so it happens in a child.
#[test]
fn refused_page_rights_leave_the_process_as_it_was() {
    const CHILD: &str = "GP_TEST_NO_WRITABLE_CODE";
    const PR_SET_MDWE: i32 = 65;
    const REFUSE_EXEC_GAIN: u64 = 1;
    if std::env::var_os(CHILD).is_none() {
        let me = std::env::current_exe().expect("this test has a path");
        let output = std::process::Command::new(me)
            .args([
                "--exact",
                "refused_page_rights_leave_the_process_as_it_was",
                "--nocapture",
            ])
            .env(CHILD, "1")
            .output()
            .expect("this test starts again");
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        if text.contains("SKIP") {
            println!("SKIP: the kernel has no PR_SET_MDWE (Linux 6.3)");
        }
        return;
    }
    let code = prologues()[0].1.clone();
    let memory = Code::new(1, &[(0, &code)]);
    // SAFETY: changes only what this child may map from now on.
    if unsafe { libc::prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) } != 0 {
        println!("SKIP");
        return;
    }
    let before = (memory.bytes(), rights_at(memory.start));
    let entry = entry("hardened", memory.start, true);
    let refused = patch::install(&[entry]).expect_err("refused");
    assert_eq!(refused.entry, "hardened");
    assert!(refused.why.contains("ermission denied"), "{refused}");
    assert_eq!((memory.bytes(), rights_at(memory.start)), before);
    assert_eq!(entry.original.load(Ordering::Acquire), 0);
    assert_eq!(memory.call(0, 5), 6);
}

#[test]
fn pages_that_cannot_be_made_writable_leave_all_others_as_they_were() {
    let _one = ONE_AT_A_TIME.lock();
    let code = prologues()[0].1.clone();
    // On both sides of the refused page, whichever of them the system puts first.
    let memory = [Code::new(1, &[(0, &code)]), Code::new(1, &[(0, &code)])];
    let read_only = ReadOnlyCode::new(&code);
    let before = rights();
    let entries = [
        entry("low", memory[0].start, true),
        entry("read-only", read_only.start, true),
        entry("high", memory[1].start, true),
    ];
    let refused = patch::install(&entries).expect_err("refused");
    assert_eq!(refused.entry, "read-only");
    assert!(
        refused.why.contains("made writable: Permission denied"),
        "{refused}"
    );
    let mut after = rights();
    after.retain(|start, range| before.get(start) != Some(range));
    assert!(
        !after.values().any(|(_, letters)| letters.contains('x')),
        "{after:x?}"
    );
    for entry in &entries {
        assert_eq!(call(entry.address, 5), 6);
        assert_eq!(entry.original.load(Ordering::Acquire), 0);
        assert_eq!(rights_at(entry.address)[..3], *"r-x");
    }
}
