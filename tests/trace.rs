//! GPUPOOL_TRACE on the simulated driver: the file says what the program did.
#![allow(clippy::unwrap_used, reason = "tests may fail loudly")]

mod support;

use gpupool::trace::{Call, Memory, Reader, Trace};
use std::collections::BTreeMap;
use std::path::Path;
use support::{Folder, Outcome, Run, run_program};

/// One call as a program tells it, or as the trace has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    what: String,
    bytes: u64,
    address: u64,
    result: u32,
}

/// What `traced … tell` printed, by thread.
fn told(stdout: &str) -> BTreeMap<u32, Vec<Told>> {
    let mut threads: BTreeMap<u32, Vec<Told>> = BTreeMap::new();
    for line in stdout.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [tid, what, kind, bytes, address, result] = words[..] else {
            panic!("not a call: {line:?}");
        };
        let address = address.strip_prefix("0x").unwrap_or(address);
        threads.entry(tid.parse().unwrap()).or_default().push(Told {
            what: format!("{what} {kind}"),
            bytes: bytes.parse().unwrap(),
            address: u64::from_str_radix(address, 16).unwrap(),
            result: result.parse().unwrap(),
        });
    }
    threads
}

/// The same of a trace.
fn recorded(trace: &Trace) -> BTreeMap<u32, Vec<Told>> {
    let mut calls = trace.calls.clone();
    calls.sort_by_key(|call| call.at_ns);
    let mut threads: BTreeMap<u32, Vec<Told>> = BTreeMap::new();
    for call in calls {
        let kind = match call.memory {
            Memory::Device => "device",
            Memory::Managed => "managed",
            Memory::Async => "async",
            other => panic!("{other:?}"),
        };
        let what = if call.is_free { "free" } else { "alloc" };
        threads
            .entry(trace.threads[&call.thread])
            .or_default()
            .push(Told {
                what: format!("{what} {kind}"),
                bytes: call.size,
                address: call.address,
                result: call.result,
            });
    }
    threads
}

