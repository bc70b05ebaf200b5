//! Comparing what was read back with a pattern.

/// Bytes shown of what was found.
pub(super) const SHOWN: usize = 16;

/// What in a range differs from its pattern. Offsets are addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Address of the first wrong byte.
    pub first: u64,
    /// Address of the last wrong byte.
    pub last: u64,
    /// How many are wrong.
    pub count: u64,
    /// What stands at `first` and behind it, at most [`SHOWN`] bytes.
    pub found: Vec<u8>,
    /// What should stand everywhere.
    pub pattern: u8,
}

/// Compares a range piece by piece.
#[derive(Debug)]
pub(super) struct Scan {
    pattern: u8,
    wrong: Option<Wrong>,
}

impl Scan {
    pub fn new(pattern: u8) -> Self {
        Self {
            pattern,
            wrong: None,
        }
    }

    /// The bytes at `address`, behind those of the last call.
    pub fn feed(&mut self, address: u64, bytes: &[u8]) {
        const STEP: usize = 4096;
        let same = [self.pattern; STEP];
        for (index, step) in bytes.chunks(STEP).enumerate() {
            // Nearly always equal, and memcmp is fast in every build.
            if *step != same[..step.len()] {
                self.differing(address + (index * STEP) as u64, step);
            }
        }
    }

    fn differing(&mut self, address: u64, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let at = address + index as u64;
            let differs = *byte != self.pattern;
            if differs && self.wrong.is_none() {
                self.wrong = Some(Wrong {
                    first: at,
                    last: at,
                    count: 0,
                    found: bytes[index..].iter().copied().take(SHOWN).collect(),
                    pattern: self.pattern,
                });
            }
            if let Some(wrong) = self.wrong.as_mut().filter(|_| differs) {
                wrong.last = at;
                wrong.count += 1;
            }
        }
    }

    /// What differed, if anything did.
    pub fn result(self) -> Option<Wrong> {
        self.wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_last_and_count() {
        let mut bytes = vec![7u8; 10_000];
        let mut scan = Scan::new(7);
        scan.feed(1 << 40, &bytes);
        assert_eq!(scan.result(), None);
        bytes[4095] = 1;
        bytes[4096] = 2;
        bytes[9_999] = 3;
        let mut scan = Scan::new(7);
        scan.feed(1 << 40, &bytes[..5000]);
        scan.feed((1 << 40) + 5000, &bytes[5000..]);
        let wrong = scan.result().unwrap();
        assert_eq!(
            (wrong.first, wrong.last, wrong.count),
            ((1 << 40) + 4095, (1 << 40) + 9999, 3)
        );
        assert_eq!(wrong.found[0], 1);
        assert!(wrong.found.len() <= SHOWN);
    }
}
