//! Chooses over how many maps each map of endpoints is split, if `nftables.endpointMaps` leaves that to this program. There are four kinds of
//! maps of endpoints: for each type of frontend (address or node port) and each traffic policy (Cluster or Local).
//!
//! The kernel lists a map in a time that grows with the square of its size (`endpoint_sets`), and each further map needs rules of its own,
//! so the number of maps grows with the table, in few [`Steps`]. Takes numbers of elements, or a table that was read; returns numbers of
//! maps. Pure.
//!
//! Invariant: a table whose number of maps is one of the steps never gets fewer maps, so a restart does not join them again.

use std::convert::Infallible;

use foldhash::HashMap;
use nft::TableDump;

use super::Layout;
use super::balancing::Balancing;
use super::kinds::SetKind;
use super::names::{FrontendType, List, endpoint_maps, split_part};
use crate::endpoints::size::slots;
use crate::model::{Family, Service, State};

/// The numbers of maps, each with the largest number of elements that so many maps of one kind (such as `endpoints`) hold together.
///
/// Measured on kernel 6.18: a map of 100,000 elements takes 0.3 s to list, one of a million takes half a minute. With these steps, to list
/// all maps of one kind takes at most a quarter of a second up to 400,000 elements, and 0.4 s at a million
/// (`src/decisions/0006-number-of-maps.md`).
const STEPS: [(u8, usize); 3] = [(1, 50_000), (16, 8 * 50_000), (MOST, usize::MAX)];

/// The most maps of endpoints of one kind that a table can have.
const MOST: u8 = 64;

/// The steps in which the number of maps grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps([(u8, usize); 3]);

impl Default for Steps {
    fn default() -> Self {
        Self(STEPS)
    }
}

impl Steps {
    /// The same numbers of maps, for smaller tables: the first step ends at `first` elements. For tests.
    #[must_use]
    pub const fn ending_at(first: usize) -> Self {
        let [(one, _), (some, _), last] = STEPS;
        Self([(one, first), (some, first.saturating_mul(8)), last])
    }

    /// The number of maps for this many elements of one kind of map. `found` is the number of maps that the table has already; `None` if there
    /// is no table. A number that is none of the steps is ignored.
    #[must_use]
    pub fn choose(&self, found: Option<u8>, elements: usize) -> u8 {
        let fitting = self.0.iter().find(|(_, most)| elements <= *most);
        let needed = fitting.map_or(1, |(maps, _)| *maps);
        let is_step = |found: &u8| self.0.iter().any(|(maps, _)| maps == found);
        found.filter(is_step).map_or(needed, |found| found.max(needed))
    }

    /// Counting may stop at this number of elements: any larger number leads to the same choice.
    const fn enough(&self) -> usize {
        let [_, (_, most), _] = self.0;
        most.saturating_add(1)
    }

    /// The number of maps for a table that does not exist yet: as many as the endpoints of all Services need, ready or not. Services that need
    /// more than `limit` elements do not count, because they are left out.
    #[must_use]
    pub fn for_state(&self, state: &State, layout: Layout, balancing: Balancing, limit: u64) -> u8 {
        self.choose(None, self.wanted(state, layout, balancing, limit))
    }

    /// The number of elements that all Services need at most in the largest kind of map. Stops counting once the choice is certain, and then
    /// returns a smaller number.
    fn wanted(&self, state: &State, layout: Layout, balancing: Balancing, limit: u64) -> usize {
        let enough = u64::try_from(self.enough()).unwrap_or(u64::MAX);
        let mut sums = [[0_u64; 2]; 2];
        for service in state.services_unordered() {
            for (sums, family) in sums.iter_mut().zip(Family::BOTH) {
                let slots = slots(state, service, family);
                if layout == Layout::Chains && !balancing.has_table(service.scheduler, slots) {
                    // The endpoints have chains. Only those of a Maglev table are elements in this layout too.
                    continue;
                }
                let added = of_service(service, family, balancing, slots);
                if added.iter().all(|added| *added <= limit) {
                    sums.iter_mut().zip(added).for_each(|(sum, added)| *sum = sum.saturating_add(added));
                }
            }
            if sums.iter().flatten().any(|sum| *sum >= enough) {
                break;
            }
        }
        let largest = sums.into_iter().flatten().max().unwrap_or(0);
        usize::try_from(largest).unwrap_or(usize::MAX)
    }
}

