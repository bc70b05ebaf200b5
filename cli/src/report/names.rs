//! Names of call sites: functions, files and lines, from the objects' files as
//! they are now.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use addr2line::Loader;
use gpupool::trace::Object;

use super::feed::Outline;

/// What is known of a place in the code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The functions there, the innermost first: where some were compiled into
    /// their callers there are several. Empty where none is known.
    pub functions: Vec<String>,
    /// File and line of the innermost one; empty where not known.
    pub line: String,
}

/// Finds names, and remembers them.
pub struct Names<'a> {
    objects: &'a [Object],
    started_unix_ns: u64,
    /// By path; `None` where the file has nothing to tell.
    loaders: HashMap<&'a str, Option<Loader>>,
    known: HashMap<u64, Place>,
}

impl<'a> Names<'a> {
    /// For the call sites of a trace.
    pub fn of(outline: &'a Outline<'_>) -> Self {
        Self {
            objects: &outline.objects,
            started_unix_ns: outline.started_unix_ns,
            loaders: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// What is at a return address: of the call before it.
    pub fn place(&mut self, site: u64) -> &Place {
        if !self.known.contains_key(&site) {
            let place = self.find(site).unwrap_or_default();
            self.known.insert(site, place);
        }
        &self.known[&site]
    }

    fn find(&mut self, site: u64) -> Option<Place> {
        let call = site.checked_sub(1)?;
        let object = self
            .objects
            .iter()
            .find(|object| (object.start..object.end).contains(&call))?;
        let started = self.started_unix_ns;
        let loader = self
            .loaders
            .entry(&object.path)
            .or_insert_with(|| open(&object.path, started))
            .as_ref()?;
        let at = call.wrapping_sub(object.base);
        let mut place = Place::default();
        if let Ok(mut frames) = loader.find_frames(at) {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame
                    .function
                    .as_ref()
                    .and_then(|name| name.demangle().ok());
                place.functions.extend(name.map(|name| name.into_owned()));
                if place.line.is_empty()
                    && let Some(location) = &frame.location
                    && let (Some(file), Some(line)) = (location.file, location.line)
                {
                    place.line = format!("{file}:{line}");
                }
            }
        }
        if place.functions.is_empty()
            && let Some(symbol) = loader.find_symbol(at)
        {
            let name = addr2line::demangle_auto(symbol.into(), None);
            place.functions.push(name.into_owned());
        }
        Some(place)
    }
}

/// A file's names; `None` where it cannot be read, or is not the one that the
/// process had: it has changed since.
fn open(path: &str, started_unix_ns: u64) -> Option<Loader> {
    let changed = std::fs::metadata(path).ok()?.modified().ok()?;
    if changed > UNIX_EPOCH + Duration::from_nanos(started_unix_ns) {
        return None;
    }
    Loader::new(path).ok()
}
