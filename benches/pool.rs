//! What the pool itself costs, without a driver: `cargo bench`.

mod device;

use device::{Done, alloc, pair, pool};
use divan::Bencher;

const MIB: u64 = 1 << 20;

fn main() {
    divan::main();
}

/// An allocation and its free, served by the thread's cache.
#[divan::bench(args = [512, 64 << 10, MIB, 16 * MIB], threads = [1, 4])]
fn hit(bencher: Bencher<'_, '_>, bytes: u64) {
    let (device, pool) = (Done::default(), pool());
    bencher.bench(|| pair(&pool, &device, bytes));
}

/// The same by turns for many sizes.
#[divan::bench(args = [8, 64])]
fn hit_of_many_sizes(bencher: Bencher<'_, '_>, sizes: u64) {
    let (device, pool) = (Done::default(), pool());
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % sizes;
        pair(&pool, &device, (next + 1) * 4096);
    });
}

/// A size that no cache keeps: carved out of the arena, and joined again.
#[divan::bench]
fn carved(bencher: Bencher<'_, '_>) {
    let (device, pool) = (Done::default(), pool());
    bencher.bench_local(|| pair(&pool, &device, 100 * MIB));
}

/// Every size a new one, among a thousand live blocks.
#[divan::bench]
fn ever_new_sizes(bencher: Bencher<'_, '_>) {
    let (device, pool) = (Done::default(), pool());
    let mut seed = 1u64;
    let mut size = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % (8 * MIB) + 1
    };
    let mut live: Vec<u64> = (0..1000).map(|_| alloc(&pool, &device, size())).collect();
    let mut at = 0;
    bencher.bench_local(|| {
        at = (at + 1) % live.len();
        assert!(pool.free(&device, live[at]));
        live[at] = alloc(&pool, &device, size());
    });
}

/// A free of memory that is not the pool's.
#[divan::bench]
fn foreign_free(bencher: Bencher<'_, '_>) {
    let (device, pool) = (Done::default(), pool());
    pair(&pool, &device, MIB);
    bencher.bench(|| pool.free(&device, divan::black_box(0x1234_5600)));
}
