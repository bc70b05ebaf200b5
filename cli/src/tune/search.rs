//! Which values are tried, and which of them are worth setting.

use std::fmt;

/// Replays of one search, at most: the defaults, four values of PREALLOC, five
/// of INFLIGHT and two of MAX alone, and three times one more variable.
pub const MOST_REPLAYS: usize = 16;

/// What counts as better, and as worse: this part of the figure before.
pub const MARGIN: f64 = 0.10;
/// And at least so many bytes.
pub const LEAST_BYTES: u64 = 32 << 20;
/// And at least so many calls.
pub const LEAST_CALLS: u64 = 10;
/// And at least so much time.
pub const LEAST_NS: u64 = 1_000_000;
/// And at least one part in so many of the trace's length.
pub const LEAST_OF_LENGTH: u64 = 1000;

/// Large memory comes from the driver in units of this.
const UNIT: u64 = 2 << 20;
/// The default begins at 256 MiB, and adapts.
const INFLIGHT_MIB: [u64; 5] = [32, 64, 128, 512, 1024];

/// A variable that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// `GPUPOOL_PREALLOC`
    Prealloc,
    /// `GPUPOOL_INFLIGHT`
    Inflight,
    /// `GPUPOOL_MAX`
    Max,
}

/// A variable with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Which.
    pub variable: Variable,
    /// Its value, in MiB.
    pub mib: u64,
}

impl Setting {
    /// Name of the variable, without the prefix.
    pub fn name(&self) -> &'static str {
        match self.variable {
            Variable::Prealloc => "PREALLOC",
            Variable::Inflight => "INFLIGHT",
            Variable::Max => "MAX",
        }
    }

    /// Not a preallocation beyond what the pool may hold.
    fn fits(&self, others: &[Self]) -> bool {
        others
            .iter()
            .all(|other| match (self.variable, other.variable) {
                (Variable::Prealloc, Variable::Max) => self.mib <= other.mib,
                (Variable::Max, Variable::Prealloc) => other.mib <= self.mib,
                _ => true,
            })
    }

    /// The value as the variable takes it.
    pub fn value(&self) -> String {
        format!("{}M", self.mib)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name(), self.value())
    }
}

/// What a replay is judged by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Highest sum of bytes taken from the driver.
    pub reserved: u64,
    /// The driver's allocations and frees.
    pub calls: u64,
    /// Nanoseconds in these and in waits.
    pub waited_ns: u64,
    /// Highest sum of bytes that the program and its GPU need.
    pub needed: u64,
    /// Allocations that failed.
    pub failed: u64,
    /// Allocations that the pool left to the driver.
    pub bypasses: u64,
}

/// What decides about the values to try.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Contexts, each with a pool.
    pub contexts: u64,
    /// Bytes of a device.
    pub memory: u64,
    /// Freed memory is not free at once.
    pub has_delay: bool,
    /// Nanoseconds of the trace.
    pub length_ns: u64,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What is worth setting; nothing if the defaults do.
    pub set: Vec<Setting>,
    /// With the defaults.
    pub before: Costs,
    /// With `set`.
    pub after: Costs,
    /// Replays that this took.
    pub replays: usize,
}

impl Space {
    /// The values to try alone, by what the defaults cost.
    fn values(&self, base: &Costs) -> Vec<Setting> {
        // Each pool has the limits for itself.
        let share = |bytes: u64| {
            let each = (bytes / self.contexts.max(1)).clamp(1, self.memory);
            each.next_multiple_of(UNIT) >> 20
        };
        let of = |variable: Variable, sizes: &[u64]| -> Vec<Setting> {
            let mut all: Vec<Setting> = Vec::new();
            for mib in sizes.iter().copied() {
                let setting = Setting { variable, mib };
                if !all.contains(&setting) {
                    all.push(setting);
                }
            }
            all
        };
        let needed = base.needed;
        let prealloc = [base.reserved, needed + needed / 10, needed, needed / 2];
        let mut all = of(Variable::Prealloc, &prealloc.map(share));
        if self.has_delay {
            all.extend(of(Variable::Inflight, &INFLIGHT_MIB));
        }
        // A limit above what the pool takes anyway changes nothing.
        let mut limits = vec![needed, needed + needed / 4];
        limits.retain(|bytes| bytes + LEAST_BYTES < base.reserved);
        let limits: Vec<u64> = limits.into_iter().map(share).collect();
        all.extend(of(Variable::Max, &limits));
        all
    }

