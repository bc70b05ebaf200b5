//! What observed processes spent on allocation, and what the pool would change.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;

use gpupool::pool::stats::bytes;
use gpupool::process::summary::{thousands, time};
use serde_json::{Value, json};

/// What an allocation and its free cost with the pool, in nanoseconds (1 MiB on
/// an H200: docs/bench.md).
const PAIR_NS: u64 = 500;
/// What a segment from the driver costs: a few tens of microseconds there.
const SEGMENT_NS: u64 = 60_000;
/// Bytes that the pool takes at once where it is small.
const SEGMENT: u64 = 32 << 20;

/// Below this share of the time the pool is not worth the trouble.
const LITTLE: f64 = 0.01;
/// From this share on it surely is.
const MUCH: f64 = 0.05;

/// Calls of one size class; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Class {
    allocs: u64,
    alloc_ns: u64,
    /// What these calls would have cost if each were as short as the shortest.
    alloc_base_ns: u64,
    frees: u64,
    free_ns: u64,
    free_base_ns: u64,
}

/// Sum over the processes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Observation {
    processes: u64,
    failed: u64,
    threads: u64,
    peak: u64,
    span_ns: u64,
    free_wall_ns: u64,
    /// By the largest size of the class in bytes; 0: not known.
    classes: BTreeMap<u64, Class>,
    /// Pinned memory, which is counted apart and judged by nobody.
    pinned: Class,
}

/// What is to be thought of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No such call was seen.
    Nothing,
    /// Not worth it.
    Little,
    /// Only a try can tell.
    Perhaps,
    /// Worth it.
    Much,
}

impl Observation {
    /// Of the statistics that the processes wrote. Processes that allocated
    /// nothing do not count.
    pub fn of(seen: &[Value]) -> Self {
        let number =
            |value: &Value, path: &str| value.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        let mut sum = Self::default();
        for process in seen {
            sum.pinned.allocs += number(process, "/pinned/calls/alloc");
            sum.pinned.alloc_ns += number(process, "/pinned/calls/alloc_ns");
            sum.pinned.frees += number(process, "/pinned/calls/free");
            sum.pinned.free_ns += number(process, "/pinned/calls/free_ns");
            if number(process, "/calls/alloc") == 0 {
                continue;
            }
            sum.processes += 1;
            sum.failed += number(process, "/observed/failed_allocs");
            sum.threads += number(process, "/observed/threads");
            sum.peak += number(process, "/peak_live_bytes");
            // They run side by side.
            sum.span_ns = sum.span_ns.max(number(process, "/observed/span_ns"));
            sum.free_wall_ns = sum
                .free_wall_ns
                .max(number(process, "/observed/free_wall_ns"));
            let classes = process.pointer("/observed/classes");
            for class in classes.and_then(Value::as_array).into_iter().flatten() {
                let of = |name: &str| number(class, name);
                let place = sum.classes.entry(of("/up_to_bytes")).or_default();
                place.allocs += of("/allocs");
                place.alloc_ns += of("/alloc_ns");
                place.alloc_base_ns += of("/allocs") * of("/alloc_least_ns");
                place.frees += of("/frees");
                place.free_ns += of("/free_ns");
                place.free_base_ns += of("/frees") * of("/free_least_ns");
            }
        }
        sum
    }

    fn all(&self) -> Class {
        self.classes
            .values()
            .fold(Class::default(), |sum, class| Class {
                allocs: sum.allocs + class.allocs,
                alloc_ns: sum.alloc_ns + class.alloc_ns,
                alloc_base_ns: sum.alloc_base_ns + class.alloc_base_ns,
                frees: sum.frees + class.frees,
                free_ns: sum.free_ns + class.free_ns,
                free_base_ns: sum.free_base_ns + class.free_base_ns,
            })
    }

    /// What the same calls would cost with the pool.
    fn pooled_ns(&self) -> u64 {
        let all = self.all();
        let segments = (self.peak / SEGMENT + self.processes).min(all.allocs);
        all.allocs.max(all.frees) * PAIR_NS + segments * SEGMENT_NS
    }

    /// Nanoseconds that the pool would surely save, and at most: the calls
    /// themselves; and all that was spent in them, waits for the GPU included,
    /// which the program may have to make elsewhere then.
    pub fn saves(&self) -> (u64, u64) {
        let all = self.all();
        let pooled = self.pooled_ns();
        let least = (all.alloc_base_ns + all.free_base_ns).saturating_sub(pooled);
        let most = (all.alloc_ns + all.free_ns).saturating_sub(pooled);
        (least.min(most), most)
    }

