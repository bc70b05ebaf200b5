//! The page: well-formed as XML too, and with nothing that is loaded.

use std::fmt::Write;
use std::path::Path;

use gpupool::pool::stats::bytes;
use gpupool::process::summary::{thousands, time};
use gpupool::trace::Memory;

use super::chart::{BLUE, BROWN, Series, bar, over_time};
use super::feed::Outline;
use super::figures::{Bin, Figures, Tally};
use super::names::Names;

const STYLE: &str = include_str!("page.css");
/// Rows of a table that can have any number; the rest is summed up in one.
const MOST_ROWS: usize = 40;

/// The whole page.
pub fn page(path: &Path, outline: &Outline<'_>, figures: &Figures) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let name = escape(&name.to_string_lossy());
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>GPU memory of {name}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>GPU memory of {name}</h1>\n"
    );
    heading(&mut out, outline, figures);
    key_figures(&mut out, outline, figures);
    out.push_str("<h2>What the program needs</h2>\n");
    needs(&mut out, outline, figures);
    out.push_str("<h2>Memory over time</h2>\n");
    memory(&mut out, outline, figures);
    out.push_str("<h2>Calls a second</h2>\n");
    rates(&mut out, outline, figures);
    out.push_str("<h2>Sizes</h2>\n");
    sizes(&mut out, figures);
    out.push_str("<h2>Threads</h2>\n");
    threads(&mut out, outline, figures);
    // What a table does not tell.
    if outline.pid.is_some() {
        out.push_str("<h2>Kinds of memory</h2>\n");
        kinds(&mut out, figures);
        out.push_str("<h2>Call sites</h2>\n");
        sites(&mut out, outline, figures);
    }
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(
        out,
        "<footer>Made by <code>gpupool report</code> {version}. Sizes in powers of 1024.</footer>"
    );
    out.push_str("</body>\n</html>\n");
    out
}

/// Which trace this is, and what is missing of it. Here and below: writing to
/// a String cannot fail.
fn heading(out: &mut String, outline: &Outline<'_>, figures: &Figures) {
    let _ = write!(
        out,
        "<p>{} calls ({} allocations, {} frees) of {} in {}",
        thousands(outline.calls),
        thousands(figures.all.allocs),
        thousands(figures.all.frees),
        match outline.threads.len() {
            1 => String::from("one thread"),
            count => format!("{} threads", thousands(count as u64)),
        },
        time(outline.last_ns),
    );
    if let Some(pid) = outline.pid {
        let library = escape(&outline.library);
        let _ = write!(out, "; process {pid}, recorded by gpupool {library}");
    }
    out.push_str(".</p>\n");
    if let Some(end) = outline.end.filter(|end| end.lost > 0) {
        let lost = thousands(end.lost);
        let _ = writeln!(out, "<p>{lost} calls were lost by the recording.</p>");
    }
    if outline.pid.is_some() && (outline.end.is_none() || outline.truncated) {
        out.push_str(
            "<p>The trace has no end: the process was killed or still ran, and its last calls \
             may be missing.</p>\n",
        );
    }
}

/// The figures that one looks for first.
fn key_figures(out: &mut String, outline: &Outline<'_>, figures: &Figures) {
    let mut all = vec![
        ("peak of live device memory", bytes(figures.peak.0)),
        ("allocations", thousands(figures.all.allocs)),
        ("asked for in all", bytes(figures.all.bytes)),
    ];
    if outline.pid.is_some() {
        let share = 100.0 * figures.pooled as f64 / figures.all.calls().max(1) as f64;
        all.push(("inside these calls", time(figures.all.ns)));
        all.push(("of the calls served by the pool", format!("{share:.1}%")));
    }
    out.push_str("<ul class=\"key-figures\">\n");
    for (what, value) in all {
        let _ = writeln!(out, "<li><b>{value}</b> {what}</li>");
    }
    out.push_str("</ul>\n");
}