/// The number of elements of a Service whose endpoints take this many slots: for frontends with an address, and for node ports.
fn of_service(service: &Service, family: Family, balancing: Balancing, slots: u64) -> [u64; 2] {
    let addresses = service.address_count(family);
    let node_ports = service.ports.iter().filter(|port| addresses > 0 && port.node_port.is_some()).count();
    let of_one = balancing.elements(service.scheduler, slots);
    [addresses * service.ports.len(), node_ports]
        .map(|frontends| of_one.saturating_mul(u64::try_from(frontends).unwrap_or(u64::MAX)))
}

/// The number of elements of the largest kind of map of endpoints, among the sets of a table with their numbers of elements.
pub fn largest<'a>(lens: impl Iterator<Item = (&'a str, usize)>) -> usize {
    let mut sums: HashMap<&str, usize> = HashMap::default();
    for (set, len) in lens {
        if let Some(SetKind::Endpoints(..)) = SetKind::of(set) {
            *sums.entry(split_part(set).0).or_default() += len;
        }
    }
    sums.into_values().max().unwrap_or(0)
}

/// The number of maps of endpoints of each kind in a table that has the sets for which `has` is true; `None` if it has no such maps. Looks
/// only at the maps for addresses and policy Cluster. A table that was left in the middle of a change may have several numbers of maps; the
/// result is the largest.
///
/// # Errors
/// Those of `has`.
pub fn found<E>(mut has: impl FnMut(&str) -> Result<bool, E>) -> Result<Option<u8>, E> {
    let mut most = None;
    for is_counted in [false, true] {
        let names = |maps| endpoint_maps(FrontendType::Address, List::Cluster, is_counted, maps);
        for name in names(1) {
            most = most.max(has(&name)?.then_some(1));
        }
        for (name, maps) in names(MOST).zip(1..) {
            if !has(&name)? {
                break;
            }
            most = most.max(Some(maps).filter(|maps| *maps > 1));
        }
    }
    Ok(most)
}

/// The number of maps of endpoints of each kind in a table that was read; `None` if the table has no such maps.
#[must_use]
pub fn found_in(dump: &TableDump) -> Option<u8> {
    let Ok(maps) = found(|name| Ok::<bool, Infallible>(dump.sets.contains_key(name)));
    maps
}

/// The number of elements of the largest kind of map of endpoints in a table that was read.
#[must_use]
pub fn largest_in(dump: &TableDump) -> usize {
    largest(dump.sets.iter().map(|(name, (_, elements))| (&**name, elements.len())))
}

#[cfg(test)]
mod tests {
    use nft::{Table, TableName};

    use super::super::names::{ENDPOINT_MAPS, TABLE};
    use super::*;
    use crate::model::testing::{port, service, slice, slice_port, state};
    use crate::model::{Event, Scheduler};
    use crate::table::SetName;

    // A small table has one map, and the number only grows (F10).
    #[test]
    fn the_number_of_maps_grows_in_steps_and_never_shrinks() {
        let steps = Steps::default();
        let fresh =
            [0, 10_000, 50_000, 50_001, 400_000, 400_001, 10_000_000].map(|elements| steps.choose(None, elements));
        assert_eq!(fresh, [1, 1, 1, 16, 16, 64, 64]);
        let kept =
            [(1, 50_000), (16, 0), (64, 0), (64, 60_000)].map(|(found, elements)| steps.choose(Some(found), elements));
        assert_eq!(kept, [1, 16, 64, 64], "what is there is kept if it is enough");
        let grown =
            [(1, 50_001), (1, 400_001), (16, 400_001)].map(|(found, elements)| steps.choose(Some(found), elements));
        assert_eq!(grown, [16, 64, 64]);
        let others = [(4, 10), (4, 60_000), (63, 60_000)].map(|(found, elements)| steps.choose(Some(found), elements));
        assert_eq!(others, [1, 16, 16], "a number that is no step was asked for by a configuration of before");
        assert_eq!([9, 10, 80, 81].map(|elements| Steps::ending_at(9).choose(None, elements)), [1, 16, 64, 64]);
    }