    /// The shares of the time that these are, of all threads that allocate.
    fn shares(&self) -> (f64, f64) {
        let whole = (self.span_ns * self.threads.max(1)).max(1) as f64;
        let (least, most) = self.saves();
        (
            (least as f64 / whole).min(1.0),
            (most as f64 / whole).min(1.0),
        )
    }

    /// What to think of it.
    pub fn verdict(&self) -> Verdict {
        let (least, most) = self.shares();
        if self.all().allocs == 0 {
            Verdict::Nothing
        } else if least >= MUCH {
            Verdict::Much
        } else if most < LITTLE {
            Verdict::Little
        } else {
            Verdict::Perhaps
        }
    }

    /// The verdict, in a sentence with the figures behind it.
    fn sentence(&self) -> String {
        let (least, most) = self.saves();
        let (least_share, most_share) = self.shares();
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let range = format!(
            "{} to {} of {} ({} to {} of the time of the threads that allocate)",
            time(least),
            time(most),
            time(self.span_ns),
            percent(least_share),
            percent(most_share)
        );
        match self.verdict() {
            Verdict::Nothing => String::from(
                "Nothing to gain: no cudaMalloc or cuMemAlloc was seen (stream-ordered calls are not counted, nor is pinned memory)",
            ),
            Verdict::Little => format!("Not worth it: the pool would save {range}"),
            Verdict::Perhaps => format!(
                "Worth a try: the pool would save {range}; how much of the waiting goes away only a run can tell"
            ),
            Verdict::Much => format!("Worth it: the pool would save {range}"),
        }
    }

    /// What to do next.
    fn next(&self, command: &[OsString]) -> String {
        let command: Vec<String> = command.iter().map(quoted).collect();
        let command = command.join(" ");
        match self.verdict() {
            Verdict::Nothing => format!("gpupool check -- {command}"),
            Verdict::Little => String::from("leave it as it is"),
            Verdict::Perhaps | Verdict::Much => format!("gpupool run -- {command}"),
        }
    }

    /// The report for people. `library`: where it lies.
    pub fn text(&self, command: &[OsString], library: &Path) -> String {
        let mut text = String::new();
        let all = self.all();
        // Writing to a String cannot fail.
        if all.allocs > 0 {
            let seconds = (self.span_ns as f64 / 1e9).max(1e-9);
            let _ = writeln!(
                text,
                "gpupool: {} allocations and {} frees in {} ({} calls a second), by {} of {}; {} live at most{}",
                thousands(all.allocs),
                thousands(all.frees),
                time(self.span_ns),
                thousands(((all.allocs + all.frees) as f64 / seconds).round() as u64),
                counted(self.threads, "thread", "threads"),
                counted(self.processes, "process", "processes"),
                bytes(self.peak),
                match self.failed {
                    0 => String::new(),
                    failed => format!("; {} failed", thousands(failed)),
                }
            );
            let _ = writeln!(
                text,
                "{:>12} {:>12} {:>12} {:>12} {:>12}",
                "sizes up to", "allocations", "time inside", "frees", "time inside"
            );
            for (size, class) in &self.classes {
                let size = if *size == 0 {
                    String::from("not known")
                } else {
                    bytes(*size)
                };
                let _ = writeln!(
                    text,
                    "{size:>12} {:>12} {:>12} {:>12} {:>12}",
                    thousands(class.allocs),
                    time(class.alloc_ns),
                    thousands(class.frees),
                    time(class.free_ns)
                );
            }
            let _ = writeln!(
                text,
                "{:>12} {:>12} {:>12} {:>12} {:>12}",
                "all",
                thousands(all.allocs),
                time(all.alloc_ns),
                thousands(all.frees),
                time(all.free_ns)
            );
            let _ = writeln!(
                text,
                "gpupool: a free was under way for {} of {}: at most so long were launches of other threads held up",
                time(self.free_wall_ns),
                time(self.span_ns)
            );
        }
        if self.pinned.allocs > 0 {
            let _ = writeln!(
                text,
                "gpupool: besides, {} allocations of pinned memory took {}, and {} frees {}: the pool serves those too",
                thousands(self.pinned.allocs),
                time(self.pinned.alloc_ns),
                thousands(self.pinned.frees),
                time(self.pinned.free_ns)
            );
        }
        let _ = writeln!(text, "gpupool: {}.", self.sentence());
        let _ = writeln!(text, "gpupool: next: {}", self.next(command));
        if matches!(self.verdict(), Verdict::Perhaps | Verdict::Much) {
            text.push_str(
                "gpupool: compare its own time with and without. A free no longer waits for the \
                 GPU: a program that counts on that needs --set FREE=strict\n",
            );
            let _ = writeln!(
                text,
                "gpupool: to keep it, without this command: LD_PRELOAD={}",
                quoted(&library.as_os_str().to_owned())
            );
        }
        text
    }

