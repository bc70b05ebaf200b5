//! What is mapped where: `/proc/self/maps`, read into ranges.

use std::fs;
use std::ops::Range;

/// One line of `/proc/self/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses, page-aligned.
    pub range: Range<usize>,
    /// `PROT_*` bits as mapped.
    pub rights: libc::c_int,
    /// Kept free around it, because the kernel lets it grow: the stack downward, the heap upward.
    grows: Growth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    None,
    Up,
    Down,
}

/// Left free for a mapping that can grow: far above the usual limit of a stack (8 MiB).
const ROOM_TO_GROW: usize = 256 << 20;

/// Nothing is placed below: the kernel refuses low addresses (`vm.mmap_min_addr`), and a null
/// pointer plus an offset must keep faulting.
const LOWEST: usize = 1 << 20;

/// End of the user half of the address space with four-level page tables.
const HIGHEST: usize = 0x7fff_ffff_f000;

/// The process's mappings, sorted by address.
///
/// # Errors
/// The system's message, if `/proc/self/maps` cannot be read (no `/proc` in a chroot).
pub fn read() -> Result<Vec<Mapping>, String> {
    let bytes = fs::read("/proc/self/maps").map_err(|why| format!("/proc/self/maps: {why}"))?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

/// Lines of another form than the kernel's are left out.
fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    let letters = fields.next()?.as_bytes();
    let mut rights = 0;
    for (letter, right) in [
        (b'r', libc::PROT_READ),
        (b'w', libc::PROT_WRITE),
        (b'x', libc::PROT_EXEC),
    ] {
        if letters.contains(&letter) {
            rights |= right;
        }
    }
    // Then offset, device and inode, before the name.
    let grows = match fields.nth(3) {
        Some("[heap]") => Growth::Up,
        Some(name) if name.starts_with("[stack") => Growth::Down,
        _ => Growth::None,
    };
    Some(Mapping {
        range,
        rights,
        grows,
    })
}

/// The mapping that holds `address`.
pub fn find(maps: &[Mapping], address: usize) -> Option<&Mapping> {
    let after = maps.partition_point(|mapping| mapping.range.end <= address);
    maps.get(after)
        .filter(|mapping| mapping.range.contains(&address))
}

/// How many bytes from `address` on are mapped without a hole and with all of `rights`.
pub fn extent(maps: &[Mapping], address: usize, rights: libc::c_int) -> usize {
    let mut end = address;
    while let Some(mapping) = find(maps, end).filter(|mapping| mapping.rights & rights == rights) {
        end = mapping.range.end;
    }
    end - address
}

/// Where `size` bytes could be mapped so that they lie within `reach` bytes of `near`, the nearest
/// first: one place for each gap. `size` and `near` are multiples of the page size.
pub fn places(maps: &[Mapping], near: usize, size: usize, reach: usize) -> Vec<usize> {
    let mut gaps = Vec::new();
    let mut from = LOWEST;
    for mapping in maps {
        let to = match mapping.grows {
            Growth::Down => mapping.range.start.saturating_sub(ROOM_TO_GROW),
            Growth::Up | Growth::None => mapping.range.start,
        };
        gaps.push(from..to.min(HIGHEST));
        from = match mapping.grows {
            Growth::Up => mapping.range.end.saturating_add(ROOM_TO_GROW),
            Growth::Down | Growth::None => mapping.range.end,
        }
        .max(from);
    }
    gaps.push(from..HIGHEST);

    let low = near.saturating_sub(reach);
    let high = near.saturating_add(reach);
    let mut places: Vec<usize> = gaps
        .into_iter()
        .map(|gap| gap.start.max(low)..gap.end.min(high))
        .filter(|gap| gap.start < gap.end && gap.end - gap.start >= size)
        .map(|gap| near.clamp(gap.start, gap.end - size))
        .map(|place| place & !(super::PAGE - 1))
        .filter(|place| *place >= low)
        .collect();
    places.sort_by_key(|place| place.abs_diff(near));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
00400000-00401000 r-xp 00000000 08:01 7 /bin/app
00402000-00500000 rw-p 00000000 00:00 0 [heap]
40000000-40010000 r-xp 00000000 08:01 8 /lib/with a space.so
40010000-40020000 r--p 00010000 08:01 8 /lib/with a space.so
7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn reads_ranges_and_rights() {
        let maps = parse(SAMPLE);
        assert_eq!(maps.len(), 5);
        assert_eq!(maps[0].range, 0x40_0000..0x40_1000);
        assert_eq!(maps[0].rights, libc::PROT_READ | libc::PROT_EXEC);
        assert_eq!(find(&maps, 0x40_1000), None);
        assert_eq!(
            find(&maps, 0x4000_ffff).map(|m| m.range.start),
            Some(0x4000_0000)
        );
    }

    #[test]
    fn extent_ends_at_a_hole_or_where_a_right_is_missing() {
        let maps = parse(SAMPLE);
        assert_eq!(extent(&maps, 0x4000_0010, libc::PROT_READ), 0x1_fff0);
        assert_eq!(extent(&maps, 0x4000_0010, libc::PROT_EXEC), 0xfff0);
        assert_eq!(extent(&maps, 0x40_1000, libc::PROT_READ), 0);
    }

    #[test]
    fn places_are_near_and_leave_room_for_stack_and_heap() {
        let maps = parse(SAMPLE);
        let reach = 1 << 30;
        let found = places(&maps, 0x4000_0000, 0x2000, reach);
        assert_eq!(found[0], 0x3fff_e000, "just below");
        assert_eq!(found[1], 0x4002_0000, "just above");
        for place in found {
            assert!(place.abs_diff(0x4000_0000) <= reach);
            assert!(find(&maps, place).is_none() && find(&maps, place + 0x1fff).is_none());
            assert!(!(0x50_0000..0x50_0000 + ROOM_TO_GROW).contains(&place));
        }
        let under_stack = places(&maps, 0x7ffc_0010_0000, 0x2000, ROOM_TO_GROW / 2);
        assert_eq!(under_stack, [0x7ffc_0010_0000], "only above the stack");
    }

    #[test]
    fn no_place_out_of_reach() {
        let full = vec![Mapping {
            range: 0..HIGHEST,
            rights: 0,
            grows: Growth::None,
        }];
        assert!(places(&full, 0x4000_0000, 0x1000, 1 << 30).is_empty());
    }

    #[test]
    fn this_process_can_be_read() {
        let maps = read().expect("/proc is mounted");
        let here = this_process_can_be_read as *const () as usize;
        let mapping = find(&maps, here).expect("this code is mapped");
        assert_eq!(mapping.rights & libc::PROT_EXEC, libc::PROT_EXEC);
        assert!(
            maps.windows(2)
                .all(|pair| pair[0].range.end <= pair[1].range.start)
        );
    }
}