    /// By how much each figure has to differ to count.
    fn margins(&self, base: &Costs) -> [f64; 3] {
        let part = |value: u64, least: u64| (value as f64 * MARGIN).max(least as f64);
        let time = LEAST_NS.max(self.length_ns / LEAST_OF_LENGTH);
        [
            part(base.reserved, LEAST_BYTES),
            part(base.calls, LEAST_CALLS),
            part(base.waited_ns, time),
        ]
    }

    /// Better in one figure, worse in none, each by the margin. What the pool
    /// does not serve must not become more: on a real GPU such a free waits for
    /// all of its work, which a replay does not count.
    fn is_better(&self, new: &Costs, old: &Costs) -> bool {
        let margins = self.margins(old);
        let steps = || old.judged().into_iter().zip(new.judged()).zip(margins);
        let lowers = steps().any(|((old, new), margin)| old - new >= margin);
        let raises = steps().any(|((old, new), margin)| new - old >= margin);
        lowers && !raises && new.failed <= old.failed && new.bypasses <= old.bypasses
    }

    /// The sum of what the figures are of those of `base`: less is better. The
    /// margins keep what is next to nothing from deciding.
    fn score(&self, new: &Costs, base: &Costs) -> f64 {
        let margins = self.margins(base);
        let figures = base.judged().into_iter().zip(new.judged()).zip(margins);
        figures
            .map(|((base, new), margin)| (new + margin) / (base + margin))
            .sum()
    }
}

impl Costs {
    fn judged(&self) -> [f64; 3] {
        [self.reserved, self.calls, self.waited_ns].map(|figure| figure as f64)
    }
}

/// Finds what is worth setting: the best value alone, then as long as another
/// variable betters that by the margin again, this one as well.
///
/// `replay` tells what settings cost. It is called at most [`MOST_REPLAYS`]
/// times; its first error ends the search.
pub fn search<E>(
    space: &Space,
    mut replay: impl FnMut(&[Setting]) -> Result<Costs, E>,
) -> Result<Answer, E> {
    let before = replay(&[])?;
    let mut answer = Answer {
        set: Vec::new(),
        before,
        after: before,
        replays: 1,
    };
    let mut alone = Vec::new();
    for setting in space.values(&before) {
        alone.push((setting, replay(&[setting])?));
        answer.replays += 1;
    }
    let score = |costs: &Costs| space.score(costs, &before);
    // A stable order, so that of equal ones the first counts.
    alone.sort_by(|a, b| score(&a.1).total_cmp(&score(&b.1)));
    let good = |costs: &Costs| space.is_better(costs, &before);
    let Some(best) = alone.iter().find(|(_, costs)| good(costs)) else {
        return Ok(answer);
    };
    answer.set.push(best.0);
    answer.after = best.1;
    loop {
        let mut further: Vec<(Vec<Setting>, Costs)> = Vec::new();
        for variable in [Variable::Prealloc, Variable::Inflight, Variable::Max] {
            let is_set = answer.set.iter().any(|set| set.variable == variable);
            let next = alone
                .iter()
                .map(|(setting, _)| setting)
                .find(|setting| setting.variable == variable && setting.fits(&answer.set));
            if let Some(setting) = next.filter(|_| !is_set) {
                let mut set = answer.set.clone();
                set.push(*setting);
                let costs = replay(&set)?;
                answer.replays += 1;
                if good(&costs) && space.is_better(&costs, &answer.after) {
                    further.push((set, costs));
                }
            }
        }
        let best = further
            .into_iter()
            .min_by(|a, b| score(&a.1).total_cmp(&score(&b.1)));
        let Some((set, costs)) = best else {
            debug_assert!(answer.replays <= MOST_REPLAYS);
            return Ok(answer);
        };
        answer.set = set;
        answer.after = costs;
    }
}

#[cfg(test)]
mod tests;