fn read(path: &Path) -> Trace {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    Trace::read(&bytes).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

fn traced(folder: &Folder, flavour: &str, how: &str) -> (Outcome, Trace) {
    let path = folder.path().join(format!("{flavour}-{how}.trace"));
    let outcome = run_program("traced", flavour)
        .args([how, "tell"])
        .with_lib(true)
        .env("GPUPOOL_TRACE", &path)
        // The program itself calls the driver in its child.
        .env("SIMCUDA_ALLOW", "forked-child")
        .run()
        .expect_success();
    assert_eq!(outcome.stderr, "");
    let trace = read(&path);
    (outcome, trace)
}

// covers: GPUPOOL_TRACE
/// Every call of every thread, in order, with its size, address and result:
/// threads that end early, and every way in which a process ends.
#[test]
fn the_trace_has_what_the_program_did() {
    let folder = Folder::new("trace");
    for flavour in ["shared", "static"] {
        for how in ["return", "quick", "thread", "late", "fork"] {
            let (outcome, trace) = traced(&folder, flavour, how);
            let (told, recorded) = (told(&outcome.stdout), recorded(&trace));
            let name = format!("{flavour} {how}");
            assert_eq!(told.len(), recorded.len(), "{name}: threads");
            for (tid, calls) in &told {
                assert_eq!(recorded.get(tid), Some(calls), "{name}: thread {tid}");
            }
            assert!(!trace.truncated, "{name}");
            let end = trace.end.unwrap_or_else(|| panic!("{name}: no end"));
            let late = if how == "late" { 2 } else { 0 };
            assert_eq!(
                (end.calls + late, end.lost),
                (trace.calls.len() as u64, 0),
                "{name}"
            );
        }
    }
}

/// Beside what the program itself sees: who served, where, for how long.
#[test]
fn the_trace_says_who_served_and_where_the_call_came_from() {
    let folder = Folder::new("trace-fields");
    for flavour in ["shared", "static"] {
        let (_, trace) = traced(&folder, flavour, "return");
        assert_eq!(trace.header.library, env!("CARGO_PKG_VERSION"));
        let of = |is_free: bool, memory: Memory| {
            trace
                .calls
                .iter()
                .filter(move |call| call.is_free == is_free && call.memory == memory)
        };
        let device: Vec<&Call> = of(false, Memory::Device).collect();
        let pooled = device.iter().filter(|call| call.pooled).count();
        // All but what no device can give and the first of a pitch.
        assert_eq!(device.len() - pooled, 2, "{flavour}");
        for call in &device {
            assert!(call.stream.is_none() && call.took_ns > 0, "{call:?}");
        }
        let places: Vec<_> = device.iter().filter_map(|call| call.place).collect();
        assert!(
            places
                .iter()
                .all(|place| *place == places[0] && place.device == 0)
        );
        for call in of(false, Memory::Async).chain(of(true, Memory::Async)) {
            assert!(call.stream.is_some_and(|stream| stream > 2), "{call:?}");
            assert!(!call.pooled);
        }
        assert_eq!(of(false, Memory::Managed).count(), 1);
        // Of `every_kind`'s device calls the driver's own come from libcuda's
        // user, which here is the program itself.
        for call in &trace.calls {
            let (object, offset) = trace
                .place_of(call.site)
                .unwrap_or_else(|| panic!("{flavour}: {call:?} is in no object"));
            let name = Path::new(&object.path)
                .file_name()
                .unwrap()
                .to_string_lossy();
            let in_program = name.starts_with("traced");
            let by_runtime = !matches!(call.memory, Memory::Device) && flavour == "shared";
            assert!(
                in_program || (by_runtime && name.starts_with("libcudart")),
                "{name} {call:?}"
            );
            assert!(offset > 0 && offset < object.end - object.base);
        }
        let sites: std::collections::BTreeSet<u64> =
            trace.calls.iter().map(|call| call.site).collect();
        assert!(sites.len() > 3, "{flavour}: {sites:?}");
    }
}

/// A process that is killed leaves what it had written, readable up to the
/// last whole record; so does a file that is cut anywhere.
#[test]
fn a_trace_without_an_end_is_readable() {
    let folder = Folder::new("trace-cut");
    let path = folder.path().join("whole.trace");
    run_program("churn", "shared")
        .arg("3000")
        .with_lib(true)
        .env("GPUPOOL_TRACE", &path)
        .run()
        .expect_success();
    let bytes = std::fs::read(&path).unwrap();
    let whole = Trace::read(&bytes).unwrap();
    assert!(whole.calls.len() > 5000 && whole.end.is_some());
    let mut last = 0;
    for length in (100..bytes.len()).step_by(977) {
        let mut reader = Reader::new(&bytes[..length]).unwrap();
        assert!(reader.by_ref().all(|item| item.is_ok()), "{length} bytes");
        let cut = Trace::read(&bytes[..length]).unwrap();
        assert!(cut.calls.len() >= last && cut.end.is_none());
        last = cut.calls.len();
    }
    assert!(last > whole.calls.len() / 2);
}

#[test]
fn observed_calls_are_recorded_too() {
    let folder = Folder::new("trace-observe");
    let path = folder.path().join("%p.trace");
    run_program("churn", "static")
        .arg("200")
        .with_lib(true)
        .env("GPUPOOL_TRACE", &path)
        .env("GPUPOOL_MODE", "observe")
        .run()
        .expect_success();
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let trace = read(&files[0].as_ref().unwrap().path());
    assert!(trace.calls.len() >= 400, "{}", trace.calls.len());
    assert!(
        trace
            .calls
            .iter()
            .all(|call| !call.pooled && call.result == 0)
    );
    let placed = trace.calls.iter().filter(|call| call.place.is_some());
    assert_eq!(placed.count(), trace.calls.len());
}

#[test]
fn no_trace_is_written_where_none_can_be() {
    let folder = Folder::new("trace-none");
    // Without CUDA there is no file at all.
    let path = folder.path().join("none.trace");
    Run::new("true")
        .with_lib(true)
        .env("GPUPOOL_TRACE", &path)
        .run()
        .expect_success();
    assert!(!path.exists());
    // A folder that is not there: one line, and the program runs.
    let absent = folder.path().join("absent/file.trace");
    let outcome = run_program("churn", "shared")
        .arg("50")
        .with_lib(true)
        .env("GPUPOOL_TRACE", &absent)
        .run()
        .expect_success();
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    for part in ["GPUPOOL_TRACE", "absent/file.trace"] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    // The device is full: the trace ends with a line, the program does not.
    let outcome = run_program("churn", "shared")
        .arg("2000")
        .with_lib(true)
        .env("GPUPOOL_TRACE", "/dev/full")
        .run()
        .expect_success();
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("GPUPOOL_TRACE"),
        "{}",
        outcome.stderr
    );
}

