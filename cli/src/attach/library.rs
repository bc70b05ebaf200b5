//! The library: its file, and its block in a process that has it loaded.

use std::ffi::OsString;
use std::io;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use gpupool::process::State;
use gpupool::process::attach::{Block, Jump, LAYOUT, MAGIC, Phase};

use super::Failure;
use super::memory::{Mapping, Memory};

/// Room for the options in the block.
const OPTIONS: usize = 4096;

/// Largest mapping of which a block is looked for: the library's own is some
/// tens of KiB.
const LARGEST: u64 = 256 << 10;

fn failure(message: String) -> Failure {
    Failure { message, code: 1 }
}

fn positions(bytes: &[u8]) -> Vec<usize> {
    let first = MAGIC[0];
    (0..bytes.len().saturating_sub(MAGIC.len()))
        .filter(|at| bytes[*at] == first && bytes[*at..].starts_with(&MAGIC))
        .collect()
}

/// The file's bytes, marked as loaded by an attach.
///
/// # Errors
/// It cannot be read, or is not a library of this version.
pub fn marked_copy(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = std::fs::read(path).map_err(|why| failure(format!("{path:?}: {why}")))?;
    let [at] = positions(&bytes)[..] else {
        return Err(failure(format!(
            "{path:?} is not a libgpupool.so that can be attached: name another one in GPUPOOL_LIB"
        )));
    };
    let word = |offset: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[at + offset..at + offset + 4]);
        u32::from_le_bytes(word)
    };
    if word(offset_of!(Block, layout)) != LAYOUT {
        return Err(failure(format!(
            "{path:?} is of another version than this command: use those that were built together"
        )));
    }
    let mark = at + offset_of!(Block, attached);
    bytes[mark..mark + 4].copy_from_slice(&1_u32.to_le_bytes());
    Ok(bytes)
}

/// The options as the library takes them.
///
/// # Errors
/// They are too long.
pub fn encode(options: &[(OsString, OsString)]) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    for (name, value) in options {
        bytes.extend(name.as_bytes());
        bytes.push(b'=');
        bytes.extend(value.as_bytes());
        bytes.push(0);
    }
    if bytes.len() >= OPTIONS {
        return Err(Failure {
            message: format!(
                "--set: the options take {} bytes, and there is room for {OPTIONS}: shorten the paths",
                bytes.len()
            ),
            code: 2,
        });
    }
    bytes.resize(OPTIONS, 0);
    Ok(bytes)
}

/// The block of a library that is loaded.
pub struct Loaded<'a> {
    memory: &'a Memory,
    at: u64,
}

impl<'a> Loaded<'a> {
    /// Looks for it.
    ///
    /// # Errors
    /// There is one of another version.
    pub fn find(maps: &[Mapping], memory: &'a Memory) -> Result<Option<Self>, Failure> {
        for mapping in maps {
            let size = mapping.range.end - mapping.range.start;
            if !mapping.writable || !mapping.private || mapping.file.1 == 0 || size > LARGEST {
                continue;
            }
            let bytes = memory.read_up_to(mapping.range.start, size as usize);
            if let Some(at) = positions(&bytes).first() {
                let loaded = Self {
                    memory,
                    at: mapping.range.start + *at as u64,
                };
                loaded.check_version()?;
                return Ok(Some(loaded));
            }
        }
        Ok(None)
    }

    fn check_version(&self) -> Result<(), Failure> {
        let own = env!("CARGO_PKG_VERSION");
        let layout = self.word(offset_of!(Block, layout));
        let version = self
            .memory
            .read_text(self.at + offset_of!(Block, version) as u64, 24);
        if layout.map_err(gone)? != LAYOUT || version != own {
            return Err(failure(format!(
                "the process has version {version} of the library, and this is version {own}: use the command of that version"
            )));
        }
        Ok(())
    }

    fn place(&self, offset: usize) -> u64 {
        self.at + offset as u64
    }

    fn word(&self, offset: usize) -> io::Result<u32> {
        self.memory.read_u32(self.place(offset))
    }

    fn put(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.memory.write(self.place(offset), bytes)
    }

    /// The byte that a pointer in the block points to.
    fn byte(&self, offset: usize) -> io::Result<u64> {
        self.memory.read_u64(self.place(offset))
    }

    /// Whether an attach has loaded it.
    pub fn is_attached(&self) -> io::Result<bool> {
        Ok(self.word(offset_of!(Block, attached))? != 0)
    }

    /// How far the attachment has come; the number that stands there.
    pub fn phase(&self) -> io::Result<u32> {
        self.word(offset_of!(Block, phase))
    }

    pub fn set_phase(&self, phase: Phase) -> io::Result<()> {
        self.put(offset_of!(Block, phase), &(phase as u32).to_le_bytes())
    }

