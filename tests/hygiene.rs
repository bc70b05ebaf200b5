//! What `libgpupool.so` brings into a process: its symbols, the libraries that it needs, its size;
//! and that programs without CUDA do not notice it.

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use support::{Folder, Outcome, Run, compile, library};

const EXPORTS: [&str; 8] = [
    "cuInit",
    "cudaFree",
    "cudaMalloc",
    "cudaFreeHost",
    "cudaMalloc3D",
    "cudaMallocPitch",
    "dlopen",
    "dlsym",
];

/// The newest glibc that the library may ask for.
const GLIBC: (u32, u32) = (2, 28);

fn readelf(flags: &[&str]) -> String {
    Run::new("readelf")
        .arg("--wide")
        .args(flags)
        .arg(library())
        .env("LC_ALL", "C")
        .run()
        .expect_success()
        .stdout
}

#[test]
fn exactly_the_documented_symbols_are_exported() {
    let text = readelf(&["--dyn-syms"]);
    let exported: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [number, _, _, _, binding, _, section, name, ..] = fields[..] else {
                return None;
            };
            let defined = section != "UND" && binding != "LOCAL" && number.ends_with(':');
            (defined && number != "Num:").then_some(name)
        })
        .collect();
    assert_eq!(exported, BTreeSet::from(EXPORTS), "{text}");
    // A version on them would break references to libcudart's own versions.
    assert!(exported.iter().all(|name| !name.contains('@')));
    assert!(!readelf(&["--dynamic"]).contains("(VERDEF)"));
}

#[test]
fn nothing_newer_than_glibc_2_28_is_needed() {
    let text = readelf(&["--version-info"]);
    let versions: BTreeSet<(u32, u32)> = text
        .split("GLIBC_")
        .skip(1)
        .filter_map(|rest| {
            let number: String = rest
                .chars()
                .take_while(|c| c.is_ascii_digit() || *c == '.')
                .collect();
            let mut parts = number.split('.').map(str::parse);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        })
        .collect();
    let newest = versions.last().copied().expect("it needs glibc");
    assert!(newest <= GLIBC, "needs glibc {newest:?}: {text}");
    assert!(!text.contains("GLIBC_PRIVATE"), "{text}");
    assert!(
        !text.contains("GCC_"),
        "libgcc_s is linked dynamically: {text}"
    );
}

#[test]
fn only_libcs_family_is_needed() {
    let text = readelf(&["--dynamic"]);
    let allowed = BTreeSet::from([
        "libc.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "ld-linux-x86-64.so.2",
    ]);
    let needed: BTreeSet<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.split_once(']').map(|parts| parts.0))
        .collect();
    assert!(needed.contains("libc.so.6"), "{text}");
    assert!(needed.is_subset(&allowed), "{needed:?}");
    assert!(text.contains("soname: [libgpupool.so]"), "{text}");
    assert!(
        text.contains("NODELETE"),
        "patched code points into it: {text}"
    );
    // Room for such thread-locals is short in a process that is attached to.
    assert!(!text.contains("STATIC_TLS"), "{text}");
    assert!(!text.contains("TEXTREL"), "{text}");
    assert!(
        !text.contains("RPATH") && !text.contains("RUNPATH"),
        "{text}"
    );
}

#[test]
fn it_is_small() {
    let library = library();
    let size = library.metadata().expect("it is there").len();
    if library
        .parent()
        .is_some_and(|folder| folder.ends_with("release"))
    {
        assert!(size < 2 << 20, "{size} bytes");
    } else {
        println!("SKIP: {} is not a release build", library.display());
    }
}

/// Runs a program without and with the library: the same in everything, and silent.
#[track_caller]
fn same(make: impl Fn() -> Run) -> Outcome {
    let native = make().with_lib(false).run();
    let loaded = make().with_lib(true).run();
    assert!(!native.timed_out && !loaded.timed_out);
    assert_eq!(loaded.stdout, native.stdout);
    assert_eq!(loaded.stderr, native.stderr);
    assert_eq!(loaded.code(), native.code());
    loaded
}

// covers: without-cuda case-21
#[test]
fn programs_without_cuda_do_not_notice() {
    same(|| Run::new("true")).expect_success();
    assert_eq!(same(|| Run::new("false")).code(), 1);
    let script =
        "for i in 1 2 3; do (exit $i); echo $i $?; done | sort -r; ls / >/dev/null & wait; exit 7";
    let shell = same(|| Run::new("bash").args(["-c", script]));
    assert_eq!((shell.code(), shell.stderr.as_str()), (7, ""));
    assert_eq!(shell.stdout, "3 3\n2 2\n1 1\n");
    let git = same(|| Run::new("git").arg("--version")).expect_success();
    assert!(git.stdout.starts_with("git version") && git.stderr.is_empty());
    same(|| Run::new("git").args(["-C", "/", "status"]));
}

