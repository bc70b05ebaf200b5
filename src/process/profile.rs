//! GPUPOOL_PROFILE: what a run needed of each device, written at exit and taken
//! from the driver at the next run's first use, so that it makes no allocation
//! of the driver on its way. Only primary contexts: others have no number that
//! means the same in the next run.

use super::config;
use crate::cuda::context::{self, Context};
use crate::pool::profile::Need;
use crate::pool::size_class::{Kind, PAGE};
use crate::pool::stats::bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Version of the file's format.
const FORMAT: u64 = 1;
/// One part in so many is taken on top, of a run that needed at least so many
/// bytes: how much waits for the GPU at once differs from run to run (inference
/// on an H200: two driver allocations in the second run without it).
const MARGIN: u64 = 8;
/// See [`MARGIN`].
const MARGIN_FROM: u64 = 64 << 20;
/// See [`MARGIN`]: below the size of dedicated segments, in bytes.
const MARGIN_MOST: u64 = 2 << 30;

/// More segments than a run can need; a larger number is a mistake in the file.
const MOST: u64 = 1 << 20;

/// Segments by device.
type Profile = BTreeMap<i32, Vec<Need>>;

const KINDS: [Kind; 4] = [Kind::Small, Kind::Medium, Kind::Large, Kind::Dedicated];

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Small => "small",
        Kind::Medium => "medium",
        Kind::Large => "large",
        Kind::Dedicated => "dedicated",
    }
}

fn path() -> Option<PathBuf> {
    let template = config().profile.as_ref()?;
    Some(template.expand(std::process::id()))
}

/// A context became known.
pub fn watch(context: &'static Context) {
    if config().profile.is_some() {
        context.pool.remember_peak();
    }
}

/// The first use of a pool: takes what the last run needed.
pub fn reserve(context: &'static Context) {
    static LAST: OnceLock<Profile> = OnceLock::new();
    let Some(path) = path().filter(|_| context.is_primary()) else {
        return;
    };
    let profile = LAST.get_or_init(|| match std::fs::read_to_string(&path) {
        Ok(text) => parse(&text).unwrap_or_else(|why| {
            log::warn!(
                "GPUPOOL_PROFILE: {} is no profile: {why}; remove it, this run writes it anew",
                path.display()
            );
            Profile::new()
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Profile::new(),
        Err(error) => {
            log::warn!("GPUPOOL_PROFILE: cannot read {}: {error}", path.display());
            Profile::new()
        }
    });
    let Some(needs) = profile.get(&context.device) else {
        return;
    };
    let wanted: u64 = needs.iter().map(|(_, size)| size).sum();
    let taken = context.pool.reserve_all(&context, needs);
    if taken == wanted && taken >= MARGIN_FROM {
        let margin = (taken / MARGIN).next_multiple_of(PAGE).min(MARGIN_MOST);
        context.pool.reserve_all(&context, &[(Kind::Large, margin)]);
    }
    let (taken, wanted) = (bytes(taken), bytes(wanted));
    log::info!(
        "GPUPOOL_PROFILE: device {} gave {taken} of {wanted} in {} segments",
        context.device,
        needs.len()
    );
}

/// At exit: writes what this run needed. A process that needed nothing leaves
/// the file as it is: it may be another one's.
pub fn write() {
    let Some(path) = path() else { return };
    let mut profile = Profile::new();
    for context in context::ever() {
        if !context.is_primary() {
            continue;
        }
        let needs = context.pool.needed();
        let sum = |needs: &[Need]| needs.iter().map(|(_, size)| size).sum::<u64>();
        // A device that was reset has had several contexts, one after the other.
        let known = profile.entry(context.device).or_default();
        if sum(&needs) > sum(known) {
            *known = needs;
        }
    }
    if profile.values().all(Vec::is_empty) {
        return;
    }
    // In one step: another rank of the job may read or write it now.
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let written = std::fs::write(&beside, format!("{:#}\n", json(&profile)))
        .and_then(|()| std::fs::rename(&beside, &path));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&beside);
        log::warn!("GPUPOOL_PROFILE: cannot write {}: {error}", path.display());
    }
}

fn json(profile: &Profile) -> Value {
    let devices: Vec<Value> = profile
        .iter()
        .map(|(device, needs)| {
            // Equal neighbours together, in the order in which they lie.
            let mut segments: Vec<(Need, u64)> = Vec::new();
            for need in needs {
                match segments.last_mut() {
                    Some((last, count)) if last == need => *count += 1,
                    _ => segments.push((*need, 1)),
                }
            }
            let segments: Vec<Value> = segments
                .into_iter()
                .map(|((kind, size), count)| {
                    json!({"kind": name(kind), "bytes": size, "count": count})
                })
                .collect();
            let sum: u64 = needs.iter().map(|(_, size)| size).sum();
            json!({"device": device, "bytes": sum, "segments": segments})
        })
        .collect();
    json!({"gpupool_profile": FORMAT, "devices": devices})
}

fn parse(text: &str) -> Result<Profile, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match value["gpupool_profile"].as_u64() {
        Some(FORMAT) => {}
        Some(other) => return Err(format!("its format is {other}, not {FORMAT}")),
        None => return Err(String::from("gpupool_profile is missing")),
    }
    let list = |value: &Value, name: &str| {
        let list = value[name].as_array().cloned();
        list.ok_or_else(|| format!("{name} is no list"))
    };
    let number = |value: &Value, name: &str| {
        let number = value[name].as_u64();
        number.ok_or_else(|| format!("{name} is no number"))
    };
    let mut profile = Profile::new();
    for device in list(&value, "devices")? {
        let ordinal = i32::try_from(number(&device, "device")?)
            .map_err(|_| String::from("device is out of range"))?;
        let mut needs = Vec::new();
        for segment in list(&device, "segments")? {
            let wanted = segment["kind"].as_str().unwrap_or_default();
            let kind = KINDS.into_iter().find(|kind| name(*kind) == wanted);
            let kind = kind.ok_or_else(|| format!("there is no kind {wanted:?}"))?;
            let (size, count) = (number(&segment, "bytes")?, number(&segment, "count")?);
            if needs.len() as u64 + count > MOST {
                return Err(String::from("there are too many segments"));
            }
            needs.extend(std::iter::repeat_n((kind, size), count as usize));
        }
        profile.insert(ordinal, needs);
    }
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let profile = Profile::from([
            (
                0,
                vec![
                    (Kind::Small, 2 << 20),
                    (Kind::Small, 2 << 20),
                    (Kind::Large, 32 << 20),
                    (Kind::Medium, 8 << 20),
                ],
            ),
            (3, vec![(Kind::Dedicated, 5 << 30)]),
        ]);
        let text = json(&profile).to_string();
        assert_eq!(parse(&text), Ok(profile));
        assert!(text.contains("\"count\":2"), "{text}");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("", "EOF"),
            ("{}", "gpupool_profile is missing"),
            ("{\"gpupool_profile\": 2}", "format is 2"),
            ("{\"gpupool_profile\": 1}", "devices is no list"),
            (
                "{\"gpupool_profile\": 1, \"devices\": [{\"device\": 0, \"segments\": [{\"kind\": \"x\"}]}]}",
                "no kind \"x\"",
            ),
            (
                "{\"gpupool_profile\": 1, \"devices\": [{\"device\": 0, \"segments\": [{\"kind\": \"small\", \"bytes\": 1, \"count\": 99999999999}]}]}",
                "too many",
            ),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
