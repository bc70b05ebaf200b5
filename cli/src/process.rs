//! What /proc tells of a process.

use std::fs;

/// A running process, for people.
pub struct Process {
    /// Its id, as seen here.
    pub pid: u32,
    /// Its name.
    pub command: String,
    /// What tells it from others of the same job: rank, job, devices.
    pub labels: Vec<(&'static str, String)>,
}

/// Environment variables that tell the processes of a job apart, and the labels
/// that they become.
const LABELS: &[(&str, &str)] = &[
    ("RANK", "rank"),
    ("LOCAL_RANK", "local_rank"),
    ("SLURM_JOB_ID", "slurm_job_id"),
    ("SLURM_PROCID", "slurm_procid"),
    ("POD_NAME", "pod"),
    ("CUDA_VISIBLE_DEVICES", "visible_devices"),
];

impl Process {
    /// What can be found out; what cannot stays empty.
    pub fn of(pid: u32) -> Self {
        let command = fs::read_to_string(format!("/proc/{pid}/comm"))
            .map(|name| name.trim_end().to_owned())
            .unwrap_or_default();
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        Self {
            pid,
            command,
            labels: labels(&environment),
        }
    }
}

fn labels(environment: &[u8]) -> Vec<(&'static str, String)> {
    let value = |name: &str| {
        environment
            .split(|byte| *byte == 0)
            .filter_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
            .map(|value| String::from_utf8_lossy(value).into_owned())
            .find(|value| !value.is_empty())
    };
    LABELS
        .iter()
        .filter_map(|(name, label)| Some((*label, value(name)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_from_the_environment() {
        let found = labels(b"LOCAL_RANK=3\0XRANK=9\0RANK=\0SLURM_JOB_ID=77\0");
        assert_eq!(
            found,
            [
                ("local_rank", String::from("3")),
                ("slurm_job_id", String::from("77"))
            ]
        );
    }
}
