//! The change from mode ipvs. Needs ipvsadm.

use super::change::{flows, from, objects};
use super::iptables::PORT;
use crate::support::apiserver::wait_for;
use crate::support::netns::{run, run_with_input};
use crate::support::plan::Family;
use crate::support::probe::{Outcome, probe};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

#[test]
#[ignore = "needs the kernel's modules ip_vs and dummy; vm-tests/run has them"]
fn a_start_after_mode_ipvs_serves_and_removes_what_that_left() {
    // Virtual servers and the interface go after the first sync, by a process without further privileges (O2).
    let world = World::new();
    let mut servers = String::new();
    world.node.ip(&["link add kube-ipvs0 type dummy"]);
    for family in Family::ALL {
        let (ip, bits) = (family.cluster_ip(1), if family == Family::V4 { 32 } else { 128 });
        world.node.ip(&[format!("addr add {ip}/{bits} dev kube-ipvs0")]);
        let [server, endpoint] =
            [(ip, 80), (family.endpoint(0), PORT)].map(|(ip, port)| std::net::SocketAddr::new(ip, port));
        servers += &format!("-A -t {server} -s rr\n-a -t {server} -r {endpoint} -m -w 1\n");
    }
    run_with_input(world.node.command("ipvsadm").arg("--restore"), &servers);
    let proxy = Proxy::start(&world.node, &config(), &objects());
    let links = || run(world.node.command("ip").args(["-br", "link"]));
    wait_for("the end of mode ipvs", || (!links().contains("kube-ipvs0")).then_some(()));
    assert_eq!(run(world.node.command("ipvsadm").args(["--save", "-n"])), "");
    assert!(proxy.log().contains("2 virtual servers of mode ipvs"), "{}", proxy.log());
    for flow in Family::ALL.into_iter().flat_map(flows) {
        let outcome = probe(from(&world, flow), flow);
        assert!(matches!(outcome, Outcome::Reached(_)), "{flow:?}: {outcome:?}");
    }
}
