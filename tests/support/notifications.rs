//! Finds out whether a process in a namespace receives the notifications of nf_tables. The proxy receives them only for a minute after
//! another program changed its tables, or after other programs wrote in several seconds of a minute. So a test that expects the proxy to
//! name the next writer first has another program write.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::netns::{Namespace, run};

/// The number of `NETLINK_NETFILTER` in `/proc/net/netlink`.
const NETFILTER: &str = "12";
/// How long the proxy may take to subscribe, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);

/// Returns the multicast groups of each netfilter socket in a namespace, without sockets that have none.
///
/// To make this file, the kernel walks a hash table of the sockets of all namespaces, and it lists a socket twice if the table grows
/// meanwhile. So a socket counts once, by its inode.
pub(crate) fn subscriptions(node: &Namespace) -> Vec<String> {
    let text = node.enter(|| fs::read_to_string("/proc/thread-self/net/netlink").expect("/proc is there"));
    let rows = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let listeners = rows.filter(|row| row[1] == NETFILTER && row[3].chars().any(|digit| digit != '0'));
    let by_inode: BTreeMap<String, String> = listeners.map(|row| (row[9].to_owned(), row[3].to_owned())).collect();
    by_inode.into_values().collect()
}

/// Waits until notifications are received in the namespace, or no longer are. Returns the time that this took.
pub(crate) fn wait_for(node: &Namespace, is_subscribed: bool, patience: Duration) -> Duration {
    let start = Instant::now();
    while subscriptions(node).is_empty() == is_subscribed {
        assert!(start.elapsed() < patience, "{:?} after {patience:?}", subscriptions(node));
        thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

/// Makes the proxy name the programs that write in the next minute: adds six foreign tables, one in each of six seconds, and waits until
/// the proxy receives notifications.
pub(crate) fn have_writers_named(node: &Namespace) {
    for n in 0..6 {
        // Each time another table, because the kernel commits no transaction that changes nothing.
        run(node.command("nft").arg(format!("add table inet elsewhere{n}")));
        thread::sleep(Duration::from_millis(1_100));
    }
    wait_for(node, true, PATIENCE);
}
