//! Traces made for the tests of `gpupool report`, and running it.

#![allow(dead_code, reason = "each test file uses a part of this")]

use std::path::PathBuf;
use std::process::{Command, Output};

use gpupool::trace::{Call, Chunk, End, Header, Memory, Object, Place, end, header, objects};

pub fn report(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpupool"))
        .arg("report")
        .args(args)
        .output()
        .unwrap()
}

/// What it prints when all is well.
pub fn printed(args: &[&str]) -> String {
    let output = report(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {stderr}");
    assert_eq!(stderr, "");
    String::from_utf8(output.stdout).unwrap()
}

/// A folder of the test's own, removed with it.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpupool-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub const MIB: u64 = 1 << 20;
pub const TIDS: [u32; 2] = [700, 701];

pub const ALLOC: Call = Call {
    is_free: false,
    memory: Memory::Device,
    thread: 0,
    at_ns: 1_000,
    took_ns: 500,
    address: 0x7000_0000,
    size: 3 * MIB,
    result: 0,
    pooled: true,
    place: Some(Place {
        device: 0,
        context: 1,
    }),
    stream: None,
    site: 0x40_1234,
    stack: 0,
};

pub const FREE: Call = Call {
    is_free: true,
    size: 0,
    ..ALLOC
};

/// Two threads that hand one address back and forth: 3 MiB, then 5 MiB of the
/// other thread, then 1 MiB beside it; 2 MiB of managed memory; a failure. In
/// the file the 1 MiB stands before the 5 MiB.
pub fn calls() -> Vec<Call> {
    vec![
        ALLOC,
        Call {
            at_ns: 2_000,
            ..FREE
        },
        Call {
            at_ns: 5_000,
            address: 0x9000_0000,
            size: MIB,
            site: 0x1111,
            ..ALLOC
        },
        Call {
            at_ns: 7_000,
            address: 0,
            size: u64::MAX,
            result: 2,
            pooled: false,
            ..ALLOC
        },
        Call {
            thread: 1,
            at_ns: 3_000,
            size: 5 * MIB,
            ..ALLOC
        },
        Call {
            thread: 1,
            at_ns: 4_000,
            memory: Memory::Managed,
            address: 0xA000_0000,
            size: 2 * MIB,
            pooled: false,
            ..ALLOC
        },
        Call {
            thread: 1,
            at_ns: 9_000,
            ..FREE
        },
    ]
}

pub fn trace(calls: &[Call], ends: bool) -> Vec<u8> {
    let mut bytes = header(&Header {
        pid: 700,
        library: String::from("0.1.0 <&>"),
        ..Header::default()
    });
    bytes.extend_from_slice(&objects(&[Object {
        start: 0x40_0000,
        end: 0x50_0000,
        base: 0x40_0000,
        path: String::from("/opt/a <b> & c/app"),
    }]));
    for (thread, tid) in TIDS.iter().enumerate() {
        // Several chunks of a thread.
        for part in calls
            .iter()
            .filter(|call| call.thread == thread as u32)
            .collect::<Vec<_>>()
            .chunks(2)
        {
            let mut chunk = Chunk::default();
            for call in part {
                chunk.push(call, *tid);
            }
            bytes.extend_from_slice(chunk.finished());
        }
    }
    if ends {
        bytes.extend_from_slice(&end(&End {
            calls: calls.len() as u64,
            lost: 0,
        }));
    }
    bytes
}
