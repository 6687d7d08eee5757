//! The table: when it is there, what is in it, and what takes it away.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::cluster;
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, binary, config};
use crate::support::world::World;

const TABLE: &str = "table inet kube-proxy-flowtable";
/// The deadline for what takes about a second, with room for slow machines.
const PATIENCE: Duration = Duration::from_secs(20);

fn tables(node: &Namespace) -> String {
    run(node.command("nft").args(["list", "tables"]))
}

/// The interfaces of the flowtable, as nft lists them; none when there is no flowtable.
fn devices(node: &Namespace) -> Vec<String> {
    let listing = run(node.command("nft").args(["list", "ruleset"]));
    let line = listing.lines().find_map(|line| line.trim().strip_prefix("devices = {"));
    let names = line.unwrap_or_default().trim_end_matches('}').split(',').map(|name| name.trim().trim_matches('"'));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn wait_for(what: &str, reached: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(50));
    }
}

fn assert_served(world: &World) {
    for family in Family::ALL {
        let flow = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
        assert!(matches!(probe(&world.shell, flow), Outcome::Reached(_)), "{flow:?}");
    }
}

#[test]
fn there_is_no_fast_path_unless_asked_for_and_one_from_before_goes() {
    let world = World::new();
    nft::load(&world.node, "add table inet kube-proxy-flowtable\nadd table inet mine\n");
    let proxy = Proxy::start(&world.node, &config(), &cluster());
    // What a former start or another mode left goes after the first sync, so perhaps after the rules are there.
    wait_for("the table of a former start is still there", || {
        proxy.log().contains("what=\"table inet kube-proxy-flowtable\"")
    });
    let tables = tables(&world.node);
    assert!(!tables.contains(TABLE) && tables.contains("table inet mine"), "{tables}");
    assert_served(&world);
}

#[test]
fn a_kernel_that_lacks_flowtables_is_logged_once_and_stops_nothing() {
    let world = World::new();
    let mut configuration = config();
    configuration["nftables"]["flowtable"] = "auto".into();
    let proxy = Proxy::start(&world.node, &configuration, &cluster());
    let notice = "This kernel has no flowtables";
    // Either the table is there or its lack is logged, by the kernel's features; never both, never neither.
    wait_for("neither a fast path nor a log line about it", || {
        proxy.log().contains(notice) || tables(&world.node).contains(TABLE)
    });
    sleep(Duration::from_millis(2500));
    let (logged, there) = (proxy.log().matches(notice).count(), tables(&world.node).contains(TABLE));
    assert!(
        matches!((logged, there), (1, false) | (0, true)),
        "logged {logged} times, table there: {there}\n{}",
        proxy.log()
    );
    assert_served(&world);
}

#[test]
fn render_prints_the_flowtable() {
    let world = World::new();
    let proxy = Proxy::prepare(&world.node, &config(), &cluster());
    let render = |arguments: &[&str]| {
        let mut command = world.node.command(binary());
        command.arg("render").arg("--config").arg(proxy.config_path()).arg("--manifests");
        run(command.arg(proxy.manifests().path()).args(arguments))
    };
    assert!(!render(&[]).contains(TABLE));
    let text = render(&["--flowtable=to-client,to-nobody"]);
    let table = text.split_once(TABLE).unwrap_or_else(|| panic!("no {TABLE}: {text}")).1;
    // Which interfaces exist is a matter of the node, not of the manifests.
    assert!(table.contains("\t\tdevices = { to-client, to-nobody }\n"), "{table}");
    let auto = render(&["--flowtable=auto"]);
    let table = auto.split_once(TABLE).unwrap_or_else(|| panic!("no {TABLE}: {auto}")).1;
    assert!(!table.contains("devices"), "{table}");
    assert!(auto.contains("\n# devices: every interface of the node but lo\n"), "{auto}");
}

#[test]
#[ignore = "needs a kernel with flowtables; vm-tests runs them"]
fn interfaces_come_and_go() {
    let world = World::new();
    let _proxy = Proxy::start_with(&["--flowtable=auto"], &world.node, &config(), &cluster());
    let all = ["to-client", "to-inet", "to-pod0", "to-pod1", "to-remote", "to-shell"];
    let sorted = || {
        let mut names = devices(&world.node);
        names.sort();
        names
    };
    wait_for("the interfaces of the node", || sorted() == all);
    world.node.ip(&["link add late type dummy"]);
    wait_for("an interface that came", || sorted() == [&["late"], &all[..]].concat());
    world.node.ip(&["link del late"]);
    wait_for("an interface that went", || sorted() == all);
    // More than the kernel takes in one message.
    world.node.ip(&(0..300).map(|n| format!("link add many{n} type dummy")).collect::<Vec<_>>());
    wait_for("300 interfaces", || devices(&world.node).len() == 300 + all.len());
}

#[test]
#[ignore = "needs a kernel with flowtables; vm-tests runs them"]
fn the_table_is_kept_and_goes_with_the_option_or_the_clean_up() {
    let world = World::new();
    let mut proxy = Proxy::start_with(&["--flowtable=to-client,to-remote"], &world.node, &config(), &cluster());
    wait_for("the named interfaces", || devices(&world.node) == ["to-client", "to-remote"]);
    let table = || run(world.node.command("nft").args(["list", "table", "inet", "kube-proxy-flowtable"]));
    let was = table();
    assert_eq!(was.matches("ct packets > 16 flow add @fastpath").count(), 2, "{was}");
    run(world.node.command("nft").args(["flush", "chain", "inet", "kube-proxy-flowtable", "established"]));
    wait_for("a repair", || table() == was);
    assert!(proxy.stop().success());
    assert_eq!(table(), was, "it stays when the process ends");
    let handles = || run(world.node.command("nft").args(["-a", "list", "table", "inet", "kube-proxy-flowtable"]));
    let before = handles();
    proxy.launch();
    sleep(Duration::from_secs(2));
    assert_eq!(handles(), before, "a restart changes nothing");
    proxy.stop();
    run(world.node.command(binary()).arg("--cleanup"));
    assert_eq!(tables(&world.node), "");
    proxy.launch();
    wait_for("the table again", || tables(&world.node).contains(TABLE));
    proxy.stop();
    proxy.set_arguments(&["--flowtable=off"]);
    proxy.launch();
    assert!(!tables(&world.node).contains(TABLE));
}

#[test]
fn a_name_that_is_none_is_refused() {
    let output = Command::new(binary())
        .args(["--flowtable=eth0/1", "--proxy-mode=nftables", "--hostname-override=n"])
        .output()
        .expect("the built binary can be run");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("nftables.flowtable: must not have a slash"), "{text}");
}
