//! `gpupool report` as a user sees it, on traces made here.
#![allow(clippy::unwrap_used, reason = "tests may fail loudly")]

mod reported;

use std::process::Command;

use gpupool::trace::{Call, Chunk, Header, header};
use reported::{ALLOC, FREE, Folder, MIB, TIDS, calls, printed, report, trace};
use serde_json::Value;

/// A page must be well-formed; what it says, the cells of its tables with one
/// row for each.
struct Page {
    text: String,
    rows: Vec<Vec<String>>,
}

fn read(page: &str) -> Page {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let tree = roxmltree::Document::parse_with_options(page, options)
        .unwrap_or_else(|error| panic!("{error}\n{page}"));
    let text_of = |node: roxmltree::Node<'_, '_>| -> String {
        node.descendants()
            .filter(roxmltree::Node::is_text)
            .filter_map(|node| node.text())
            .collect()
    };
    let named = |name: &'static str| tree.descendants().filter(move |n| n.has_tag_name(name));
    for name in ["script", "link", "img", "iframe", "object", "a"] {
        assert_eq!(named(name).count(), 0, "<{name}> in {page}");
    }
    for node in tree.descendants() {
        for attribute in node.attributes() {
            let loads = matches!(attribute.name(), "src" | "href" | "style");
            assert!(!loads, "{attribute:?}");
            // A chart of nothing still has places.
            assert!(!attribute.value().contains("NaN"), "{attribute:?}");
        }
    }
    for part in ["http", "url(", "@import", "//"] {
        assert!(!page.contains(part), "{part} in {page}");
    }
    Page {
        text: text_of(named("body").next().unwrap()),
        rows: named("tr")
            .map(|row| row.children().map(text_of).collect())
            .collect(),
    }
}

impl Page {
    fn row(&self, name: &str) -> Vec<&str> {
        let row = self.rows.iter().find(|row| row[0] == name);
        let row = row.unwrap_or_else(|| panic!("no {name}: {:#?}", self.rows));
        row.iter()
            .map(String::as_str)
            .filter(|cell| !cell.is_empty())
            .collect()
    }
}

#[test]
fn a_page_is_well_formed_and_has_the_totals() {
    let folder = Folder::new("report-page");
    let file = folder.file("a<&b.trace", &trace(&calls(), true));
    let text = printed(&[&file]);
    let page = read(&text);
    for part in [
        "7 calls (5 allocations, 2 frees) of 2 threads in 9.5 µs",
        "process 700, recorded by gpupool 0.1.0 <&>",
        // 5 MiB and 1 MiB; the 3 MiB were free before.
        "At most 6 MiB of device memory were live at once (6,291,456 bytes), first 5.5 µs into",
        "GPUPOOL_PREALLOC=6M",
        "asked for 11 MiB in all. All calls took 3.5 µs",
        "served 5 of them; 1 failed. At the end 2 blocks were live, 1 MiB of device memory",
        "live managed and stream-ordered memory",
        "GPU memory of a<&b.trace",
    ] {
        assert!(page.text.contains(part), "{part:?} not in {}", page.text);
    }
    assert!(!page.text.contains("no end"));
    let of = |name| page.row(name);
    assert_eq!(of("1 MiB to below 2 MiB")[1..], ["1", "1 MiB"]);
    assert_eq!(of("2 MiB to below 4 MiB")[1..], ["2", "5 MiB"]);
    assert_eq!(of("4 MiB to below 8 MiB")[1..], ["1", "5 MiB"]);
    let expected = ["4", "2", "85.7%", "9 MiB", "81.8%", "3 µs"];
    assert_eq!(of("device")[1..], expected);
    let expected = ["3", "1", "57.1%", "4 MiB", "36.4%", "2 µs"];
    assert_eq!(of("0 (tid 700)")[1..], expected);
    let expected = ["2", "1", "42.9%", "7 MiB", "63.6%", "1.5 µs"];
    assert_eq!(of("1 (tid 701)")[1..], expected);
    let expected = ["4", "2", "85.7%", "10 MiB", "90.9%", "3 µs"];
    assert_eq!(of("/opt/a <b> & c/app+0x1234")[1..], expected);
    let expected = ["1", "0", "14.3%", "1 MiB", "9.1%", "500 ns"];
    assert_eq!(of("0x1111, code of no file")[1..], expected);

    let output = folder.path("out.html");
    assert_eq!(printed(&[&file, "-o", &output]), "");
    assert_eq!(std::fs::read_to_string(&output).unwrap(), text);
}

#[test]
fn pages_of_tables_unfinished_and_empty_traces_are_whole() {
    let folder = Folder::new("report-kinds");
    let vision = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/traces/vision.csv.xz");
    let page = read(&printed(&[vision]));
    // The replay's peak.
    for part in [
        "23,823 calls (11,915 allocations, 11,908 frees) of one thread",
        "(952,618,591 bytes)",
        "GPUPOOL_PREALLOC=909M",
    ] {
        assert!(page.text.contains(part), "{part:?} not in {}", page.text);
    }
    for part in ["no end", "Call sites", "served", "time inside"] {
        assert!(!page.text.contains(part), "{part:?} in {}", page.text);
    }
    let whole = trace(&calls(), false);
    let unfinished = folder.file("unfinished", &whole);
    let page = read(&printed(&[&unfinished]));
    assert!(page.text.contains("The trace has no end"), "{}", page.text);
    let cut = folder.file("cut", &whole[..whole.len() - 3]);
    let page = read(&printed(&[&cut]));
    assert!(page.text.contains("6 calls"), "{}", page.text);
    let empty = folder.file("empty", &trace(&[], true));
    let page = read(&printed(&[&empty]));
    assert!(page.text.contains("No device memory"), "{}", page.text);
}

