//! `gpupool report --flamegraph`, and how long a report of ten million calls
//! takes: on traces made here.
#![allow(clippy::unwrap_used, reason = "tests may fail loudly")]

mod reported;

use gpupool::trace::{Call, Chunk, End, Header, Object, Stack, end, header, objects, stacks};
use reported::{ALLOC, Folder, TIDS, calls, printed, report, trace};

/// A trace of three stacks: two calls on the first, one each on the others.
fn stacked() -> Vec<u8> {
    let mut bytes = header(&Header::default());
    bytes.extend_from_slice(&objects(&[Object {
        start: 0x1000,
        end: 0x9000,
        base: 0x1000,
        path: String::from("/no/such;object"),
    }]));
    let frames = [vec![0x2000, 0x3000], vec![0x2000, 0x4000], vec![0x5000]];
    let told: Vec<Stack> = (1..)
        .zip(frames)
        .map(|(number, frames)| Stack { number, frames })
        .collect();
    bytes.extend_from_slice(&stacks(&told));
    let mut chunk = Chunk::default();
    let call = Call {
        site: 0x2000,
        stack: 1,
        size: 10,
        took_ns: 3,
        ..ALLOC
    };
    let free = Call {
        is_free: true,
        size: 0,
        stack: 3,
        ..call
    };
    let other = Call { stack: 2, ..call };
    let bare = Call { stack: 0, ..call };
    for call in [
        call,
        Call {
            at_ns: 9_000,
            ..call
        },
        other,
        free,
        bare,
    ] {
        chunk.push(&call, 7);
    }
    bytes.extend_from_slice(chunk.finished());
    bytes.extend_from_slice(&end(&End { calls: 5, lost: 0 }));
    bytes
}

#[test]
fn a_flamegraph_adds_up_what_each_stack_weighs() {
    let folder = Folder::new("report-flame");
    let file = folder.file("a<b.trace", &stacked());
    let folded = folder.path("out.folded");
    let object = "/no/such:object";
    let lines = |weight: &str| {
        assert_eq!(
            printed(&["--flamegraph", &folded, "--weight", weight, &file]),
            ""
        );
        std::fs::read_to_string(&folded).unwrap()
    };
    assert_eq!(
        lines("bytes"),
        format!(
            "{object}+0x1000 10\n{object}+0x2000;{object}+0x1000 20\n{object}+0x3000;{object}+0x1000 10\n"
        )
    );
    assert_eq!(
        lines("time"),
        format!(
            "{object}+0x1000;[allocate] 3\n{object}+0x2000;{object}+0x1000;[allocate] 6\n\
             {object}+0x3000;{object}+0x1000;[allocate] 3\n{object}+0x4000;[free] 3\n"
        )
    );
    assert!(lines("calls").contains("+0x4000;[free] 1\n"));
    let picture = folder.path("out.svg");
    printed(&["--flamegraph", &picture, &file]);
    let text = std::fs::read_to_string(&picture).unwrap();
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let document = roxmltree::Document::parse_with_options(&text, options).unwrap();
    let titles: Vec<&str> = document
        .descendants()
        .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "title")))
        .filter_map(|node| node.text())
        .collect();
    assert!(titles.contains(&"all (40 bytes, 100%)"), "{titles:?}");
    assert!(text.contains("Allocation calls of a&lt;b.trace, by bytes"));
    // Without stacks the call sites are shown, and a line says how to have more.
    let file = folder.file("plain.trace", &trace(&calls(), true));
    let output = report(&["--flamegraph", &folded, "--weight", "calls", &file]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && stderr.contains("GPUPOOL_TRACE_STACKS=on"),
        "{stderr}"
    );
    let text = std::fs::read_to_string(&folded).unwrap();
    assert!(text.contains("app+0x1234;[allocate] 4\n"), "{text}");
    // The trace is never written over.
    let output = report(&["--flamegraph", &file, &file]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(std::fs::read(&file).unwrap(), trace(&calls(), true));
}

/// Ten million calls in less than 30 s and 1 GiB. By hand, as it depends on the
/// machine: `cargo test --release -p gpupool-cli --test flamegraph -- --ignored
/// --nocapture ten_million`.
#[test]
#[ignore = "measures; run it by hand"]
#[allow(clippy::print_stdout, reason = "a measurement")]
fn ten_million_calls_are_reported_soon() {
    const PAIRS: u64 = 5_000_000;
    let folder = Folder::new("report-ten-million");
    let mut bytes = trace(&[], false);
    let mut seed = 1u64;
    let mut held: Vec<u64> = Vec::new();
    let mut chunk = Chunk::default();
    for number in 0..2 * PAIRS {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let thread = (number / 2000 % 4) as u32;
        // Up to ten thousand blocks are live.
        let frees = held.len() > 10_000 || number % 2 == 1 && !held.is_empty();
        let at = (seed >> 33) as usize % held.len().max(1);
        let address = match frees {
            true => held.swap_remove(at),
            false => 0x7F00_0000_0000 + number * 512,
        };
        if !frees {
            held.push(address);
        }
        let call = Call {
            is_free: frees,
            thread,
            at_ns: number * 1_000,
            took_ns: 100 + (seed >> 56),
            address,
            size: if frees { 0 } else { 1 + (seed >> 42) },
            site: 0x40_0000 + (seed >> 20) % 5_000,
            ..ALLOC
        };
        chunk.push(&call, TIDS[0] + thread);
        if number % 2000 == 1999 {
            bytes.extend_from_slice(chunk.finished());
            chunk.clear();
        }
    }
    let file = folder.file("ten.trace", &bytes);
    let length = bytes.len() as f64 / f64::from(1 << 20);
    drop(bytes);
    let output = folder.path("out.html");
    let start = std::time::Instant::now();
    assert_eq!(printed(&[&file, "-o", &output]), "");
    let seconds = start.elapsed().as_secs_f64();
    // SAFETY: an all-zero rusage is valid, and is written to.
    let most = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), 0);
        usage.ru_maxrss as f64 / 1024.0
    };
    println!("10,000,000 calls ({length:.0} MiB): {seconds:.1} s, {most:.0} MiB");
    assert!(seconds < 30.0 && most < 1024.0, "{seconds} s, {most} MiB");
    let page = std::fs::read_to_string(&output).unwrap();
    assert!(page.contains("10,000,000 calls"));
}
