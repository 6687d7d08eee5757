//! Tests of the report: facts as plain values, and the lines that `judge` makes of them.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use nft::decode::{Effects, HookOutline};
use nft::{Hook, HookedChain, TableName};

use super::facts::{Facts, Kernel, Manifests, NoLook, OfConfig, Privileges, Programs, Source};
use super::judge::lines_at;
use super::shared::Shared;
use super::*;
use crate::other_proxy::{OtherProxy, Program};
use crate::output::Output;
use crate::tables::{FrontendView, Kind};
use cluster::source::api::{Access, Allowed, Reached, ServerReport};
use component::config::PortRanges;
use node::configured::{NoSettings, Origin};
use node::kernel::leftovers::Left;
use node::kernel::local_ports::LocalPorts;
use node::kernel::sysctl::{NoValue, Setting, Writable};
use rules::model::{Destination, Family, Frontend, Protocol};

const GOLDEN: &str = include_str!("../../../tests/data/inspect/check.txt");

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn access(verb: &'static str, resource: &str, outcome: Allowed) -> Access {
    Access { verb, resource: resource.to_owned(), is_optional: resource == "servicecidrs", outcome }
}

fn look() -> ServerReport {
    ServerReport {
        url: "https://10.0.0.1:6443".to_owned(),
        proxy: None,
        skipped: Vec::new(),
        withheld: false,
        reached: Ok(Reached {
            took: Duration::from_millis(12),
            version: "v1.36.2".to_owned(),
            certificate_end: Some(time("2027-11-22T00:00:00Z")),
        }),
        client_certificate_end: None,
        access: vec![access("list", "services", Allowed::Yes), access("watch", "services", Allowed::Yes)],
        has_node: Some(true),
    }
}

/// The facts of a node without problems.
fn good() -> Facts {
    let config = OfConfig {
        origin: Origin::File("/var/lib/kube-proxy/config.conf".to_owned()),
        node_name: "node-1".to_owned(),
        layout: "maps".to_owned(),
        warnings: Vec::new(),
        mode_note: None,
        reserves: PortRanges::default(),
        sysctls: vec![setting("nf_conntrack_max", 262_144, Ok(262_144), Writable::Yes)],
        source: Source::Api(Ok(look())),
        ports: vec![("metrics", "127.0.0.1:10249".parse().unwrap(), true)],
    };
    Facts {
        config: Ok(config),
        kernel: Kernel {
            release: "6.8.0".to_owned(),
            too_old: None,
            families: Family::BOTH.map(|family| (family, Ok(()))).to_vec(),
            values: vec![("ipv4/ip_forward", "1".to_owned()), ("ipv6/conf/all/forwarding", "1".to_owned())],
            has_bridge: false,
            local_ports: Some(local_ports("32768-60999")),
        },
        privileges: Privileges { net_admin: Some(true), net_bind_service: Some(true) },
        programs: Programs {
            proxy: Ok(Some("pid 4711: kube-proxy --config=/var/lib/kube-proxy/config.conf".to_owned())),
            waits: None,
            other: None,
            left: Ok(Left::default()),
            owned: Vec::new(),
            chains: Ok(vec![chain("ip", "kube-proxy", Hook::Prerouting, "nat", -100)]),
            unread: Vec::new(),
            nft: Some("nftables v1.0.9 (Old Doc Yak #3)".to_owned()),
        },
        shared: Shared::default(),
    }
}

fn setting(name: &str, wanted: u64, present: Result<u64, String>, writable: Writable) -> Setting {
    let (path, present) = (PathBuf::from("/proc/sys/net/netfilter").join(name), present.map_err(NoValue::Missing));
    Setting { path, wanted, at_least: false, present, writable }
}

fn local_ports(ephemeral: &str) -> LocalPorts {
    LocalPorts { ephemeral: ephemeral.parse().unwrap(), reserved: "8080".parse().unwrap() }
}

