//! An engine that has synced a cluster of a given size, with a kernel in memory: for tests of what a change costs.

use kube_proxy::sync::{Engine, Report};
use nft::Command;
use rules::model::{Event, Family};
use rules::ruleset::Layout;

use super::cluster::{config, node, served, service_cidr};
use super::kernel::Recorder;

/// The number of endpoints of every Service in a family, except for the Service [`WIDE`].
pub(crate) const ENDPOINTS: u16 = 3;
/// The number of the Service that has one endpoint more than all others, so that the rules that all Services with this many endpoints share
/// exist.
pub(crate) const WIDE: u16 = 1;
/// The numbers of Services in the two clusters; a change must cost the same in both clusters.
const SIZES: [u16; 2] = [10, 2000];

/// The engine and its kernel.
pub(crate) struct Cluster {
    pub(crate) engine: Engine<Recorder>,
    pub(crate) kernel: Recorder,
}

impl Cluster {
    fn new(layout: Layout, size: u16) -> Self {
        let kernel = Recorder::default();
        let engine = Engine::new(config(), layout, &Family::BOTH, kernel.clone());
        let mut cluster = Self { engine, kernel };
        cluster.apply([node(Some("a")), service_cidr("kubernetes", &["10.96.0.0/16", "fd00:10:96::/112"])]);
        (0..size).for_each(|n| cluster.apply(served(n, if n == WIDE { ENDPOINTS + 1 } else { ENDPOINTS })));
        cluster.apply([Event::InitialListDone]);
        cluster.engine.sync(false).expect("this kernel takes everything");
        cluster
    }

    /// Calls `test` with a cluster of each size.
    pub(crate) fn each_size(layout: Layout, mut test: impl FnMut(&mut Self)) {
        SIZES.into_iter().for_each(|size| test(&mut Self::new(layout, size)));
    }

    /// Gives these events to the engine, without a sync.
    pub(crate) fn apply(&mut self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| {
            self.engine.apply(event);
        });
    }

    /// Applies these events and syncs. Returns the report, and the commands that were sent, which are one transaction or none.
    pub(crate) fn change(&mut self, events: impl IntoIterator<Item = Event>) -> (Report, Vec<Command>) {
        self.apply(events);
        self.sync(false)
    }

    /// Syncs, with `after_pause` as in [`Engine::sync`]. Returns what [`Cluster::change`] returns. The report has no times.
    pub(crate) fn sync(&mut self, after_pause: bool) -> (Report, Vec<Command>) {
        let before = self.kernel.log.borrow().sent.len();
        let report = self.engine.sync(after_pause).expect("this kernel takes everything");
        let log = self.kernel.log.borrow();
        assert!(log.sent.len() <= before + 1, "more than one transaction");
        // How long a sync took is no part of what it did.
        let report = Report { timing: Default::default(), ..report };
        (report, log.sent.get(before).cloned().unwrap_or_default())
    }
}
