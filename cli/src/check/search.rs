//! Where the dynamic linker finds a library: as ld.so(8) says, read from the
//! files, without running anything.

use std::fs;
use std::path::{Path, PathBuf};

use super::elf::{self, Kind, Object};

/// A system to search in: this one, or the one that a process sees.
pub struct System {
    /// What stands before each absolute path: empty, or `/proc/PID/root`.
    root: PathBuf,
    library_path: Vec<PathBuf>,
    /// Name and path, as ld.so.cache lists them.
    cache: Vec<(String, String)>,
}

const DEFAULT: &[&str] = &[
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// A library that belongs to a program.
pub struct Library {
    /// By which it was asked for.
    pub name: String,
    /// Where it is; `None` if it was not found.
    pub path: Option<PathBuf>,
}

impl System {
    /// This system, with LD_LIBRARY_PATH as it is.
    pub fn here() -> Self {
        let library_path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        Self::new(
            PathBuf::new(),
            std::env::split_paths(&library_path).collect(),
        )
    }

    fn new(root: PathBuf, library_path: Vec<PathBuf>) -> Self {
        let cache = fs::read(root.join("etc/ld.so.cache"))
            .or_else(|_| fs::read("/etc/ld.so.cache"))
            .unwrap_or_default();
        Self {
            root,
            library_path,
            cache: parse_cache(&cache),
        }
    }

    fn at(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/") {
            Ok(below) if self.root.as_os_str().len() > 1 => self.root.join(below),
            _ => path.to_owned(),
        }
    }

    /// The file that `name`, needed by the object at `origin`, is.
    pub fn find(&self, name: &str, origin: &Path, object: &Object) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(self.at(Path::new(name))).filter(|path| path.exists());
        }
        let folder = origin.parent().unwrap_or(Path::new("/"));
        let folder = folder.to_string_lossy();
        let own = |list: &[String]| -> Vec<PathBuf> {
            list.iter()
                .map(|path| {
                    let path = path
                        .replace("$ORIGIN", &folder)
                        .replace("${ORIGIN}", &folder);
                    PathBuf::from(path)
                })
                .collect()
        };
        // RPATH counts only where there is no RUNPATH.
        let mut folders = if object.runpath.is_empty() {
            own(&object.rpath)
        } else {
            Vec::new()
        };
        folders.extend(self.library_path.iter().cloned());
        folders.extend(own(&object.runpath));
        let fits = |path: &PathBuf| {
            elf::Bytes::of(path).is_ok_and(|bytes| elf::kind(&bytes) == Kind::X86_64)
        };
        let listed = |folders: &[PathBuf]| {
            folders
                .iter()
                .map(|folder| self.at(&folder.join(name)))
                .find(fits)
        };
        listed(&folders)
            .or_else(|| {
                self.cache
                    .iter()
                    .filter(|(known, _)| known == name)
                    .map(|(_, path)| self.at(Path::new(path)))
                    .find(fits)
            })
            .or_else(|| listed(&DEFAULT.iter().map(PathBuf::from).collect::<Vec<_>>()))
    }

    /// All libraries that the program at `path` is linked to, directly or not.
    pub fn closure(&self, path: &Path, object: &Object) -> Vec<Library> {
        let mut found: Vec<Library> = Vec::new();
        let mut open: Vec<(PathBuf, Object)> = vec![(
            path.to_owned(),
            Object {
                needed: object.needed.clone(),
                rpath: object.rpath.clone(),
                runpath: object.runpath.clone(),
                interpreter: None,
            },
        )];
        while let Some((origin, object)) = open.pop() {
            for name in &object.needed {
                if found.iter().any(|library| library.name == *name) {
                    continue;
                }
                let path = self.find(name, &origin, &object);
                if let Some(path) = &path
                    && let Ok(bytes) = elf::Bytes::of(path)
                    && let Some(inner) = elf::object(&bytes)
                {
                    // $ORIGIN means where the file really lies.
                    let real = path.canonicalize().unwrap_or_else(|_| path.clone());
                    open.push((real, inner));
                }
                found.push(Library {
                    name: name.clone(),
                    path,
                });
            }
        }
        found
    }
}

/// The x86-64 entries of ld.so.cache in its present format (glibc 2.2 on).
fn parse_cache(bytes: &[u8]) -> Vec<(String, String)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    /// FLAG_ELF_LIBC6 and FLAG_X8664_LIB64.
    const X86_64: u32 = 0x0303;
    // Older systems put the old format before it.
    let Some(start) = memchr::memmem::find(bytes, MAGIC) else {
        return Vec::new();
    };
    let bytes = &bytes[start..];
    let number = |at: usize| {
        let raw = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(raw.try_into().ok()?))
    };
    let text = |at: u32| {
        let rest = bytes.get(at as usize..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    let count = number(MAGIC.len()).unwrap_or(0) as usize;
    (0..count)
        .map_while(|entry| {
            let at = HEADER + entry * ENTRY;
            Some((number(at)?, number(at + 4)?, number(at + 8)?))
        })
        .filter(|(flags, _, _)| *flags == X86_64)
        .filter_map(|(_, name, path)| Some((text(name)?, text(path)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_this_program_are_found() {
        let path = std::env::current_exe().unwrap();
        let bytes = elf::Bytes::of(&path).unwrap();
        let object = elf::object(&bytes).unwrap();
        let closure = System::here().closure(&path, &object);
        let libc = closure.iter().find(|library| library.name == "libc.so.6");
        assert!(libc.is_some_and(|library| library.path.is_some()));
    }

    #[test]
    fn a_damaged_cache_is_an_empty_one() {
        assert!(parse_cache(b"").is_empty());
        let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
        bytes.extend([0xff; 40]);
        assert!(parse_cache(&bytes).is_empty());
        if let Ok(real) = fs::read("/etc/ld.so.cache") {
            let entries = parse_cache(&real);
            assert!(
                entries.iter().all(|(_, path)| path.starts_with('/')),
                "{entries:?}"
            );
        }
    }
}
