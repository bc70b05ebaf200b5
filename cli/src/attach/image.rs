//! The ELF objects of the process, read from its memory: so they are what is
//! running, wherever their files lie and whether or not they are still there.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::memory::{Mapping, Memory, PAGE};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const PF_X: u32 = 1;

/// One loaded object.
pub struct Image {
    /// Path as `/proc/PID/maps` has it, without " (deleted)".
    pub path: String,
    /// What is added to the file's addresses.
    pub bias: u64,
    /// From its first to its last byte in memory.
    pub range: Range<u64>,
    /// Its executable segments, each up to its last byte (not its last page).
    pub code: Vec<Range<u64>>,
    /// Whether it is the dynamic linker.
    pub is_linker: bool,
    eh_frame_hdr: Option<Range<u64>>,
    eh_segment_end: u64,
    dynamic: Option<Tables>,
    known: OnceCell<HashMap<&'static str, Range<u64>>>,
}

struct Tables {
    symbols: u64,
    names: u64,
    hash: u64,
}

/// Unwind tables: the addresses of `.eh_frame_hdr` and `.eh_frame`, and their
/// bytes.
pub struct Unwinding {
    pub header: Range<u64>,
    pub header_bytes: Arc<[u8]>,
    pub frames: Range<u64>,
    pub frames_bytes: Arc<[u8]>,
}

/// All objects, in order of address.
pub fn images(maps: &[Mapping], memory: &Memory) -> Vec<Image> {
    let mut found = Vec::new();
    for (index, mapping) in maps.iter().enumerate() {
        let is_object = mapping.offset == 0
            && mapping.readable
            && (mapping.file.1 != 0 || mapping.path == "[vdso]");
        if is_object && let Some(image) = Image::read(mapping, memory) {
            // Another mapping of the file's beginning inside an object is none.
            let inside = |known: &Image| known.range.contains(&maps[index].range.start);
            if !found.iter().any(inside) {
                found.push(image);
            }
        }
    }
    found
}

impl Image {
    fn read(mapping: &Mapping, memory: &Memory) -> Option<Self> {
        let base = mapping.range.start;
        let mut header = [0; 64];
        memory.read(base, &mut header).ok()?;
        if header[..5] != *b"\x7fELF\x02" {
            return None;
        }
        let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let kind = word(16);
        let table = u64::from_le_bytes(header[32..40].try_into().ok()?);
        let (size, count) = (usize::from(word(54)), usize::from(word(56)));
        if !matches!(kind, 2 | 3) || size < 56 || table > PAGE * 16 {
            return None;
        }
        let bytes = memory.read_up_to(base + table, size * count);
        let segments: Vec<Segment> = bytes.chunks_exact(size).filter_map(Segment::read).collect();
        let loads = || segments.iter().filter(|segment| segment.kind == PT_LOAD);
        let first = loads().map(|segment| segment.address & !(PAGE - 1)).min()?;
        let bias = base.wrapping_sub(first);
        let placed = |segment: &Segment| {
            let start = segment.address.wrapping_add(bias);
            start..start.wrapping_add(segment.memory)
        };
        let end = loads().map(|segment| placed(segment).end).max()?;
        let code = loads()
            .filter(|segment| segment.flags & PF_X != 0)
            .map(placed)
            .collect();
        let eh_frame_hdr = segments
            .iter()
            .find(|segment| segment.kind == PT_GNU_EH_FRAME)
            .map(placed);
        let eh_segment_end = eh_frame_hdr.as_ref().map_or(0, |header| {
            loads()
                .map(placed)
                .find(|load| load.contains(&header.start))
                .map_or(header.end, |load| load.end)
        });
        let path = mapping.path.trim_end_matches(" (deleted)").to_owned();
        let name = path.rsplit('/').next().unwrap_or("");
        let is_linker = name.starts_with("ld-linux") || name.starts_with("ld-2.");
        let dynamic = segments
            .iter()
            .find(|segment| segment.kind == PT_DYNAMIC)
            .and_then(|segment| Tables::read(placed(segment), bias, memory));
        Some(Self {
            is_linker,
            path,
            bias,
            range: base..end,
            code,
            eh_frame_hdr,
            eh_segment_end,
            dynamic,
            known: OnceCell::new(),
        })
    }

