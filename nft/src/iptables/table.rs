//! Parses the bytes of a table of iptables-legacy into chains and rules, and makes the bytes of a new table without some of the chains and
//! rules. Does no I/O.
//!
//! A table is a sequence of entries, each with its length (`struct ipt_entry`, `struct ip6t_entry`): first the built-in chains, each ending
//! with its policy; then the user-defined chains, each beginning with an entry whose target ERROR contains the chain's name, and ending
//! with an entry that returns; and finally an entry with target ERROR. A jump is a standard target whose verdict is the offset of an entry
//! from the beginning of the table. So when an entry is removed, all these offsets have to be rewritten.
//!
//! Invariant: the result of [`Table::without`] has the remaining chains and rules in the same order and, except for offsets, with the same
//! bytes; it is parsed again to make sure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::connection::TableOutline;
use crate::decode::RuleOutline;
use crate::table::{Family, TableName};
use crate::xtables::{Contents, Layout};

/// The names of the built-in chains; the index is the number of the hook.
pub(super) const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// The name of the target of the first entry of a user-defined chain, and of the last entry of a table.
const ERROR: &[u8] = b"ERROR";
/// The length of `xt_entry_target` in bytes. It contains the target's length, the name from byte 2 on, and the revision in the last byte.
const TARGET: usize = 32;

/// The length of an entry's counters in bytes. They are the last field of the entry's header, before its matches.
const COUNTERS: usize = 16;

/// The offsets of fields in an entry of a family.
pub(super) struct Offsets {
    /// The offset of field `target_offset`; field `next_offset` follows it.
    target: usize,
    /// The offset of the first match or target, which is also the length of the entry's header.
    pub(super) end: usize,
}

const V4: Offsets = Offsets { target: 88, end: 112 };
const V6: Offsets = Offsets { target: 140, end: 168 };

/// The error that the bytes cannot be parsed as a table. Contains the offset of the entry that is wrong; 0 if the new table fails the
/// check.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("its content is not understood, at byte {0}; look with `iptables-legacy-save` (`ip6tables-legacy-save`)")]
pub struct Malformed(usize);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first entry of a user-defined chain, with the chain's name; or the last entry of the table.
    Head(Arc<str>),
    /// The last entry of a chain: the policy of a built-in chain, or the entry that returns from a user-defined chain.
    Foot,
    /// A rule, with the offset to which it jumps; `None` for a rule that does not jump.
    Rule(Option<u32>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) place: Range<usize>,
    /// The number of the chain; a built-in chain has the number of its hook.
    pub(super) chain: usize,
    pub(super) kind: Kind,
    /// The offset of the verdict in the table, if the target is a standard target.
    pub(super) verdict: Option<usize>,
}

/// A parsed table.
pub struct Table<'a> {
    pub(super) family: Family,
    pub(super) contents: &'a Contents,
    pub(super) entries: Vec<Entry>,
    /// The names of the chains by their numbers.
    pub(super) chains: BTreeMap<usize, Arc<str>>,
    /// The numbers of the chains by the offset to which a jump to the chain leads: the end of the chain's first entry.
    starts: BTreeMap<usize, usize>,
}

impl<'a> Table<'a> {
    /// Parses the bytes of a table.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn read(family: Family, contents: &'a Contents) -> Result<Self, Malformed> {
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
        // No known program writes a jump into the middle of a chain. The jump could not be rewritten safely, so refuse the table.
        if let Some(entry) = table.entries.iter().find(|entry| table.leads_nowhere(entry)) {
            return Err(Malformed(entry.place.start));
        }
        let count = u32::try_from(table.entries.len()).ok();
        if count == Some(contents.layout.entries) { Ok(table) } else { Err(Malformed(at)) }
    }

    /// Parses the entry at offset `at`. `chain` is the number of the previous entry's chain, and is set to that of the parsed entry.
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
            // A negative verdict decides about the packet, such as ACCEPT. The verdict of a rule that decides nothing is the offset of the
            // next entry.
            Kind::Rule(u32::try_from(verdict).ok().filter(|to| usize::try_from(*to) != Ok(at + len)))
        } else {
            Kind::Rule(None)
        };
        Some(Entry { place: at..at + len, chain: (*chain)?, kind, verdict: standard.then_some(at + target + TARGET) })
    }

    /// Returns the numbers of the hooks at which the table has a built-in chain.
    fn hooks(&self) -> impl Iterator<Item = usize> + use<> {
        let valid = self.contents.layout.valid_hooks;
        (0..BUILT_IN.len()).filter(move |hook| valid & 1 << hook != 0)
    }

    /// Marks the last entry of each chain as [`Kind::Foot`]. Returns `None` if a chain does not end with a policy or a return, or if the
    /// last entry of the table is missing.
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
                // The verdict must be negative: a policy such as ACCEPT, or RETURN.
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

    /// Returns whether an entry jumps to an offset at which no chain begins.
    fn leads_nowhere(&self, entry: &Entry) -> bool {
        matches!(entry.kind, Kind::Rule(Some(to)) if self.chain_at(to).is_none())
    }

    /// Returns the name of the chain to which a jump to this offset leads.
    pub(super) fn chain_at(&self, distance: u32) -> Option<&Arc<str>> {
        self.chains.get(self.starts.get(&usize::try_from(distance).ok()?)?)
    }

    /// Returns the chains and rules of the table. The handle of a rule is its index in `entries`.
    #[must_use]
    pub fn outline(&self) -> TableOutline {
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

    /// Returns whether another table of the same family has the same rules. Counters are not compared.
    #[must_use]
    pub fn has_same_rules(&self, other: &Self) -> bool {
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

    pub(super) fn offsets(&self) -> Offsets {
        if self.family == Family::Ip { V4 } else { V6 }
    }

    /// The offset of the target in the bytes of an entry.
    pub(super) fn target(&self, entry: &[u8]) -> usize {
        let bytes = entry.get(self.offsets().target..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(usize::MAX, |bytes| usize::from(u16::from_ne_bytes(*bytes)))
    }

    /// Returns a new table without `rules`, which are indices in `entries`, and without `chains` and all rules in them. Also returns the
    /// old index of each entry of the new table. The remaining rules must not jump to a removed chain.
    ///
    /// # Errors
    /// See [`Malformed`]: a rule jumps to an offset at which no entry begins, or the check of the new table fails.
    pub fn without(
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
            // The new offset of a removed entry is the offset of the next remaining entry.
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

    /// Parses the new table, and checks that it has exactly the chains and rules of this table except `rules` and `chains`.
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

/// Returns the bytes before the terminating zero.
pub(super) fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}