/// Many threads and places do not make an endless page, and none is dropped.
#[test]
fn long_tables_are_summed_up() {
    let folder = Folder::new("report-long");
    let lines: Vec<String> = (0..100)
        .map(|thread| format!("a,{thread},{thread},{:x},512\n", 4096 * (thread + 1)))
        .collect();
    let file = folder.file("table", lines.concat().as_bytes());
    let page = read(&printed(&[&file]));
    let expected = ["60", "0", "60.0%", "30 KiB", "60.0%"];
    assert_eq!(page.row("60 others")[1..], expected);
}

#[test]
fn perfetto_has_every_call_and_every_change() {
    let folder = Folder::new("report-perfetto");
    let file = folder.file("app.trace", &trace(&calls(), true));
    let text = printed(&[&file, "--perfetto"]);
    let whole: Value = serde_json::from_str(&text).unwrap();
    let events = whole["traceEvents"].as_array().unwrap();
    let of = |kind: &str| -> Vec<&Value> { events.iter().filter(|e| e["ph"] == kind).collect() };
    let names: Vec<_> = of("M").iter().map(|e| e["args"]["name"].clone()).collect();
    assert_eq!(names, ["process 700", "thread 0", "thread 1"]);
    let slices = of("X");
    assert_eq!(slices.len(), calls().len());
    for thread in TIDS {
        let own = slices.iter().filter(|e| e["tid"] == thread).count();
        assert_eq!(own, if thread == 700 { 4 } else { 3 });
    }
    let first = slices[0];
    assert_eq!(first["ts"], 1.0);
    assert_eq!(first["dur"], 0.5);
    assert_eq!(first["name"], "allocate");
    assert_eq!(first["args"]["bytes"], 3 * MIB);
    assert_eq!(first["args"]["site"], "/opt/a <b> & c/app+0x1234");
    assert_eq!(first["args"]["pool"], true);
    let failed: Vec<_> = slices.iter().filter(|e| e["args"]["status"] == 2).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["args"]["bytes"], u64::MAX);
    let live: Vec<u64> = of("C")
        .iter()
        .map(|e| e["args"]["device"].as_u64().unwrap())
        .collect();
    assert_eq!(live, [3, 0, 5, 6, 1].map(|count| count * MIB));
    assert_eq!(events.len(), names.len() + slices.len() + live.len());
    let output = folder.path("out.json");
    assert_eq!(printed(&[&file, "--perfetto", "-o", &output]), "");
    assert_eq!(std::fs::read_to_string(&output).unwrap(), text);
}

/// A record of a call takes some hundred bytes decoded; a million of them do
/// not fit under the limit, the file and the command do.
#[test]
fn a_long_trace_is_not_held_in_memory() {
    let folder = Folder::new("report-big");
    let mut bytes = header(&Header::default());
    let mut chunk = Chunk::default();
    const CALLS: u64 = 1_000_000;
    for index in 0..CALLS {
        let call = if index % 2 == 0 { ALLOC } else { FREE };
        let at_ns = 1_000 * index;
        chunk.push(&Call { at_ns, ..call }, 700);
        if chunk.len() > 32 << 10 {
            bytes.extend_from_slice(chunk.finished());
            chunk = Chunk::default();
        }
    }
    bytes.extend_from_slice(chunk.finished());
    let limit = bytes.len() as u64 + 64 * MIB;
    assert!(CALLS * size_of::<Call>() as u64 > limit, "{limit}");
    let file = folder.file("big.trace", &bytes);
    for (form, part) in [("", "1,000,000 calls"), ("--perfetto", "\n]}\n")] {
        let output = folder.path("out");
        let script = format!(
            "ulimit -v {} && exec \"$0\" report \"$1\" -o \"$2\" {form}",
            limit >> 10
        );
        let run = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_gpupool"), &file, &output])
            .output()
            .unwrap();
        let stderr = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.success(), "{form}: {stderr}");
        let text = std::fs::read_to_string(&output).unwrap();
        assert!(text.contains(part), "{form}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let folder = Folder::new("report-wrong");
    let whole = trace(&calls(), true);
    let good = folder.file("good.trace", &whole);
    let mut damaged = whole.clone();
    let length = damaged.len();
    damaged[length - 7] = 0; // the kind of the last chunk
    let damaged = folder.file("damaged.trace", &damaged);
    let table = folder.file("table.csv", b"a,1,0,10,5\nx,1,0,10,5\n");
    let empty = folder.file("empty", b"");
    let missing = folder.path("missing.trace");
    let nowhere = folder.path("no/such.html");
    for (args, part) in [
        (&[missing.as_str()][..], "missing.trace: No such file"),
        (&[&empty], "empty: the file is empty"),
        (&[&table], "table.csv:2: call \"x\""),
        (&[&damaged], "damaged.trace: byte "),
        (&[&good, "-o", &good], "good.trace: is the trace"),
        (&[&good, "-o", &nowhere], "such.html: cannot be created"),
    ] {
        let output = report(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    assert_eq!(
        std::fs::read(&good).unwrap(),
        whole,
        "the trace is as it was"
    );
    let output = report(&[&good, "--perfetto", "-o", "/dev/full"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("/dev/full: cannot write: "), "{stderr}");
}
