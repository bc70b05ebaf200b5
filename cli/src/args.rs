//! Values of the command's own flags.

use std::time::Duration;

/// A time such as `500ms`, `15s` or `1m`.
pub fn time(text: &str) -> Result<Duration, String> {
    gpupool::config::parse_time(text)
        .filter(|time| !time.is_zero())
        .ok_or_else(|| String::from("a time above 0 such as 500ms, 15s or 1m, at most 24h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("1m"), Ok(Duration::from_secs(60)));
        for bad in ["", "0", "15", "soon", "-1s"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
