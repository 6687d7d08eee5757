//! Who receives nf_tables' notifications in a namespace. The proxy does so only for a minute after another program changed its tables
//! or wrote in several seconds of a minute, so a test that wants the next writer to be named has another program write first.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::netns::{Namespace, run};

/// The number of `NETLINK_NETFILTER` in `/proc/net/netlink`.
const NETFILTER: &str = "12";
/// How long the proxy may take to subscribe, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);

/// The multicast groups of the netfilter sockets in a namespace, without those sockets that have none.
///
/// The kernel walks a hash table of all namespaces for this file, and gives a socket twice when the table grows meanwhile. So a socket counts once, by its inode.
pub(crate) fn subscriptions(node: &Namespace) -> Vec<String> {
    let text = node.enter(|| fs::read_to_string("/proc/thread-self/net/netlink").expect("/proc is there"));
    let rows = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listeners = rows.filter(|row| row[1] == NETFILTER && row[3].chars().any(|digit| digit != '0'));
    let by_inode: BTreeMap<String, String> = listeners.map(|row| (row[9].to_owned(), row[3].to_owned())).collect();
    by_inode.into_values().collect()
}

/// Waits until notifications are received in the namespace, or are not. Gives the time that this took.
pub(crate) fn wait_for(node: &Namespace, is_subscribed: bool, patience: Duration) -> Duration {
    let start = Instant::now();
    while subscriptions(node).is_empty() == is_subscribed {
        assert!(start.elapsed() < patience, "{:?} after {patience:?}", subscriptions(node));
        thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

/// Has the proxy name the programs that write in the next minute: writes a table elsewhere in as many seconds as are often, and waits until the
/// proxy receives notifications.
pub(crate) fn have_writers_named(node: &Namespace) {
    for n in 0..6 {
        // The kernel commits no transaction that changes nothing, so each time another table.
        run(node.command("nft").arg(format!("add table inet elsewhere{n}")));
        thread::sleep(Duration::from_millis(1_100));
    }
    wait_for(node, true, PATIENCE);
}
