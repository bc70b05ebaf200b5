//! Allocations and frees on the pool's hot path, to be counted by
//! `scripts/instructions`: `hot_path CASE PAIRS`.

#[path = "../benches/device/mod.rs"]
mod device;

use device::{Done, pair, pool};

fn main() -> Result<(), String> {
    let usage = || String::from("usage: hot_path hit|sizes|carved PAIRS");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [case, pairs] = &arguments[..] else {
        return Err(usage());
    };
    let pairs: u64 = pairs
        .parse()
        .map_err(|_| format!("PAIRS {pairs:?} is no number; {}", usage()))?;
    let size: fn(u64) -> u64 = match case.as_str() {
        "hit" => |_| 64 << 10,
        "sizes" => |number| (number % 16 + 1) * 8192,
        "carved" => |_| 100 << 20,
        _ => return Err(format!("CASE {case:?}; {}", usage())),
    };
    let (device, pool) = (Done::default(), pool());
    for number in 0..pairs {
        pair(&pool, &device, size(number));
    }
    Ok(())
}
