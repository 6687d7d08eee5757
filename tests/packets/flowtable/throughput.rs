//! How much faster one connection is with the fast path; the ratio is printed.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::cluster;
use super::packets::{seen, wait_for_table, watch};
use crate::support::objects::slices;
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

const SINK: u16 = 7070;
const BYTES: usize = 16 << 20;
const PIECE: usize = 1 << 16;
const ROUNDS: usize = 3;

/// Sends [`BYTES`] through the cluster IP and waits for the server's word that all have come.
fn send(world: &World, family: Family) -> Duration {
    let listener = world.remote.enter(|| TcpListener::bind((family.endpoint(2), SINK))).expect("the port is free");
    let to: (IpAddr, u16) = (family.cluster_ip(1), 80);
    let mut stream = world.shell.enter(|| TcpStream::connect(SocketAddr::from(to))).expect("the Service is served");
    let start = Instant::now();
    let received = std::thread::scope(|scope| {
        let sink = scope.spawn(move || -> std::io::Result<usize> {
            let (mut stream, _) = listener.accept()?;
            let (mut all, mut buffer) = (0, vec![0; PIECE]);
            while all < BYTES {
                match stream.read(&mut buffer)? {
                    0 => break,
                    length => all += length,
                }
            }
            Ok(all)
        });
        let piece = vec![b'x'; PIECE];
        (0..BYTES / PIECE).for_each(|_| stream.write_all(&piece).expect("all can be sent"));
        sink.join().expect("the sink ends").expect("the sink reads")
    });
    assert_eq!(received, BYTES);
    start.elapsed()
}

/// The best of some rounds, and the packets that the forward hook saw in all of them.
fn measure(world: &World, family: Family) -> (Duration, u64) {
    let before = seen(&world.node);
    let best = (0..ROUNDS).map(|_| send(world, family)).min().expect("there are rounds");
    (best, seen(&world.node) - before)
}

#[test]
#[ignore = "needs a kernel with flowtables; vm-tests runs them"]
fn a_connection_goes_faster_or_at_least_past_the_rules() {
    let world = World::new();
    // Segments are sent one by one. Joined by the device, most of them would pass the rules as one packet.
    world.node.ip(&["link set to-shell gso_max_segs 1", "link set to-remote gso_max_segs 1"]);
    world.shell.ip(&["link set eth0 gso_max_segs 1"]);
    world.remote.ip(&["link set eth0 gso_max_segs 1"]);
    let mut objects = cluster();
    objects.extend(slices("shop", "web", &[2], &[("http", Proto::Tcp, SINK)]));
    let mut proxy = Proxy::start(&world.node, &config(), &objects);
    watch(&world.node);
    let without = Family::ALL.map(|family| measure(&world, family));
    proxy.stop();
    proxy.set_arguments(&["--flowtable=auto"]);
    proxy.launch();
    wait_for_table(&world.node);
    let with = Family::ALL.map(|family| measure(&world, family));
    for ((family, without), with) in Family::ALL.iter().zip(without).zip(with) {
        let ratio = without.0.as_secs_f64() / with.0.as_secs_f64();
        println!("TIME {family:?}: {ratio:.2} times as fast with the fast path ({:.2?} to {:.2?})", without.0, with.0);
        assert!(with.1 * 20 < without.1, "the forward hook saw {} packets with it, {} without", with.1, without.1);
        // Times vary on a machine that other programs use, so only a connection that hardly moves fails the test.
        assert!(ratio > 0.25, "{family:?}: slower with the fast path");
    }
}
