//! The log record about a sync that took long: where the time went, and for how many Services. Pure but for the record.

use std::time::Duration;

use tracing::warn;

use super::engine::{Report, Timing};
use component::logging::duration;

/// A sync that takes longer than this is logged.
const LONG: Duration = Duration::from_secs(1);

/// Logs a sync that took long. `waited` is the time from the first request to the start of the sync, which includes the rest of
/// `minSyncPeriod` and of the sync before.
pub(super) fn log(report: &Report, took: Duration, waited: Duration) {
    if took <= LONG {
        return;
    }
    let Report { services, added, removed, transactions, timing, kernel_time, .. } = report;
    let committed = report.committed.unwrap_or_default();
    warn!(
        elapsed = %duration(took), longest = longest(report, took), waited = %duration(waited),
        reading = %duration(timing.reading), computing = %duration(timing.computing), kernel = %duration(*kernel_time),
        flows = %duration(timing.flows), numServices = services, service = report.only_service.as_ref().map(tracing::field::display),
        elementsAdded = added, elementsRemoved = removed, transactions, messages = committed.messages, bytes = committed.bytes,
        "SyncProxyRules took long"
    );
}

/// The part of a sync that took most of its time, in words.
fn longest(report: &Report, took: Duration) -> &'static str {
    let Timing { reading, computing, flows } = report.timing;
    let known = reading + computing + flows + report.kernel_time;
    let parts = [
        (report.kernel_time, "the kernel's commit"),
        (reading, "reading the tables back"),
        (computing, "computing the rules"),
        (flows, "examining flows"),
        (took.saturating_sub(known), "other work, or waiting for a processor"),
    ];
    parts.into_iter().max_by_key(|(time, _)| *time).map_or("", |(_, part)| part)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use nft::Committed;
    use rules::model::ObjectName;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(report: &Report, took: Duration) -> String {
        let lines = Log::default();
        let writer = lines.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || log(report, took, Duration::from_millis(300)));
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_sync_that_took_long_says_what_took_long_and_for_which_service() {
        let report = Report {
            services: 1,
            only_service: Some(ObjectName::new("shop", "web")),
            kernel_time: seconds(3),
            timing: Timing { computing: seconds(1), ..Timing::default() },
            committed: Some(Committed { messages: 7, bytes: 900 }),
            ..Report::default()
        };
        let line = logged(&report, seconds(5));
        for part in [
            "SyncProxyRules took long",
            "elapsed=5s",
            "longest=\"the kernel's commit\"",
            "waited=300ms",
            "computing=1s",
            "kernel=3s",
            "service=shop/web",
            "messages=7",
            "bytes=900",
        ] {
            assert!(line.contains(part), "no {part} in {line}");
        }
        assert_eq!(line.lines().count(), 1, "{line}");
        let several = Report { services: 40, only_service: None, ..report };
        let line = logged(&several, seconds(5));
        assert!(line.contains("numServices=40") && !line.contains(" service="), "{line}");
        assert_eq!(logged(&several, LONG), "", "a second is not long");
    }

    #[test]
    fn the_longest_part_is_named() {
        let with = |timing, kernel_time| longest(&Report { timing, kernel_time, ..Report::default() }, seconds(5));
        let none = Timing::default();
        assert_eq!(with(Timing { reading: seconds(3), ..none }, seconds(1)), "reading the tables back");
        assert_eq!(with(Timing { computing: seconds(3), ..none }, seconds(1)), "computing the rules");
        assert_eq!(with(Timing { flows: seconds(3), ..none }, seconds(1)), "examining flows");
        assert_eq!(with(none, seconds(1)), "other work, or waiting for a processor");
    }
}
