//! Reads the sources and checks that each layer uses only those below it in
//! the order of [`LAYERS`], and what else holds for whole layers.
#![allow(clippy::unwrap_used, reason = "tests may fail loudly")]

use std::fs;
use std::path::{Path, PathBuf};

/// Each may use those before it and itself.
const LAYERS: &[&str] = &[
    "config", "logging", "trace", "nvtx", "pool", "cuda", "process", "hooks",
];

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    PathSep,
    Other(char),
}

/// Rust source without comments, strings and characters, as words, `::` and
/// single characters. Enough of the grammar to follow paths.
fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let starts = |i: usize, text: &str| text.chars().enumerate().all(|(k, c)| at(i + k) == c);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        if starts(i, "//") {
            while i < chars.len() && chars[i] != '\n' {
                i += 1;
            }
        } else if starts(i, "/*") {
            let mut depth = 0;
            while i < chars.len() {
                if starts(i, "/*") {
                    depth += 1;
                    i += 2;
                } else if starts(i, "*/") {
                    depth -= 1;
                    i += 2;
                    if depth == 0 {
                        break;
                    }
                } else {
                    i += 1;
                }
            }
        } else if is_word(c) {
            let start = i;
            while is_word(at(i)) {
                i += 1;
            }
            let word: String = chars[start..i].iter().collect();
            let raw = matches!(word.as_str(), "r" | "br" | "cr") && matches!(at(i), '"' | '#');
            let hashes = (i..).take_while(|&k| at(k) == '#').count();
            if raw && at(i + hashes) == '"' {
                let end = format!("\"{}", "#".repeat(hashes));
                i += hashes + 1;
                while i < chars.len() && !starts(i, &end) {
                    i += 1;
                }
                i += end.len();
            } else {
                found.push(Token::Word(word));
            }
        } else if c == '"' {
            i += 1;
            while i < chars.len() && chars[i] != '"' {
                i += if chars[i] == '\\' { 2 } else { 1 };
            }
            i += 1;
        } else if c == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            // A character, not a lifetime.
            i += if at(i + 1) == '\\' { 3 } else { 2 };
            while i < chars.len() && chars[i] != '\'' {
                i += 1;
            }
            i += 1;
        } else if starts(i, "::") {
            found.push(Token::PathSep);
            i += 2;
        } else {
            if !c.is_whitespace() {
                found.push(Token::Other(c));
            }
            i += 1;
        }
    }
    found
}

/// The top-level modules of this crate that the source of `module` (its path
/// from the crate's root) names through `crate::` or `super::`.
fn used_layers(source: &str, module: &[String]) -> Vec<String> {
    let tokens = tokens(source);
    let word = |i: usize| match tokens.get(i) {
        Some(Token::Word(word)) => Some(word.as_str()),
        _ => None,
    };
    let mut used = Vec::new();
    // Modules written inside this file, with the brace depth of each.
    let mut inner: Vec<usize> = Vec::new();
    let mut depth = 0;
    let mut i = 0;
    while i < tokens.len() {
        match &tokens[i] {
            Token::Other('{') => depth += 1,
            Token::Other('}') => {
                depth -= 1;
                if inner.last() == Some(&depth) {
                    inner.pop();
                }
            }
            Token::Word(name) if name == "mod" && tokens.get(i + 2) == Some(&Token::Other('{')) => {
                inner.push(depth);
            }
            Token::Word(name) if name == "crate" || name == "super" => {
                // How many modules up the path has gone so far.
                let mut up = usize::from(name == "super");
                let to_root = name == "crate";
                while word(i + 2) == Some("super") && tokens[i + 1] == Token::PathSep {
                    up += 1;
                    i += 2;
                }
                let at_root = to_root || up == module.len() + inner.len();
                if at_root && tokens.get(i + 1) == Some(&Token::PathSep) {
                    used.extend(first_names(&tokens, i + 2));
                }
            }
            _ => {}
        }
        i += 1;
    }
    used
}

/// The first name of the path at `start`, or of each path of a `{…}` there.
fn first_names(tokens: &[Token], start: usize) -> Vec<String> {
    match tokens.get(start) {
        Some(Token::Word(name)) => vec![name.clone()],
        Some(Token::Other('*')) => vec![String::from("*")],
        Some(Token::Other('{')) => {
            let mut names = Vec::new();
            let mut depth = 0;
            let mut expected = false;
            for token in &tokens[start..] {
                match token {
                    Token::Other('{') => {
                        depth += 1;
                        expected |= depth == 1;
                    }
                    Token::Other('}') => {
                        depth -= 1;
                        if depth == 0 {
                            break;
                        }
                    }
                    Token::Other(',') if depth == 1 => expected = true,
                    Token::Word(name) if depth == 1 && expected => {
                        names.push(name.clone());
                        expected = false;
                    }
                    _ => {}
                }
            }
            names
        }
        _ => Vec::new(),
    }
}

