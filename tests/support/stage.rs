//! Stand-in libraries and programs of a few lines, compiled for a test.

use std::path::{Path, PathBuf};

use super::support::{Folder, Outcome, Run, compile};

/// A folder with stand-in libraries, and programs that find them.
pub struct Stage {
    pub folder: Folder,
}

impl Stage {
    pub fn new(name: &str) -> Self {
        Self {
            folder: Folder::new(name),
        }
    }

    /// Compiles a shared object called `file`.
    pub fn object(&self, file: &str, source: &str, flags: &[&str]) -> PathBuf {
        let soname = format!("-Wl,-soname,{file}");
        let folder = format!("-L{}", self.folder.path().display());
        let mut all = vec!["-shared", "-fPIC", "-w", "-D_GNU_SOURCE", &soname, &folder];
        all.extend(flags);
        compile(&self.folder, "gcc", file, source, &all)
    }

    pub fn program(&self, source: &str, flags: &[&str]) -> PathBuf {
        let folder = format!("-L{}", self.folder.path().display());
        let mut all = vec!["-w", "-D_GNU_SOURCE", &folder];
        all.extend(flags);
        all.push("-ldl");
        compile(&self.folder, "gcc", "program", source, &all)
    }

    pub fn run(&self, program: &Path) -> Run {
        Run::new(program)
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("GPUPOOL_MODE", "off")
    }

    /// Runs without and with the library, and wants the same.
    #[track_caller]
    pub fn same(&self, program: &Path) -> Outcome {
        let native = self.run(program).with_lib(false).run();
        let loaded = self.run(program).with_lib(true).run();
        assert_eq!(
            (loaded.code(), &loaded.stdout, &loaded.stderr),
            (native.code(), &native.stdout, &native.stderr)
        );
        loaded.expect_success()
    }
}
