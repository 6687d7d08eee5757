//! Limits how many records are about the same object, about the objects of one namespace, and from one place in the code.
//!
//! Anyone who may edit objects can make each of them invalid, again and again, on every node. The module takes a record and returns it if
//! the limits allow it, and now and then a record with the number of those that were left out. It knows the objects of a record by the
//! record's fields, so that no code that logs can forget the limits. Records about no object, and records that only a higher verbosity
//! shows, are not limited. Does no I/O; the caller passes in the time.
//!
//! Invariant: memory is bounded, however many objects there are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::record::{Place, Record};
use crate::rates::{Budget, Budgets, Rate};

/// The fields that name the object that a record is about.
const OBJECTS: [&str; 7] = ["document", "endpointSlice", "file", "node", "pod", "service", "serviceCIDR"];

/// How many records from one place in the code may be about the same object.
const OF_OBJECT: Rate = Rate { at_once: 10, then_every: Duration::from_secs(60) };
/// How many may be about the objects of one namespace, or of one file.
const OF_GROUP: Rate = Rate { at_once: 100, then_every: Duration::from_secs(10) };
/// How many may be about any object.
const OF_CALL: Rate = Rate { at_once: 1_000, then_every: Duration::from_secs(1) };
/// How often a record gives the number of those that were left out.
const SUMMARIES: Rate = Rate { at_once: 1, then_every: Duration::from_secs(60) };

/// A place in the code that logs.
type Call = (&'static str, u32);

/// What each place in the code has logged about objects.
#[derive(Debug)]
pub(super) struct Limits {
    by_object: Budgets<(Call, String)>,
    by_group: Budgets<(Call, String)>,
    calls: BTreeMap<Call, CallLimits>,
}

#[derive(Debug)]
struct CallLimits {
    message: String,
    all: Budget,
    summaries: Budget,
    /// The number of records that were left out since the last summary.
    left_out: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { by_object: Budgets::new(OF_OBJECT), by_group: Budgets::new(OF_GROUP), calls: BTreeMap::new() }
    }
}

impl Limits {
    /// Returns the record, unless too many like it came before, and a record with the number of those that were left out if one is due.
    pub(super) fn admit(
        &mut self,
        record: Record<'static>,
        now: Instant,
    ) -> (Option<Record<'static>>, Option<Record<'static>>) {
        let time = record.time;
        let admitted = Some(record).filter(|record| self.allows(record, now));
        let is_due = |call: &CallLimits| call.left_out > 0 && call.summaries.next(now) <= now;
        let due = self.calls.iter_mut().find(|(_, call)| is_due(call));
        (admitted, due.map(|((file, line), call)| call.summary(time, Place { file, line: *line }, now)))
    }

    fn allows(&mut self, record: &Record<'static>, now: Instant) -> bool {
        let Some((object, group)) = object_of(record).filter(|_| record.verbosity == 0) else { return true };
        let call = (record.place.file, record.place.line);
        let limits = self.calls.entry(call).or_insert_with(|| CallLimits {
            message: record.message.clone(),
            all: Budget::new(OF_CALL),
            summaries: Budget::new(SUMMARIES),
            left_out: 0,
        });
        let is_allowed = self.by_object.try_take((call, object), now)
            && self.by_group.try_take((call, group), now)
            && limits.all.try_take(now);
        limits.left_out += u64::from(!is_allowed);
        is_allowed
    }
}

impl CallLimits {
    /// Returns the record with the number of those that were left out.
    fn summary(&mut self, time: Timestamp, place: Place<'static>, now: Instant) -> Record<'static> {
        self.summaries.take(now);
        let mut record = Record::warning(time, place, "Left out messages about objects, because there were too many");
        record.add("of", &*self.message);
        record.add("numMessages", std::mem::take(&mut self.left_out));
        record
    }
}

/// Returns the object that a record is about, and the namespace or file of the object; `None` if the record is about no object.
fn object_of(record: &Record<'_>) -> Option<(String, String)> {
    let mut objects = record.fields.iter().filter(|(name, _)| OBJECTS.contains(name)).peekable();
    let (name, value) = objects.peek()?;
    let value = value.as_str().unwrap_or_default();
    let group = if *name == "file" { value } else { value.split_once('/').map_or(value, |(namespace, _)| namespace) };
    let group = group.to_owned();
    Some((objects.map(|(name, value)| format!("{name}={value} ")).collect(), group))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::logging::record::Severity;
    use crate::logging::testing;

    fn about(fields: &[(&'static str, Value)]) -> Record<'static> {
        testing::record(Severity::Warning, 0, "Object is invalid", fields)
    }

    /// Logs each record; returns how many were admitted, and how many were left out by what the summaries say.
    fn logged(limits: &mut Limits, records: impl IntoIterator<Item = Record<'static>>, now: Instant) -> (usize, u64) {
        let (mut admitted, mut left_out) = (0, 0);
        for record in records {
            let (record, summary) = limits.admit(record, now);
            admitted += usize::from(record.is_some());
            left_out += summary.map_or(0, |summary| summary.fields[1].1.as_u64().unwrap());
        }
        (admitted, left_out)
    }

    fn services(namespace: &str, names: std::ops::Range<usize>) -> Vec<Record<'static>> {
        names.map(|n| about(&[("service", json!(format!("{namespace}/web-{n}")))])).collect()
    }

    #[test]
    fn an_object_that_changes_again_and_again_is_logged_ten_times_at_once_and_the_rest_is_counted() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        let patched = |times| (0..times).flat_map(|_| services("shop", 0..1));
        assert_eq!(logged(&mut limits, patched(41), now), (10, 1), "the first that is left out is reported at once");
        assert_eq!(logged(&mut limits, services("shop", 1..2), now), (1, 0), "another object");
        let later = now + SUMMARIES.then_every;
        assert_eq!(logged(&mut limits, [about(&[])], later), (1, 30), "the next record of any kind reports the others");
        assert_eq!(logged(&mut limits, patched(2), later), (1, 0));
    }

    #[test]
    fn many_objects_of_a_namespace_leave_room_for_others_and_many_namespaces_are_bounded() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        assert_eq!(logged(&mut limits, services("tenant", 0..10_000), now).0, 100);
        assert_eq!(logged(&mut limits, services("shop", 0..10), now).0, 10);
        let all: usize = (0..100).map(|n| logged(&mut limits, services(&format!("t-{n}"), 0..1_000), now).0).sum();
        assert_eq!(all, 1_000 - 110);
    }

    #[test]
    fn documents_of_a_file_are_objects_of_one_group() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        let documents = |file: &'static str| {
            (0..1_000).map(move |n| about(&[("file", json!(file)), ("document", json!(n))])).collect::<Vec<_>>()
        };
        assert_eq!(logged(&mut limits, documents("/etc/a.yaml"), now).0, 100);
        assert_eq!(logged(&mut limits, documents("/etc/b.yaml"), now).0, 100);
    }

    #[test]
    fn records_about_no_object_and_those_of_a_higher_verbosity_are_not_limited() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        let service = ("service", json!("shop/web"));
        let detail = || testing::record(Severity::Info, 2, "Service changed", std::slice::from_ref(&service));
        assert_eq!(logged(&mut limits, (0..5_000).map(|_| detail()), now), (5_000, 0));
        assert_eq!(logged(&mut limits, (0..5_000).map(|_| about(&[])), now), (5_000, 0));
    }
}