    fn dump(sets: impl IntoIterator<Item = SetName>) -> TableDump {
        let table = TableName::new(nft::Family::Ip, TABLE);
        let mut dump = TableDump::empty(Table { name: table, comment: None });
        for name in sets {
            let set = nft::Set::new(&name, nft::Types::Named(Vec::new()));
            dump.sets.insert(set.name.clone(), (set, nft::Elements::default()));
        }
        dump
    }

    #[test]
    fn the_sets_of_a_table_tell_its_number_of_maps() {
        for maps in 1..=MOST {
            for is_counted in [false, true] {
                let all =
                    ENDPOINT_MAPS.into_iter().flat_map(|(kind, list)| endpoint_maps(kind, list, is_counted, maps));
                assert_eq!(found_in(&dump(all)), Some(maps));
            }
        }
        assert_eq!(found_in(&dump(["services".into()])), None, "a table of another program");
        assert_eq!(found_in(&dump(["endpoints".into(), "endpoints.0".into(), "endpoints.15".into()])), Some(1));
        let between = ["endpoints", "endpoints.0", "endpoints.1", "counted-endpoints"].map(Into::into);
        assert_eq!(found_in(&dump(between)), Some(2), "a process ended in the middle of a change");
    }

    #[test]
    fn the_elements_of_all_maps_of_a_kind_count_together() {
        let lens = [("endpoints.0", 5), ("nodeport-endpoints.0", 7), ("endpoints.1", 4), ("services", 100)];
        assert_eq!(largest(lens.into_iter().chain([("counted-endpoints.0", 8)])), 9);
        assert_eq!(largest([("services", 100)].into_iter()), 0);
    }

    /// The number of maps for `count` Services, each with `frontends` addresses and three endpoints, when one map has nine elements at
    /// most.
    fn for_services(count: u8, frontends: u8, limit: u64, layout: Layout) -> u8 {
        let events = (0..count).flat_map(|n| {
            let name = format!("ns/s{n}");
            let mut service = service(&name, &[&format!("172.30.0.{n}")]);
            service.ports = vec![port("http", 80)];
            service.ports[0].node_port = Some(30_000 + u16::from(n));
            service.external_ips = (1..frontends).map(|ip| std::net::IpAddr::from([192, 0, ip, n])).collect();
            let endpoints = ["10.0.0.1", "10.0.0.2 unready", "10.0.0.3"];
            let slice = slice(&format!("{name}-1"), &name, &[slice_port("http", 8080)], &endpoints);
            [Event::ServiceApplied(service), Event::SliceApplied(slice)]
        });
        Steps::ending_at(9).for_state(&state(events), layout, Balancing::default(), limit)
    }

    #[test]
    fn without_tables_the_endpoints_of_all_services_decide() {
        let maps = |count, frontends| for_services(count, frontends, u64::MAX, Layout::Maps);
        assert_eq!([maps(0, 1), maps(3, 1), maps(4, 1), maps(1, 4), maps(24, 1), maps(25, 1)], [1, 1, 16, 16, 16, 64]);
        assert_eq!(for_services(25, 1, u64::MAX, Layout::ServiceChains), 64);
        assert_eq!(for_services(25, 1, u64::MAX, Layout::Chains), 1, "endpoints are chains there");
        assert_eq!(for_services(25, 4, 11, Layout::Maps), 1, "what is left out does not count");
        let maglev = Balancing { scheduler: Scheduler::Maglev, ..Balancing::default() };
        let mut web = service("ns/web", &["172.30.0.1"]);
        web.ports = vec![port("http", 80)];
        let slice = slice("ns/web-1", "ns/web", &[slice_port("http", 8080)], &["10.0.0.1", "10.0.0.2"]);
        let state = state([Event::ServiceApplied(web), Event::SliceApplied(slice)]);
        for layout in Layout::ALL {
            let maps = [Balancing::default(), maglev].map(|by| Steps::ending_at(9).for_state(&state, layout, by, 99));
            assert_eq!(maps, [1, 16], "Maglev takes several elements for an endpoint, in {layout:?}");
        }
    }
}
