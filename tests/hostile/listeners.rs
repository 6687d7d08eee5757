//! The kernel's notifications: while any program on the machine receives them, every transaction of every network namespace is dearer. So the proxy
//! receives them only for a while after another program changed its tables, or while one writes very often.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::mixed;
use crate::support::netns::{Namespace, run};
use crate::support::notifications::{subscriptions, wait_for};
use crate::support::proxy::{Proxy, config};

/// How long notifications are received after the last foreign change of our tables, and room for a busy machine.
const LISTENING: Duration = Duration::from_secs(60);
const ROOM: Duration = Duration::from_secs(15);

#[test]
fn a_proxy_subscribes_to_notifications_only_for_a_while_after_a_foreign_change() {
    // An idle proxy makes no transaction of others dearer (G10).
    let node = Namespace::new("node");
    let mut proxy = Proxy::start(&node, &config(), &mixed::cluster());
    proxy.wait_until_quiet();
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(subscriptions(&node), [""; 0], "an idle proxy");
        thread::sleep(Duration::from_millis(100));
    }
    // Writes of another program to its own tables now and then cause a comparison each, which has a subscription of its own while it
    // reads the tables, and none that stays.
    let (mut since, mut longest) = (None::<Instant>, Duration::ZERO);
    for _ in 0..3 {
        run(node.command("nft").arg("add table inet elsewhere; delete table inet elsewhere"));
        let end = Instant::now() + Duration::from_secs(4);
        while Instant::now() < end {
            if subscriptions(&node).is_empty() {
                since = None;
            } else {
                longest = longest.max(since.get_or_insert_with(Instant::now).elapsed());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    println!("beside writes to other tables a subscription lasted {longest:?}");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    run(node.command("nft").arg("flush chain ip kube-proxy KUBE-SERVICES"));
    wait_for(&node, true, ROOM);
    // The comparison that follows has a subscription of its own while it reads the tables, and the other begins right after it.
    thread::sleep(Duration::from_secs(2));
    let end = Instant::now() + ROOM;
    while subscriptions(&node).len() > 1 && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    // NFNLGRP_NFTABLES is group 7.
    assert_eq!(subscriptions(&node), ["00000040"]);
    let took = wait_for(&node, false, LISTENING + ROOM);
    println!("the subscription ended after {took:?}");
    assert!(took > LISTENING - ROOM, "{took:?}");
}