/// A source file: its path, its module's path from the root, its text.
struct Source {
    path: PathBuf,
    module: Vec<String>,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let below = path.strip_prefix(&root).unwrap().with_extension("");
                let mut module: Vec<String> = below
                    .iter()
                    .map(|part| part.to_str().unwrap().to_owned())
                    .collect();
                if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
                    module.pop();
                }
                sources.push(Source { path, module, text });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(sources.len() >= LAYERS.len(), "no sources under {root:?}");
    sources
}

fn position(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|known| *known == layer)
}

/// What a file of `layer` may not use, of what it uses.
fn too_high(layer: usize, used: &[String]) -> Vec<&String> {
    // A name that is no layer is an item of the crate's root, a macro or a
    // glob: a macro is exported by a layer, and `use crate::*` would hide
    // everything.
    used.iter()
        .filter(|name| name.as_str() == "*" || position(name).is_some_and(|other| other > layer))
        .collect()
}

#[test]
fn each_layer_uses_only_those_below_it() {
    let mut faults = Vec::new();
    let mut uses = 0;
    for source in sources().iter().filter(|source| !source.module.is_empty()) {
        let Some(layer) = position(&source.module[0]) else {
            faults.push(format!(
                "{:?} belongs to no layer of {LAYERS:?}",
                source.path
            ));
            continue;
        };
        let used = used_layers(&source.text, &source.module);
        uses += used.len();
        for name in too_high(layer, &used) {
            faults.push(format!("{:?} ({}) uses {name}", source.path, LAYERS[layer]));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(uses > 0, "the scan found no path at all");
}

/// The pool is pure logic: it reaches the GPU and the system through a trait.
#[test]
fn the_pool_neither_calls_cuda_nor_the_system() {
    let mut faults = Vec::new();
    for source in sources()
        .iter()
        .filter(|source| source.module.first().is_some_and(|m| m == "pool"))
    {
        for token in tokens(&source.text) {
            if let Token::Word(word) = token
                && matches!(word.as_str(), "libc" | "libloading" | "extern" | "dlsym")
            {
                faults.push(format!("{:?} mentions {word}", source.path));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// An unmangled `dlsym` or `cudaMalloc` in this crate would take over every
/// program that links it: the command and the tests. Only the preloaded
/// library exports symbols.
#[test]
fn the_core_exports_no_unmangled_symbol() {
    for source in sources() {
        for token in tokens(&source.text) {
            if let Token::Word(word) = token {
                let exports = matches!(word.as_str(), "no_mangle" | "export_name");
                assert!(!exports, "{:?} has {word}", source.path);
            }
        }
    }
}

#[test]
fn the_scan_sees_paths_of_every_form() {
    let used = |source: &str, module: &[&str]| {
        let module: Vec<String> = module.iter().map(|part| (*part).to_owned()).collect();
        used_layers(source, &module)
    };
    for (source, module, expected) in [
        (
            "use crate::hooks::x;",
            &["pool", "grace"][..],
            vec!["hooks"],
        ),
        ("fn f() { crate :: cuda::g() }", &["pool"], vec!["cuda"]),
        (
            "use crate::{config, hooks::{self, a, b}, pool as p};",
            &["cuda"],
            vec!["config", "hooks", "pool"],
        ),
        ("use super::super::cuda;", &["pool", "grace"], vec!["cuda"]),
        ("use super::cuda;", &["pool", "grace"], vec![]),
        ("use super::cuda;", &["pool"], vec!["cuda"]),
        (
            "mod tests { use super::hooks; use super::super::hooks; } use super::cuda;",
            &["pool"],
            vec!["hooks", "cuda"],
        ),
        ("use crate::*;", &["pool"], vec!["*"]),
        (
            "pub(crate) fn f() {} pub(super) struct S;",
            &["pool"],
            vec![],
        ),
        (
            "// crate::hooks\n/* crate::hooks /* */ crate::cuda */ let s = \"crate::hooks\\\"\";",
            &["pool"],
            vec![],
        ),
        (
            "let s = r#\"crate::hooks\"#; let c = '\"'; let d = '\\''; crate::cuda::x::<'a>();",
            &["pool"],
            vec!["cuda"],
        ),
    ] {
        assert_eq!(used(source, module), expected, "{source}");
    }
    let hooks = [String::from("hooks")];
    assert_eq!(too_high(position("pool").unwrap(), &hooks), [&hooks[0]]);
    assert!(too_high(position("hooks").unwrap(), &hooks).is_empty());
}
