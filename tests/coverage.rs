//! Every promise, documented difference, variable and reported fault has a test that says that it
//! holds it. They are listed in docs/contract.md, the variables in the option table. Tests say so
//! in the last column of tests/programs/table.txt, and in comments `covers: NAME …` before a
//! test in Rust or before a check in scripts/gpu.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use gpupool::config::OPTIONS;

/// The test that covers all variables that this release does not act on.
const NOT_YET: &str = "not-yet";

/// Where a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Simulated,
    Gpu,
}

use Place::{Gpu, Simulated};

/// A name that has to be covered, and where; without a place, anywhere.
type Wanted = BTreeMap<String, Vec<Place>>;

/// A test's claim to hold a line.
#[derive(Debug)]
struct Claim {
    name: String,
    places: Vec<Place>,
    /// For messages: where it stands.
    at: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The cells of a row of a Markdown table; none for other lines.
fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().strip_prefix('|');
    let inner = inner.and_then(|inner| inner.strip_suffix('|'));
    inner.map_or_else(Vec::new, |inner| inner.split('|').map(str::trim).collect())
}

/// The lines of docs/contract.md.
fn wanted(document: &str) -> Wanted {
    let mut all = Wanted::new();
    let mut in_cases = false;
    for line in document.lines() {
        let row = cells(line);
        match row[..] {
            ["name", ..] => in_cases = false,
            ["case", "where", ..] => in_cases = true,
            [name, ..] if name.starts_with("---") => {}
            [number, place, scenario, outcome] if in_cases => {
                assert!(number.parse::<u32>().is_ok(), "no number of a case: {line}");
                assert!(!scenario.is_empty() && !outcome.is_empty(), "{line}");
                let places = match place {
                    "sim" => vec![Simulated],
                    "gpu" => vec![Gpu],
                    "both" => vec![Simulated, Gpu],
                    _ => panic!("where is sim, gpu or both: {line}"),
                };
                let before = all.insert(format!("case-{number}"), places);
                assert!(before.is_none(), "twice: {line}");
            }
            [name, ref rest @ ..] if !rest.is_empty() => {
                let plain = |c: char| c.is_ascii_lowercase() || c == '-';
                assert!(name.chars().all(plain), "no name of a line: {line}");
                let before = all.insert(name.to_owned(), Vec::new());
                assert!(before.is_none(), "twice: {line}");
            }
            _ => {}
        }
    }
    all
}

/// The variables: those that this release acts on by name, the others together.
fn variables() -> Wanted {
    let name = |acts: bool, name: &str| if acts { name } else { NOT_YET }.to_owned();
    OPTIONS
        .iter()
        .map(|option| (name(option.implemented(), option.name), Vec::new()))
        .collect()
}

/// What the rows of the table of programs say. A variable that a row sets is covered by it.
fn claims_of_the_table(table: &str) -> Vec<Claim> {
    let mut all = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [id, _, _, _, pool, rules, covers] = columns[..] else {
            continue;
        };
        let places = if rules.split(' ').any(|rule| rule == "sim-only") {
            vec![Simulated]
        } else {
            vec![Simulated, Gpu]
        };
        let set = pool.split_whitespace().filter_map(|v| v.split_once('='));
        let names = covers.split_whitespace().chain(set.map(|(name, _)| name));
        all.extend(names.map(|name| Claim {
            name: name.to_owned(),
            places: places.clone(),
            at: format!("row {id}"),
        }));
    }
    all
}

/// What comments in a source say. In Rust the comment has to stand before a test.
fn claims_of_a_source(path: &Path, text: &str) -> Vec<Claim> {
    let rust = path.extension().is_some_and(|end| end == "rs");
    let mark = if rust { "// covers: " } else { "# covers: " };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut all = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(names) = line.strip_prefix(mark) else {
            continue;
        };
        let at = format!("{}:{}", path.display(), index + 1);
        if rust {
            let next = lines[index + 1..]
                .iter()
                .find(|line| !line.starts_with("//"));
            let is_test = next.is_some_and(|line| line.starts_with("#[test]"));
            assert!(is_test, "{at}: no test follows");
        }
        all.extend(names.split_whitespace().map(|name| Claim {
            name: name.to_owned(),
            places: vec![if rust { Simulated } else { Gpu }],
            at: at.clone(),
        }));
    }
    all
}

fn sources(folder: &str, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder);
        let entries = entries.unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == end) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// What is wrong: lines without a test, and claims of lines that there are not.
