//! Sets that become too small: made anew within the transaction that needs more, on the real kernel, in both layouts.

use crate::support::cluster::{address, config, endpoint, name, node, served, service_cidr, slice};
use crate::support::netns::{Namespace, run};
use crate::support::nft::{list_ruleset, load, normalised};
use kube_proxy::sync::{Engine, Report};
use node::kernel::Netfilter;
use rules::model::{Event, Family};
use rules::ruleset::Layout;

type Proxy = Engine<Netfilter>;

/// Services with three addresses each: their frontends fill a map of 768.
const FULL: u16 = 256;
/// Two more Services need a larger one.
const MORE: u16 = 258;

fn sync(proxy: &mut Proxy, events: impl IntoIterator<Item = Event>) -> Report {
    for event in events {
        proxy.apply(event);
    }
    proxy.sync(false).expect("the kernel takes it")
}

fn programmed(layout: Layout, services: u16) -> (Proxy, Report) {
    let kernel = Netfilter::open().expect("a netlink socket");
    let mut proxy = Engine::new(config(), layout, &Family::BOTH, kernel);
    let cidr = service_cidr("kubernetes", &["10.96.0.0/16", "fd00:10:96::/112"]);
    let objects = (0..services).flat_map(|n| served(n, 1));
    let report = sync(&mut proxy, [node(None), cidr].into_iter().chain(objects).chain([Event::InitialListDone]));
    (proxy, report)
}

/// The sizes and the numbers of elements of a map, as `nft` lists them.
fn size_of(namespace: &Namespace, map: &str) -> (usize, usize) {
    let text = run(namespace.command("nft").args(["-j", "list", "map", "ip", "kube-proxy", map]));
    let listing: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let map = &listing["nftables"][1]["map"];
    let size = map["size"].as_u64().and_then(|size| usize::try_from(size).ok()).expect("a size");
    (size, map["elem"].as_array().map_or(0, Vec::len))
}

fn grows(layout: Layout, map: &str) {
    let namespace = Namespace::new("room");
    let size = || size_of(&namespace, map);
    namespace.enter(|| {
        let (mut proxy, _) = programmed(layout, 220);
        assert_eq!(size(), (768, 660));
        sync(&mut proxy, (220..FULL).flat_map(|n| served(n, 1)));
        assert_eq!(size(), (768, 768), "what fits is added");

        let report = sync(&mut proxy, (FULL..MORE).flat_map(|n| served(n, 1)));
        assert_eq!(size(), (1536, 774), "what does not fit gets a new map");
        assert!(!report.full && report.added > 774, "{report:?}");
        let report = proxy.sync(false).expect("nothing to do");
        assert_eq!(report.committed, None, "{report:?}");

        let other = vec![endpoint(address(Family::V4, 245, 1))];
        let report = sync(&mut proxy, [Event::SliceApplied(slice(7, Family::V4, other))]);
        assert!(report.added <= 4, "changes are small again: {report:?}");
        // The log names the Service when a sync that is about one takes long, and the part that took most of it.
        assert_eq!((report.services, &report.only_service), (1, &Some(name(7))), "{report:?}");
        assert!(!report.timing.computing.is_zero() && report.timing.reading < report.kernel_time, "{report:?}");
        drop(proxy);
        let (mut again, report) = programmed(layout, MORE);
        // Only one endpoint differed; the sets keep the sizes that they have.
        assert!(report.added <= 4 && report.removed <= 4 && report.full, "{report:?}");
        assert_eq!(size(), (1536, 774));

        sync(&mut again, (20..MORE).map(|n| Event::ServiceDeleted(name(n))));
        assert_eq!(size(), (1536, 60), "room stays");
    });
}

#[test]
fn a_map_that_is_full_is_made_anew_with_more_room() {
    grows(Layout::Maps, "services");
}

#[test]
fn a_map_that_is_full_is_made_anew_in_layout_chains_too() {
    grows(Layout::Chains, "KUBE-SERVICES");
}

#[test]
fn a_map_that_the_chains_of_all_services_look_at_is_made_anew_too() {
    grows(Layout::ServiceChains, "counted-endpoints");
}

#[test]
fn tables_of_a_version_without_sizes_are_taken_over_in_one_transaction() {
    let namespace = Namespace::new("room");
    namespace.enter(|| drop(programmed(Layout::Maps, 2)));
    let ours = list_ruleset(&namespace);
    let sizeless = ours.lines().filter(|line| !line.trim_start().starts_with("size "));
    load(&namespace, &sizeless.fold("flush ruleset\n".to_owned(), |text, line| text + line + "\n"));
    assert_ne!(normalised(&list_ruleset(&namespace)), normalised(&ours));
    namespace.enter(|| {
        let (mut proxy, taken) = programmed(Layout::Maps, 2);
        assert!(taken.added > 0 && taken.removed == 0, "sets are made anew: {taken:?}");
        assert_eq!(proxy.sync(false).expect("nothing to do").committed, None);
    });
    assert_eq!(normalised(&list_ruleset(&namespace)), normalised(&ours));
}
