//! Tracks for the metrics what changed since the last sync: how much, and since when. A sample is the time from a change of a slice in the
//! cluster (its trigger time, from the slice's annotation) to the sync that programs it.
//!
//! Takes the change that each event made. Has no influence on what is written to the kernel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foldhash::{HashMap, HashSet};

use rules::model::{Change, Event, Family, ObjectName, State};

/// The most samples that are kept until a sync succeeds; further samples are lost.
const MAX_SAMPLES: usize = 10_000;

/// How the metrics count an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A change of a Service.
    Service,
    /// A change of an EndpointSlice.
    Slice,
}

/// The changes since the last sync began, and the trigger times that wait for a sync that succeeds.
#[derive(Debug)]
pub(super) struct Pending {
    /// When this value was made, at the start of the process, in nanoseconds since the epoch. Only later changes give samples.
    start: i64,
    families: Vec<Family>,
    slices: usize,
    services: HashSet<ObjectName>,
    /// The trigger times of the changes that no successful sync has taken over yet, by Service and family.
    triggers: HashMap<(ObjectName, Family), Vec<i64>>,
    samples: usize,
}

impl Pending {
    /// Makes a value with nothing pending. Counts changes of Services, and changes of slices of `families`; a change of a slice gives a
    /// sample only if it was triggered after `start`.
    pub(super) fn new(families: &[Family], start: SystemTime) -> Self {
        let families = families.to_vec();
        let start = nanoseconds(start);
        Self { start, families, slices: 0, services: HashSet::default(), triggers: HashMap::default(), samples: 0 }
    }

    /// Returns how the metrics count an event; `None` if they do not. The family of a deleted slice is not known here, so every deletion
    /// counts.
    pub(super) fn counted(&self, event: &Event) -> Option<Counted> {
        match event {
            Event::ServiceApplied(_) | Event::ServiceDeleted(_) => Some(Counted::Service),
            Event::SliceApplied(slice) => self.families.contains(&slice.family).then_some(Counted::Slice),
            Event::SliceDeleted(_) => Some(Counted::Slice),
            _ => None,
        }
    }

    /// Notes a change that the state already contains. Returns whether it is a change of a Service, or of a slice of a family that is
    /// served.
    pub(super) fn note(&mut self, state: &State, change: &Change) -> bool {
        let (name, before) = match change {
            Change::Service { name, .. } => {
                self.services.insert(name.clone());
                return true;
            }
            Change::Slice { name, before } => (name, before.as_ref()),
            Change::Other => return false,
        };
        let now = state.slice(name);
        let Some(slice) = now.or(before).filter(|slice| self.families.contains(&slice.family)) else { return false };
        self.slices += 1;
        let key = (slice.service.clone(), slice.family);
        if now.is_none() {
            // The annotation of a deleted slice has the time of its last change, and not that of the deletion. So the deletion gives no
            // sample, and drops the samples of its Service, as in upstream (`pkg/proxy/endpointschangetracker.go`).
            let dropped = self.triggers.remove(&key);
            self.samples -= dropped.map_or(0, |times| times.len());
            return true;
        }
        let trigger = slice.trigger.0.filter(|time| *time > self.start && self.samples < MAX_SAMPLES);
        if let Some(time) = trigger {
            self.triggers.entry(key).or_default().push(time);
            self.samples += 1;
        }
        true
    }

    /// Returns the number of slice changes, and of Services that changed, since the last sync.
    pub(super) fn numbers(&self) -> (usize, usize) {
        (self.slices, self.services.len())
    }

    /// Notes that a sync has taken over the changes; whether it succeeds is not known yet.
    pub(super) fn taken(&mut self) {
        self.slices = 0;
        self.services.clear();
    }

    /// Notes a successful sync. Returns for each sample its family and how long the change waited for this sync.
    pub(super) fn succeeded(&mut self, now: SystemTime) -> Vec<(Family, Duration)> {
        let now = nanoseconds(now);
        self.samples = 0;
        let times =
            self.triggers.drain().flat_map(|((_, family), times)| times.into_iter().map(move |at| (family, at)));
        // The clock of the machine that set the annotation may be ahead of this machine's clock.
        times
            .map(|(family, at)| (family, Duration::from_nanos(now.saturating_sub(at).try_into().unwrap_or(0))))
            .collect()
    }
}

