//! Build script of the preload package: links libgpupool.so against glibc 2.28, whatever the system
//! has, and without libgcc_s.
//!
//! The linker takes a symbol's version from the library that it finds at link time, so a library
//! built on a new system normally refuses to load on an old one. This script makes stand-ins for
//! libc and its family, with nothing in them but the names and versions of `preload/glibc/symbols-2.28.txt`,
//! and puts them first in the linker's search path. Only a C compiler is needed. The stand-ins are
//! link-time only; their file names are such that no dynamic linker ever takes them for the real
//! ones (cargo adds build folders to `LD_LIBRARY_PATH` in some commands).

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name shows up in the linker's command line, which is printed when a symbol is missing.
const FOLDER: &str = "missing-symbols-see-preload-glibc-symbols-2.28.txt";

fn main() {
    let data = PathBuf::from(var("CARGO_MANIFEST_DIR")).join("glibc");
    for name in [
        "build.rs",
        "glibc/symbols-2.28.txt",
        "glibc/nonshared.c",
        "glibc/find_object.c",
    ] {
        println!("cargo::rerun-if-changed={name}");
    }
    let target = var("TARGET");
    assert!(
        target == "x86_64-unknown-linux-gnu",
        "libgpupool.so is for x86_64-unknown-linux-gnu (x86-64 Linux with glibc), not for {target}"
    );

    let out = PathBuf::from(var("OUT_DIR")).join(FOLDER);
    fs::create_dir_all(&out).expect("the build folder is writable");
    let table = fs::read_to_string(data.join("symbols-2.28.txt"))
        .expect("preload/glibc/symbols-2.28.txt is there");
    for (soname, versions) in parse(&table) {
        stand_in(&out, &soname, &versions);
    }

    archive(&out, &data, "nonshared");
    archive(&out, &data, "find_object");
    let at = |file: &str| format!("\"{}\"", out.join(file).display());
    // As in the system's own libc.so: what is static first, the loader only if something needs it.
    script(
        &out,
        "libc.so",
        &format!(
            "GROUP ( {} {} {} AS_NEEDED ( {} ) )",
            at("stand-in-libc.so.6"),
            at("libnonshared.a"),
            at("libfind_object.a"),
            at("stand-in-ld-linux-x86-64.so.2")
        ),
    );
    for (name, soname) in [
        ("libpthread.so", "libpthread.so.0"),
        ("libdl.so", "libdl.so.2"),
        ("libm.so", "libm.so.6"),
    ] {
        script(
            &out,
            name,
            &format!(
                "INPUT ( AS_NEEDED ( {} ) )",
                at(&format!("stand-in-{soname}"))
            ),
        );
    }
    // Asked for on the command line by the standard library, used by nothing here.
    for name in ["librt.so", "libutil.so"] {
        script(
            &out,
            name,
            &format!("INPUT ( AS_NEEDED ( {} ) )", at("stand-in-libc.so.6")),
        );
    }
    // The unwinder goes inside: a process without C++ then does not load libgcc_s for our sake.
    script(
        &out,
        "libgcc_s.so",
        &format!(
            "GROUP ( \"{}\" \"{}\" )",
            of_compiler("libgcc_eh.a"),
            of_compiler("libgcc.a")
        ),
    );

    for argument in [
        &format!("-L{}", out.display()),
        "-Wl,-soname,libgpupool.so",
        // A symbol that the table lacks fails here, not on the user's machine.
        "-Wl,-z,defs",
        // Patched code and the runtime's tables point into the library: it can never leave.
        "-Wl,-z,nodelete",
        // No lazy binding: it would take the loader's lock in the middle of an allocation.
        "-Wl,-z,now",
        // Inside the library, its own `dlsym` and `cudaMalloc` are the ones meant.
        "-Wl,-Bsymbolic-functions",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}

/// Version to names, in the order of the table.
type Versions = BTreeMap<String, Vec<String>>;

/// Reads the table: soname to versions to names.
fn parse(table: &str) -> BTreeMap<String, Versions> {
    let mut libraries: BTreeMap<String, Versions> = BTreeMap::new();
    let mut section = None;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        if let Some(head) = line.strip_prefix('[') {
            let (soname, version) =
                head.trim_end_matches(']')
                    .split_once(' ')
                    .unwrap_or_else(|| {
                        panic!(
                            "preload/glibc/symbols-2.28.txt: \"{line}\" is not \"[soname version]\""
                        )
                    });
            section = Some((soname.to_owned(), version.to_owned()));
            continue;
        }
        for name in line.split_whitespace() {
            let (soname, version) = section.clone().unwrap_or_else(|| {
                panic!("preload/glibc/symbols-2.28.txt: \"{name}\" comes before any section")
            });
            libraries
                .entry(soname)
                .or_default()
                .entry(version)
                .or_default()
                .push(name.to_owned());
        }
    }
    libraries
}

/// Makes one stand-in library: every name at the same empty spot, each with its version.
fn stand_in(out: &Path, soname: &str, versions: &Versions) {
    let mut assembly = String::from(".section .note.GNU-stack,\"\",@progbits\n.text\n");
    let mut script = String::new();
    for (version, names) in versions {
        writeln!(script, "{version} {{ global:").expect("a String takes all");
        for name in names {
            writeln!(script, "  {name};").expect("a String takes all");
            writeln!(assembly, ".globl {name}\n.type {name},@function\n{name}:")
                .expect("a String takes all");
        }
        script.push_str("};\n");
    }
    assembly.push_str("nop\n");
    let source = out.join(format!("stand-in-{soname}.s"));
    let map = out.join(format!("stand-in-{soname}.map"));
    fs::write(&source, assembly).expect("the build folder is writable");
    fs::write(&map, script).expect("the build folder is writable");
    let mut command = compiler();
    command
        .args(["-shared", "-nostdlib", "-o"])
        .arg(out.join(format!("stand-in-{soname}")))
        .arg(format!(
            "-Wl,-soname,{soname},--version-script,{}",
            map.display()
        ))
        .arg(&source);
    let status = command
        .status()
        .unwrap_or_else(|why| panic!("the C compiler does not start: {why} ({command:?})"));
    assert!(
        status.success(),
        "the C compiler refused the stand-in for {soname}: {command:?}"
    );
}

/// Compiles one of the C files of `preload/glibc/` into an archive. It is linked only as far as it is used.
fn archive(out: &Path, data: &Path, name: &str) {
    cc::Build::new()
        .file(data.join(format!("{name}.c")))
        .out_dir(out)
        .pic(true)
        .opt_level(2)
        .cargo_metadata(false)
        .warnings(true)
        .compile(name);
}

/// Writes a linker script that the linker takes for the library `name`.
fn script(out: &Path, name: &str, content: &str) {
    fs::write(out.join(name), format!("/* GNU ld script */\n{content}\n"))
        .expect("the build folder is writable");
}

/// Where the C compiler keeps a library of its own.
fn of_compiler(file: &str) -> String {
    let output = compiler()
        .arg(format!("-print-file-name={file}"))
        .output()
        .unwrap_or_else(|why| panic!("the C compiler does not start: {why}"));
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(
        Path::new(&path).is_absolute(),
        "the C compiler has no {file}; install gcc with its static libgcc"
    );
    path
}

fn compiler() -> Command {
    cc::Build::new().get_compiler().to_command()
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
