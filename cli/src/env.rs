//! `gpupool env`: the option table, from the same rows that the library parses.

use std::fmt::Write;

use gpupool::config::{OPTIONS, Opt, Since};
use serde_json::{Value, json};

pub const EXAMPLES: &str = "Examples:
  gpupool env
  gpupool env --json | jq -r '.[] | select(.implemented) | .name'
  gpupool env --markdown";

#[derive(clap::Args)]
pub struct Args {
    /// As a JSON array, one object for each variable
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// As a Markdown table
    #[arg(long)]
    markdown: bool,
}

/// What the command prints.
pub fn text(args: &Args) -> String {
    match (args.json, args.markdown) {
        (true, _) => json_text(),
        (_, true) => markdown_text(),
        _ => plain_text(),
    }
}

fn plain_text() -> String {
    let mut text = String::new();
    for option in OPTIONS {
        let default = if option.default.is_empty() {
            "none"
        } else {
            option.default
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", option.name);
        let _ = writeln!(text, "    {}", option.meaning.replace('`', ""));
        let _ = writeln!(text, "    takes:   {}", option.accepts);
        let _ = writeln!(text, "    default: {default}");
        if let Some(note) = not_yet(option) {
            let _ = writeln!(text, "    {note}");
        }
    }
    text
}

fn json_text() -> String {
    let rows: Vec<Value> = OPTIONS
        .iter()
        .map(|option| {
            let (since, acts_as) = match option.since {
                Since::Version(version) => (json!(version), Value::Null),
                Since::NotYet { acts_as } => (Value::Null, json!(acts_as)),
            };
            json!({
                "name": option.name,
                "default": option.default,
                "accepts": option.accepts,
                "meaning": option.meaning,
                "implemented": option.implemented(),
                "since": since,
                "acts_as": acts_as,
            })
        })
        .collect();
    format!("{:#}\n", Value::Array(rows))
}

fn markdown_text() -> String {
    let mut text = String::from("| variable | default | meaning |\n|---|---|---|\n");
    for option in OPTIONS {
        let default = if option.default.is_empty() {
            "–"
        } else {
            option.default
        };
        let note = not_yet(option)
            .map(|note| format!(" *({note})*"))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "| {} | {default} | {}{note} |",
            option.name, option.meaning
        );
    }
    text
}

fn not_yet(option: &Opt) -> Option<String> {
    match option.since {
        Since::Version(_) => None,
        Since::NotYet { acts_as } if acts_as == option.default => {
            Some(String::from("not in this release: it has no effect"))
        }
        Since::NotYet { acts_as } => Some(format!("not in this release: it acts as {acts_as}")),
    }
}