    /// The report for programs. Sizes in bytes, times in nanoseconds.
    pub fn json(&self, command: &[OsString]) -> Value {
        let all = self.all();
        let (least, most) = self.saves();
        let classes: Vec<Value> = self
            .classes
            .iter()
            .map(|(size, class)| {
                json!({
                    "up_to_bytes": size,
                    "allocs": class.allocs,
                    "alloc_ns": class.alloc_ns,
                    "frees": class.frees,
                    "free_ns": class.free_ns,
                })
            })
            .collect();
        json!({
            "processes": self.processes,
            "threads": self.threads,
            "allocs": all.allocs,
            "alloc_ns": all.alloc_ns,
            "failed_allocs": self.failed,
            "frees": all.frees,
            "free_ns": all.free_ns,
            "free_wall_ns": self.free_wall_ns,
            "span_ns": self.span_ns,
            "peak_live_bytes": self.peak,
            "classes": classes,
            "pinned": {
                "allocs": self.pinned.allocs,
                "alloc_ns": self.pinned.alloc_ns,
                "frees": self.pinned.frees,
                "free_ns": self.pinned.free_ns,
            },
            "saves_at_least_ns": least,
            "saves_at_most_ns": most,
            "verdict": format!("{:?}", self.verdict()).to_lowercase(),
            "sentence": self.sentence(),
            "next": self.next(command),
        })
    }
}

/// A number and what is counted.
fn counted(count: u64, one: &str, more: &str) -> String {
    match count {
        1 => format!("one {one}"),
        _ => format!("{} {more}", thousands(count)),
    }
}

/// As a shell would take it.
fn quoted(word: &OsString) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(allocs: u64, each_ns: u64, least_ns: u64, span_ns: u64) -> Value {
        json!({
            "calls": {"alloc": allocs},
            "peak_live_bytes": 1 << 20,
            "observed": {
                "threads": 1,
                "span_ns": span_ns,
                "free_wall_ns": allocs * each_ns,
                "classes": [{
                    "up_to_bytes": 1 << 20,
                    "allocs": allocs, "alloc_ns": allocs * each_ns, "alloc_least_ns": least_ns,
                    "frees": allocs, "free_ns": allocs * each_ns, "free_least_ns": least_ns,
                }],
            },
        })
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_verdict_follows_the_figures() {
        let verdict = |seen: &[Value]| Observation::of(seen).verdict();
        assert_eq!(verdict(&[]), Verdict::Nothing);
        assert_eq!(verdict(&[process(0, 0, 0, 0)]), Verdict::Nothing);
        // 20 µs a second.
        assert_eq!(verdict(&[process(10, 1000, 1000, SECOND)]), Verdict::Little);
        // Half the time in calls that cost so much by themselves.
        assert_eq!(
            verdict(&[process(10_000, 25_000, 25_000, SECOND)]),
            Verdict::Much
        );
        // As much, but nearly all of it waiting.
        assert_eq!(
            verdict(&[process(10_000, 25_000, 600, SECOND)]),
            Verdict::Perhaps
        );
    }

    #[test]
    fn processes_add_up_and_run_side_by_side() {
        let one = Observation::of(&[process(1000, 30_000, 30_000, SECOND)]);
        let two = Observation::of(&[
            process(1000, 30_000, 30_000, SECOND),
            process(1000, 30_000, 30_000, SECOND),
        ]);
        assert_eq!(two.all().allocs, 2 * one.all().allocs);
        assert_eq!(two.span_ns, one.span_ns);
        let (least, most) = two.saves();
        assert!(least <= most && least > one.saves().0);
    }

    #[test]
    fn the_report_names_the_next_command() {
        let command = [OsString::from("./my app"), OsString::from("--batch=8")];
        let seen = Observation::of(&[process(10_000, 25_000, 25_000, SECOND)]);
        let text = seen.text(&command, Path::new("/lib/x.so"));
        assert!(
            text.contains("next: gpupool run -- './my app' --batch=8\n"),
            "{text}"
        );
        assert!(text.contains("Worth it"), "{text}");
        assert!(text.contains("10,000 allocations"), "{text}");
        for part in [
            "LD_PRELOAD=/lib/x.so\n",
            "FREE=strict",
            "by one thread of one process;",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let nothing = Observation::of(&[]).text(&command, Path::new("/lib/x.so"));
        assert!(nothing.contains("Nothing to gain"), "{nothing}");
        assert!(!nothing.contains("LD_PRELOAD"), "{nothing}");
    }
}
