//! Measures the cost of a change of endpoints when session affinity remembers many clients: the change has to look through all clients.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use nft::{Command, Connection, Data, Element, Value};
use rules::ruleset::Layout;

use crate::cluster::{Shape, address};
use crate::measure::permille;
use crate::table::Table;
use crate::{fresh, plain};

const SERVICES: u32 = 500;
const ENDPOINTS: u32 = 10;

/// Adds rows for 100,000 remembered clients, and for twice as many.
pub(crate) fn rows(table: &mut Table) {
    let once = fresh(|| replaced(100_000 / SERVICES));
    let twice = fresh(|| replaced(200_000 / SERVICES));
    table.time(&format!("one endpoint replaced, {SERVICES} Services with affinity, 100,000 clients, median"), once, "");
    table.ratio("  twice as many against that", twice, once, "2.5");
}

/// Returns the number of the Service that the comment of a map names.
fn number_in(comment: &str) -> u32 {
    let digits: String = comment.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no Service in {comment:?}"))
}

/// Returns the median time to replace an endpoint when session affinity remembers this many clients for each Service.
fn replaced(clients: u32) -> Duration {
    let shape = Shape { affinity: true, ..Shape::plain(SERVICES, ENDPOINTS) };
    let mut bench = plain(Layout::Maps, shape);
    let mut connection = Connection::open().expect("a netlink socket");
    for content in bench.content().tables {
        let learned = content.sets.iter().filter(|(set, _)| set.flags.dynamic && set.value.is_some());
        for (set, _) in learned {
            let service = number_in(set.comment.as_deref().unwrap_or_default());
            let client = |n: u32| {
                let endpoint = address(service, n % ENDPOINTS);
                let client = Ipv4Addr::from(0xc612_0000 + service * clients + n);
                let value = Value::Data(Data::from(std::net::IpAddr::V4(endpoint)));
                Element::mapping(Data::from(std::net::IpAddr::V4(client)), value)
            };
            let elements = (0..clients).map(client).collect();
            let command = Command::AddElements(content.table.name.clone(), Arc::clone(set), elements);
            connection.commit(&[command]).expect("the kernel takes it");
        }
    }
    permille(&bench.replacements(shape, 200), 500)
}