fn chain(family: &str, table: &str, hook: Hook, kind: &str, priority: i32) -> HookedChain {
    let family = if family == "ip" { nft::Family::Ip } else { nft::Family::Inet };
    let outline = HookOutline {
        table: TableName::new(family, table),
        chain: "c".into(),
        kind: kind.into(),
        hook,
        priority,
        drops: false,
    };
    HookedChain { outline, effects: Effects::default() }
}

fn lines(facts: &Facts) -> Vec<Line> {
    lines_at(facts, time("2026-11-22T00:00:00Z"))
}

/// The lines with a verdict other than `Ok`, after `change` was applied to the good facts.
fn troubles(change: impl FnOnce(&mut Facts)) -> Vec<(Verdict, String)> {
    let mut facts = good();
    change(&mut facts);
    let troubles = lines(&facts).into_iter().filter(|line| line.result != Verdict::Ok);
    troubles.map(|line| (line.result, line.text)).collect()
}

fn config(facts: &mut Facts) -> &mut OfConfig {
    facts.config.as_mut().unwrap()
}

fn api(facts: &mut Facts) -> &mut ServerReport {
    match &mut config(facts).source {
        Source::Api(Ok(look)) => look,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_good_node_has_no_trouble() {
    assert_eq!(troubles(|_| {}), []);
}

#[test]
fn what_people_see_is_as_recorded() {
    let mut facts = good();
    config(&mut facts).warnings =
        vec!["--cluster-cidr has no effect beside --config: set clusterCIDR in the file".to_owned()];
    config(&mut facts).sysctls[0].present = Ok(65_536);
    api(&mut facts).access[1].outcome = Allowed::No("the server answered 403: Forbidden".to_owned());
    facts.programs.proxy = Err(NoLook::NotPermitted);
    let mut bytes = Vec::new();
    print(&lines(&facts), Format::Table, &mut Output::to(&mut bytes, false)).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(text, GOLDEN, "as it is now:\n{text}");
}

#[test]
fn json_has_a_verdict_a_text_and_a_remedy_for_each_line() {
    let mut facts = good();
    facts.privileges.net_bind_service = Some(false);
    let mut bytes = Vec::new();
    print(&lines(&facts), Format::Json, &mut Output::to(&mut bytes, false)).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(report["ok"], true);
    let checks = report["checks"].as_array().unwrap();
    let words = ["ok", "warning", "failure", "unknown"];
    for check in checks {
        assert!(check["check"].is_string() && check["text"].is_string(), "{check}");
        assert!(words.contains(&check["result"].as_str().unwrap()), "{check}");
        assert!(check["remedy"].is_null() || check["remedy"].is_string(), "{check}");
    }
    assert_eq!(checks.iter().filter(|check| check["result"] == "warning").count(), 1, "{report}");
}

#[test]
fn a_configuration_that_is_not_valid_is_a_failure_and_the_rest_is_looked_at() {
    let found = troubles(|facts| {
        facts.config = Err(NoSettings::Invalid(Origin::Flags, anyhow::anyhow!("oomScoreAdj: must be\n  between")));
    });
    assert_eq!(found[0].0, Verdict::Failure);
    assert!(found[0].1.contains("oomScoreAdj: must be between"), "{found:?}");
    assert!(found[1..].iter().all(|(result, _)| *result == Verdict::Unknown), "{found:?}");
    assert!(lines(&good()).iter().any(|line| line.check == "other-programs"));
}

#[test]
fn the_warnings_of_the_configuration_are_warnings_here() {
    let text = "unknown field shiny in the configuration file is ignored";
    let found = troubles(|facts| config(facts).warnings = vec![text.to_owned()]);
    assert_eq!(found, [(Verdict::Warning, text.to_owned())]);
}

#[test]
fn a_note_about_the_mode_is_no_trouble() {
    let mut facts = good();
    config(&mut facts).mode_note = Some("mode is not set".to_owned());
    let found: Vec<_> = lines(&facts).into_iter().filter(|line| line.text == "mode is not set").collect();
    assert_eq!(found.iter().map(|line| line.result).collect::<Vec<_>>(), [Verdict::Ok]);
}

#[test]
fn without_privileges_it_says_what_was_not_looked_at() {
    let found = troubles(|facts| {
        facts.privileges = Privileges { net_admin: Some(false), net_bind_service: Some(true) };
        facts.kernel.families[0].1 = Err(NoLook::NotPermitted);
        facts.programs.proxy = Err(NoLook::NotPermitted);
        facts.programs.left = Err(NoLook::NotPermitted);
        facts.programs.chains = Err(NoLook::NotPermitted);
    });
    assert!(found.iter().all(|(result, _)| *result == Verdict::Unknown), "{found:?}");
    assert_eq!(found.iter().filter(|(_, text)| text.contains("this needs CAP_NET_ADMIN")).count(), 4, "{found:?}");
}

#[test]
fn a_table_that_another_program_owns_is_a_failure_that_names_the_program() {
    let found = troubles(|facts| facts.programs.owned = vec![(Family::V6, "process 7: nft -i".to_owned())]);
    let [(Verdict::Failure, text)] = &found[..] else { panic!("{found:?}") };
    assert!(text.contains("owns table ip6 kube-proxy") && text.contains("(process 7: nft -i)"), "{text}");
}

#[test]
fn a_sysctl_that_differs_is_judged_by_who_can_set_it() {
    let of = |writable, runs: bool| {
        let found = troubles(|facts| {
            config(facts).sysctls = vec![setting("nf_conntrack_max", 262_144, Ok(7), writable)];
            if !runs {
                facts.programs.proxy = Ok(None);
                config(facts).ports.clear();
            }
        });
        found.first().map(|(result, _)| *result)
    };
    assert_eq!(of(Writable::Yes, false), None, "a start sets it");
    assert_eq!(of(Writable::Yes, true), Some(Verdict::Warning), "another program changed it");
    assert_eq!(of(Writable::Never, false), Some(Verdict::Warning));
    assert_eq!(of(Writable::No, false), Some(Verdict::Failure));
    let missing =
        troubles(|facts| config(facts).sysctls[0].present = Err(NoValue::Missing("it does not exist".to_owned())));
    assert_eq!(missing, [(Verdict::Failure, "it does not exist".to_owned())]);
    // A process without CAP_NET_ADMIN does not know what a kube-proxy that has it may do.
    let of_a_user = |present, writable| {
        let found = troubles(|facts| {
            facts.privileges.net_admin = Some(false);
            config(facts).sysctls[0] = Setting { present, ..setting("nf_conntrack_max", 262_144, Ok(7), writable) };
        });
        found.into_iter().filter(|(_, text)| !text.contains("CAP_NET_ADMIN")).collect::<Vec<_>>()
    };
    let found = of_a_user(Ok(7), Writable::No);
    assert!(matches!(&found[..], [(Verdict::Unknown, text)] if text.contains("is 7")), "{found:?}");
    let found = of_a_user(Err(NoValue::Forbidden("cannot read it".to_owned())), Writable::No);
    assert_eq!(found, [(Verdict::Unknown, "cannot read it".to_owned())]);
    let found = of_a_user(Err(NoValue::Missing("it does not exist".to_owned())), Writable::No);
    assert_eq!(found, [(Verdict::Failure, "it does not exist".to_owned())]);
}

#[test]
fn forwarding_bridges_and_a_full_table_are_warnings() {
    let found = troubles(|facts| {
        facts.kernel.has_bridge = true;
        facts.kernel.values = vec![
            ("ipv4/ip_forward", "0".to_owned()),
            ("bridge/bridge-nf-call-iptables", "0".to_owned()),
            ("netfilter/nf_conntrack_count", "95".to_owned()),
            ("netfilter/nf_conntrack_max", "100".to_owned()),
        ];
    });
    let words = [
        "net.ipv4.ip_forward is 0",
        "bridge-nf-call-iptables is 0",
        "bridge-nf-call-ip6tables is not there",
        "95 of 100",
    ];
    assert_eq!(found.len(), words.len(), "{found:?}");
    for (word, (result, text)) in words.iter().zip(&found) {
        assert!(text.contains(word) && *result == Verdict::Warning, "{word}: {text}");
    }
}

#[test]
fn an_api_server_that_does_not_answer_or_refuses_is_a_failure() {
    let silent = troubles(|facts| api(facts).reached = Err("nothing listens there".to_owned()));
    assert_eq!(silent, [(Verdict::Failure, "https://10.0.0.1:6443: nothing listens there".to_owned())][..]);
    let refused = troubles(|facts| {
        api(facts).access = vec![
            access("list", "services", Allowed::No("403".to_owned())),
            access("list", "servicecidrs", Allowed::No("403".to_owned())),
            access("watch", "servicecidrs", Allowed::NoSuchKind),
            access("list", "nodes", Allowed::NoSuchKind),
            access("create", "events", Allowed::Unknown("404".to_owned())),
        ];
    });
    let results: Vec<Verdict> = refused.iter().map(|(result, _)| *result).collect();
    assert_eq!(results, [Verdict::Failure, Verdict::Warning, Verdict::Failure, Verdict::Unknown], "{refused:?}");
    let newer = troubles(|facts| {
        let reached = Reached { took: Duration::ZERO, version: "v1.38.0".to_owned(), certificate_end: None };
        api(facts).reached = Ok(reached);
    });
    assert!(matches!(&newer[..], [(Verdict::Warning, text)] if text.contains("v1.38.0")), "{newer:?}");
    let without = troubles(|facts| api(facts).has_node = Some(false));
    assert!(without[0].0 == Verdict::Failure && without[0].1.starts_with("there is no Node node-1"), "{without:?}");
}

#[test]
fn credentials_that_are_not_sent_are_a_warning_whether_the_server_answers_or_not() {
    for answers in [true, false] {
        let found = troubles(|facts| {
            let look = api(facts);
            look.withheld = true;
            if !answers {
                look.reached = Err("nothing listens there".to_owned());
            }
        });
        let (last, text) = found.last().expect("a line");
        assert!(*last == Verdict::Warning && text.contains("no credentials are sent to it"), "{found:?}");
        assert_eq!(found.len(), if answers { 1 } else { 2 }, "{found:?}");
    }
}

#[test]
fn certificates_are_warned_about_before_they_end() {
    let ending = |end: &str| {
        let end = time(end);
        troubles(|facts| api(facts).client_certificate_end = Some(end)).first().map(|(result, _)| *result)
    };
    assert_eq!(ending("2027-06-01T00:00:00Z"), None);
    assert_eq!(ending("2026-12-10T00:00:00Z"), Some(Verdict::Warning));
    assert_eq!(ending("2026-11-21T23:59:59Z"), Some(Verdict::Failure));
}

#[test]
fn manifests_in_place_of_an_api_server_are_read() {
    let of = |outcome| troubles(|facts| config(facts).source = Source::Manifests("/m".into(), outcome));
    let with = |problems: &[&str], lacks_node| {
        Ok(Manifests { problems: problems.iter().map(ToString::to_string).collect(), lacks_node })
    };
    assert_eq!(of(with(&[], false)), []);
    assert_eq!(of(with(&["a.yaml: spec.x: unknown field"], false))[0].0, Verdict::Warning);
    let (result, text) = of(with(&[], true)).remove(0);
    assert!(result == Verdict::Failure && text.starts_with("there is no Node node-1"), "{text}");
    assert_eq!(of(Err("cannot be read".to_owned()))[0].0, Verdict::Failure);
}

#[test]
fn a_busy_port_is_another_proxy_only_while_none_of_ours_runs() {
    let found = troubles(|facts| facts.programs.proxy = Ok(None));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].1.contains("port 10249"), "{found:?}");
}