// covers: without-cuda case-21
/// The dynamic linker preloads nothing into these.
#[test]
fn statically_linked_programs_do_not_notice() {
    let folder = Folder::new("static");
    let source = "#include <stdio.h>
        int main(void) { puts(\"static\"); return 3; }";
    for flag in ["-static", "-static-pie"] {
        let program = compile(&folder, "cc", &flag[1..], source, &[flag]);
        let outcome = same(|| Run::new(&program));
        assert_eq!((outcome.stdout.as_str(), outcome.code()), ("static\n", 3));
    }
}

#[test]
fn python_and_its_children_do_not_notice() {
    if Run::new("bash")
        .args(["-c", "command -v python3"])
        .run()
        .code()
        != 0
    {
        println!("SKIP: no python3");
        return;
    }
    let script = "\
import ctypes, json, ssl, subprocess, sys, threading
libc = ctypes.CDLL(None)
print(json.dumps({'strlen': libc.strlen(b'four')}))
try:
    ctypes.CDLL('libcuda-that-is-not-there.so.1')
except OSError as error:
    print(error)
try:
    libc.no_such_function
except AttributeError as error:
    print(error)
thread = threading.Thread(target=lambda: print('thread')); thread.start(); thread.join()
print(subprocess.run([sys.executable, '-c', 'import os; os._exit(5)']).returncode)
";
    let outcome = same(|| Run::new("python3").args(["-c", script])).expect_success();
    assert_eq!(outcome.stderr, "");
    assert!(
        outcome
            .stdout
            .contains("undefined symbol: no_such_function"),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome.stdout.ends_with("thread\n5\n"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn a_program_with_address_sanitizer_inside_does_not_notice() {
    let folder = Folder::new("asan");
    let source = r#"
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
int main(int argc, char **) {
    std::vector<std::string> words(1000, "word");
    std::thread([&] { words.resize(2000); }).join();
    try { throw std::runtime_error("caught"); } catch (std::exception &error) { std::puts(error.what()); }
    std::printf("%zu\n", words.size());
    if (argc > 1) { volatile char *p = new char[8]; p[8] = 1; }
    return 3;
}
"#;
    if !Run::new("g++")
        .args(["-static-libasan", "-print-file-name=libasan.a"])
        .run()
        .stdout
        .starts_with('/')
    {
        println!("SKIP: g++ has no static AddressSanitizer");
        return;
    }
    let program = compile(
        &folder,
        "g++",
        "sanitized",
        source,
        &["-fsanitize=address", "-static-libasan", "-pthread"],
    );
    let outcome = same(|| Run::new(&program));
    assert_eq!(
        (
            outcome.code(),
            outcome.stdout.as_str(),
            outcome.stderr.as_str()
        ),
        (3, "caught\n2000\n", "")
    );
    // It still finds overruns.
    let broken = Run::new(&program).arg("overrun").with_lib(true).run();
    assert!(
        broken.stderr.contains("heap-buffer-overflow"),
        "{broken:#?}"
    );
    assert_ne!(broken.code(), 0);
}

/// The loader of an old system loads it. Such a system cannot be fetched in a test; whoever has one
/// unpacked in a folder (Debian 10 has glibc 2.28) says where.
#[test]
fn it_loads_on_an_old_system() {
    let Some(root) = std::env::var_os("GP_TEST_OLD_ROOT") else {
        println!("SKIP: GP_TEST_OLD_ROOT does not name a folder with an old system in it");
        return;
    };
    let root = Path::new(&root);
    // Under its versioned name: in some systems the usual one is a link with an absolute target.
    let loader = std::fs::read_dir(root.join("lib/x86_64-linux-gnu"))
        .expect("a Debian-like system")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("ld-2.") && name.ends_with(".so")
        })
        .expect("its glibc is older than 2.34");
    let libraries = [
        root.join("lib/x86_64-linux-gnu"),
        root.join("usr/lib/x86_64-linux-gnu"),
        root.join("lib64"),
    ];
    let path = std::env::join_paths(&libraries).expect("no colon in the folder's name");
    let python = "import ctypes; libc = ctypes.CDLL(None); print(libc.strlen(b'four')); libc.nothing_like_it";
    let programs = [
        ("true", vec![], 0),
        ("dash", vec!["-c", "echo here; exit 4"], 4),
        ("python3.9", vec!["-c", python], 1),
    ];
    for (program, arguments, code) in programs {
        let found = [
            root.join("bin").join(program),
            root.join("usr/bin").join(program),
        ];
        let Some(program) = found.into_iter().find(|path| path.exists()) else {
            println!("SKIP: the old system has no {program}");
            continue;
        };
        let make = || {
            let run = Run::new(&loader).env("PYTHONHOME", root.join("usr"));
            run.arg("--library-path")
                .arg(&path)
                .arg(&program)
                .args(&arguments)
        };
        assert_eq!(same(make).code(), code);
        let mapped = make().with_lib(true).env("LD_DEBUG", "files").run();
        let ours = |line: &str| line.contains("calling init: ") && line.ends_with("libgpupool.so");
        assert!(mapped.stderr.lines().any(ours), "{mapped:#?}");
    }
}
