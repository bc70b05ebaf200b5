//! Running the generator natively and with the library, side by side, and making a program that
//! differs shorter.

use super::compare::{Difference, Hits, compare, programs};
use super::support::{Outcome, library, run_program, target};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Programs of one process.
const BATCH: u64 = 125;
/// Pairs of processes at a time: they wait for simulated kernels most of the time.
const PAIRS: usize = 4;
/// After so many failing programs a run ends.
const ENOUGH: usize = 5;

/// How the programs are run.
#[derive(Clone)]
pub struct Setting {
    flavour: &'static str,
    library: PathBuf,
    options: Vec<(&'static str, &'static str)>,
    excluded: Vec<&'static str>,
    fault: bool,
}

impl Setting {
    /// The library as built, with its defaults.
    pub fn pooled(flavour: &'static str) -> Self {
        Self {
            flavour,
            library: library(),
            options: Vec::new(),
            excluded: Vec::new(),
            fault: false,
        }
    }

    pub fn option(mut self, name: &'static str, value: &'static str) -> Self {
        self.options.push((name, value));
        self
    }

    pub fn library(mut self, path: PathBuf) -> Self {
        self.library = path;
        self
    }

    /// A rule does not hold.
    pub fn without(mut self, rule: &'static str) -> Self {
        self.excluded.push(rule);
        self
    }

    /// Programs end with a kernel fault.
    pub fn fault(mut self) -> Self {
        self.fault = true;
        self
    }

    fn run(&self, first: u64, count: u64, pooled: bool, keep: Option<&[u32]>) -> Outcome {
        let mut run = run_program("differential", self.flavour)
            .args([first.to_string(), count.to_string()])
            .env("SIMCUDA_DEVICES", "2")
            // Exported memory is not used again in the simulated driver, so there is much.
            .env("SIMCUDA_MEMORY", "32G")
            .env("SIMCUDA_COST", "0")
            // The programs free twice on purpose.
            .env("SIMCUDA_ALLOW", "double-free")
            .limit(Duration::from_secs(180));
        if self.fault {
            run = run.arg("--fault");
        }
        if let Some(keep) = keep {
            let list: Vec<String> = keep.iter().map(u32::to_string).collect();
            run = run.args(["--flush", "--keep", &list.join(",")]);
        }
        if pooled {
            run = run.env("LD_PRELOAD", &self.library);
            for (name, value) in &self.options {
                run = run.env(name, value);
            }
        }
        run.run()
    }

    fn both(&self, first: u64, count: u64, keep: Option<&[u32]>) -> (Outcome, Outcome) {
        std::thread::scope(|scope| {
            let native = scope.spawn(|| self.run(first, count, false, keep));
            let pooled = self.run(first, count, true, keep);
            (native.join().expect("the native run"), pooled)
        })
    }

    /// What is wrong with these programs, at most one difference each.
    fn batch(
        &self,
        first: u64,
        count: u64,
        keep: Option<&[u32]>,
        hits: &mut Hits,
    ) -> Vec<Difference> {
        let (native, pooled) = self.both(first, count, keep);
        assert!(
            native.code() == 0 && !native.timed_out,
            "without the library, seeds from {first}: {} {}",
            native.code(),
            native.stderr
        );
        let (a, b) = (programs(&native.stdout), programs(&pooled.stdout));
        assert_eq!(a.len() as u64, count, "programs of the native run");
        // After a fault nothing means anything: a program that has one unasked is the generator's fault.
        let shows_a_fault = |line: &&str| line.contains("peek=700") || line.contains("settle=700");
        let faulted = a.iter().find(|(_, lines)| lines.iter().any(shows_a_fault));
        assert!(
            self.fault || faulted.is_none(),
            "without the library the program of seed {:?} faults",
            faulted.map(|(seed, _)| seed)
        );
        let mut wrong: Vec<Difference> = a
            .iter()
            .enumerate()
            .filter_map(|(index, (seed, lines))| {
                let other = b.get(index).map_or(&[][..], |(_, lines)| lines);
                compare(*seed, lines, other, &self.excluded, hits)
            })
            .collect();
        // The simulated driver reports what a program must not do, the library what it cannot.
        let ended_well = pooled.code() == 0 && !pooled.timed_out;
        if wrong.is_empty() && (!ended_well || pooled.stderr != native.stderr) {
            wrong.push(Difference {
                seed: first,
                native: format!("exit 0, on stderr: {}", native.stderr),
                pooled: format!("exit {}, on stderr: {}", pooled.code(), pooled.stderr),
                before: Vec::new(),
            });
        }
        wrong
    }