// A proxy that waits is named in one line, whether or not its process is visible.
#[test]
fn a_proxy_that_waits_is_one_line() {
    let waits = "kube-proxy (pid 7) waits for Service of the API server since 2026-11-26T02:10:00Z";
    for proxy in [Some("pid 7: kube-proxy".to_owned()), None] {
        let found = troubles(|facts| {
            facts.programs.proxy = Ok(proxy);
            facts.programs.waits = Some(waits.to_owned());
        });
        assert_eq!(found, [(Verdict::Warning, waits.to_owned())]);
    }
}

#[test]
fn another_kube_proxy_is_named_with_whose_it_is() {
    let of = |program| {
        let signs = vec!["process 17: kube-proxy --v=2".to_owned()];
        let found = troubles(|facts| {
            facts.programs.proxy = Ok(None);
            facts.programs.other = Some(OtherProxy { program, signs });
        });
        assert_eq!(found.len(), 1, "its ports are not named as well: {found:?}");
        found[0].1.clone()
    };
    let signs = "process 17: kube-proxy --v=2";
    assert_eq!(of(Program::Upstream("ipvs")), format!("upstream's kube-proxy in mode ipvs runs on this node: {signs}"));
    assert_eq!(
        of(Program::Own),
        format!("a kube-proxy of this program runs and has not written its rules yet: {signs}")
    );
    assert_eq!(of(Program::Unknown), format!("another kube-proxy runs on this node: {signs}"));
}