fn nanoseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::model::testing::{name, service, slice, slice_port};
    use rules::model::{EndpointSlice, TriggerTime};

    const SECOND: i64 = 1_000_000_000;

    fn second(n: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(n)
    }

    /// A state and the pending changes in it, for a process that started at second 100.
    struct World {
        state: State,
        pending: Pending,
    }

    impl World {
        fn new(families: &[Family]) -> Self {
            Self { state: State::new("here"), pending: Pending::new(families, second(100)) }
        }

        /// Applies an event, and returns whether it counts as a change.
        fn take(&mut self, event: Event) -> bool {
            let change = self.state.apply(event);
            change.is_some_and(|change| self.pending.note(&self.state, &change))
        }

        fn latencies(&mut self, now: u64) -> Vec<(Family, u64)> {
            let mut found: Vec<_> = self
                .pending
                .succeeded(second(now))
                .into_iter()
                .map(|(family, time)| (family, time.as_secs()))
                .collect();
            found.sort_unstable();
            found
        }
    }

    fn web(endpoint: &str, trigger: Option<i64>) -> EndpointSlice {
        let trigger = TriggerTime(trigger.map(|seconds| seconds * SECOND));
        EndpointSlice { trigger, ..slice("ns/web-1", "ns/web", &[slice_port("http", 80)], &[endpoint]) }
    }

    #[test]
    fn a_changed_slice_gives_a_sample_with_the_next_success() {
        // A change of a slice's content gives a sample (P7).
        let mut world = World::new(&Family::BOTH);
        world.take(Event::SliceApplied(web("10.0.0.1", Some(101))));
        world.take(Event::SliceApplied(web("10.0.0.2", Some(103))));
        world.take(Event::SliceApplied(web("fd00::1", Some(104))));
        world.pending.taken();
        assert_eq!(world.latencies(110), [(Family::V4, 7), (Family::V4, 9), (Family::V6, 6)]);
        assert_eq!(world.latencies(120), [], "each gives one sample");
    }

    #[test]
    fn an_unchanged_slice_gives_none_whatever_its_annotation_says() {
        // A change of a slice's metadata alone gives no sample (P7).
        let mut world = World::new(&Family::BOTH);
        world.take(Event::SliceApplied(web("10.0.0.1", Some(101))));
        assert_eq!(world.latencies(110).len(), 1);
        world.take(Event::SliceApplied(web("10.0.0.1", Some(111))));
        assert_eq!(world.latencies(120), []);
        assert_eq!(world.pending.numbers(), (1, 0));
    }

    // A change gives no sample if its slice has no annotation, if it was not triggered after the start, or if it is a deletion (P7).
    #[test]
    fn no_annotation_a_time_before_the_start_and_a_deletion_give_none() {
        let mut world = World::new(&Family::BOTH);
        world.take(Event::SliceApplied(web("10.0.0.1", None)));
        world.take(Event::SliceApplied(web("10.0.0.2", Some(100))));
        world.take(Event::SliceApplied(web("10.0.0.3", Some(101))));
        world.take(Event::SliceDeleted(name("ns/web-1")));
        assert_eq!(world.latencies(110), []);
        assert_eq!(world.pending.numbers(), (4, 0));
    }

    #[test]
    fn a_trigger_in_the_future_gives_a_sample_of_nothing() {
        let mut world = World::new(&Family::BOTH);
        world.take(Event::SliceApplied(web("10.0.0.1", Some(200))));
        assert_eq!(world.latencies(110), [(Family::V4, 0)]);
    }

    #[test]
    fn slices_of_a_family_that_is_not_served_do_not_count() {
        let mut world = World::new(&[Family::V4]);
        let six = Event::SliceApplied(web("fd00::1", Some(101)));
        assert_eq!(world.pending.counted(&six), None);
        assert!(!world.take(six));
        assert!(!world.take(Event::SliceDeleted(name("ns/web-1"))));
        assert_eq!((world.pending.numbers(), world.latencies(110)), ((0, 0), vec![]));
        let four = Event::SliceApplied(web("10.0.0.1", None));
        assert_eq!(world.pending.counted(&four), Some(Counted::Slice));
        assert!(world.take(four));
    }

    #[test]
    fn a_service_is_pending_once_until_a_sync_takes_it() {
        let mut world = World::new(&Family::BOTH);
        let web = service("ns/web", &["172.30.0.1"]);
        world.take(Event::ServiceApplied(web.clone()));
        world.take(Event::ServiceApplied(service("ns/web", &["172.30.0.2"])));
        world.take(Event::ServiceDeleted(name("ns/unknown")));
        assert_eq!(world.pending.numbers(), (0, 1));
        world.pending.taken();
        world.take(Event::ServiceApplied(service("ns/web", &["172.30.0.2"])));
        assert_eq!(world.pending.numbers(), (0, 0), "nothing changed");
        world.take(Event::ServiceDeleted(name("ns/web")));
        assert_eq!(world.pending.numbers(), (0, 1));
    }

    #[test]
    fn samples_do_not_pile_up_without_end_while_syncs_fail() {
        // Latencies wait for a sync that succeeds (G9).
        let mut world = World::new(&Family::BOTH);
        for n in 0..=MAX_SAMPLES {
            let endpoint = if n % 2 == 0 { "10.0.0.1" } else { "10.0.0.2" };
            world.take(Event::SliceApplied(web(endpoint, Some(101))));
        }
        assert_eq!(world.latencies(110).len(), MAX_SAMPLES);
    }
}
