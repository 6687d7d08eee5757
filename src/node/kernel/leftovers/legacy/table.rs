//! Parses the bytes of a table of iptables-legacy into chains and rules, and makes the bytes of the table without some of them. Pure.
//!
//! A table is a sequence of entries, each with its length (`struct ipt_entry`, `struct ip6t_entry`): first the built-in chains, each
//! ending with its policy; then the other chains, each beginning with an entry whose target ERROR has the chain's name, and ending with an
//! entry that returns; at last an entry with target ERROR. A jump is a standard target whose verdict is the offset of an entry from the
//! beginning of the table. So when an entry is removed, all these offsets have to be rewritten.
//!
//! Invariant: the result of [`Table::without`] has the remaining chains and rules in the same order and, except for offsets, with the same
//! bytes; it is parsed again to make sure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use nft::decode::RuleOutline;
use nft::xtables::{Contents, Layout};
use nft::{Family, TableName, TableOutline};

/// The built-in chains by the number of their hook.
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// The target of the first entry of a chain that is not built in, and of the last entry of a table.
const ERROR: &[u8] = b"ERROR";
/// The bytes of `xt_entry_target`: its length, its name from byte 2 on, its revision in the last one.
const TARGET: usize = 32;

/// The bytes of an entry's counters, which are the last of its own fields.
const COUNTERS: usize = 16;

/// The offsets of fields in an entry of a family.
struct Offsets {
    /// The offset of field `target_offset`; field `next_offset` follows it.
    target: usize,
    /// The offset of the first match or target, which is the length of an entry's own fields.
    end: usize,
}

const V4: Offsets = Offsets { target: 88, end: 112 };
const V6: Offsets = Offsets { target: 140, end: 168 };

/// The bytes cannot be parsed as a table.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "its content is not understood, at byte {0}; look with `iptables-legacy-save | grep KUBE-` (`ip6tables-legacy-save`), and remove what is \
     there with upstream's `kube-proxy --cleanup`, or restart the node"
)]
pub(in crate::kernel::leftovers) struct Malformed(usize);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// The first entry of a chain that is not built in, or the last entry of the table.
    Head(Arc<str>),
    /// The last entry of a chain: its policy, or the entry that returns.
    Foot,
    /// A rule, with the offset to which it jumps, if it jumps.
    Rule(Option<u32>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    place: Range<usize>,
    /// The number of the chain; a built-in chain has the number of its hook.
    chain: usize,
    kind: Kind,
    /// The offset of the verdict in the table, if the target is a standard target.
    verdict: Option<usize>,
}

/// A table that was read.
pub(super) struct Table<'a> {
    family: Family,
    contents: &'a Contents,
    entries: Vec<Entry>,
    /// The names of the chains by their numbers.
    chains: BTreeMap<usize, Arc<str>>,
    /// The numbers of the chains by the offset to which jumps to them lead: the end of their first entry.
    starts: BTreeMap<usize, usize>,
}