    /// The last component of its path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or("")
    }

    /// Whether `address` lies in its code.
    pub fn has_code_at(&self, address: u64) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }

    /// Where the function of that name lies, if it exports it.
    pub fn symbol(&self, name: &str, memory: &Memory) -> Option<Range<u64>> {
        let tables = self.dynamic.as_ref()?;
        tables.find(name, self.bias, memory).ok()?
    }

    /// Those of `names` that it exports. The first call's list is kept.
    pub fn symbols(
        &self,
        names: &[&'static str],
        memory: &Memory,
    ) -> &HashMap<&'static str, Range<u64>> {
        self.known.get_or_init(|| {
            names
                .iter()
                .filter_map(|name| Some((*name, self.symbol(name, memory)?)))
                .collect()
        })
    }

    /// Its unwind tables.
    pub fn unwinding(&self, memory: &Memory) -> Option<Unwinding> {
        let header = self.eh_frame_hdr.clone()?;
        let mut start = [0; 8];
        memory.read(header.start, &mut start).ok()?;
        // Version 1, and the pointer as a 32-bit distance from itself
        // (DW_EH_PE_pcrel | DW_EH_PE_sdata4): what all linkers write.
        if start[0] != 1 || start[1] != 0x1b {
            return None;
        }
        let distance = i32::from_le_bytes(start[4..8].try_into().ok()?);
        let from = (header.start + 4).wrapping_add_signed(i64::from(distance));
        let to = if from > header.start {
            self.eh_segment_end
        } else {
            header.start
        };
        let length = to.checked_sub(from).filter(|length| *length < 1 << 28)?;
        let read =
            |range: &Range<u64>| memory.read_up_to(range.start, (range.end - range.start) as usize);
        let frames_bytes = memory.read_up_to(from, length as usize);
        Some(Unwinding {
            header_bytes: read(&header).into(),
            header,
            frames: from..from + frames_bytes.len() as u64,
            frames_bytes: frames_bytes.into(),
        })
    }
}

struct Segment {
    kind: u32,
    flags: u32,
    address: u64,
    memory: u64,
}

impl Segment {
    fn read(bytes: &[u8]) -> Option<Self> {
        let small = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let large = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            kind: small(0)?,
            flags: small(4)?,
            address: large(16)?,
            memory: large(40)?,
        })
    }
}

impl Tables {
    fn read(section: Range<u64>, bias: u64, memory: &Memory) -> Option<Self> {
        let (mut symbols, mut names, mut hash) = (0, 0, 0);
        let length = (section.end - section.start).min(1 << 16) as usize;
        let bytes = memory.read_up_to(section.start, length);
        for entry in bytes.chunks_exact(16) {
            let tag = u64::from_le_bytes(entry[..8].try_into().ok()?);
            let value = u64::from_le_bytes(entry[8..].try_into().ok()?);
            // The linker has made most of them addresses already.
            let value = if value < bias { value + bias } else { value };
            match tag {
                0 => break,
                DT_SYMTAB => symbols = value,
                DT_STRTAB => names = value,
                DT_GNU_HASH => hash = value,
                _ => {}
            }
        }
        (symbols != 0 && names != 0 && hash != 0).then_some(Self {
            symbols,
            names,
            hash,
        })
    }

    /// Looks `name` up in the GNU hash table. Of several versions the first.
    fn find(&self, name: &str, bias: u64, memory: &Memory) -> io::Result<Option<Range<u64>>> {
        let wanted = name.bytes().fold(5381_u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add(u32::from(byte))
        });
        let buckets = memory.read_u32(self.hash)?;
        let first = memory.read_u32(self.hash + 4)?;
        let bloom = memory.read_u32(self.hash + 8)?;
        if buckets == 0 {
            return Ok(None);
        }
        let bucket_table = self.hash + 16 + 8 * u64::from(bloom);
        let chain_table = bucket_table + 4 * u64::from(buckets);
        let mut index = memory.read_u32(bucket_table + 4 * u64::from(wanted % buckets))?;
        if index < first {
            return Ok(None);
        }
        loop {
            let hash = memory.read_u32(chain_table + 4 * u64::from(index - first))?;
            if hash | 1 == wanted | 1
                && let Some(found) = self.named(index, name, bias, memory)?
            {
                return Ok(Some(found));
            }
            if hash & 1 != 0 {
                return Ok(None);
            }
            index += 1;
        }
    }

    /// The symbol of that number, if it has this name and is defined.
    fn named(
        &self,
        index: u32,
        name: &str,
        bias: u64,
        memory: &Memory,
    ) -> io::Result<Option<Range<u64>>> {
        let mut symbol = [0; 24];
        memory.read(self.symbols + 24 * u64::from(index), &mut symbol)?;
        let at = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&symbol[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let text = at(0) as u32;
        if symbol[6..8] == [0, 0]
            || memory.read_text(self.names + u64::from(text), name.len() + 1) != name
        {
            return Ok(None);
        }
        let start = at(8).wrapping_add(bias);
        Ok(Some(start..start + at(16).max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::mappings;
    use super::*;

    #[test]
    fn the_functions_of_this_process_are_found() {
        let pid = std::process::id() as i32;
        let memory = Memory::open(pid).unwrap();
        let images = images(&mappings(pid).unwrap(), &memory);
        let libc = images.iter().find(|i| i.name() == "libc.so.6").unwrap();
        let malloc = libc.symbol("malloc", &memory).unwrap();
        assert_eq!(malloc.start, libc::malloc as *const () as u64);
        assert!(malloc.end - malloc.start > 1);
        assert!(libc.has_code_at(malloc.start));
        assert_eq!(libc.symbol("no such function", &memory), None);
        assert!(images.iter().any(|image| image.is_linker));
        let unwinding = libc.unwinding(&memory).unwrap();
        assert!(!unwinding.frames_bytes.is_empty() && !unwinding.header_bytes.is_empty());
        let own = the_functions_of_this_process_are_found as *const () as u64;
        assert!(images[0].has_code_at(own), "{}", images[0].path);
    }
}
