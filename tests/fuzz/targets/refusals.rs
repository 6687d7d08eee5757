//! The kernel's answer to a batch: which command and element each acknowledgement is about.

use std::sync::Arc;

use nft::decode::{self, Messages};
use nft::{Batch, Command, Data, DataType, Element, Elements, Family, Set, Table, TableName, Types, connection};

thread_local! {
    static SENT: (Batch, [Command; 5]) = {
        let commands = commands();
        (Batch::encode(&commands).expect("these commands can be written"), commands)
    };
}

pub(super) fn run(bytes: &[u8]) {
    SENT.with(|(batch, commands)| answers(bytes, batch, commands));
}

fn answers(bytes: &[u8], batch: &Batch, commands: &[Command]) {
    for ack in Messages::new(bytes).chain([bytes]).filter_map(decode::ack) {
        let refusal = connection::refusal(batch, commands, ack);
        let elements = refusal.command.map_or(0, |command| commands[command].elements());
        assert!(refusal.element.is_none_or(|element| element < elements), "{refusal:?}");
        assert!(!refusal.to_string().is_empty());
    }
}

/// A batch whose elements need two messages.
fn commands() -> [Command; 5] {
    let table = TableName::new(Family::Ip, "kube-proxy");
    let set = Arc::new(Set::new("cluster-ips", Types::Named(vec![DataType::Ipv4Addr])));
    let elements = |count: u32| (0..count).map(|number| Element::new(Data::from(number))).collect::<Elements>();
    [
        Command::AddTable(Table { name: table.clone(), comment: None }),
        Command::AddSet(table.clone(), Arc::clone(&set)),
        Command::AddElements(table.clone(), Arc::clone(&set), elements(4000)),
        Command::DeleteElements(table.clone(), Arc::clone(&set), elements(3)),
        Command::DestroyElements(table, set, elements(2)),
    ]
}
