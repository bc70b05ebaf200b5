//! What two runs of the same programs printed, compared line by line, and the differences that are
//! allowed.

use std::collections::BTreeMap;

/// A documented difference.
pub struct Rule {
    pub name: &'static str,
    /// Its number in the README's list.
    #[allow(dead_code)]
    pub documented: u32,
    /// It belongs to programs that end with a kernel fault.
    pub after_a_fault: bool,
    /// Whether `pooled` may stand for `native`, two different lines.
    pub allows: fn(native: &str, pooled: &str) -> bool,
}

/// Every difference there may be. Two of the documented ones leave no trace in what a program can see
/// of its own calls, and so have no rule: that other processes see less free memory (3), and that
/// profilers see fewer calls (7).
pub const RULES: &[Rule] = &[
    // After cudaFree natively all work is done, so the query of a stream gives 0 instead of 600 (not
    // ready). Nothing else in the line differs.
    Rule {
        name: "a free returns at once",
        documented: 1,
        after_a_fault: false,
        allows: |native, pooled| replaced(native, pooled, " free-waits", " idle=0", " idle=600"),
    },
    // The driver's memory is zero when it is fresh.
    Rule {
        name: "reissued memory holds old data",
        documented: 2,
        after_a_fault: false,
        allows: |native, pooled| replaced(native, pooled, " fresh.", " zero=1", " zero=0"),
    },
    Rule {
        name: "a copy past a block's end inside the segment",
        documented: 4,
        after_a_fault: false,
        allows: |native, pooled| {
            replaced(
                native,
                pooled,
                " out-of-range.",
                " past-end=1",
                " past-end=0",
            )
        },
    },
    // The same for a copy from a block that was freed: to the driver it is the inside of a segment.
    Rule {
        name: "a copy from a freed block inside the segment",
        documented: 4,
        after_a_fault: false,
        allows: |native, pooled| replaced(native, pooled, " out-of-range.", " stale=1", " stale=0"),
    },
    Rule {
        name: "a foreign thread's allocation breaks no capture",
        documented: 5,
        after_a_fault: false,
        allows: capture_unbroken,
    },
    // Until a fence of the library's has seen the error; when that is, a program cannot tell.
    Rule {
        name: "a hit after a kernel fault",
        documented: 6,
        after_a_fault: true,
        allows: |native, pooled| replaced(native, pooled, "faulted ", "=700", "=0"),
    },
];

/// Whether the lines have `mark`, and differ in nothing but that one has `old` and the other `new`.
fn replaced(native: &str, pooled: &str, mark: &str, old: &str, new: &str) -> bool {
    native.contains(mark) && native.contains(old) && native.replacen(old, new, 1) == pooled
}

/// Lines of a capture in or after an allocation or free by another thread: where natively the
/// call failed or the capture was broken, the pooled one may go on as if nothing had happened; what
/// the graph wrote is then right.
fn capture_unbroken(native: &str, pooled: &str) -> bool {
    let words = |line: &str| -> Vec<Vec<String>> {
        line.split_whitespace()
            .map(|word| word.split(['=', ',']).map(str::to_owned).collect())
            .collect()
    };
    if !native.starts_with("   foreign ") || !pooled.starts_with("   foreign ") {
        return false;
    }
    let (native, pooled) = (words(native), words(pooled));
    let better = |key: &str, native: &str, pooled: &str| {
        native == pooled
            || match key {
                // Broken (2), active (1).
                "status" => (native, pooled) == ("2", "1"),
                "content" => (native, pooled) == ("none", "right"),
                // 900 and 901 say that a capture was broken; what then was left out succeeds.
                _ => matches!(native, "900" | "901" | "none") && pooled == "0",
            }
    };
    native.len() == pooled.len()
        && native.iter().zip(&pooled).all(|(n, p)| {
            n.len() == p.len() && n[0] == p[0] && n.iter().zip(p).all(|(x, y)| better(&n[0], x, y))
        })
}

/// The first line of a program that differs and must not.
#[derive(Clone, Debug)]
pub struct Difference {
    pub seed: u64,
    pub native: String,
    pub pooled: String,
    /// The program up to there, as printed by the native run.
    pub before: Vec<String>,
}

impl Difference {
    /// Whether the program read something else from memory.
    pub fn is_of_content(&self) -> bool {
        let part = |line: &str, key: &str| {
            line.split_whitespace()
                .find(|word| word.starts_with(key))
                .map(str::to_owned)
        };
        ["content=", "wrong=", "errors="].iter().any(|key| {
            let (native, pooled) = (part(&self.native, key), part(&self.pooled, key));
            native.is_some() && pooled.is_some() && native != pooled
        })
    }
}

/// How often each rule was met.
pub type Hits = BTreeMap<&'static str, u64>;

/// The programs of an output: seed and lines.
pub fn programs(output: &str) -> Vec<(u64, Vec<&str>)> {
    let mut all: Vec<(u64, Vec<&str>)> = Vec::new();
    for line in output.lines() {
        if let Some(rest) = line.strip_prefix("program ") {
            let seed = rest.split(' ').next().and_then(|seed| seed.parse().ok());
            all.push((seed.unwrap_or(u64::MAX), vec![line]));
        } else if let Some((_, lines)) = all.last_mut() {
            lines.push(line);
        }
    }
    all
}

/// Compares a program's two outputs; `excluded` rules do not hold.
pub fn compare(
    seed: u64,
    native: &[&str],
    pooled: &[&str],
    excluded: &[&str],
    hits: &mut Hits,
) -> Option<Difference> {
    for index in 0..native.len().max(pooled.len()) {
        let n = native.get(index).copied().unwrap_or("(nothing)");
        let p = pooled.get(index).copied().unwrap_or("(nothing)");
        let rule = RULES
            .iter()
            .find(|rule| !excluded.contains(&rule.name) && n != p && (rule.allows)(n, p));
        match rule {
            Some(rule) => *hits.entry(rule.name).or_default() += 1,
            None if n == p => {}
            None => {
                return Some(Difference {
                    seed,
                    native: n.to_owned(),
                    pooled: p.to_owned(),
                    before: native[..index.min(native.len())]
                        .iter()
                        .map(|&line| line.to_owned())
                        .collect(),
                });
            }
        }
    }
    None
}

#[test]
fn rules_are_narrow() {
    let allowed = |n: &str, p: &str| RULES.iter().filter(|rule| (rule.allows)(n, p)).count();
    let waits = "03 free-waits.0 r=0,0,0 idle=0 peek=0";
    assert_eq!(allowed(waits, &waits.replace("idle=0", "idle=600")), 1);
    assert_eq!(allowed(waits, &waits.replace("idle=0", "idle=1")), 0);
    assert_eq!(allowed(waits, &waits.replace("r=0", "r=1")), 0);
    let end = "   foreign end exchange=0 r=901 instantiate=none content=none";
    let good = "   foreign end exchange=0 r=0 instantiate=0 content=right";
    assert_eq!(allowed(end, good), 1);
    assert_eq!(allowed(end, &good.replace("right", "wrong")), 0);
    assert_eq!(allowed(good, end), 0);
    assert_eq!(
        allowed(&end.replace("foreign ", ""), &good.replace("foreign ", "")),
        0
    );
    assert_eq!(allowed("04 read.0 content=1", "04 read.0 content=2"), 0);
}
