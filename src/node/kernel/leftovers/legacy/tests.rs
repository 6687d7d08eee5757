use super::*;
use nft::xtables::{Contents, Layout};

/// The verdicts of standard targets: `XT_RETURN`, and `-NF_ACCEPT - 1`.
const RETURN: i32 = -5;
const ACCEPT: i32 = -2;

/// Returns the length of an entry's header in bytes, and the offset of its field `target_offset`.
fn fields(family: Family) -> (usize, usize) {
    if family == Family::Ip { (112, 88) } else { (168, 140) }
}

/// Returns the bytes of an entry with a target. `mark` is the first byte, by which the tests recognise the entry.
fn entry(family: Family, mark: u8, name: &str, data: &[u8]) -> Vec<u8> {
    let (own, offsets) = fields(family);
    let len = (own + 32 + data.len()).next_multiple_of(8);
    let mut bytes = vec![0; len];
    bytes[0] = mark;
    for (at, number) in [(offsets, own), (offsets + 2, len), (own, len - own)] {
        bytes[at..at + 2].copy_from_slice(&u16::try_from(number).unwrap().to_ne_bytes());
    }
    bytes[own + 2..own + 2 + name.len()].copy_from_slice(name.as_bytes());
    bytes[own + 32..own + 32 + data.len()].copy_from_slice(data);
    bytes
}

fn head(family: Family, name: &str) -> Vec<u8> {
    let mut data = name.as_bytes().to_vec();
    data.resize(30, 0);
    entry(family, 0, "ERROR", &data)
}

fn verdict(family: Family, mark: u8, number: usize) -> Vec<u8> {
    entry(family, mark, "", &i32::try_from(number).unwrap().to_ne_bytes())
}

fn end(family: Family, number: i32) -> Vec<u8> {
    entry(family, 0, "", &number.to_ne_bytes())
}

/// Returns a table nat. Chain OUTPUT has a jump to KUBE-SERVICES (mark 1), a jump to MINE (2) and a rule that decides nothing (3);
/// KUBE-SERVICES has a jump to KUBE-SVC-A (4) and a DNAT (5); MINE has a jump to KUBE-SVC-A (6); KUBE-SVC-A has one rule (7).
fn nat(family: Family) -> Contents {
    let (own, _) = fields(family);
    let (rule, top) = (own + 40, own + 64);
    let kube_services = 4 * rule;
    let mine = kube_services + top + 3 * rule;
    let svc = mine + top + 2 * rule;
    let bytes = [
        verdict(family, 1, kube_services + top),
        verdict(family, 2, mine + top),
        verdict(family, 3, 3 * rule),
        end(family, ACCEPT),
        head(family, "KUBE-SERVICES"),
        verdict(family, 4, svc + top),
        entry(family, 5, "DNAT", &[1; 8]),
        end(family, RETURN),
        head(family, "MINE"),
        verdict(family, 6, svc + top),
        end(family, RETURN),
        head(family, "KUBE-SVC-A"),
        entry(family, 7, "DNAT", &[2; 8]),
        end(family, RETURN),
        head(family, "ERROR"),
    ]
    .concat();
    let mut layout = Layout { valid_hooks: 1 << 3, entries: 15, ..Layout::default() };
    layout.underflow[3] = u32::try_from(3 * rule).unwrap();
    Contents { layout, bytes }
}

/// Returns the chain, the mark and the target of each rule as text.
fn rules(family: Family, contents: &Contents) -> Vec<String> {
    let table = Table::read(family, contents).unwrap();
    let mut starts = vec![0];
    let (_, offsets) = fields(family);
    while let Some(len) = contents.bytes.get(starts[starts.len() - 1] + offsets + 2) {
        starts.push(starts[starts.len() - 1] + usize::from(*len));
    }
    let line = |rule: &nft::decode::RuleOutline| {
        let mark = contents.bytes[starts[usize::try_from(rule.handle).unwrap()]];
        format!("{} {mark} {}", rule.chain, rule.target.as_deref().unwrap_or("-"))
    };
    table.outline().rules.iter().map(line).collect()
}

