//! Measures a first sync and each of its parts, and compares it with the kernel's own time for the same bytes.
//!
//! The whole sync is the engine's, from the first event until the table is filled, on as many threads as the engine uses. The parts run one
//! after the other on one thread, Service by Service, with a clock between the steps; the clock itself costs some milliseconds.

use std::time::{Duration, Instant};

use nft::{Batch, Command, Connection};
use rules::diff::{Collect, Records};
use rules::endpoints::select;
use rules::model::{Event, ObjectName, State};
use rules::ruleset::{Balancing, Layout, NodeFacts, NodePorts, Settings};

use crate::cluster::Shape;
use crate::table::Table;
use crate::{fresh, plain};

/// The number of runs; the best counts.
const RUNS: usize = 5;

/// How long each part took, from events into the state of the cluster (`model`) to taking over what was committed (`take_over`).
#[derive(Clone, Copy, Default)]
struct Phases {
    model: Duration,
    select: Duration,
    ruleset: Duration,
    record: Duration,
    compare: Duration,
    encode: Duration,
    kernel: Duration,
    take_over: Duration,
}

impl Phases {
    fn sum(&self) -> Duration {
        let own = self.model + self.select + self.ruleset + self.record + self.compare + self.encode + self.take_over;
        own + self.kernel
    }
}

/// Adds rows for a cluster, from the best of [`RUNS`] runs.
pub(crate) fn rows(table: &mut Table, shape: Shape) {
    let runs = (0..RUNS).map(|_| (fresh(|| run(shape)), fresh(|| plain(Layout::Maps, shape).full)));
    let (parts, wholes): (Vec<Phases>, Vec<Duration>) = runs.unzip();
    let Some(best) = parts.into_iter().min_by_key(Phases::sum) else { return };
    let whole = wholes.into_iter().min().unwrap_or_default();
    let size = format!("{} x {}", shape.services, shape.endpoints);
    table.time(&format!("first sync, {size}: kernel only, recorded bytes"), best.kernel, "");
    table.time("  the whole first sync", whole, "");
    table.ratio("  the whole first sync against the kernel only", whole, best.kernel, "1.4");
    let Phases { model, select, ruleset, record, compare, encode, take_over, .. } = best;
    for (what, time) in [
        ("events into the model", model),
        ("select endpoints", select),
        ("write Services as elements", ruleset),
        ("pack them into records", record),
        ("compare records with the kernel", compare),
        ("encode only", encode),
        ("take over what was committed", take_over),
    ] {
        table.time(&format!("  {what}"), time, "");
    }
}

fn timed<T>(time: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *time += start.elapsed();
    result
}

fn settings() -> Settings {
    Settings {
        family: rules::model::Family::V4,
        masquerade_mark: 0x4000,
        masquerade_all: false,
        local_traffic: None,
        node_ports: NodePorts::Everywhere,
        drop_invalid: false,
        guard_endpoints: false,
        pings: rules::ruleset::Pings::Ignored,
        refuse_unused: false,
        endpoint_maps: 1,
        balancing: Balancing::default(),
        localhost: rules::ruleset::Localhost::Ignored,
        counters: rules::ruleset::Counters::Off,
        owned: false,
    }
}

fn run(shape: Shape) -> Phases {
    let mut phases = Phases::default();
    let (layout, settings) = (Layout::Maps, settings());
    let events: Vec<Event> = shape.events();
    let mut state = State::new("node");
    let dirty = timed(&mut phases.model, || {
        events.into_iter().for_each(|event| {
            state.apply(event);
        });
        state.take_dirty()
    });
    let mut records: Records<Option<ObjectName>> = Records::new(layout.static_rules(&settings));
    records.put(None, layout.node(&settings, &NodeFacts::default()));
    for service in dirty.services {
        let Some(selection) = timed(&mut phases.select, || select(&state, &service)) else { continue };
        let fragment = timed(&mut phases.ruleset, || layout.service(&settings, &selection));
        timed(&mut phases.record, || records.put(Some(service), fragment));
    }
    let commands: Vec<Command> = timed(&mut phases.compare, || records.comparison(None, Collect::Nothing));
    let batch = timed(&mut phases.encode, || Batch::encode(&commands)).expect("names without zero bytes");
    let mut connection = Connection::open().expect("a netlink socket");
    timed(&mut phases.kernel, || connection.commit_encoded(&batch, &commands)).expect("the kernel takes it");
    drop(batch);
    timed(&mut phases.take_over, || {
        records.committed(&commands, Some(None));
        drop(commands);
    });
    phases
}
