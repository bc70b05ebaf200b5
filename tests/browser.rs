//! The page of `gpupool report` in a real browser, without a screen: on the simulated driver.
//! Skipped where there is no Chromium.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests may fail loudly"
)]

#[path = "support/commanded.rs"]
mod commanded;
mod support;

use std::path::Path;
use std::time::Duration;

use commanded::gpupool;
use support::{Folder, Outcome, Run, run_program};

/// Chromium's name here, if there is one.
fn chromium() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| {
            let script = format!("command -v {name}");
            Run::new("sh").args(["-c", &script]).run().code() == 0
        });
    if found.is_none() {
        println!("SKIP: no Chromium");
    }
    found
}

/// Runs it once, with a profile of its own.
fn browse(browser: &str, folder: &Path, arguments: &[&str], page: &Path) -> Outcome {
    Run::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            // The frame below is looked into.
            "--allow-file-access-from-files",
            // What the page says on its console goes to stderr.
            "--enable-logging=stderr",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        .args(arguments)
        .arg(format!("file://{}", page.display()))
        .env("HOME", folder)
        .limit(Duration::from_secs(100))
        .run()
        .expect_success()
}

/// What a page looks like at a width.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    /// Pixels that do not fit into the width: of the page and of each table.
    hidden: u64,
    /// Requests that the page made, and what would make some.
    requests: u64,
    /// Elements with text that lie on each other.
    overlaps: u64,
    /// Lines on the console.
    console: u64,
}

/// Shows `page` in a frame of that width and measures it.
fn look(browser: &str, folder: &Path, page: &Path, width: u32) -> Look {
    let probe = folder.join(format!("probe-{width}.html"));
    let script = "
        const frame = document.querySelector('iframe');
        frame.onload = () => {
            const inner = frame.contentDocument, root = inner.documentElement;
            const over = one => Math.max(0, one.scrollWidth - one.clientWidth);
            let hidden = over(root);
            inner.querySelectorAll('.wide').forEach(one => hidden += over(one));
            const texts = [...inner.querySelectorAll('h1, h2, p, li, td, th, .scale span, .times span, .key')];
            const boxes = texts.filter(one => one.textContent.trim())
                .map(one => [one, one.getBoundingClientRect()]);
            let overlaps = 0;
            boxes.forEach(([one, a], at) => boxes.slice(at + 1).forEach(([other, b]) => {
                const meet = Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
                    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
                if (meet && !one.contains(other) && !other.contains(one)) overlaps++;
            }));
            const made = frame.contentWindow.performance.getEntriesByType('resource').length;
            // Those that failed are not among them.
            const loads = inner.querySelectorAll('[src], link, object, script, image, use').length;
            const requests = made + loads;
            document.title = `found ${hidden} ${requests} ${overlaps} end`;
        };
        frame.src = PAGE;";
    let name = page.file_name().unwrap().to_str().unwrap();
    let script = script.replace("PAGE", &format!("'{name}'"));
    let text = format!(
        "<!DOCTYPE html><title>nothing</title><iframe width={width} height=800 \
         style='border:0'></iframe><script>{script}</script>"
    );
    std::fs::write(&probe, text).unwrap();
    let arguments = ["--dump-dom", "--virtual-time-budget=5000"];
    let outcome = browse(browser, folder, &arguments, &probe);
    let found: Vec<u64> = outcome
        .stdout
        .split("<title>found ")
        .nth(1)
        .unwrap_or_else(|| panic!("{outcome:?}"))
        .split(' ')
        .map_while(|word| word.parse().ok())
        .collect();
    let [hidden, requests, overlaps] = found[..] else {
        panic!("{outcome:?}");
    };
    Look {
        hidden,
        requests,
        overlaps,
        console: outcome.stderr.matches("CONSOLE").count() as u64,
    }
}

const GOOD: Look = Look {
    hidden: 0,
    requests: 0,
    overlaps: 0,
    console: 0,
};

