//! Reading the statistics that the library writes at exit.

use std::fs;

use crate::support::Folder;

/// The library's statistics at exit.
pub fn statistics(folder: &Folder) -> serde_json::Value {
    let path = folder.path().join("stats.json");
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|why| panic!("no statistics in {}: {why}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
}

/// One of its numbers, by JSON pointer.
pub fn number(stats: &serde_json::Value, path: &str) -> u64 {
    stats
        .pointer(path)
        .and_then(serde_json::Value::as_u64)
        .unwrap_or_else(|| panic!("no {path} in {stats}"))
}
