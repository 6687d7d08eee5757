//! `kube-proxy services`: what it reads from the tables of small clusters, of a running proxy, and of other programs.
//!
//! `BLESS=1 cargo test --test packets inspect` writes `tests/data/inspect/services` again; look at the difference then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{command, outcome, printed};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::mixed;
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::objects::type_of;
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Outcome, Proto, probe_many};
use crate::support::proxy::{Proxy, binary, config_in};
use crate::support::upstream;
use crate::support::world::World;

const PATIENCE: Duration = Duration::from_secs(20);

fn project() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The rulesets of a layout that are in the repository, by the names of their clusters.
fn rulesets(layout: Layout) -> Vec<(String, String)> {
    let entries = fs::read_dir(project().join("nft/rulesets").join(layout.name())).expect("the rulesets are there");
    let name = |path: &Path| path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
    let mut all: Vec<(String, String)> = entries
        .map(|entry| entry.expect("a folder can be listed").path())
        .map(|path| (name(&path), fs::read_to_string(&path).expect("a ruleset can be read")))
        .collect();
    all.sort();
    all
}

fn with_ruleset(layout: Layout, cluster: &str) -> Namespace {
    let node = Namespace::new("services");
    let (_, text) = rulesets(layout).into_iter().find(|(name, _)| name == cluster).expect("the cluster has a ruleset");
    nft::load(&node, &text);
    node
}

fn json(node: &Namespace, args: &[&str]) -> Value {
    let text = printed(node, &[&["services", "-o", "json"], args].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// The frontend of a document with this address, port and protocol; a node port has no address.
fn frontend<'a>(document: &'a Value, family: Family, address: Option<IpAddr>, port: u16, protocol: &str) -> &'a Value {
    let family = if family == Family::V4 { "IPv4" } else { "IPv6" };
    let is_it = |service: &&Value| {
        let frontend = &service["front"];
        frontend["address"] == json!(address)
            && (&frontend["port"], &frontend["protocol"], &frontend["family"])
                == (&json!(port), &json!(protocol), &json!(family))
    };
    let services = document["services"].as_array().expect("a list");
    services.iter().find(is_it).unwrap_or_else(|| panic!("no {address:?} {port}/{protocol} in {document}"))
}

test_in_each_layout!(the_frontends_of_small_clusters_are_listed_the_same_in_both_layouts);
fn the_frontends_of_small_clusters_are_listed_the_same_in_both_layouts(layout: Layout) {
    for (cluster, ruleset) in rulesets(layout) {
        let node = Namespace::new("golden");
        nft::load(&node, &ruleset);
        let text = printed(&node, &["services", "-o", "wide"]);
        let path = project().join("tests/data/inspect/services").join(format!("{cluster}.txt"));
        if std::env::var_os("BLESS").is_some() && layout == Layout::Maps {
            fs::write(&path, &text).expect("the expected text can be written");
        }
        let expected = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(text, expected, "{cluster} in layout {layout:?}");
    }
}

/// The fields of an object and the types that each may have.
const SERVICE: &[(&str, &[&str])] = &[
    ("service", &["string", "null"]),
    ("front", &["object"]),
    ("state", &["string", "null"]),
    ("policy", &["string", "null"]),
    ("affinitySeconds", &["number", "null"]),
    ("affinityClients", &["number", "null"]),
    ("restricted", &["boolean"]),
    ("sourceRanges", &["array"]),
    ("endpoints", &["array"]),
    ("cause", &["object", "null"]),
    ("stats", &["object"]),
];
const FRONTEND: &[(&str, &[&str])] = &[
    ("address", &["string", "null"]),
    ("port", &["number"]),
    ("protocol", &["string"]),
    ("kind", &["string", "null"]),
    ("family", &["string"]),
];
const ENDPOINT: &[(&str, &[&str])] = &[
    ("address", &["string"]),
    ("port", &["number"]),
    ("local", &["boolean"]),
    ("terminating", &["boolean", "null"]),
    ("stats", &["object"]),
];
const STATS: &[(&str, &[&str])] = &[
    ("open", &["number"]),
    ("unanswered", &["number"]),
    ("connections", &["number"]),
    ("counted", &["number", "null"]),
    ("packets", &["number", "null"]),
    ("bytes", &["number", "null"]),
];

/// Fails unless the object has exactly these fields, with one of their types; returns nothing.
fn assert_schema(object: &Value, fields: &[(&str, &[&str])]) {
    let names: BTreeSet<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(names, fields.iter().map(|(name, _)| *name).collect(), "{object}");
    for (name, types) in fields {
        let found = type_of(&object[*name]);
        assert!(types.contains(&found), "{name} is {found} in {object}");
    }
}

