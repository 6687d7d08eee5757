//! Sums over the committed records of a table (the objects that the kernel has for each owner, a Service or the node): the number of
//! elements in each set, and of owners for each key of a shared set.
//!
//! Takes an owner's old and new record at each change. Invariant: each sum counts exactly the committed records. If a sum turns out to be
//! wrong, [`Totals::slipped`] is true: then the sums are computed again and the kernel's table is compared, instead of a panic.

use foldhash::HashMap;

use super::record::{ElementKey, Entry, Record};
use crate::table::StaticRules;

#[derive(Clone, Debug)]
pub(super) struct Totals {
    /// The number of elements of each set, by the set's number.
    lens: Vec<usize>,
    /// Whether several owners may have the same key in a set, by the set's number.
    shared: Vec<bool>,
    /// The number of owners of each key of a shared set.
    owners: HashMap<ElementKey, u32>,
    /// Whether an entry was removed that had not been counted.
    slipped: bool,
    /// For each prefix of the names of verdict maps, the number of elements of these maps.
    kinds: Vec<(&'static str, usize)>,
}

impl Totals {
    pub(super) fn new(static_rules: &StaticRules) -> Self {
        let is_shared = |name: &str| static_rules.shared.iter().any(|shared| shared == name);
        Self {
            lens: vec![0; static_rules.sets.len()],
            shared: static_rules.sets.iter().map(|set| is_shared(&set.name)).collect(),
            owners: HashMap::default(),
            slipped: false,
            kinds: static_rules.kinds.iter().map(|kind| (*kind, 0)).collect(),
        }
    }

    /// Whether a sum turned out to be wrong.
    pub(super) fn slipped(&self) -> bool {
        self.slipped
    }

    /// Whether several owners may have the same key in a set.
    pub(super) fn is_shared(&self, set: u16) -> bool {
        self.shared[usize::from(set)]
    }

    /// The number of owners that have this key of a shared set.
    pub(super) fn owners(&self, key: &ElementKey) -> u32 {
        self.owners.get(key).copied().unwrap_or(0)
    }

    /// The number of elements of a set.
    pub(super) fn len(&self, set: u16) -> usize {
        self.lens[usize::from(set)]
    }

    /// The number of elements of each set of the static rules, and for each prefix of the names of verdict maps the number of elements of
    /// all maps with this prefix.
    pub(super) fn lens<'a>(&'a self, static_rules: &'a StaticRules) -> impl Iterator<Item = (&'a str, usize)> {
        let of_static = static_rules.sets.iter().zip(&self.lens).map(|(set, len)| (&*set.name, *len));
        of_static.chain(self.kinds.iter().copied())
    }

    /// Replaces an owner's record in the sums.
    pub(super) fn replace(&mut self, before: Option<&Record>, now: &Record) {
        for entry in now.entries() {
            self.add(entry);
        }
        self.add_verdict_maps(now, usize::saturating_add);
        let Some(before) = before else { return };
        for entry in before.entries() {
            self.remove(entry);
        }
        self.add_verdict_maps(before, usize::saturating_sub);
    }

    fn add(&mut self, entry: Entry<'_>) {
        if self.is_shared(entry.set) {
            let owners = self.owners.entry(entry.element_key()).or_default();
            *owners += 1;
            if *owners > 1 {
                return;
            }
        }
        self.lens[usize::from(entry.set)] += entry.len();
    }

    fn remove(&mut self, entry: Entry<'_>) {
        if self.is_shared(entry.set) {
            let key = entry.element_key();
            match self.owners.get_mut(&key) {
                Some(owners) if *owners > 1 => {
                    *owners -= 1;
                    return;
                }
                Some(_) => drop(self.owners.remove(&key)),
                None => {
                    self.slipped = true;
                    return;
                }
            }
        }
        let len = &mut self.lens[usize::from(entry.set)];
        match len.checked_sub(entry.len()) {
            Some(rest) => *len = rest,
            None => self.slipped = true,
        }
    }

    fn add_verdict_maps(&mut self, record: &Record, add: impl Fn(usize, usize) -> usize) {
        for verdict_map in record.verdict_maps() {
            for (kind, sum) in &mut self.kinds {
                if verdict_map.set.name.starts_with(*kind) {
                    *sum = add(*sum, verdict_map.verdicts.len());
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nft::{Data, DataType, Element, Family, Set, Table, TableName, Types, Value};

    use super::super::{Collect, Records};
    use super::*;
    use crate::table::{OnDemand, ServiceObjects};

    fn records() -> Records<u8> {
        let set = |name: &str| Arc::new(Set::new(name, Types::Named(vec![DataType::Ipv4Addr])));
        Records::new(StaticRules {
            table: Table { name: TableName::new(Family::Ip, "kube-proxy"), comment: None },
            owned: false,
            sets: vec![set("own"), set("shared")],
            slotted: Vec::new(),
            shared: vec!["shared".into()],
            chains: Vec::new(),
            kinds: &[],
            on_demand: OnDemand::new(|_| None),
            former: |_| false,
        })
    }

    /// One element that only this owner has, and one in a shared set that all owners have.
    fn objects(owner: u8) -> ServiceObjects {
        let element = |address: [u8; 4]| Element {
            key: Data::from(std::net::IpAddr::from(address)),
            key_end: None,
            value: Value::None,
            timeout: None,
            comment: None,
        };
        let mut objects = ServiceObjects::default();
        objects.extend("own", [element([10, 0, 0, owner])]);
        objects.extend("shared", [element([10, 1, 0, 0])]);
        objects
    }

    fn commit(records: &mut Records<u8>) {
        let commands = records.changes(Collect::Nothing);
        records.committed(&commands, None);
    }

    fn lens(records: &Records<u8>) -> Vec<usize> {
        records.lens().map(|(_, len)| len).collect()
    }

    // A wrong sum leads to a comparison with the kernel's table, not to a panic.
    #[test]
    fn a_slip_of_the_sums_is_noticed_and_put_right() {
        let slips: [fn(&mut Totals); 3] =
            [|totals| totals.owners.clear(), |totals| totals.lens[0] = 0, |totals| totals.lens.fill(0)];
        for slip in slips {
            let mut records = records();
            for owner in 0..3 {
                records.put(owner, objects(owner));
            }
            commit(&mut records);
            assert!(!records.take_slip());
            slip(&mut records.totals);
            // Removes one owner after the other until the wrong sum is noticed.
            let noticed = (0..3).any(|owner| {
                records.put(owner, ServiceObjects::default());
                commit(&mut records);
                let committed = if records.take_slip() { Some(2 - owner) } else { None };
                committed
                    .inspect(|rest| {
                        let rest = usize::from(*rest);
                        assert_eq!(lens(&records), [rest, rest.min(1)], "the sums are right again");
                        assert!(!records.take_slip(), "it is told once");
                    })
                    .is_some()
            });
            assert!(noticed);
        }
    }
}
