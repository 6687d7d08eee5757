//! Writes declarations of flowtables.

use std::fmt;

use crate::object::{Flowtable, Hook};
use crate::text::chain::priority_name;
use crate::text::words::interface;

/// Writes a flowtable as nft lists it.
pub(super) fn write(f: &mut fmt::Formatter<'_>, flowtable: &Flowtable) -> fmt::Result {
    writeln!(f, "\tflowtable {} {{", flowtable.name)?;
    properties(flowtable).iter().try_for_each(|line| writeln!(f, "\t\t{line}"))?;
    f.write_str("\t}\n")
}

/// The lines of a flowtable's declaration. nft has no syntax for an empty list of interfaces, so the list is left out then.
pub(super) fn properties(flowtable: &Flowtable) -> Vec<String> {
    // `Hook::Forward` stands for the ingress hook, because it has no names of priorities of its own.
    let mut lines = vec![format!("hook ingress priority {}", priority_name(flowtable.priority, Hook::Forward))];
    if !flowtable.devices.is_empty() {
        let devices: Vec<String> = flowtable.devices.iter().map(|device| name(device)).collect();
        lines.push(format!("devices = {{ {} }}", devices.join(", ")));
    }
    lines
}

/// The name of an interface, between quotation marks only if nft would not read it as a name without them.
fn name(device: &str) -> String {
    let is_word = device.starts_with(|c: char| c.is_ascii_alphabetic())
        && device.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if is_word { device.to_owned() } else { interface(device) }
}

#[cfg(test)]
mod tests {
    use super::name;
    use crate::command::Command;
    use crate::object::{Flowtable, TableContent};
    use crate::table::{Family, Table, TableName};

    #[test]
    fn a_strange_name_of_an_interface_does_not_end_the_list() {
        assert_eq!(["eth0", "br-lan.7", "a}", "4x"].map(name), ["eth0", "br-lan.7", "\"a}\"", "\"4x\""]);
    }

    #[test]
    fn flowtables_are_written_as_nft_lists_and_loads_them() {
        let name = TableName::new(Family::Inet, "t");
        let flowtable =
            Flowtable { name: "f".into(), priority: 0, devices: ["eth0", "veth1"].map(Into::into).to_vec() };
        let add = Command::AddFlowtable(name.clone(), flowtable.clone());
        assert_eq!(
            add.to_string(),
            "add flowtable inet t f { hook ingress priority filter; devices = { eth0, veth1 }; }"
        );
        let mut content = TableContent::new(Table { name, comment: None });
        content.flowtables = vec![flowtable, Flowtable { name: "g".into(), priority: -5, devices: Vec::new() }];
        assert_eq!(
            content.to_string(),
            "table inet t {\n\
             \tflowtable f {\n\t\thook ingress priority filter\n\t\tdevices = { eth0, veth1 }\n\t}\n\n\
             \tflowtable g {\n\t\thook ingress priority filter - 5\n\t}\n}\n"
        );
    }
}