test_in_each_layout!(the_document_of_a_running_proxy_has_the_documented_fields);
fn the_document_of_a_running_proxy_has_the_documented_fields(layout: Layout) {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &mixed::cluster());
    let document = json(&world.node, &["--stats"]);
    assert_eq!(document["quarantinedServices"], json!([]), "the running proxy was asked");
    assert_eq!((&document["oversizedServices"], &document["unreadableObjects"]), (&json!([]), &json!(0)));
    for service in document["services"].as_array().expect("a list") {
        assert_schema(service, SERVICE);
        assert_schema(&service["front"], FRONTEND);
        assert_schema(&service["stats"], STATS);
        for endpoint in service["endpoints"].as_array().expect("a list") {
            assert_schema(endpoint, ENDPOINT);
            assert_schema(&endpoint["stats"], STATS);
        }
    }
    for family in Family::ALL {
        let find = |address, port, protocol| frontend(&document, family, address, port, protocol);
        let web = find(Some(family.cluster_ip(1)), 80, "TCP");
        assert_eq!((&web["service"], &web["front"]["kind"]), (&json!("shop/web:http"), &json!("ClusterIP")));
        let locals: Vec<&Value> =
            web["endpoints"].as_array().expect("a list").iter().map(|one| &one["local"]).collect();
        assert_eq!(locals, [&json!(true), &json!(true), &json!(false), &json!(false)], "{web}");
        let kind = |address| &find(Some(address), 80, "TCP")["front"]["kind"];
        assert_eq!(kind(family.external_ip(1)), "ExternalIP");
        assert_eq!(kind(family.load_balancer_ip(1)), "LoadBalancer");
        assert_eq!(find(None, 30080, "TCP")["front"]["kind"], "NodePort");
        assert_eq!(find(Some(family.cluster_ip(2)), 80, "TCP")["affinitySeconds"], 10_800);
        let local = find(Some(family.load_balancer_ip(3)), 80, "TCP");
        assert_eq!((&local["policy"], &local["state"]), (&json!("Local"), &json!("served")));
        assert_eq!(local["sourceRanges"].as_array().map(Vec::len), Some(1), "{local}");
        let inside = find(Some(family.cluster_ip(4)), 80, "TCP");
        assert_eq!((&inside["policy"], &inside["state"]), (&json!("Local"), &json!("dropped")));
        let empty = find(Some(family.cluster_ip(6)), 80, "TCP");
        assert_eq!((&empty["state"], &empty["endpoints"]), (&json!("refused"), &json!([])));
    }
}

test_in_each_layout!(connections_and_remembered_clients_are_those_of_the_traffic);
fn connections_and_remembered_clients_are_those_of_the_traffic(layout: Layout) {
    let world = World::new();
    world.node.set_sysctl("netfilter/nf_conntrack_acct", "1");
    let _proxy = Proxy::start(&world.node, &config_in(layout), &mixed::cluster());
    let family = Family::V4;
    let vip = family.cluster_ip(1);
    let flow = Flow::new(Proto::Tcp, family.shell(), vip, 80);
    let (_connection, _answer) = Connection::open(&world.shell, flow);
    let document = json(&world.node, &["--stats", "shop/web"]);
    let web = frontend(&document, family, Some(vip), 80, "TCP");
    assert_eq!((&web["stats"]["open"], &web["stats"]["connections"]), (&json!(1), &json!(1)), "{web}");
    assert!(web["stats"]["packets"].as_u64().is_some_and(|packets| packets >= 3), "{web}");
    let open: u64 =
        web["endpoints"].as_array().into_iter().flatten().filter_map(|one| one["stats"]["open"].as_u64()).sum();
    assert_eq!(open, 1, "{web}");
    let node_port = frontend(&document, family, None, 30080, "TCP");
    assert_eq!(node_port["stats"]["connections"], 0, "{node_port}");

    let sticky = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(2), 80);
    let (_remembered, _answer) = Connection::open(&world.shell, sticky);
    let document = json(&world.node, &["shop/sticky"]);
    for (address, port) in [(Some(family.cluster_ip(2)), 80), (None, 30082)] {
        let sticky = frontend(&document, family, address, port, "TCP");
        assert_eq!(sticky["affinityClients"], 1, "all frontends of a service port share the memory: {sticky}");
    }
}

