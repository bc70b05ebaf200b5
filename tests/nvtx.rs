//! GPUPOOL_NVTX on the simulated driver, with a profiler of our own: a library that takes NVTX's
//! marks as Nsight Systems does, and writes them to a file.

mod support;

use std::path::{Path, PathBuf};

use support::{Folder, Outcome, compile, run_program};

/// What a profiler does, after NVIDIA's nvtxDetail/nvtxTypes.h: asks for the table of modules, and
/// puts its own functions into it. A line for each call: the thread, what it was, the text, the
/// payload.
const PROFILER: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} attributes;
typedef void (*function)(void);
typedef struct {
    size_t struct_size;
    int (*get_module)(int, function ***, unsigned *);
} callbacks;
typedef struct {
    size_t struct_size;
    uint32_t version, reserved;
    void (*set_version)(uint32_t);
} version_info;

static FILE *file;
static int the_domain;
static pid_t parent;

static void line(const char *what, void *domain, const attributes *a)
{
    if (domain != &the_domain || (a && (a->version != 3 || a->size != sizeof *a ||
        a->message_type != 1 || a->payload_type != 1 || a->color_type != 1)))
        what = "wrong";
    if (getpid() != parent)
        what = "child";
    fprintf(file, "%ld,%s,%s,%llu\n", syscall(SYS_gettid), what, a ? a->message : "",
            a ? (unsigned long long)a->payload : 0);
    fflush(file);
}

static void mark(void *domain, const attributes *a) { line("mark", domain, a); }
static int push(void *domain, const attributes *a) { line("push", domain, a); return 0; }
static int pop(void *domain) { line("pop", domain, NULL); return 0; }
static void *create(const char *name)
{
    return strcmp(name, "gpupool") == 0 ? &the_domain : NULL;
}

int InitializeInjectionNvtx2(const void *(*get_table)(uint32_t))
{
    const callbacks *table = get_table(1);
    const version_info *version = get_table(3);
    if (getenv("PROFILER_REFUSES") || !table || table->struct_size < sizeof *table ||
        !version || version->version != 3 || get_table(77))
        return 0;
    version->set_version(3);
    /* Number and size of each module; every place but the first can be written to. */
    static const unsigned sizes[] = {0, 16, 9, 15, 7, 16, 7};
    function **places;
    unsigned size;
    for (int module = 1; module <= 6; module++) {
        if (!table->get_module(module, &places, &size) || size != sizes[module] || places[0])
            return 0;
        for (unsigned number = 1; number < size; number++)
            *places[number] = NULL;
        if (places[size])
            return 0;
    }
    if (table->get_module(0, &places, &size) || table->get_module(7, &places, &size))
        return 0;
    table->get_module(5, &places, &size);
    *places[1] = (function)mark;
    *places[4] = (function)push;
    *places[5] = (function)pop;
    *places[12] = (function)create;
    parent = getpid();
    file = fopen(getenv("PROFILER_FILE"), "a");
    return file != NULL;
}
"#;

/// A mark that the profiler took.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    thread: String,
    what: String,
    text: String,
    payload: u64,
}

fn seen(path: &Path) -> Vec<Seen> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let [thread, what, text, payload] = fields[..] else {
                panic!("{line:?}");
            };
            Seen {
                thread: thread.to_owned(),
                what: what.to_owned(),
                text: text.to_owned(),
                payload: payload.parse().expect("a number"),
            }
        })
        .collect()
}

fn profiler(folder: &Folder) -> PathBuf {
    compile(folder, "cc", "profiler.so", PROFILER, &["-shared", "-fPIC"])
}