    /// The library's state.
    pub fn state(&self) -> io::Result<State> {
        let byte = self.memory.read_u8(self.byte(offset_of!(Block, state))?)?;
        let known = [State::Off, State::Pool, State::Observe, State::Passing];
        Ok(known
            .into_iter()
            .find(|state| *state as u8 == byte)
            .unwrap_or(State::Inert))
    }

    pub fn set_state(&self, state: State) -> io::Result<()> {
        let place = self.byte(offset_of!(Block, state))?;
        self.memory.write(place, &[state as u8])
    }

    pub fn set_wanted(&self, wanted: u8) -> io::Result<()> {
        let place = self.byte(offset_of!(Block, wanted))?;
        self.memory.write(place, &[wanted])
    }

    pub fn proof(&self) -> io::Result<u8> {
        self.memory.read_u8(self.byte(offset_of!(Block, proof))?)
    }

    pub fn set_proof(&self, proof: u8) -> io::Result<()> {
        let place = self.byte(offset_of!(Block, proof))?;
        self.memory.write(place, &[proof])
    }

    pub fn set_observe(&self, observe: bool) -> io::Result<()> {
        self.put(
            offset_of!(Block, observe),
            &u32::from(observe).to_le_bytes(),
        )
    }

    pub fn set_dlsym(&self, address: u64) -> io::Result<()> {
        self.put(offset_of!(Block, dlsym), &address.to_le_bytes())
    }

    /// The options that it was given, as [`encode`] wrote them.
    pub fn options(&self) -> Vec<u8> {
        self.memory
            .read_up_to(self.place(offset_of!(Block, options)), OPTIONS)
    }

    pub fn set_options(&self, options: &[u8]) -> io::Result<()> {
        self.put(offset_of!(Block, options), options)
    }

    /// Bytes that its pools held when `prepare` was last called.
    pub fn reserved(&self) -> io::Result<u64> {
        self.memory
            .read_u64(self.place(offset_of!(Block, reserved)))
    }

    /// The function that makes everything ready.
    pub fn prepare(&self) -> io::Result<u64> {
        self.memory.read_u64(self.place(offset_of!(Block, prepare)))
    }

    /// Whether the loader has finished with it: before, its pointers are none.
    pub fn is_complete(&self, maps: &[Mapping]) -> bool {
        self.prepare().is_ok_and(|function| {
            super::memory::find(maps, function).is_some_and(|mapping| mapping.executable)
        })
    }

    /// Why that function refused.
    pub fn message(&self) -> String {
        self.memory
            .read_text(self.place(offset_of!(Block, message)), 1024)
    }

    /// The jumps that are to be written.
    pub fn jumps(&self) -> io::Result<Vec<Jump>> {
        let count = self.word(offset_of!(Block, jumps))?;
        let first = self
            .memory
            .read_u64(self.place(offset_of!(Block, first_jump)))?;
        let mut jumps = Vec::new();
        for index in 0..u64::from(count.min(1024)) {
            let mut bytes = [0; size_of::<Jump>()];
            self.memory
                .read(first + index * bytes.len() as u64, &mut bytes)?;
            // SAFETY: a structure of integers of this size: every bit pattern is a value.
            jumps.push(unsafe { std::mem::transmute::<[u8; size_of::<Jump>()], Jump>(bytes) });
        }
        Ok(jumps)
    }
}

/// The process's memory can no longer be reached.
pub fn gone(error: io::Error) -> Failure {
    failure(format!(
        "the process has ended, or has begun another program ({error})"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_written_one_after_the_other() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let bytes = encode(&[pair("A", "1"), pair("B", "x=y")]).unwrap();
        assert_eq!(bytes.len(), OPTIONS);
        assert!(bytes.starts_with(b"A=1\0B=x=y\0\0"));
        let long = "x".repeat(OPTIONS);
        assert!(
            encode(&[pair("A", &long)])
                .unwrap_err()
                .message
                .contains("--set")
        );
    }

    #[test]
    fn only_a_library_with_one_block_is_marked() {
        let path = std::env::temp_dir().join(format!("gpupool-block-{}", std::process::id()));
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            marked_copy(&path).unwrap_err().message
        };
        assert!(refused(b"something else").contains("GPUPOOL_LIB"));
        let mut block = MAGIC.to_vec();
        block.extend((LAYOUT + 1).to_le_bytes());
        block.extend([0; 64]);
        assert!(refused(&block).contains("another version"));
        let twice = [block.clone(), block.clone()].concat();
        assert!(refused(&twice).contains("GPUPOOL_LIB"));
        block[32..36].copy_from_slice(&LAYOUT.to_le_bytes());
        std::fs::write(&path, &block).unwrap();
        let marked = marked_copy(&path).unwrap();
        assert_eq!(marked[36..40], [1, 0, 0, 0]);
        assert_eq!((&marked[..36], &marked[40..]), (&block[..36], &block[40..]));
        let _ = std::fs::remove_file(&path);
        assert!(
            marked_copy(&path)
                .unwrap_err()
                .message
                .contains("gpupool-block")
        );
    }
}
