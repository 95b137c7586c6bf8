//! CPU time, memory and descriptors of a process and its descendants.

use std::fs;
use std::time::Duration;

use anyhow::Context;

/// Unit of CPU times in `/proc/PID/stat`.
const TICK: Duration = Duration::from_millis(10);

/// Sums over a tree of processes.
#[derive(Default)]
pub struct Usage {
    pub cpu: Duration,
    pub resident_kib: u64,
    pub descriptors: u64,
}

impl Usage {
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let mut usage = Self::default();
        usage.add(pid).with_context(|| format!("process {pid}"))?;
        Ok(usage)
    }

    fn add(&mut self, pid: u32) -> anyhow::Result<()> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // Fields after the parenthesised name: utime and stime are the 12th and 13th of those.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u32 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u32>().ok())
            .sum();
        self.cpu += TICK * ticks;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|text| text.split_whitespace().next()?.parse().ok());
        self.resident_kib += resident.unwrap_or(0);
        self.descriptors += fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64;
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace() {
                self.add(child.parse()?)?;
            }
        }
        Ok(())
    }
}
