//! A strict reader of Prometheus's text format, as its documentation defines it (exposition
//! formats, text-based format, version 0.0.4), and a little stricter: what Prometheus and
//! node_exporter would take silently in another way than it was meant is refused.

#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};

/// One line with a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// All samples of a text, or the first line that is wrong, and why.
pub fn parse(text: &str) -> Result<Vec<Sample>, String> {
    if !text.ends_with('\n') {
        return Err(String::from("the last line does not end"));
    }
    let mut samples = Vec::new();
    let mut known: BTreeMap<String, (bool, Option<String>)> = BTreeMap::new();
    let mut current = String::new();
    let mut series = BTreeSet::new();
    for line in text.lines() {
        let wrong = |why: &str| format!("{why}: {line}");
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (kind, name, told) = (words.next(), words.next(), words.next());
            let (Some(kind), Some(name), Some(told)) = (kind, name, told) else {
                return Err(wrong("a comment that says nothing"));
            };
            if name != current && known.contains_key(name) {
                return Err(wrong("the lines of a metric are apart"));
            }
            name.clone_into(&mut current);
            let described = known.entry(name.to_owned()).or_default();
            match kind {
                "HELP" if !described.0 => described.0 = true,
                "TYPE" if described.1.is_none() && matches!(told, "counter" | "gauge") => {
                    described.1 = Some(told.to_owned());
                }
                _ => return Err(wrong("described twice, or in no known way")),
            }
            continue;
        }
        let sample = sample(line).map_err(|why| wrong(&why))?;
        let Some((true, Some(kind))) = known.get(&sample.name) else {
            return Err(wrong("not described before"));
        };
        if sample.name != current {
            return Err(wrong("the lines of a metric are apart"));
        }
        let counts = kind == "counter";
        if counts != sample.name.ends_with("_total") || counts && sample.value < 0.0 {
            return Err(wrong("its name or value does not suit its type"));
        }
        if !series.insert((sample.name.clone(), sample.labels.clone())) {
            return Err(wrong("the same series twice"));
        }
        samples.push(sample);
    }
    Ok(samples)
}

fn is_name(text: &str, with_colon: bool) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || with_colon && c == ':';
    !text.is_empty() && text.chars().all(good) && !text.starts_with(|c: char| c.is_ascii_digit())
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name, true) {
        return Err(String::from("no name of a metric"));
    }
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("no label")?;
            if !is_name(label, false) || label.starts_with("__") {
                return Err(format!("{label:?} is no name of a label"));
            }
            let (value, after) = quoted(after)?;
            if labels.insert(label.to_owned(), value).is_some() {
                return Err(format!("{label} twice"));
            }
            match after.split_at_checked(1) {
                Some((",", more)) => rest = more,
                Some(("}", more)) => {
                    rest = more;
                    break;
                }
                _ => return Err(String::from("labels that do not end")),
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let is_plain = value
        .chars()
        .all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    let value = value.parse().ok().filter(|_| is_plain);
    Ok(Sample {
        name: name.to_owned(),
        labels,
        value: value.ok_or("no number, or something behind it")?,
    })
}

/// A label's value up to its closing quotation mark, and what follows.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next().map(|(_, next)| next) {
                Some('n') => value.push('\n'),
                Some(next @ ('"' | '\\')) => value.push(next),
                other => return Err(format!("\\ before {other:?}")),
            },
            char => value.push(char),
        }
    }
    Err(String::from("a value that does not end"))
}