fn needs(out: &mut String, outline: &Outline<'_>, figures: &Figures) {
    let (peak, at_ns) = figures.peak;
    if peak == 0 {
        out.push_str("<p>No device memory was allocated.</p>\n");
    } else {
        let largest = figures.contexts.values().map(|held| held.peak).max();
        let largest = largest.unwrap_or(peak);
        let _ = writeln!(
            out,
            "<p>At most <b>{}</b> of device memory were live at once ({} bytes), first {} into the \
             trace. <b>GPUPOOL_PREALLOC={}M</b> takes as much from the driver at a device's first \
             use: {}, rounded up to whole MiB. Freed blocks that the GPU may still use, and gaps \
             between blocks, come on top; <code>gpupool replay</code> says how much.</p>",
            bytes(peak),
            thousands(peak),
            time(at_ns),
            largest.div_ceil(1 << 20),
            if figures.contexts.len() > 1 {
                format!(
                    "the peak of the largest of {} contexts, {}",
                    figures.contexts.len(),
                    bytes(largest)
                )
            } else {
                String::from("the peak")
            },
        );
    }
    let asked = bytes(figures.all.bytes);
    let _ = write!(out, "<p>Allocations asked for {asked} in all. ");
    if outline.pid.is_some() {
        let _ = write!(
            out,
            "All calls took {}, summed over the threads. The pool served {} of them; {} failed. ",
            time(figures.all.ns),
            thousands(figures.pooled),
            thousands(figures.failed),
        );
    }
    let _ = writeln!(
        out,
        "At the end {} blocks were live, {} of device memory.</p>",
        thousands(figures.left as u64),
        bytes(figures.left_device),
    );
}

fn memory(out: &mut String, outline: &Outline<'_>, figures: &Figures) {
    let series = |name, class, pick: fn(&Bin) -> (u64, u64)| Series {
        name,
        class,
        colour: if class == "a" { BLUE } else { BROWN },
        has_band: true,
        points: figures
            .bins
            .iter()
            .map(|bin| (pick(bin).0 as f64, pick(bin).1 as f64))
            .collect(),
    };
    let mut all = vec![series("live device memory", "a", |bin| bin.device)];
    if figures.has_other {
        all.push(series(
            "live managed and stream-ordered memory",
            "b",
            |bin| bin.other,
        ));
    }
    out.push_str(&over_time(&all, outline.last_ns, true, |value| {
        bytes(value as u64)
    }));
    let _ = writeln!(
        out,
        "<p class=\"note\">The line is the most, the shade goes down to the least, of each {}.</p>",
        time(figures.bin_ns)
    );
}

fn rates(out: &mut String, outline: &Outline<'_>, figures: &Figures) {
    let series = |name, class, pick: fn(&Bin) -> u64| Series {
        name,
        class,
        colour: if class == "a" { BLUE } else { BROWN },
        has_band: false,
        points: figures
            .bins
            .iter()
            .map(|bin| (0.0, pick(bin) as f64 * 1e9 / figures.bin_ns as f64))
            .collect(),
    };
    let all = [
        series("allocations", "a", |bin| bin.allocs),
        series("frees", "b", |bin| bin.frees),
    ];
    out.push_str(&over_time(&all, outline.last_ns, false, |value| {
        thousands(value.round() as u64)
    }));
}

fn sizes(out: &mut String, figures: &Figures) {
    let most_calls = figures.sizes.values().map(|t| t.allocs).max().unwrap_or(0);
    let most_bytes = figures.sizes.values().map(|t| t.bytes).max().unwrap_or(0);
    begin(out, "sizes", &["size", "allocations", "", "bytes", ""]);
    let powers = figures.sizes.keys();
    let range = powers.clone().min().zip(powers.max());
    let mut empty = 0;
    for power in range.map(|(&low, &high)| low..=high).into_iter().flatten() {
        let Some(tally) = figures.sizes.get(&power) else {
            // One row says that there is nothing in between.
            empty += 1;
            if empty == 1 {
                let nothing = String::new;
                row(
                    out,
                    &[
                        String::from("…"),
                        nothing(),
                        nothing(),
                        nothing(),
                        nothing(),
                    ],
                );
            }
            continue;
        };
        empty = 0;
        let above = 1u64.checked_shl(power + 1).filter(|&above| above != 0);
        let label = match above {
            Some(above) => format!("{} to below {}", bytes(1 << power), bytes(above)),
            None => format!("{} and above", bytes(1 << power)),
        };
        row(
            out,
            &[
                label,
                thousands(tally.allocs),
                bar(tally.allocs, most_calls),
                bytes(tally.bytes),
                bar(tally.bytes, most_bytes),
            ],
        );
    }
    finish(out);
    out.push_str("<p class=\"note\">Successful allocations of every kind of memory.</p>\n");
}

/// The cells of a tally behind its name.
fn cells(name: String, tally: &Tally, all: &Tally) -> [String; 8] {
    let share =
        |part: u64, whole: u64| format!("{:.1}%", 100.0 * part as f64 / whole.max(1) as f64);
    [
        name,
        thousands(tally.allocs),
        thousands(tally.frees),
        share(tally.calls(), all.calls()),
        bar(tally.calls(), all.calls()),
        bytes(tally.bytes),
        share(tally.bytes, all.bytes),
        time(tally.ns),
    ]
}