#[test]
fn what_the_running_proxy_reads_elsewhere_is_unknown_and_no_failure() {
    let found = troubles(|facts| facts.config = Err(NoSettings::Unseen(anyhow::anyhow!("cannot read it"))));
    assert_eq!(found[0], (Verdict::Unknown, "cannot read it".to_owned()));
    let found = troubles(|facts| config(facts).source = Source::Elsewhere("/k is elsewhere".to_owned()));
    assert_eq!(found, [(Verdict::Unknown, "/k is elsewhere".to_owned())]);
}

#[test]
fn rules_of_other_modes_and_an_old_nft_are_named() {
    let found = troubles(|facts| {
        facts.programs.left = Ok(Left {
            removable: vec!["3 chains of table ip nat".to_owned()],
            unknown: vec!["cannot look at ipsets".to_owned()],
        });
        facts.programs.nft = Some("nftables v0.9.8 (E.D.S.)".to_owned());
    });
    let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts[..2], ["3 chains of table ip nat are from kube-proxy in another mode", "cannot look at ipsets"]);
    assert!(texts[2].contains("v0.9.8") && texts.len() == 3, "{texts:?}");
}

#[test]
fn chains_of_others_count_where_they_come_before_ours() {
    let of = |chain: HookedChain| troubles(|facts| facts.programs.chains = Ok(vec![chain]));
    let with = |chain: HookedChain, effects: Effects| HookedChain { effects, ..chain };
    let translates = Effects { translates: true, ..Effects::default() };
    let drops = Effects { drops: true, ..Effects::default() };
    let untracks = Effects { untracks: true, ..Effects::default() };
    let nat = |priority| chain("ip", "nat", Hook::Prerouting, "nat", priority);
    let filter = |hook, priority| chain("inet", "fw", hook, "filter", priority);
    assert!(of(with(nat(-100), translates))[0].1.contains("may translate destinations before our rules"));
    assert_eq!(of(with(nat(-90), translates)), []);
    assert!(of(with(filter(Hook::Prerouting, -300), drops))[0].1.contains("may drop packets"));
    assert!(of(with(filter(Hook::Output, -300), untracks))[0].1.contains("connection tracking"));
    assert_eq!(of(with(filter(Hook::Forward, 0), drops)), [], "a firewall drops something");
    let mut closed = filter(Hook::Forward, 0);
    closed.outline.drops = true;
    assert!(of(closed)[0].1.contains("drops what its rules do not accept"));
    assert_eq!(of(with(chain("inet", "kube-proxy-flowtable", Hook::Forward, "filter", -5), drops)), []);
}