fn faults(wanted: &Wanted, claims: &[Claim]) -> Vec<String> {
    let mut all = Vec::new();
    for (name, places) in wanted {
        let here: BTreeSet<Place> = claims
            .iter()
            .filter(|claim| claim.name == *name)
            .flat_map(|claim| claim.places.clone())
            .collect();
        if here.is_empty() {
            all.push(format!("no test covers `{name}`"));
            continue;
        }
        for place in places.iter().filter(|place| !here.contains(place)) {
            all.push(format!("no test covers `{name}` here: {place:?}"));
        }
    }
    for claim in claims.iter().filter(|c| !wanted.contains_key(&c.name)) {
        // A variable that is not acted on may be set in a row: it has to do no harm.
        if !OPTIONS.iter().any(|option| option.name == claim.name) {
            all.push(format!("{}: there is no `{}`", claim.at, claim.name));
        }
    }
    all
}

#[test]
fn every_promise_and_every_case_has_a_test() {
    let mut all = wanted(&read(&root().join("docs/contract.md")));
    assert!(
        all.len() > 60,
        "docs/contract.md has only {} lines",
        all.len()
    );
    all.extend(variables());
    let mut claims = claims_of_the_table(&read(&root().join("tests/programs/table.txt")));
    let rust = ["tests", "cli/tests"].map(|folder| sources(folder, "rs"));
    for path in rust
        .concat()
        .into_iter()
        .chain(sources("scripts/gpu", "py"))
    {
        let short = path.strip_prefix(root()).unwrap_or(&path).to_owned();
        claims.extend(claims_of_a_source(&short, &read(&path)));
    }
    let wrong = faults(&all, &claims);
    assert!(
        wrong.is_empty(),
        "see the head of docs/contract.md for how tests say what they hold\n{}",
        wrong.join("\n")
    );
}

/// The differences are those of the README, as many and in its order.
#[test]
fn the_differences_are_those_of_the_readme() {
    let section = |text: &str, title: &str| -> String {
        let from = text.find(title).unwrap_or_else(|| panic!("no {title}"));
        let rest = &text[from + title.len()..];
        rest[..rest.find("\n## ").unwrap_or(rest.len())].to_owned()
    };
    let readme = section(&read(&root().join("README.md")), "## What differs");
    let numbered = readme
        .lines()
        .filter(|line| {
            line.split_once(". ")
                .is_some_and(|(n, _)| n.parse::<u32>().is_ok())
        })
        .count();
    let ours = section(&read(&root().join("docs/contract.md")), "## What differs");
    let rows = ours.lines().filter(|line| !cells(line).is_empty()).count();
    assert_eq!(rows - 2, numbered, "rows here, items in the README");
}

/// The negative control of this very test.
#[test]
fn what_is_not_covered_is_found() {
    let document = "| name | promise |\n|---|---|\n| held | x |\n| open | x |\n\n\
        | case | where | scenario | right outcome |\n|---|---|---|---|\n\
        | 1 | both | x | y |\n| 2 | gpu | x | y |\n| 3 | sim | x | y |\n";
    let all = wanted(document);
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    assert_eq!(names, ["case-1", "case-2", "case-3", "held", "open"]);
    let table = "# | comment\n\
        one | p | shared | | GPUPOOL_MODE=off | same | held case-1\n\
        two | p | shared | | | same sim-only | case-2 case-3 unknown\n";
    assert_eq!(
        faults(&all, &claims_of_the_table(table)),
        [
            "no test covers `case-2` here: Gpu",
            "no test covers `open`",
            "row two: there is no `unknown`"
        ]
    );
    let rust = "// covers: open\n/// More.\n#[test]\nfn a() {}\n";
    let python = "# covers: case-2\ndef check():\n";
    let mut claims = claims_of_the_table(&table.replace("unknown", ""));
    claims.extend(claims_of_a_source(Path::new("a.rs"), rust));
    assert_eq!(
        claims.last().map(|c| c.places.clone()),
        Some(vec![Simulated])
    );
    claims.extend(claims_of_a_source(Path::new("a.py"), python));
    assert_eq!(faults(&all, &claims), Vec::<String>::new());
}

#[test]
#[should_panic(expected = "no test follows")]
fn a_claim_without_a_test_is_found() {
    claims_of_a_source(Path::new("a.rs"), "// covers: open\nfn a() {}\n");
}