/// The packets that the kernel's counter at the element of a frontend has, as nft lists it.
fn counted_by_kernel(node: &Namespace, frontend: &str) -> u64 {
    let listing = nft::list_ruleset(node);
    let line = listing.lines().find(|line| line.contains(&format!("{frontend} counter packets ")));
    let line = line.unwrap_or_else(|| panic!("no counter of {frontend} in {listing}"));
    let (_, rest) = line.split_once(" counter packets ").expect("the line has it");
    rest.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

// The numbers of `services --stats` and `top` are those of the kernel's counters, and these are the connections that were made
// (Q4).
test_in_each_layout!(what_the_rules_count_is_shown_for_frontends_and_endpoints);
fn what_the_rules_count_is_shown_for_frontends_and_endpoints(layout: Layout) {
    let world = World::new();
    let mut config = config_in(layout);
    config["nftables"]["counters"] = json!("endpoints");
    let _proxy = Proxy::start(&world.node, &config, &mixed::cluster());
    let v4 = Family::V4;
    let (mut by_endpoint, mut total) = (BTreeMap::<IpAddr, u64>::new(), 0);
    for (address, port, count) in [(v4.cluster_ip(1), 80, 12), (v4.external_ip(1), 80, 5), (v4.node(), 30080, 3)] {
        let flow = Flow::new(Proto::Tcp, v4.client(), address, port);
        for (outcome, times) in probe_many(&world.client, flow, count) {
            let Outcome::Reached(answer) = outcome else { panic!("{flow:?}: {outcome:?}") };
            *by_endpoint.entry(answer.endpoint).or_default() += u64::from(times);
            total += u64::from(times);
        }
    }
    let document = json(&world.node, &["--stats", "shop/web:http"]);
    let of = |address, port| frontend(&document, v4, address, port, "TCP")["stats"]["counted"].clone();
    let [cluster_ip, external_ip] = [v4.cluster_ip(1), v4.external_ip(1)];
    let frontends = [
        (of(Some(cluster_ip), 80), format!("{cluster_ip} . tcp . 80"), 12),
        (of(Some(external_ip), 80), format!("{external_ip} . tcp . 80"), 5),
        (of(None, 30080), "tcp . 30080".to_owned(), 3),
    ];
    for (shown, frontend, made) in frontends {
        assert_eq!((shown, counted_by_kernel(&world.node, &frontend)), (json!(made), made), "{frontend}: {document:#}");
    }
    let text =
        printed(&world.node, &["top", "--once", "--interval", "100ms", "-o", "json", "--filter", "shop/web:http"]);
    let top: Value = serde_json::from_str(&text).expect("a document");
    let web = &top["services"][0];
    assert_eq!((&web["service"], &web["counted"]), (&json!("shop/web:http"), &json!(total)), "{web:#}");
    for endpoint in web["endpoints"].as_array().expect("a list") {
        let address: IpAddr = endpoint["address"].as_str().and_then(|text| text.parse().ok()).expect("an address");
        assert_eq!(endpoint["counted"], json!(by_endpoint.get(&address).copied().unwrap_or(0)), "{web:#}");
    }
    let text = printed(&world.node, &["top", "--once", "--interval", "100ms", "--filter", "shop/web:http"]);
    let lines: Vec<Vec<&str>> = text.lines().take(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((lines[0].last(), lines[1].last()), (Some(&"COUNTED"), Some(&"20")), "{text}");
}

#[test]
fn the_pages_show_what_is_printed() {
    let node = with_ruleset(Layout::Maps, "node-port-local");
    let pages = ["README.md", "deploy/TROUBLESHOOTING.md"].map(|page| fs::read_to_string(project().join(page)));
    let page = pages.map(|page| page.expect("the page is there")).concat();
    let mut lines = page.lines().peekable();
    let mut shown = 0;
    while let Some(line) = lines.next() {
        let Some(arguments) = line.strip_prefix("    $ kube-proxy services") else { continue };
        let words: Vec<&str> = std::iter::once("services").chain(arguments.split_whitespace()).collect();
        let (_, stdout, stderr) = outcome(&mut command(&node, &words));
        let mut expected = String::new();
        while let Some(line) = lines.next_if(|line| line.starts_with("    ")) {
            expected += &format!("{}\n", &line[4..]);
        }
        assert_eq!(stdout + &stderr, expected, "{line}");
        shown += 1;
    }
    assert!(shown >= 5, "the pages show {shown} commands");
}

test_in_each_layout!(what_another_program_changed_in_the_tables_is_seen);
fn what_another_program_changed_in_the_tables_is_seen(layout: Layout) {
    let node = with_ruleset(layout, "cluster-ip");
    let map = if layout == Layout::Maps { "services" } else { "KUBE-SERVICES" };
    let add = |element: &str| run(node.command("nft").arg(format!("add element ip kube-proxy {map} {{ {element} }}")));
    add("192.0.2.99 . tcp . 80 comment \"else/where\" : accept");
    let (code, text, _) = outcome(&mut command(&node, &["services", "-o", "json", "192.0.2.99"]));
    let document: Value = serde_json::from_str(&text).expect("a document");
    let service = &document["services"][0];
    assert_eq!(code, Some(1), "a frontend that leads to what the proxy does not write");
    assert_eq!((&service["service"], &service["state"]), (&json!("else/where"), &Value::Null));
    // The other frontends are still fine.
    let others = document["services"].as_array().map(Vec::len);
    assert_eq!(others, Some(1));
    assert_eq!(outcome(&mut command(&node, &["services", "10.96.0.10"])).0, Some(0));
    run(node.command("nft").arg("add table ip kube-proxy { flags dormant; }"));
    let (code, text, _) = outcome(&mut command(&node, &["services", "10.96.0.10"]));
    assert!(code == Some(1) && text.contains("The IPv4 table is dormant"), "{text}");
}

#[test]
fn the_tables_of_upstreams_proxy_are_not_taken_for_ours() {
    let node = Namespace::new("upstream");
    nft::load(&node, upstream::RULES);
    let (code, stdout, stderr) = outcome(&mut command(&node, &["services"]));
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("are not those of this program"), "{stderr}");
}

// A name that nothing has is an error with near names (Q6).
#[test]
fn a_wrong_name_suggests_near_ones_and_ends_with_2() {
    let node = with_ruleset(Layout::Maps, "kube-dns");
    let (code, stdout, stderr) = outcome(&mut command(&node, &["services", "kube-system/kube-dsn"]));
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("no Service kube-system/kube-dsn") && stderr.contains("kube-system/kube-dns:"), "{stderr}");
    let (code, _, stderr) = outcome(&mut command(&node, &["services", "kube-dns"]));
    assert!(
        code == Some(2) && stderr.contains("NAMESPACE/NAME") && stderr.contains("kube-system/kube-dns:"),
        "{stderr}"
    );
    let (code, _, stderr) = outcome(&mut command(&node, &["services", "--stast"]));
    assert!(code == Some(2) && stderr.contains("--stats"), "{stderr}");
    let (code, _, stderr) = outcome(&mut command(&node, &["servces"]));
    assert!(code == Some(1) && stderr.contains("'services'"), "{stderr}");
}