#[test]
fn a_table_of_iptables_legacy_that_cannot_be_read_is_not_known() {
    let text = "table ip filter of iptables-legacy cannot be read: Operation not permitted".to_owned();
    let found = troubles(|facts| facts.programs.unread = vec![text.clone()]);
    assert_eq!(found, [(Verdict::Unknown, text)]);
}

#[test]
fn a_program_that_listens_on_a_node_port_and_an_address_of_the_node_that_a_service_has_are_warnings() {
    let view = |service: &str, kind, destination, port| FrontendView {
        service: Some(service.into()),
        frontend: Frontend { destination, protocol: Protocol::Tcp, port },
        kind: Some(kind),
        state: None,
        policy: None,
        affinity: None,
        sources: None,
        counted: None,
        shares_counters: false,
        endpoints: Vec::new(),
    };
    let at = |address: &str| Destination::Address(address.parse().unwrap());
    let node_port = view("shop/web:http", Kind::NodePort, Destination::NodePort(Family::V4), 30080);
    let external = |port| view("shop/edge:ssh", Kind::ExternalIP, at("198.18.0.2"), port);
    let warned = |listening: &[&str], frontends: Vec<FrontendView>| {
        let addresses = ["127.0.0.1", "192.0.2.2", "198.18.0.2"].map(|ip| ip.parse().unwrap()).to_vec();
        let listening = listening.iter().map(|socket| socket.parse().unwrap()).collect();
        let node_port_addresses = vec!["192.0.2.2".parse().unwrap()];
        let shared = Shared { frontends, node_port_addresses, addresses, listening };
        troubles(|facts| facts.shared = shared).into_iter().map(|(_, text)| text).collect::<Vec<_>>()
    };
    let text = |socket: &str| {
        format!(
            "a program listens on {socket}, which is the node port of shop/web:http: at 192.0.2.2 the Service gets its connections"
        )
    };
    for socket in ["192.0.2.2:30080", "0.0.0.0:30080", "[::]:30080"] {
        assert_eq!(warned(&[socket], vec![node_port.clone()]), [text(socket)]);
    }
    let elsewhere = ["127.0.0.1:30080", "198.18.0.2:30080", "192.0.2.2:80", "[2001:db8::2]:30080"];
    assert_eq!(warned(&elsewhere, vec![node_port]), [""; 0]);
    let no_program = "no program of this node gets connections there";
    let told = warned(&[], [22, 80, 443, 8443].map(external).to_vec());
    let ports = "shop/edge:ssh (TCP port 22), shop/edge:ssh (TCP port 80), shop/edge:ssh (TCP port 443) and 1 more";
    assert_eq!(told, [format!("198.18.0.2 is an address of this node and an external IP of {ports}: {no_program}")]);
    let lb = view("shop/lb", Kind::LoadBalancer, at("192.0.2.2"), 80);
    let elsewhere = view("shop/lb", Kind::LoadBalancer, at("192.0.2.9"), 80);
    assert_eq!(
        warned(&[], vec![lb, elsewhere, view("shop/lb", Kind::ClusterIP, at("192.0.2.2"), 80)]),
        [format!("192.0.2.2 is an address of this node and a load balancer IP of shop/lb (TCP port 80): {no_program}")]
    );
}

// Node ports that programs may get are a warning with the line to set, unless a start reserves them (N6).
#[test]
fn node_ports_that_programs_may_get_are_a_warning_with_the_line_to_set() {
    let wide = |facts: &mut Facts| facts.kernel.local_ports = Some(local_ports("32000-60999"));
    let text = "of the node ports 30000-32767 a program that asks for any free port may get 32000-32767".to_owned();
    assert_eq!(troubles(wide), [(Verdict::Warning, text)]);
    let mut facts = good();
    wide(&mut facts);
    let remedy = lines(&facts).into_iter().find_map(|line| line.remedy).unwrap();
    assert_eq!(remedy, "set net.ipv4.ip_local_reserved_ports = 8080,30000-32767, and keep it in /etc/sysctl.d");
    // A running proxy should have reserved the ports that its configuration names; a proxy that starts will reserve them.
    config(&mut facts).reserves = "40000".parse().unwrap();
    let warnings = |facts: &Facts| lines(facts).into_iter().filter(|line| line.result != Verdict::Ok).count();
    assert_eq!(warnings(&facts), 1);
    facts.programs.proxy = Ok(None);
    config(&mut facts).ports.clear();
    assert_eq!(warnings(&facts), 0);
}
