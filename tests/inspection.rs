//! What the host's own `nft` makes of the proxy's rules: it lists them, loads its listing, and loads what `kube-proxy render` prints.

#![forbid(unsafe_code)]

mod support;

use support::mixed;
use support::netns::{Namespace, run};
use support::nft;
use support::objects::slices;
use support::plan::ENDPOINTS;
use support::proxy::{Proxy, binary, config};
use support::world::World;

#[test]
fn the_hosts_nft_lists_the_rules_and_loads_its_own_listing() {
    // F1
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
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

#[test]
fn render_prints_what_the_proxy_programs() {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
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
