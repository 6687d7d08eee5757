//! The standard `process_*` metrics and the number of threads, read from `/proc` at each scrape.
//!
//! Metric families whose file in `/proc` cannot be read are left out.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Clock ticks a second in `/proc` (`USER_HZ`): Linux shows 100 to user space on every architecture that this program runs on.
const TICKS: f64 = 100.0;

/// The collector of this process's metrics.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Stat { cpu_seconds, start_ticks } = Stat::read().unwrap_or_default();
        if let Some(seconds) = cpu_seconds {
            let metric = ConstCounter::new(seconds);
            let help = "Total user and system CPU time spent in seconds.";
            metric.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, metric.metric_type())?)?;
        }
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let gauges = [
            ("open_fds", "Number of open file descriptors.", open_fds()),
            ("max_fds", "Maximum number of open file descriptors.", soft_limit(&limits, "Max open files")),
            ("virtual_memory_bytes", "Virtual memory size in bytes.", kibibytes(&status, "VmSize:")),
            (
                "virtual_memory_max_bytes",
                "Maximum amount of virtual memory available in bytes.",
                soft_limit(&limits, "Max address space"),
            ),
            ("resident_memory_bytes", "Resident memory size in bytes.", kibibytes(&status, "VmRSS:")),
            (
                "start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                start_ticks.zip(boot_time()).map(|(ticks, boot)| boot + ticks / TICKS),
            ),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            gauge(&mut encoder, &format!("process_{name}"), help, value)?;
        }
        let threads = count(&status, "Threads:");
        let help = "Number of threads of this process, under the names that dashboards of Kubernetes show.";
        let names = ["go_goroutines", "go_threads"];
        threads.map_or(Ok(()), |count| names.iter().try_for_each(|name| gauge(&mut encoder, name, help, count)))
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    let metric = ConstGauge::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// The fields of `/proc/self/stat` that are used.
#[derive(Debug, Default, PartialEq)]
struct Stat {
    /// CPU time in user and system mode, in seconds.
    cpu_seconds: Option<f64>,
    /// Time from the boot of the machine to the start of the process, in clock ticks.
    start_ticks: Option<f64>,
}

impl Stat {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The second field is a name in parentheses that may contain anything; the third field follows it.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let cpu_seconds = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS);
        Some(Self { cpu_seconds, start_ticks: field(22) })
    }
}

/// Returns when the machine was booted, in seconds since the epoch.
fn boot_time() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn open_fds() -> Option<f64> {
    // Do not count the descriptor of this directory, which is open while the directory is read.
    let count = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    u32::try_from(count).ok().map(f64::from)
}

/// Returns the soft limit, which is the first number of the line; -1 if it is unlimited.
fn soft_limit(limits: &str, name: &str) -> Option<f64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    if soft == "unlimited" { Some(-1.0) } else { soft.parse().ok() }
}

/// Returns the value in bytes of a line such as `VmRSS:     5120 kB`.
fn kibibytes(status: &str, name: &str) -> Option<f64> {
    count(status, name).map(|kibibytes| kibibytes * 1024.0)
}

/// Returns the number of a line such as `Threads:     7`.
fn count(status: &str, name: &str) -> Option<f64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let numbers: Vec<String> = (4..=52).map(|field| format!("{}", field * 100)).collect();
        let stat = Stat::parse(&format!("7 (a) S (b c) S {}", numbers.join(" "))).unwrap();
        assert_eq!(stat, Stat { cpu_seconds: Some(29.0), start_ticks: Some(2200.0) });
    }

    #[test]
    fn limits_and_sizes() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024    524288   files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(soft_limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(soft_limit(limits, "Max address space"), Some(-1.0));
        assert_eq!(soft_limit(limits, "Max nothing"), None);
        assert_eq!(kibibytes("VmSize:\t  2 kB\nVmRSS:\t  1 kB\n", "VmRSS:"), Some(1024.0));
    }
}
