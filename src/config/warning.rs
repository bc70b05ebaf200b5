//! What is said about options that were not taken as written.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use super::{OPTIONS, Opt, PREFIX};

/// Why a variable was not taken as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarningKind {
    /// No option has this name.
    UnknownName,
    /// The option does not accept this value; its default stays.
    BadValue,
    /// The value is accepted, and this release does not act on it.
    NotYet,
}

/// One line about one variable. `Display` gives the line, without a newline
/// and without control characters, whatever the variable held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// What is wrong.
    pub kind: WarningKind,
    /// The variable's name, as text.
    pub variable: String,
    message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Warning {
    pub(super) fn unknown_name(name: &OsStr, value: &OsStr) -> Warning {
        let suggestion = match nearest(name) {
            Some(option) => format!(
                "did you mean {}, which accepts {} (default {})?",
                option.name,
                option.accepts,
                default_text(option)
            ),
            None => String::from("`gpupool env` lists the options and what they accept"),
        };
        Warning {
            kind: WarningKind::UnknownName,
            variable: quoted(name, ""),
            message: format!(
                "{}={} is not an option and has no effect: {suggestion}",
                quoted(name, ""),
                quoted(value, "\"")
            ),
        }
    }

    pub(super) fn bad_value(option: &Opt, value: &OsStr) -> Warning {
        Warning {
            kind: WarningKind::BadValue,
            variable: option.name.to_owned(),
            message: format!(
                "{}={} is not accepted: it takes {}; the default stays: {}",
                option.name,
                quoted(value, "\""),
                option.accepts,
                default_text(option)
            ),
        }
    }

    pub(super) fn not_yet(option: &Opt, value: &OsStr, acts_as: &str) -> Warning {
        let instead = if acts_as.is_empty() {
            "if it were not set"
        } else {
            acts_as
        };
        Warning {
            kind: WarningKind::NotYet,
            variable: option.name.to_owned(),
            message: format!(
                "{}={} has no effect: this release does not have that feature yet and acts as {instead}",
                option.name,
                quoted(value, "\""),
            ),
        }
    }
}

fn default_text(option: &Opt) -> &'static str {
    if option.default.is_empty() {
        "none"
    } else {
        option.default
    }
}

/// `text` on one line, short, between `mark`s: an environment can hold
/// megabytes, newlines and terminal escapes.
fn quoted(text: &OsStr, mark: &str) -> String {
    const MOST: usize = 80;
    // Bounded before the conversion, so that a huge value costs nothing.
    let bytes = text.as_bytes();
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * MOST)]);
    let mut line = String::from(mark);
    line.extend(shown.chars().take(MOST).flat_map(char::escape_debug));
    if shown.chars().count() > MOST {
        line.push('…');
    }
    line.push_str(mark);
    line
}

/// The option whose name is closest, if any is close enough to be a typing
/// mistake: within a third of its letters, two at least.
fn nearest(name: &OsStr) -> Option<&'static Opt> {
    let name = name.to_str()?.strip_prefix(PREFIX)?.to_ascii_uppercase();
    if name.len() > 32 {
        return None;
    }
    OPTIONS
        .iter()
        .filter_map(|option| Some((option, option.name.strip_prefix(PREFIX)?)))
        .map(|(option, known)| (edit_distance(&name, known), known.len(), option))
        .filter(|(distance, length, _)| *distance <= (length / 3).max(2) && distance < length)
        .min_by_key(|(distance, ..)| *distance)
        .map(|(.., option)| option)
}

/// Levenshtein distance, by bytes: names are ASCII where it matters.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
