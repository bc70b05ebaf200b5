//! Rounding and alignment of requests.
//!
//! The driver carves requests up to 1 MiB out of 2 MiB blocks on 512-byte
//! steps, and gives larger ones whole 2 MiB pages at 2 MiB-aligned addresses
//! (measured on an H200, driver 580.159). Programs can rely on such addresses,
//! so the pool aligns no weaker.

/// Sizes and addresses of blocks are multiples of this many bytes.
pub const GRANULE: u64 = 512;
/// Segments are multiples of this many bytes, and aligned to it.
pub const PAGE: u64 = 2 << 20;
/// The largest request that is small: larger ones are page-aligned.
pub const SMALL_MAX: u64 = 1 << 20;
/// The largest request that is of medium size.
pub const MEDIUM_MAX: u64 = 4 << 20;
/// From here on a request has a segment of its own that is never split: an
/// IPC handle's offset field has 32 bits, so that nothing inside a larger
/// segment could be exported.
pub const DEDICATED_MIN: u64 = 4 << 30;
/// Requests above this go to the driver, which refuses them: no device has
/// that much, and the sums in this crate cannot overflow below it.
pub const REQUEST_MAX: u64 = 1 << 44;

/// The kind of segment that a request is served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Requests up to 1 MiB.
    Small,
    /// Requests above 1 MiB, up to 4 MiB.
    Medium,
    /// Requests above 4 MiB.
    Large,
    /// One request, of 4 GiB or more, or any of 2 MiB or more where they are isolated.
    Dedicated,
}

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes, a multiple of [`GRANULE`].
    pub size: u64,
    /// Alignment in bytes.
    pub align: u64,
    /// Where it is served from.
    pub kind: Kind,
}

/// The layout of a request of `bytes`; `None` for 0 and for absurd sizes,
/// which the driver answers. `isolate`: requests of a page and more get a
/// segment of their own.
#[must_use]
pub fn layout(bytes: u64, isolate: bool) -> Option<Layout> {
    if bytes == 0 || bytes > REQUEST_MAX {
        return None;
    }
    let size = bytes.next_multiple_of(GRANULE);
    Some(if bytes <= SMALL_MAX {
        Layout {
            size,
            align: GRANULE,
            kind: Kind::Small,
        }
    } else if bytes < DEDICATED_MIN && !(isolate && bytes >= PAGE) {
        Layout {
            size,
            align: PAGE,
            kind: if bytes <= MEDIUM_MAX {
                Kind::Medium
            } else {
                Kind::Large
            },
        }
    } else {
        Layout {
            size: bytes.next_multiple_of(PAGE),
            align: PAGE,
            kind: Kind::Dedicated,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_never_weaker_than_the_drivers() {
        for bytes in [1, 511, 512, 513, SMALL_MAX] {
            let l = layout(bytes, false).unwrap();
            assert_eq!((l.align, l.kind), (GRANULE, Kind::Small));
            assert!(l.size >= bytes && l.size < bytes + GRANULE);
        }
        for (bytes, kind) in [
            (SMALL_MAX + 1, Kind::Medium),
            (MEDIUM_MAX, Kind::Medium),
            (MEDIUM_MAX + 1, Kind::Large),
            (DEDICATED_MIN - 1, Kind::Large),
        ] {
            let l = layout(bytes, false).unwrap();
            assert_eq!((l.align, l.kind), (PAGE, kind));
            assert!(l.size >= bytes && l.size < bytes + GRANULE);
        }
        let l = layout(DEDICATED_MIN, false).unwrap();
        assert_eq!((l.kind, l.size), (Kind::Dedicated, DEDICATED_MIN));
        assert_eq!(layout(PAGE, true).unwrap().kind, Kind::Dedicated);
        assert_eq!(layout(PAGE - 1, true).unwrap().kind, Kind::Medium);
    }

    #[test]
    fn absurd_sizes_are_the_drivers() {
        for bytes in [0, REQUEST_MAX + 1, 1 << 50, u64::MAX] {
            assert_eq!(layout(bytes, false), None);
        }
    }
}
