//! Numbers of variable length: seven bits a byte, low ones first, the top bit
//! set in all bytes but the last (LEB128). Signed ones in zigzag order.

/// Most bytes of a number.
pub const MOST: usize = 10;

/// Appends `value`.
#[inline]
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the difference `to - from`, modulo 2^64.
#[inline]
pub fn put_step(out: &mut Vec<u8>, from: u64, to: u64) {
    let step = to.wrapping_sub(from) as i64;
    put(out, ((step << 1) ^ (step >> 63)) as u64);
}

/// Takes a number off the front of `bytes`; `None` if it does not end there or
/// does not fit into 64 bits.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (place, byte) in bytes.iter().enumerate().take(MOST) {
        let bits = u64::from(byte & 0x7F);
        if place == MOST - 1 && bits > 1 {
            return None;
        }
        value |= bits << (7 * place);
        if byte & 0x80 == 0 {
            *bytes = &bytes[place + 1..];
            return Some(value);
        }
    }
    None
}

/// Takes a difference off the front of `bytes` and adds it to `from`.
#[inline]
pub fn take_step(bytes: &mut &[u8], from: u64) -> Option<u64> {
    let coded = take(bytes)?;
    let step = (coded >> 1) as i64 ^ -((coded & 1) as i64);
    Some(from.wrapping_add(step as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back() {
        let edges = (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1, u64::MAX - (1 << bit)]);
        for value in edges.chain([u64::MAX]) {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            put_step(&mut bytes, 1 << 40, value);
            assert!(bytes.len() <= 2 * MOST);
            let mut rest = &bytes[..];
            assert_eq!(take(&mut rest), Some(value));
            assert_eq!(take_step(&mut rest, 1 << 40), Some(value));
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for bytes in [&[][..], &[0x80], &[0xFF; 9], &[0xFF; 11]] {
            let mut rest = bytes;
            assert_eq!(take(&mut rest), None, "{bytes:?}");
        }
        let mut too_large = vec![0xFF; 9];
        too_large.push(2);
        assert_eq!(take(&mut &too_large[..]), None);
    }
}
