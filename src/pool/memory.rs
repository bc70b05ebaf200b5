//! The two kinds of memory that a pool can be made of, and what a request takes
//! of each.

use super::size_class::{self, GRANULE, Layout, PAGE};

/// What the segments of a pool are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// A device's memory.
    #[default]
    Device,
    /// Pinned memory of the host. Taking it costs 456 µs and 335 µs for each
    /// MiB (measured on an H200, driver 580.159), and it is the whole machine's:
    /// so no more is taken than is asked for, and waiting is cheaper than
    /// taking.
    Host,
}

/// A page of the host: pinned memory begins at one.
const HOST_PAGE: u64 = 4096;
/// Segments of pinned memory are multiples of this many bytes.
const HOST_UNIT: u64 = 64 << 10;

impl Memory {
    /// Sizes of blocks are multiples of this many bytes.
    #[must_use]
    pub const fn granule(self) -> u64 {
        match self {
            Self::Device => GRANULE,
            Self::Host => HOST_PAGE,
        }
    }

    /// Requests of more than 1 MiB begin at a multiple of this many bytes.
    #[must_use]
    pub const fn page(self) -> u64 {
        match self {
            Self::Device => PAGE,
            Self::Host => HOST_PAGE,
        }
    }

    /// Segments are multiples of this many bytes.
    #[must_use]
    pub const fn unit(self) -> u64 {
        match self {
            Self::Device => PAGE,
            Self::Host => HOST_UNIT,
        }
    }

    /// The layout of a request of `bytes`; as [`size_class::layout`]. Blocks of
    /// pinned memory begin at a page: programs hand them to system calls that
    /// want that (O_DIRECT).
    #[must_use]
    pub fn layout(self, bytes: u64, isolate: bool) -> Option<Layout> {
        let layout = size_class::layout(bytes, isolate && self == Self::Device)?;
        Some(match self {
            Self::Device => layout,
            Self::Host => Layout {
                size: bytes.next_multiple_of(HOST_PAGE),
                align: HOST_PAGE,
                ..layout
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::size_class::{DEDICATED_MIN, Kind, SMALL_MAX};

    #[test]
    fn pinned_blocks_are_whole_pages() {
        for (bytes, size, kind) in [
            (1, 4096, Kind::Small),
            (4097, 8192, Kind::Small),
            (SMALL_MAX, SMALL_MAX, Kind::Small),
            (SMALL_MAX + 1, SMALL_MAX + 4096, Kind::Medium),
            (5 << 20, 5 << 20, Kind::Large),
            ((5 << 20) + 1, (5 << 20) + 4096, Kind::Large),
            (DEDICATED_MIN, DEDICATED_MIN, Kind::Dedicated),
        ] {
            let layout = Memory::Host.layout(bytes, true).unwrap();
            assert_eq!((layout.size, layout.align, layout.kind), (size, 4096, kind));
        }
        assert_eq!(Memory::Host.layout(0, false), None);
        assert_eq!(Memory::Host.layout(u64::MAX, false), None);
        assert_eq!(Memory::Device.layout(5, true), size_class::layout(5, true));
    }
}
