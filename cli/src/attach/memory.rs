//! The memory of the process: `/proc/PID/mem` and `/proc/PID/maps`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Page size of x86-64.
pub const PAGE: u64 = 4096;

/// End of the user half of the address space with four-level page tables.
const HIGHEST: u64 = 0x7fff_ffff_f000;

/// The memory of one program image: after an exec in the process it reaches
/// nothing, so that nothing is written into another program.
pub struct Memory(File);

impl Memory {
    /// Opens it; the kernel asks for the right to trace the process.
    pub fn open(pid: i32) -> io::Result<Self> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .map(Self)
    }

    /// Fills `bytes`, or fails.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, address)
    }

    /// As many bytes as can be read, at most `length`.
    pub fn read_up_to(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut done = 0;
        while done < length {
            match self.0.read_at(&mut bytes[done..], address + done as u64) {
                Ok(more) if more > 0 => done += more,
                _ => break,
            }
        }
        bytes.truncate(done);
        bytes
    }

    /// Writes all of `bytes`, also where the process itself may not write.
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }

    pub fn read_u64(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub fn read_u32(&self, address: u64) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub fn read_u8(&self, address: u64) -> io::Result<u8> {
        let mut bytes = [0; 1];
        self.read(address, &mut bytes)?;
        Ok(bytes[0])
    }

    /// Text up to a zero byte, at most `most` bytes.
    pub fn read_text(&self, address: u64, most: usize) -> String {
        let bytes = self.read_up_to(address, most);
        let end = bytes.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
    }
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub range: Range<u64>,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    pub private: bool,
    pub offset: u64,
    /// Device and inode as they stand there.
    pub file: (String, u64),
    pub path: String,
}

/// The process's mappings, sorted by address.
pub fn mappings(pid: i32) -> io::Result<Vec<Mapping>> {
    let bytes = fs::read(format!("/proc/{pid}/maps"))?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

fn parse(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut next = || {
        let (field, others) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = others.trim_start();
        Some(field).filter(|field| !field.is_empty())
    };
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = next()?.split_once('-')?;
    let range = hex(start)?..hex(end)?;
    let rights = next()?.as_bytes();
    let offset = hex(next()?)?;
    let device = next()?.to_owned();
    let inode = next()?.parse().ok()?;
    Some(Mapping {
        range,
        readable: rights.first() == Some(&b'r'),
        writable: rights.get(1) == Some(&b'w'),
        executable: rights.get(2) == Some(&b'x'),
        private: rights.get(3) == Some(&b'p'),
        offset,
        file: (device, inode),
        path: rest.to_owned(),
    })
}

/// The mapping that holds `address`.
pub fn find(maps: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = maps.partition_point(|mapping| mapping.range.end <= address);
    maps.get(after)
        .filter(|mapping| mapping.range.contains(&address))
}

/// A free place of `size` bytes, far from what is mapped. `attempt` gives
/// another one each time.
pub fn free_place(maps: &[Mapping], size: u64, attempt: u64) -> Option<u64> {
    const ROOM: u64 = 1 << 30;
    let mut from = PAGE << 16;
    let mut gaps: Vec<Range<u64>> = Vec::new();
    for mapping in maps {
        gaps.push(from..mapping.range.start.min(HIGHEST));
        from = from.max(mapping.range.end);
    }
    gaps.push(from..HIGHEST);
    let gap = gaps
        .into_iter()
        .filter(|gap| gap.end > gap.start)
        .max_by_key(|gap| gap.end - gap.start)?;
    let place = (gap.start + (gap.end - gap.start) / 2 + attempt * ROOM) & !(PAGE - 1);
    (place + size <= gap.end).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_form_are_read() {
        let maps = parse(
            "00400000-00401000 r-xp 00001000 08:01 7 /bin/my app\n\
             7f0000000000-7f0000001000 rw-s 00000000 00:05 12                 /memfd:x (deleted)\n\
             7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0 \n\
             not a line\n",
        );
        assert_eq!(maps.len(), 3);
        assert_eq!(maps[0].range, 0x40_0000..0x40_1000);
        assert_eq!(maps[0].path, "/bin/my app");
        assert_eq!((maps[0].offset, maps[0].file.1), (0x1000, 7));
        assert!(maps[0].executable && maps[0].private && !maps[0].writable);
        assert_eq!(maps[1].path, "/memfd:x (deleted)");
        assert!(maps[1].writable && !maps[1].private);
        assert_eq!(maps[2].path, "");
        assert_eq!(find(&maps, 0x40_1000), None);
        assert_eq!(
            find(&maps, 0x40_0fff).map(|m| m.range.start),
            Some(0x40_0000)
        );
    }

    #[test]
    fn a_free_place_overlaps_nothing() {
        let maps = mappings(std::process::id() as i32).unwrap();
        for attempt in 0..3 {
            let place = free_place(&maps, 1 << 20, attempt).unwrap();
            assert_eq!(place % PAGE, 0);
            let touches = |mapping: &Mapping| {
                mapping.range.start < place + (1 << 20) && place < mapping.range.end
            };
            assert!(!maps.iter().any(touches));
        }
    }

    #[test]
    fn own_memory_is_read_and_written() {
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let word: u64 = 0x1234_5678_9abc_def0;
        let place = std::hint::black_box(&word) as *const u64 as u64;
        assert_eq!(memory.read_u64(place).unwrap(), word);
        assert_eq!(memory.read_u32(place).unwrap(), 0x9abc_def0);
        assert!(memory.read_u64(0).is_err());
        assert!(memory.read_up_to(0, 8).is_empty());
    }
}