#[test]
fn without_tables_or_the_capability_it_says_so_and_ends_with_2() {
    let node = Namespace::new("empty");
    let (code, stdout, stderr) = outcome(&mut command(&node, &["services"]));
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("no table kube-proxy in this network namespace"), "{stderr}");
    let mut powerless = node.command("setpriv");
    powerless.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(binary()).arg("services");
    let (code, stdout, stderr) = outcome(&mut powerless);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.contains("CAP_NET_ADMIN"), "{stderr}");
}

// One capability is enough, and nothing is written (Q8).
#[test]
fn one_capability_is_enough_and_the_tables_stay_as_they_are() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &mixed::cluster());
    let before = nft::list_everything(&world.node);
    let mut capable = world.node.command("setpriv");
    capable.args(["--bounding-set=-all,+net_admin", "--inh-caps=-all"]).arg(binary()).args(["services", "--stats"]);
    let (code, stdout, stderr) = outcome(&mut capable);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("shop/web:http"), "{stdout}");
    assert_eq!(nft::list_everything(&world.node), before);
}

#[test]
fn a_terminal_has_colour_unless_no_color_is_set_and_a_pipe_has_none() {
    let node = with_ruleset(Layout::Maps, "kube-dns");
    let on_terminal = |environment: &str| {
        let line = format!("env TERM=xterm {environment} {} services", binary().display());
        run(node.command("script").args(["-qec", &line, "/dev/null"]))
    };
    let (coloured, plain, piped) = (on_terminal(""), on_terminal("NO_COLOR=1"), printed(&node, &["services"]));
    assert!(coloured.contains("\u{1b}[") && !plain.contains('\u{1b}') && !piped.contains('\u{1b}'), "{coloured:?}");
    assert_eq!(plain.replace('\r', ""), piped);
}