#[test]
fn chains_rules_and_jumps_are_read() {
    for family in [Family::Ip, Family::Ip6] {
        let contents = nat(family);
        let all = [
            "OUTPUT 1 KUBE-SERVICES",
            "OUTPUT 2 MINE",
            "OUTPUT 3 -",
            "KUBE-SERVICES 4 KUBE-SVC-A",
            "KUBE-SERVICES 5 -",
            "MINE 6 KUBE-SVC-A",
            "KUBE-SVC-A 7 -",
        ];
        assert_eq!(rules(family, &contents), all, "{family}");
        let chains = Table::read(family, &contents).unwrap().outline().chains;
        let base: Vec<&str> = chains.iter().filter(|(_, is_base)| **is_base).map(|(name, _)| &**name).collect();
        assert_eq!((chains.len(), base), (4, vec!["OUTPUT"]));
    }
}

// Rules of other programs stay, and jump to the same chains as before (O1).
#[test]
fn a_table_without_kube_proxys_chains_has_the_rest_with_its_jumps() {
    for family in [Family::Ip, Family::Ip6] {
        let contents = nat(family);
        let table = Table::read(family, &contents).unwrap();
        let outline = table.outline();
        let plan = plan::plan("nat", "ip nat", &outline);
        let removal = Removal::of(&plan, &outline);
        assert_eq!(removal.used, BTreeSet::from(["KUBE-SVC-A".into()]), "MINE jumps there");
        let (new, kept) = table.without(&removal.rules, &removal.chains).unwrap();
        assert_eq!(rules(family, &new), ["OUTPUT 2 MINE", "OUTPUT 3 -", "MINE 6 KUBE-SVC-A"], "{family}");
        assert_eq!(kept, [1, 2, 3, 8, 9, 10, 11, 13, 14], "where the counters of the rest are");
        assert_eq!((new.layout.hook_entry[3], new.layout.entries), (0, 9));
        let nothing = table.without(&BTreeSet::new(), &BTreeSet::new()).unwrap().0;
        assert_eq!(nothing, contents, "{family}");
    }
}

#[test]
fn tables_with_the_same_rules_are_the_same_whatever_they_counted() {
    for family in [Family::Ip, Family::Ip6] {
        let (old, mut new) = (nat(family), nat(family));
        let same =
            |new: &Contents| Table::read(family, new).unwrap().has_same_rules(&Table::read(family, &old).unwrap());
        new.bytes[fields(family).0 - 1] = 9;
        assert!(same(&new), "a counter");
        new.bytes[0] = 9;
        assert!(!same(&new), "a match");
    }
}

#[test]
fn bytes_that_are_cut_or_garbled_do_no_harm() {
    for family in [Family::Ip, Family::Ip6] {
        let whole = nat(family);
        for end in 0..whole.bytes.len() {
            let cut = Contents { bytes: whole.bytes[..end].to_vec(), ..whole.clone() };
            assert!(Table::read(family, &cut).is_err(), "cut at {end}");
        }
        for (at, byte) in (0..whole.bytes.len()).flat_map(|at| [0, 1, 8, 0x7f, 0xff].map(|byte| (at, byte))) {
            let mut garbled = whole.clone();
            garbled.bytes[at] = byte;
            let Ok(table) = Table::read(family, &garbled) else { continue };
            let outline = table.outline();
            assert_eq!(table.chains("nat").len(), outline.chains.len(), "byte {at} is {byte}");
            assert!(table.hooked_chains("nat").len() <= outline.chains.len(), "byte {at} is {byte}");
            let removal = Removal::of(&plan::plan("nat", "", &outline), &outline);
            // `without` must return an error, or a table that can be parsed.
            if let Ok((new, _)) = table.without(&removal.rules, &removal.chains) {
                assert!(Table::read(family, &new).is_ok(), "byte {at} is {byte}");
            }
        }
    }
}