impl<'a> Table<'a> {
    /// Reads the bytes of a table.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub(super) fn read(family: Family, contents: &'a Contents) -> Result<Self, Malformed> {
        let mut table =
            Self { family, contents, entries: Vec::new(), chains: BTreeMap::new(), starts: BTreeMap::new() };
        let mut chain = None;
        let mut at = 0;
        while at < contents.bytes.len() {
            let entry = table.entry(at, &mut chain).ok_or(Malformed(at))?;
            at = entry.place.end;
            table.entries.push(entry);
        }
        table.end_chains().ok_or(Malformed(at))?;
        // No program writes jumps into the middle of a chain. Such a rule cannot be kept safely, so refuse the table.
        if let Some(entry) = table.entries.iter().find(|entry| table.leads_nowhere(entry)) {
            return Err(Malformed(entry.place.start));
        }
        let count = u32::try_from(table.entries.len()).ok();
        if count == Some(contents.layout.entries) { Ok(table) } else { Err(Malformed(at)) }
    }

    /// Parses the entry at offset `at`. `chain` is the chain of the previous entry, and is set to the chain of this one.
    fn entry(&mut self, at: usize, chain: &mut Option<usize>) -> Option<Entry> {
        let offsets = self.offsets();
        let bytes = self.contents.bytes.get(at..)?;
        let number = |at: usize| Some(usize::from(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?)));
        let (target, len) = (number(offsets.target)?, number(offsets.target + 2)?);
        let name = bytes.get(..len)?.get(target + 2..target + TARGET - 1)?;
        let data = bytes.get(target + TARGET..len)?;
        if target < offsets.end {
            return None;
        }
        let distance = u32::try_from(at).ok()?;
        if let Some(hook) = self.hooks().find(|hook| self.contents.layout.hook_entry[*hook] == distance) {
            self.chains.insert(hook, BUILT_IN[hook].into());
            *chain = Some(hook);
        }
        let standard = name[0] == 0;
        let kind = if text(name) == ERROR {
            let number = BUILT_IN.len() + self.chains.len();
            let name: Arc<str> = String::from_utf8_lossy(text(data)).into();
            self.chains.insert(number, Arc::clone(&name));
            self.starts.insert(at + len, number);
            *chain = Some(number);
            Kind::Head(name)
        } else if standard {
            let verdict = i32::from_ne_bytes(*data.first_chunk()?);
            // A negative verdict decides about the packet, such as ACCEPT. A rule without a verdict jumps to the next entry.
            Kind::Rule(u32::try_from(verdict).ok().filter(|to| usize::try_from(*to) != Ok(at + len)))
        } else {
            Kind::Rule(None)
        };
        Some(Entry { place: at..at + len, chain: (*chain)?, kind, verdict: standard.then_some(at + target + TARGET) })
    }

    /// The hooks at which the table has a built-in chain.
    fn hooks(&self) -> impl Iterator<Item = usize> + use<> {
        let valid = self.contents.layout.valid_hooks;
        (0..BUILT_IN.len()).filter(move |hook| valid & 1 << hook != 0)
    }

    /// Finds the last entry of each chain; `None` if it is no policy or return, or if the last entry of the table is missing.
    fn end_chains(&mut self) -> Option<()> {
        let Kind::Head(end) = &self.entries.last()?.kind else { return None };
        if end.as_bytes() != ERROR {
            return None;
        }
        let end = self.entries.pop()?;
        self.chains.remove(&end.chain);
        for index in 0..self.entries.len() {
            let is_last = self.entries.get(index + 1).is_none_or(|next| next.chain != self.entries[index].chain);
            let entry = &mut self.entries[index];
            if is_last {
                let verdict = self.contents.bytes.get(entry.verdict?..)?.first_chunk()?;
                // It must be negative: a policy such as ACCEPT, or RETURN.
                (i32::from_ne_bytes(*verdict) < 0).then_some(())?;
                entry.kind = Kind::Foot;
            }
        }
        for hook in self.hooks() {
            let policy = self.contents.layout.underflow[hook];
            let foot = self.entries.iter().find(|entry| entry.chain == hook && entry.kind == Kind::Foot)?;
            (u32::try_from(foot.place.start) == Ok(policy)).then_some(())?;
        }
        self.entries.push(end);
        Some(())
    }

    /// Whether an entry jumps to an offset at which no chain begins.
    fn leads_nowhere(&self, entry: &Entry) -> bool {
        matches!(entry.kind, Kind::Rule(Some(to)) if self.chain_at(to).is_none())
    }

    /// The name of the chain to which a jump to this offset leads.
    fn chain_at(&self, distance: u32) -> Option<&Arc<str>> {
        self.chains.get(self.starts.get(&usize::try_from(distance).ok()?)?)
    }

    /// The chains and rules of the table. The handle of a rule is its index in `entries`.
    pub(super) fn outline(&self) -> TableOutline {
        let table = TableName::new(self.family, "");
        let rule = |(index, entry): (usize, &Entry)| {
            let Kind::Rule(to) = entry.kind else { return None };
            Some(RuleOutline {
                table: table.clone(),
                chain: Arc::clone(self.chains.get(&entry.chain)?),
                handle: u64::try_from(index).ok()?,
                target: to.and_then(|to| self.chain_at(to)).map(Arc::clone),
            })
        };
        TableOutline {
            chains: self.chains.iter().map(|(number, name)| (Arc::clone(name), *number < BUILT_IN.len())).collect(),
            rules: self.entries.iter().enumerate().filter_map(rule).collect(),
        }
    }

    /// Whether another table of the same family has the same rules. Counters are not compared.
    pub(super) fn has_same_rules(&self, other: &Self) -> bool {
        let fields = |table: &Self, entry: &Entry| {
            let bytes = table.contents.bytes.get(entry.place.clone()).unwrap_or_default();
            let (own, rest) = bytes.split_at_checked(self.offsets().end).unwrap_or_default();
            [own[..own.len().saturating_sub(COUNTERS)].to_vec(), rest.to_vec()]
        };
        let same = |(a, b)| fields(self, a) == fields(other, b);
        self.contents.layout == other.contents.layout
            && self.entries.len() == other.entries.len()
            && self.entries.iter().zip(&other.entries).all(same)
    }

    fn offsets(&self) -> Offsets {
        if self.family == Family::Ip { V4 } else { V6 }
    }

    /// The table without these rules, which are indices in `entries`, and without these chains and all their rules. Also gives the old
    /// index of each entry of the new table. The rules that stay must not jump to a removed chain.
    ///
    /// # Errors
    /// See [`Malformed`]: a rule jumps to an offset at which no entry begins, or the check of the new table fails.
    pub(super) fn without(
        &self,
        rules: &BTreeSet<usize>,
        chains: &BTreeSet<Arc<str>>,
    ) -> Result<(Contents, Vec<usize>), Malformed> {
        let goes = |index: usize, entry: &Entry| {
            rules.contains(&index) || self.chains.get(&entry.chain).is_some_and(|name| chains.contains(name))
        };
        let mut bytes = Vec::with_capacity(self.contents.bytes.len());
        let (mut places, mut kept) = (BTreeMap::new(), Vec::new());
        for (index, entry) in self.entries.iter().enumerate() {
            // The offset of a removed entry becomes that of the next entry that stays.
            places.insert(entry.place.start, u32::try_from(bytes.len()).map_err(|_| Malformed(entry.place.start))?);
            if !goes(index, entry) {
                bytes.extend_from_slice(&self.contents.bytes[entry.place.clone()]);
                kept.push(index);
            }
        }
        let mut start = 0;
        for entry in kept.iter().map(|index| &self.entries[*index]) {
            if let Some(at) = entry.verdict {
                let at = start + at - entry.place.start;
                self.move_verdict(&mut bytes[at..at + 4], &places).ok_or(Malformed(entry.place.start))?;
            }
            start += entry.place.len();
        }
        let moved = |distance: u32| places.get(&usize::try_from(distance).ok()?).copied();
        let mut layout =
            Layout { entries: u32::try_from(kept.len()).unwrap_or_default(), ..self.contents.layout.clone() };
        for hook in self.hooks() {
            for distance in [&mut layout.hook_entry[hook], &mut layout.underflow[hook]] {
                *distance = moved(*distance).ok_or(Malformed(0))?;
            }
        }
        let new = Contents { layout, bytes };
        self.check(&new, rules, chains)?;
        Ok((new, kept))
    }

    /// Rewrites the offset in a verdict. A negative verdict, such as ACCEPT, has no offset and stays.
    fn move_verdict(&self, verdict: &mut [u8], places: &BTreeMap<usize, u32>) -> Option<()> {
        let number = i32::from_ne_bytes(*verdict.first_chunk()?);
        if let Ok(distance) = usize::try_from(number) {
            let place = i32::try_from(*places.get(&distance)?).ok()?;
            verdict.copy_from_slice(&place.to_ne_bytes());
        }
        Some(())
    }

    /// Parses a new table, and checks that it has exactly the chains and rules of this table that were not to be removed.
    fn check(&self, new: &Contents, rules: &BTreeSet<usize>, chains: &BTreeSet<Arc<str>>) -> Result<(), Malformed> {
        let found = Table::read(self.family, new)?.outline();
        let mut wanted = self.outline();
        wanted.chains.retain(|name, _| !chains.contains(name));
        wanted.rules.retain(|rule| {
            !chains.contains(&rule.chain) && usize::try_from(rule.handle).is_ok_and(|index| !rules.contains(&index))
        });
        let same_rules = wanted.rules.len() == found.rules.len()
            && wanted.rules.iter().zip(&found.rules).all(|(a, b)| (&a.chain, &a.target) == (&b.chain, &b.target));
        if same_rules && wanted.chains == found.chains { Ok(()) } else { Err(Malformed(0)) }
    }
}

/// Text up to its terminating zero.
fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}