/// A table of tallies, with or without the times.
fn tallies(out: &mut String, what: &str, rows: Vec<(String, Tally)>, all: &Tally, times: bool) {
    let all_columns = [
        what,
        "allocations",
        "frees",
        "calls",
        "",
        "bytes",
        "of bytes",
        "time inside",
    ];
    let columns = if times { 8 } else { 7 };
    begin(out, "tally", &all_columns[..columns]);
    let more = rows.len().saturating_sub(MOST_ROWS);
    let mut rest = Tally::default();
    for (at, (name, tally)) in rows.into_iter().enumerate() {
        if at < MOST_ROWS {
            row(out, &cells(name, &tally, all)[..columns]);
        } else {
            rest.add(&tally);
        }
    }
    if more > 0 {
        let name = format!("{} others", thousands(more as u64));
        row(out, &cells(name, &rest, all)[..columns]);
    }
    finish(out);
}

fn kinds(out: &mut String, figures: &Figures) {
    let rows = figures.kinds.iter().map(|(&code, tally)| {
        let name = match Memory::of_code(code) {
            Memory::Device => String::from("device"),
            Memory::Managed => String::from("managed"),
            Memory::Pinned => String::from("pinned"),
            Memory::Async => String::from("stream-ordered"),
            Memory::Other(code) => format!("kind {code}"),
        };
        (name, *tally)
    });
    tallies(out, "memory", rows.collect(), &figures.all, true);
}

fn threads(out: &mut String, outline: &Outline<'_>, figures: &Figures) {
    let mut rows: Vec<_> = figures.threads.iter().collect();
    rows.sort_by_key(|(number, tally)| (std::cmp::Reverse(tally.calls()), **number));
    let rows = rows.into_iter().map(|(number, tally)| {
        let name = match outline.threads.get(number) {
            Some(&tid) if tid != 0 => format!("{number} (tid {tid})"),
            _ => number.to_string(),
        };
        (name, *tally)
    });
    let times = outline.pid.is_some();
    tallies(out, "thread", rows.collect(), &figures.all, times);
}

fn sites(out: &mut String, outline: &Outline<'_>, figures: &Figures) {
    let mut rows: Vec<_> = figures.sites.iter().collect();
    rows.sort_by_key(|(site, tally)| (std::cmp::Reverse(tally.calls()), **site));
    let mut names = Names::of(outline);
    // Only those that are shown are looked up: it can take a while.
    let rows = rows.into_iter().enumerate().map(|(at, (&site, tally))| {
        let address = escape(&outline.site(site));
        if at >= MOST_ROWS {
            return (address, *tally);
        }
        let place = names.place(site);
        if place.functions.is_empty() {
            return (address, *tally);
        }
        let function = escape(&place.functions.join(" in "));
        // In full where the pointer rests.
        let name = match place.line.is_empty() {
            true => format!("<b>{function}</b><br/>{address}"),
            false => format!(
                "<b>{function}</b><br/><span title=\"{}, {address}\">{}</span>",
                escape(&place.line),
                escape(place.line.rsplit('/').next().unwrap_or_default()),
            ),
        };
        (name, *tally)
    });
    tallies(out, "call site", rows.collect(), &figures.all, true);
    out.push_str(
        "<p class=\"note\">Function and line where the files tell them (<i>f in g</i>: f became part \
         of g), else object and offset, as <code>addr2line -e OBJECT OFFSET</code> takes \
         them.</p>\n",
    );
}

/// Begins a table; by its class the style sheet knows which columns a phone has
/// no room for.
fn begin(out: &mut String, class: &str, columns: &[&str]) {
    let _ = write!(
        out,
        "<div class=\"wide\"><table class=\"{class}\">\n<thead><tr>"
    );
    for column in columns {
        let _ = write!(out, "<th>{column}</th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
}

fn row(out: &mut String, cells: &[String]) {
    out.push_str("<tr>");
    for (at, cell) in cells.iter().enumerate() {
        let class = match at {
            0 if cell.contains('/') => " class=\"place\"",
            _ => "",
        };
        let _ = write!(out, "<td{class}>{cell}</td>");
    }
    out.push_str("</tr>\n");
}

fn finish(out: &mut String) {
    out.push_str("</tbody>\n</table></div>\n");
}

/// Text for HTML. What XML cannot have at all becomes U+FFFD.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\0'..='\x1F' | '\x7F'..='\u{9F}' | '\u{FFFE}' | '\u{FFFF}' => out.push('\u{FFFD}'),
            _ => out.push(char),
        }
    }
    out
}