    fn differs(&self, seed: u64, keep: &[u32]) -> Option<Difference> {
        self.batch(seed, 1, Some(keep), &mut Hits::new()).pop()
    }

    /// The calls of a program that suffice for a difference. `None`: it does not differ if it is
    /// the first of its process.
    fn shorten(&self, difference: &Difference) -> Option<(Vec<u32>, Difference)> {
        let number = |line: &String| line.get(..2).and_then(|start| start.parse::<u32>().ok());
        let mut keep: Vec<u32> = difference.before.iter().filter_map(number).collect();
        keep.extend(number(&difference.native));
        let mut shortest = self.differs(difference.seed, &keep)?;
        let mut part = keep.len().div_ceil(2);
        while part > 0 {
            let mut at = 0;
            while at < keep.len() {
                let mut fewer = keep.clone();
                fewer.drain(at..(at + part).min(keep.len()));
                match self.differs(difference.seed, &fewer) {
                    Some(still) => (keep, shortest) = (fewer, still),
                    None => at += part,
                }
            }
            part /= 2;
        }
        Some((keep, shortest))
    }

    fn describe(&self, difference: &Difference) -> String {
        let seed = difference.seed;
        let show = |difference: &Difference| {
            format!(
                "{}\n- {}\n+ {}",
                difference.before.join("\n"),
                difference.native,
                difference.pooled
            )
        };
        match self.shorten(difference) {
            Some((keep, short)) => format!(
                "seed {seed}, shortened to --keep {keep:?}:\n{}\n(in full: - {} + {})",
                show(&short),
                difference.native,
                difference.pooled
            ),
            None => format!(
                "seed {seed}, only after the programs before it:\n{}",
                show(difference)
            ),
        }
    }
}

/// Runs the programs in batches; gives the differences, and how often each rule was met.
fn run_all(setting: &Setting, first: u64, count: u64) -> (Vec<Difference>, Hits) {
    let next = AtomicU64::new(0);
    let found = Mutex::new((Vec::new(), Hits::new()));
    let work = || {
        loop {
            let at = next.fetch_add(BATCH, Ordering::Relaxed);
            if at >= count || found.lock().expect("no panic").0.len() >= ENOUGH {
                return;
            }
            let mut hits = Hits::new();
            let wrong = setting.batch(first + at, BATCH.min(count - at), None, &mut hits);
            let mut all = found.lock().expect("no panic");
            all.0.extend(wrong);
            for (name, number) in hits {
                *all.1.entry(name).or_default() += number;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..PAIRS {
            scope.spawn(work);
        }
    });
    found.into_inner().expect("no panic")
}

/// The programs that differ; not all, if there are many.
pub fn differences(setting: &Setting, first: u64, count: u64) -> Vec<Difference> {
    run_all(setting, first, count).0
}

/// Fails if a program differs in what no rule allows.
#[track_caller]
pub fn differ(setting: &Setting, first: u64, count: u64) -> Hits {
    let (wrong, hits) = run_all(setting, first, count);
    let text: Vec<String> = wrong
        .iter()
        .take(ENOUGH)
        .map(|difference| setting.describe(difference))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {count} programs differ (flavour {}, options {:?})\n\n{}",
        wrong.len(),
        setting.flavour,
        setting.options,
        text.join("\n\n")
    );
    hits
}

/// The library without grace periods, which `scripts/test` builds.
pub fn no_grace_library() -> PathBuf {
    if let Some(path) = std::env::var_os("GPUPOOL_NOGRACE_LIB").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let path = target().join("no-grace/release/libgpupool.so");
    assert!(
        path.exists(),
        "{} is not there: run scripts/test, which builds it",
        path.display()
    );
    path
}
