//! What the host's own `nft` makes of the proxy's rules: it lists them, loads its listing, and loads what `kube-proxy render` prints.

use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::mixed;
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::objects::slices;
use crate::support::plan::ENDPOINTS;
use crate::support::proxy::{Proxy, binary, config_in};
use crate::support::world::World;
use serde_json::json;

test_in_each_layout!(the_hosts_nft_lists_the_rules_and_loads_its_own_listing);
fn the_hosts_nft_lists_the_rules_and_loads_its_own_listing(layout: Layout) {
    // The tables have their names and can be listed (F1).
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &mixed::cluster());
    let listing = nft::list_ruleset(&world.node);
    for table in ["table ip kube-proxy", "table ip6 kube-proxy"] {
        assert!(listing.contains(table), "no {table} in:\n{listing}");
    }
    let objects = nft::list_json(&world.node);
    assert!(objects["nftables"].as_array().is_some_and(|objects| objects.len() > 2), "{objects}");
    let fresh = Namespace::new("fresh");
    nft::load(&fresh, &nft::without_owner(&listing));
    assert_eq!(nft::normalised(&nft::list_ruleset(&fresh)), nft::normalised(&listing));
}

/// What else may be on a node: rules of a CNI, and chains as the compatibility tools of iptables write them.
const FOREIGN: &str = "
table inet cni {
	set pods {
		typeof ip saddr . tcp dport
		flags interval
		elements = { 10.244.0.0/16 . 1-1024 }
	}
	chain forward {
		type filter hook forward priority filter + 5; policy accept;
		ip saddr . tcp dport @pods counter accept
		ct state vmap { established : accept, related : accept, invalid : drop }
	}
}
table ip nat {
	chain KUBE-SERVICES {
		ip daddr 10.96.0.10 udp dport 53 counter jump KUBE-SVC-TCOU7JCQXEZGVUNU
	}
	chain KUBE-SVC-TCOU7JCQXEZGVUNU {
		numgen random mod 2 < 1 counter return
	}
}
";

test_in_each_layout!(the_hosts_nft_watches_a_sync_beside_foreign_rules);
fn the_hosts_nft_watches_a_sync_beside_foreign_rules(layout: Layout) {
    // The tables of others stay as they are (F1).
    let world = World::new();
    nft::load(&world.node, FOREIGN);
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &mixed::cluster());
    let mut monitor = world.node.command("nft");
    let log = proxy.directory().join("monitor");
    let output = std::fs::File::create(&log).expect("a file can be made");
    let errors = output.try_clone().expect("a file can be shared");
    let mut monitor = monitor.arg("monitor").stdout(output).stderr(errors).spawn().expect("nft can be run");
    let printed = || std::fs::read_to_string(&log).expect("the log can be read");
    // `nft monitor` does not report when it is ready, so changes are made until it has printed some.
    for _ in 0..50 {
        for which in [&[0, 3][..], &[1, 2]] {
            proxy.apply(&slices("shop", "web", which, &mixed::WEB_PORTS));
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        if printed().matches("# new generation").count() > 2 {
            break;
        }
    }
    let ended = monitor.try_wait().expect("a child can be asked");
    monitor.kill().and_then(|()| monitor.wait()).expect("a child can be ended");
    let text = printed();
    assert_eq!(ended, None, "nft monitor ended by itself:\n{text}");
    assert!(text.contains("# new generation"), "{text}");
    let listing = nft::normalised(&nft::list_ruleset(&world.node));
    assert!(listing.keys().any(|object| object.starts_with("table inet cni")), "the foreign table is left alone");
}

test_in_each_layout!(render_prints_what_the_proxy_programs);
fn render_prints_what_the_proxy_programs(layout: Layout) {
    let world = World::new();
    let mut config = config_in(layout);
    // The addresses that the Node has; the interfaces of the test's node have others too, which manifests do not have.
    config["nodePortAddresses"] = json!(["192.0.2.0/24", "2001:db8::/64"]);
    let mut proxy = Proxy::start(&world.node, &config, &mixed::cluster());
    assert_rendered_is_programmed(&world, &proxy);
    // The same after changes, which the kernel got as differences: fewer endpoints, then as many others.
    for which in [&[0, 3][..], &[1, 2], &(0..ENDPOINTS).collect::<Vec<_>>()] {
        proxy.apply(&slices("shop", "web", which, &mixed::WEB_PORTS));
        assert_rendered_is_programmed(&world, &proxy);
    }
}

fn assert_rendered_is_programmed(world: &World, proxy: &Proxy<'_>) {
    let mut render = world.node.command(binary());
    render.arg("render").arg("--manifests").arg(proxy.manifests().path()).arg("--config").arg(proxy.config_path());
    let rendered = run(&mut render);
    let fresh = Namespace::new("rendered");
    nft::load(&fresh, &nft::without_owner(&rendered));
    let objects = |namespace| nft::without_unused_chains(nft::normalised(&nft::list_ruleset(namespace)));
    assert_eq!(objects(&fresh), objects(&world.node), "rendered:\n{rendered}");
}