/// Runs a program with or without marks; what it printed, and the marks.
fn marked(
    (name, flavour): (&str, &str),
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> (Outcome, Vec<Seen>) {
    let folder = Folder::new(&format!("nvtx-{name}-{flavour}-{}", variables.len()));
    let file = folder.path().join("marks");
    let mut run = run_program(name, flavour)
        .args(arguments)
        .with_lib(true)
        .env("NVTX_INJECTION64_PATH", profiler(&folder))
        .env("PROFILER_FILE", &file);
    for (variable, value) in variables {
        run = run.env(variable, value);
    }
    let outcome = run.run().expect_success();
    let seen = seen(&file);
    assert_eq!(count(&seen, |one| one.what == "wrong"), 0);
    (outcome, seen)
}

fn count(seen: &[Seen], matches: impl Fn(&Seen) -> bool) -> u64 {
    seen.iter().filter(|one| matches(one)).count() as u64
}

// covers: GPUPOOL_NVTX
/// Marks agree with the library's own counters, call by call.
#[test]
fn every_hit_miss_free_and_growth_is_marked() {
    for flavour in ["shared", "static"] {
        let folder = Folder::new(&format!("nvtx-stats-{flavour}"));
        let stats = folder.path().join("stats.json");
        let (outcome, seen) = marked(
            ("churn", flavour),
            &["500"],
            &[
                ("GPUPOOL_NVTX", "on"),
                ("GPUPOOL_STATS", &stats.to_string_lossy()),
            ],
        );
        assert_eq!(outcome.stderr, "");
        let stats: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&stats).expect("statistics"))
                .expect("JSON");
        let context = |name: &str| {
            stats["devices"][0][name]
                .as_u64()
                .unwrap_or_else(|| panic!("{name}: {stats}"))
        };
        let hits = count(&seen, |one| one.text.ends_with(" hit"));
        let misses = count(&seen, |one| one.text.ends_with(" miss"));
        assert_eq!(
            (hits, misses),
            (context("hits"), context("misses")),
            "{flavour}"
        );
        assert!(hits + misses >= 500 && misses > 0, "{hits} {misses}");
        assert_eq!(
            count(&seen, |one| one.text == "free"),
            stats["frees"].as_u64().expect("a number")
        );
        let grown = count(&seen, |one| one.text.starts_with("grow "));
        assert_eq!(Some(grown), stats["driver"]["alloc_calls"].as_u64());
        // A size is in the text and in the payload.
        for one in seen.iter().filter(|one| one.text.starts_with("alloc ")) {
            let size = one
                .text
                .split(' ')
                .nth(1)
                .and_then(|size| size.parse().ok());
            assert_eq!(
                (one.what.as_str(), size),
                ("mark", Some(one.payload)),
                "{one:?}"
            );
        }
    }
}

/// Ranges end, in the thread in which they began.
#[test]
fn ranges_end_where_they_began() {
    // A kernel that ends only when this thread goes on: the wait is for its whole limit.
    let (_, seen) = marked(
        ("gated_kernel", "shared"),
        &[],
        &[("GPUPOOL_NVTX", "on"), ("GPUPOOL_INFLIGHT", "0")],
    );
    assert!(count(&seen, |one| one.text == "wait for the GPU") > 0);
    let (_, trimmed) = marked(
        ("given_back", "shared"),
        &[],
        &[("GPUPOOL_NVTX", "on"), ("GPUPOOL_MAX", "100%")],
    );
    assert!(count(&trimmed, |one| one.text.starts_with("give back ")) > 0);
    for seen in [seen, trimmed] {
        let mut open: std::collections::BTreeMap<&str, i64> = std::collections::BTreeMap::new();
        for one in &seen {
            let depth = open.entry(&one.thread).or_default();
            *depth += i64::from(one.what == "push") - i64::from(one.what == "pop");
            assert!(*depth >= 0, "{one:?}");
        }
        assert!(open.values().all(|depth| *depth == 0), "{open:?}");
    }
}

/// Off is off, also under a profiler; and the program sees nothing of it either way.
#[test]
fn without_the_option_there_are_no_marks() {
    let (off, seen) = marked(("churn", "shared"), &["300"], &[]);
    assert_eq!((seen.len(), off.stderr.as_str()), (0, ""));
    let (on, seen) = marked(("churn", "shared"), &["300"], &[("GPUPOOL_NVTX", "on")]);
    assert!(!seen.is_empty());
    assert_eq!(on.stdout, off.stdout);
}

/// One line says why there are no marks, and what to do.
#[test]
fn a_profiler_that_is_not_there_is_told() {
    let line = |run: support::Run| {
        let outcome = run
            .with_lib(true)
            .env("GPUPOOL_NVTX", "on")
            .run()
            .expect_success();
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{outcome:?}");
        lines[0].to_owned()
    };
    let churn = || {
        run_program("churn", "shared")
            .arg("50")
            .env_remove("NVTX_INJECTION64_PATH")
    };
    assert!(line(churn()).contains("nsys profile"));
    assert!(line(churn().env("NVTX_INJECTION64_PATH", "/no/such.so")).contains("/no/such.so"));
    let none = line(churn().env("NVTX_INJECTION64_PATH", "libc.so.6"));
    assert!(none.contains("no profiler for NVTX 3"), "{none}");
    let folder = Folder::new("nvtx-refuses");
    let refuses = churn()
        .env("NVTX_INJECTION64_PATH", profiler(&folder))
        .env("PROFILER_REFUSES", "1");
    assert!(line(refuses).contains("does not want any"));
}

/// A forked child, which frees its parent's memory, makes no marks.
#[test]
fn a_forked_child_makes_no_marks() {
    let (_, seen) = marked(
        ("fork", "shared"),
        &["child-frees", "20"],
        &[("GPUPOOL_NVTX", "on")],
    );
    assert!(count(&seen, |one| one.text == "free") > 0);
    assert_eq!(count(&seen, |one| one.what == "child"), 0);
}