/// A page of a program with stacks, some threads and several kinds of memory.
fn report(folder: &Path) -> std::path::PathBuf {
    let (trace, page) = (folder.join("demo.trace"), folder.join("demo.html"));
    run_program("demo", "shared")
        .arg("60")
        .with_lib(true)
        .env("GPUPOOL_TRACE", &trace)
        .run()
        .expect_success();
    let (from, to) = (trace.to_str().unwrap(), page.to_str().unwrap());
    gpupool(&["report", from, "-o", to]).run().expect_success();
    page
}

/// On a wide screen, on a phone, and on the width of paper: nothing is cut off or lies on something
/// else, nothing is loaded, the console stays empty.
#[test]
fn the_page_fits_a_screen_a_phone_and_paper() {
    let Some(browser) = chromium() else { return };
    let folder = Folder::new("browser-page");
    let page = report(folder.path());
    for width in [1200, 700, 390] {
        let found = look(browser, folder.path(), &page, width);
        assert_eq!(found, GOOD, "{width} pixels");
    }
    // The rules for paper, on a screen of its width.
    let text = std::fs::read_to_string(&page).unwrap();
    let paper = folder.path().join("paper.html");
    let text = text
        .replace("@media print", "@media all")
        .replace("@media screen", "@media speech");
    std::fs::write(&paper, text).unwrap();
    assert_eq!(look(browser, folder.path(), &paper, 700), GOOD);
    let pdf = folder.path().join("page.pdf");
    let print = format!("--print-to-pdf={}", pdf.display());
    browse(browser, folder.path(), &[&print], &page);
    let bytes = std::fs::read(&pdf).unwrap();
    assert!(bytes.starts_with(b"%PDF-"));
    let text = String::from_utf8_lossy(&bytes);
    let pages = text.matches("/Type /Page\n").count() + text.matches("/Type /Page ").count();
    assert!((1..=4).contains(&pages), "{pages} pages");
}

/// Negative control: a page with each of the faults.
#[test]
fn a_page_with_faults_is_noticed() {
    let Some(browser) = chromium() else { return };
    let folder = Folder::new("browser-faults");
    let page = folder.path().join("bad.html");
    let bad = "<!DOCTYPE html><html><body><script>console.error('no')</script>\
        <img src='absent.png'><p style='width:2000px'>wide</p>\
        <p style='position:absolute;top:0;left:0'>one</p>\
        <p style='position:absolute;top:0;left:0'>two</p></body></html>";
    std::fs::write(&page, bad).unwrap();
    let found = look(browser, folder.path(), &page, 390);
    assert!(found.hidden > 1000, "{found:?}");
    assert!(found.requests >= 1 && found.overlaps >= 1, "{found:?}");
    assert!(found.console >= 1, "{found:?}");
}

/// The flamegraph is a picture that a browser shows without a complaint.
#[test]
fn a_flamegraph_is_shown() {
    let Some(browser) = chromium() else { return };
    let folder = Folder::new("browser-flame");
    let (trace, svg) = (
        folder.path().join("demo.trace"),
        folder.path().join("demo.svg"),
    );
    run_program("demo", "shared")
        .arg("60")
        .with_lib(true)
        .env("GPUPOOL_TRACE", &trace)
        .env("GPUPOOL_TRACE_STACKS", "on")
        .run()
        .expect_success();
    let arguments = [
        "report",
        "--flamegraph",
        svg.to_str().unwrap(),
        "--weight",
        "calls",
    ];
    let outcome = gpupool(&arguments).arg(&trace).run().expect_success();
    assert_eq!(outcome.stderr, "");
    let outcome = browse(browser, folder.path(), &["--dump-dom"], &svg);
    assert_eq!(outcome.stderr.matches("CONSOLE").count(), 0, "{outcome:?}");
    // The program's own functions are named.
    for name in ["main", "run_layer", "[allocate]", "[free]"] {
        assert!(outcome.stdout.contains(name), "{name}");
    }
}