/// The name of the object that holds an address of the program's file.
fn is_in(trace: &Trace, address: u64, name: &str) -> bool {
    trace
        .place_of(address - 1)
        .is_some_and(|(object, _)| object.path.ends_with(name))
}

// covers: GPUPOOL_TRACE_STACKS
/// Each call's stack begins where the program made the call, and goes on to where the thread began;
/// also through the runtime, in the driver's hooks, where the pool does not answer.
#[test]
fn stacks_lead_from_the_call_to_the_beginning_of_the_thread() {
    let folder = Folder::new("trace-stacks");
    for (name, flavour, arguments) in [
        ("demo", "shared", &["40"][..]),
        ("demo", "static", &["40"]),
        ("traced", "shared", &["thread"]),
    ] {
        let path = folder.path().join(format!("{name}-{flavour}.trace"));
        let outcome = run_program(name, flavour)
            .args(arguments)
            .with_lib(true)
            .env("GPUPOOL_TRACE", &path)
            .env("GPUPOOL_TRACE_STACKS", "on")
            .run()
            .expect_success();
        let plain = run_program(name, flavour).args(arguments).run();
        assert_eq!(outcome.stdout, plain.stdout);
        let trace = read(&path);
        let file = path.file_stem().unwrap().to_str().unwrap();
        let file = file.trim_end_matches("-shared");
        let mut depths = 0;
        for call in &trace.calls {
            let stack = trace
                .stacks
                .get(&call.stack)
                .unwrap_or_else(|| panic!("{name}: a call without a stack: {call:?}"));
            assert_eq!(stack[0], call.site, "{name} {flavour}: {stack:x?}");
            let inside = stack.iter().filter(|frame| is_in(&trace, **frame, file));
            assert!(inside.count() > 0, "{name} {flavour}: {stack:x?}");
            assert!(
                stack
                    .iter()
                    .all(|frame| !is_in(&trace, *frame, "libgpupool.so")),
                "{stack:x?}"
            );
            let last = *stack.last().unwrap();
            assert!(
                is_in(&trace, last, "libc.so.6") || is_in(&trace, last, file),
                "{stack:x?}"
            );
            depths += stack.len();
        }
        assert!(depths > 2 * trace.calls.len(), "{name}: {depths}");
        let plain = folder.path().join("plain.trace");
        run_program(name, flavour)
            .args(arguments)
            .with_lib(true)
            .env("GPUPOOL_TRACE", &plain)
            .run()
            .expect_success();
        let plain = read(&plain);
        assert!(plain.stacks.is_empty() && plain.calls.iter().all(|call| call.stack == 0));
    }
}

/// On a stack that is not the thread's own nothing is read: behind its end there may be nothing.
#[test]
fn a_fiber_has_no_stack_and_comes_to_no_harm() {
    let folder = Folder::new("trace-fiber");
    let path = folder.path().join("fiber.trace");
    let outcome = run_program("fiber", "shared")
        .with_lib(true)
        .env("GPUPOOL_TRACE", &path)
        .env("GPUPOOL_TRACE_STACKS", "on")
        .run()
        .expect_success();
    assert_eq!(
        (outcome.stdout.as_str(), outcome.stderr.as_str()),
        ("rounds 100\n", "")
    );
    let trace = read(&path);
    let of = |size: u64| {
        let calls = trace.calls.iter().filter(move |call| call.size == size);
        let with = calls.clone().filter(|call| call.stack != 0).count();
        (calls.count(), with)
    };
    assert_eq!((of(4096), of(8192)), ((50, 50), (50, 0)));
    assert!(trace.calls.iter().all(|call| call.site != 0));
}