// Flags, their values, and the names of Services and frontends are completed (Q9).
#[test]
fn bash_completes_commands_options_values_and_names() {
    let node = with_ruleset(Layout::Maps, "kube-dns");
    let program = binary();
    let folder = program.parent().expect("the binary is in a folder").display();
    // Bash splits words at colons and `=` too, and gives the function the last word and the one before.
    let completed = |line: &str| {
        let split = line.replace(':', " : ").replace('=', " = ");
        let mut words: Vec<&str> = split.split_whitespace().collect();
        words.extend(line.ends_with([' ', ':', '=']).then_some("''"));
        let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
        let script = format!(
            "PATH={folder}:$PATH; source <(kube-proxy completion bash); COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; \
             COMP_WORDS=({}); COMP_CWORD={}; _kube_proxy_names kube-proxy {last} {before}; echo \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1
        );
        run(node.command("bash").args(["-c", &script])).trim().to_owned()
    };
    for (line, words) in [
        ("kube-proxy serv", "services"),
        ("kube-proxy services --sta", "--stats"),
        ("kube-proxy services kube", "kube-system/kube-dns"),
        ("kube-proxy services --stats kube", "kube-system/kube-dns"),
        ("kube-proxy probe kube", "kube-system/kube-dns"),
        ("kube-proxy services -o js", "json"),
        ("kube-proxy services -n kube-s", "kube-system"),
        ("kube-proxy probe --namespace=y", "ym"),
        ("kube-proxy services 300", "30080"),
        ("kube-proxy explain --to 300", ""),
        ("kube-proxy changes --service ym", "ym/echo-app"),
        ("kube-proxy explain --to kube", "kube-system/kube-dns"),
        ("kube-proxy explain --to 10.96.0.10:5", "53 53/udp"),
        ("kube-proxy trace --to 10.96.0.10:", "53 53/udp 9153"),
        ("kube-proxy services 10.96.0.10:9", "9153"),
        ("kube-proxy --ruleset-layout ", "chains maps"),
        ("kube-proxy --ruleset-layout=ch", "chains"),
        ("kube-proxy render --scheduler m", "maglev"),
        ("kube-proxy check --proxy-mode n", "nftables"),
        ("kube-proxy --flowtable a", "auto"),
        // Where no value can be known, no names of files are offered.
        ("kube-proxy explain --from ", ""),
    ] {
        let mut found: Vec<_> = completed(line).split_whitespace().map(str::to_owned).collect();
        found.sort();
        assert_eq!(found.join(" "), words, "{line}");
    }
}

#[test]
fn a_reader_that_has_enough_ends_it_quietly() {
    let node = with_ruleset(Layout::Maps, "kube-dns");
    let (_, writer) = std::io::pipe().map(|(reader, writer)| (drop(reader), writer)).expect("a pipe can be made");
    let mut services = command(&node, &["services", "-o", "json"]);
    let output =
        services.stdout(writer).stderr(std::process::Stdio::piped()).spawn().and_then(|child| child.wait_with_output());
    let output = output.expect("the binary can be run");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(141), &[][..]));
}

#[test]
fn watching_shows_rates_from_the_second_look_on() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(Layout::Maps), &mixed::cluster());
    let out = tempfile::NamedTempFile::new().expect("a file can be made");
    let mut watch = command(&world.node, &["services", "--watch", "--interval=1", "shop/web"]);
    let mut child = watch.stdout(out.reopen().expect("a file can be shared")).spawn().expect("the binary can be run");
    let end = Instant::now() + PATIENCE;
    let shown = || fs::read_to_string(out.path()).expect("the output can be read");
    while !shown().contains("NEW/S") {
        assert!(Instant::now() < end, "no rates: {}", shown());
        std::thread::sleep(Duration::from_millis(100));
    }
    // The proxy and the pods get the processors first.
    assert_eq!(niceness(&child.id().to_string()), 19.min(niceness("self") + 10));
    child.kill().and_then(|()| child.wait()).expect("a child can be ended");
    let text = shown();
    let first = text.trim_start().split("\n\n").next().unwrap_or_default();
    assert!(first.contains("TRACKED") && !first.contains("NEW/S"), "{text}");
}

/// The niceness of a process, `/proc/PID/stat` has it as its nineteenth field.
fn niceness(process: &str) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("the process runs");
    let behind_the_name = stat.rsplit(')').next().unwrap_or_default();
    behind_the_name.split_whitespace().nth(16).and_then(|field| field.parse().ok()).expect("a number")
}
