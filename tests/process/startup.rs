//! The binary's start and end: `--init-only`, `--cleanup`, what a running proxy may still do, and a new configuration file.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::mixed;
use crate::support::netns::{Namespace, run};
use crate::support::nft::{list_ruleset, load};
use crate::support::proxy::{Proxy, binary, config};
use crate::support::world::World;
use serde_json::{Value, json};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);
/// How many seconds a proxy that is to end by itself may take, on a busy machine too.
const LONGEST: &str = "120";

/// Runs the proxy to its end in a namespace, with these flags. A proxy that does not end is killed after [`LONGEST`].
fn proxy(node: &Namespace, flags: &[&str]) -> Output {
    let mut command = node.command("timeout");
    let output = command.args(["--signal=KILL", LONGEST]).arg(binary()).args(flags).output().unwrap();
    assert_ne!(output.status.signal(), Some(9), "no end within {LONGEST} s with {flags:?}: {}", text(&output));
    output
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// A configuration file with a kubeconfig of a server that is not asked, and the flag that names it.
fn file(config: &Value) -> (TempDir, String) {
    let directory = TempDir::new().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let content = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": "http://127.0.0.1:1" } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": {} }],
    });
    fs::write(&kubeconfig, content.to_string()).unwrap();
    let mut config = config.clone();
    config["clientConnection"]["kubeconfig"] = json!(kubeconfig);
    let path = directory.path().join("config.conf");
    fs::write(&path, config.to_string()).unwrap();
    (directory, format!("--config={}", path.display()))
}

fn sysctl(node: &Namespace, name: &str) -> String {
    run(node.command("cat").arg(format!("/proc/sys/net/netfilter/{name}"))).trim().to_owned()
}

#[test]
fn clean_up_removes_our_tables_whatever_the_mode_and_nothing_else() {
    // A clean-up removes the tables of kube-proxy (O1).
    let node = Namespace::new("cleanup");
    let tables =
        "add table ip kube-proxy\nadd chain ip kube-proxy services\nadd table ip6 kube-proxy\nadd table inet mine\n";
    for mode in ["nftables", "iptables", "ipvs", ""] {
        load(&node, tables);
        let output = proxy(&node, &["--cleanup", "--proxy-mode", mode]);
        assert!(output.status.success(), "{mode}: {}", text(&output));
        assert_eq!(run(node.command("nft").args(["list", "tables"])), "table inet mine\n", "{mode}");
    }
    assert!(proxy(&node, &["--cleanup"]).status.success(), "nothing to remove is fine");
}

#[test]
fn clean_up_without_the_privilege_says_so_and_ends_with_1() {
    // A clean-up that is not permitted is an error (O1).
    let node = Namespace::new("cleanup");
    load(&node, "add table ip kube-proxy\n");
    let mut command = node.command("setpriv");
    let output = command.args(["--bounding-set=-net_admin"]).arg(binary()).arg("--cleanup").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert_eq!(complaints(&output).len(), 1, "{}", text(&output));
    assert!(text(&output).contains("CAP_NET_ADMIN"), "{}", text(&output));
    assert!(list_ruleset(&node).contains("kube-proxy"));
}

#[test]
fn init_only_sets_what_is_privileged_and_writes_no_rule() {
    // `--init-only` writes the sysctls and ends (N3, O3).
    let node = Namespace::new("init");
    let mut config = config();
    config["conntrack"]["tcpCloseWaitTimeout"] = "61s".into();
    config["conntrack"]["tcpBeLiberal"] = true.into();
    let (_directory, config) = file(&config);
    let output = proxy(&node, &[&config, "--init-only"]);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(list_ruleset(&node), "");
    assert_eq!(sysctl(&node, "nf_conntrack_tcp_timeout_close_wait"), "61");
    assert_eq!(sysctl(&node, "nf_conntrack_tcp_be_liberal"), "1");
}

#[test]
fn a_setting_that_cannot_be_made_ends_init_only() {
    // The limit of flows has to be written where it differs (N2).
    let node = Namespace::new("init");
    let mut config = config();
    config["conntrack"]["udpTimeout"] = "59s".into();
    let (_directory, config) = file(&config);
    let script = format!(
        "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec {} {config} --init-only",
        binary().display()
    );
    let output = node.command("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("nf_conntrack_udp_timeout"), "{}", text(&output));
    assert!(text(&output).contains("--init-only"), "{}", text(&output));
}

#[test]
fn the_machines_limit_is_left_alone_in_a_container_that_plays_a_node() {
    // The limit of flows is not written where it may not be, and one that is larger than configured is right (N1, N2).
    let node = Namespace::new("init");
    let before = sysctl(&node, "nf_conntrack_max");
    let limit: u32 = before.trim().parse().unwrap();
    let said =
        [(limit + 1, "\"The sysctl belongs to the machine"), (limit - 1, "\"The sysctl is larger than configured")];
    for (min, said) in said {
        let mut config = config();
        config["conntrack"]["min"] = min.into();
        config["conntrack"]["maxPerCore"] = 1.into();
        let (_directory, config) = file(&config);
        let output = proxy(&node, &[&config, "--init-only"]);
        assert!(output.status.success(), "{}", text(&output));
        assert!(text(&output).contains(said), "{}", text(&output));
        assert_eq!(sysctl(&node, "nf_conntrack_max"), before);
    }
}

/// The log lines of a start that are no information.
fn complaints(output: &Output) -> Vec<String> {
    text(output).lines().filter(|line| !line.starts_with('I')).map(str::to_owned).collect()
}

/// Asserts that the process ended with 1 and with one line that has all of these texts, each once.
fn assert_one_line(output: &Output, says: &[&str]) {
    let logged = complaints(output);
    assert_eq!((output.status.code(), logged.len()), (Some(1), 1), "{}", text(output));
    for part in says {
        assert_eq!(logged[0].matches(part).count(), 1, "{part:?} in {}", logged[0]);
    }
}

#[test]
fn without_the_capability_it_says_what_it_needs() {
    let node = Namespace::new("start");
    let (_directory, config) = file(&config());
    for flags in [&[&*config, "--init-only"][..], &[&*config, "--manifests=/nowhere"], &["--cleanup"]] {
        let mut command = node.command("setpriv");
        let output = command.args(["--bounding-set=-net_admin"]).arg(binary()).args(flags).output().unwrap();
        assert_one_line(&output, &["CAP_NET_ADMIN", "because", "run it as root"]);
        let mut command = node.command("unshare");
        let output = command.args(["--user", "--map-root-user"]).arg(binary()).args(flags).output().unwrap();
        if flags != ["--cleanup"] {
            assert_one_line(
                &output,
                &["CAP_NET_ADMIN", "another user namespace", "run kube-proxy as root of the node"],
            );
        }
    }
}

#[test]
fn a_sysctl_that_cannot_be_written_is_one_line_and_no_other_is_written() {
    // A limit that cannot be written ends the start (N2).
    let node = Namespace::new("start");
    let before = sysctl(&node, "nf_conntrack_tcp_timeout_close_wait");
    let mut config = config();
    config["conntrack"]["tcpCloseWaitTimeout"] = "61s".into();
    config["conntrack"]["udpTimeout"] = "59s".into();
    let (_directory, config) = file(&config);
    // All sysctls are read-only, or the last one alone.
    for what in ["/proc/sys", "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"] {
        for more in ["", "--init-only"] {
            let script = format!(
                "mount --bind {what} {what} && mount -o remount,ro,bind {what} && exec {} {config} {more}",
                binary().display()
            );
            let output = node.command("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
            assert_one_line(&output, &["cannot write", "Read-only file system", "--init-only"]);
            assert_eq!(sysctl(&node, "nf_conntrack_tcp_timeout_close_wait"), before, "{what}");
        }
    }
}

#[test]
fn a_kernel_that_does_not_take_our_rules_is_one_line_before_anything_is_changed() {
    // A chain of another type under the name that the probe uses: refused as by a kernel without nat chains.
    let node = Namespace::new("start");
    load(&node, "table ip kube-proxy-probe {\n chain nat {\n type filter hook input priority 0;\n }\n}\n");
    let rules = list_ruleset(&node);
    let mut config = config();
    config["conntrack"]["udpTimeout"] = "59s".into();
    let (_directory, config) = file(&config);
    let before = sysctl(&node, "nf_conntrack_udp_timeout");
    for flags in [&[&*config][..], &[&*config, "--init-only"]] {
        let output = proxy(&node, flags);
        assert_one_line(
            &output,
            &["the kernel cannot do", "it refused", "kube-proxy-probe", "load kernel module nft_chain_nat"],
        );
        assert_eq!((list_ruleset(&node), sysctl(&node, "nf_conntrack_udp_timeout")), (rules.clone(), before.clone()));
    }
}

#[test]
fn a_port_in_use_is_one_line_and_ends_the_process_only_if_that_is_asked_for() {
    // A port in use ends the process with `bindAddressHardFail`, else it is tried again (O8).
    let world = World::new();
    for (field, port, name) in [("metricsBindAddress", 10249, "metrics"), ("healthzBindAddress", 10256, "healthz")] {
        let address = format!("127.0.0.1:{port}");
        let taken = world.node.enter(|| TcpListener::bind(&address).unwrap());
        let mut config = config();
        config["bindAddressHardFail"] = true.into();
        assert_eq!(config[field], json!(address));
        let mut proxy = Proxy::prepare(&world.node, &config, &mixed::cluster());
        proxy.spawn();
        assert_eq!(proxy.wait_for_end().code(), Some(1), "{}", proxy.log());
        let log = proxy.log();
        let logged: Vec<&str> = log.lines().filter(|line| !line.starts_with('I')).collect();
        assert_eq!(logged.len(), 1, "{log}");
        for part in [&format!("cannot listen for {name} on {address}"), "Address already in use", "ss -ltnp"] {
            assert_eq!(logged[0].matches(part).count(), 1, "{part:?} in {}", logged[0]);
        }
        assert_eq!(list_ruleset(&world.node), "", "{name}: no rule before that");

        config["bindAddressHardFail"] = false.into();
        proxy.configure(&config);
        proxy.spawn();
        let end = Instant::now() + PATIENCE;
        while !list_ruleset(&world.node).contains("shop/web") {
            assert!(Instant::now() < end, "{name}: no rules: {}", proxy.log());
            thread::sleep(Duration::from_millis(50));
        }
        let log = proxy.log();
        let warning = format!("cannot listen for {name} on {address}");
        assert!(log.lines().any(|line| line.starts_with('W') && line.contains(&warning)), "{log}");
        assert!(log.contains("trying again ten times a second"), "{log}");
        assert!(proxy.stop().success());
        drop(taken);
        load(&world.node, "flush ruleset");
    }
}

#[test]
fn an_error_that_ends_the_process_is_logged_whatever_rust_log_leaves_out() {
    let node = Namespace::new("start");
    let mut command = node.command("setpriv");
    command.args(["--bounding-set=-net_admin"]).arg(binary()).arg("--cleanup").env("RUST_LOG", "off");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let logged = text(&output);
    assert!(
        logged.starts_with('E')
            && logged.contains("] \"Error running ProxyServer\" err=\"not allowed to program nf_tables")
            && logged.lines().count() == 1,
        "{logged}"
    );
}

#[test]
fn a_running_proxy_has_given_up_what_it_does_not_need() {
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    let tasks = format!("/proc/{}/task", proxy.pid());
    let threads: Vec<_> = fs::read_dir(tasks).unwrap().map(|task| task.unwrap().path()).collect();
    assert!(threads.len() > 1, "there is more than one thread");
    for thread in threads {
        let status = fs::read_to_string(thread.join("status")).unwrap();
        let value =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim).unwrap().to_owned();
        let network = format!("{:016x}", 1 << 12 | 1 << 10);
        assert_eq!([value("CapEff:"), value("CapPrm:"), value("CapBnd:")], [&*network; 3]);
        assert_eq!((value("NoNewPrivs:"), value("Seccomp:")), ("1".to_owned(), "2".to_owned()));
    }
}

/// What the kernel answers when a thread of the proxy makes these system calls: a number and its arguments each.
#[cfg(target_arch = "x86_64")]
fn answers(thread: &str, calls: &[(i64, &[i64])]) -> Vec<i64> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/attempt.py");
    let words = |(number, arguments): &(i64, &[i64])| {
        let words: Vec<String> = [*number].iter().chain(*arguments).map(ToString::to_string).collect();
        words.join(",")
    };
    let output = Command::new("python3").args([script, thread]).args(calls.iter().map(words)).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    text(&output).lines().map(|line| line.parse().unwrap()).collect()
}

/// Whether Landlock is in use, and of a kernel that has its scopes (Linux 6.12).
#[cfg(target_arch = "x86_64")]
fn has_scopes(proxy: &Proxy<'_>) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    proxy.log().contains("writingFiles=\"refused\"") && (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[cfg(target_arch = "x86_64")]
#[test]
fn what_a_running_proxy_has_given_up_is_refused_to_each_of_its_threads() {
    const SOCKET: i64 = 41;
    const SOCKETPAIR: i64 = 53;
    const KILL: i64 = 62;
    const TGKILL: i64 = 234;
    const EPERM: i64 = -1;
    let (unix, inet, inet6, netlink, packet, vsock) = (1, 2, 10, 16, 17, 40);
    let (stream, datagram, raw) = (1, 2, 3);
    let (route, audit, netfilter, generic) = (0, 9, 12, 16);
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    let mut bystander = Command::new("sleep").arg("60").spawn().unwrap();
    let (own, other) = (i64::from(proxy.pid()), i64::from(bystander.id()));
    for task in fs::read_dir(format!("/proc/{own}/task")).unwrap().map(|task| task.unwrap().path()) {
        let thread = task.file_name().unwrap().to_str().unwrap().to_owned();
        let refused: [(i64, &[i64]); 8] = [
            (SOCKET, &[unix, stream, 0]),
            (SOCKET, &[packet, raw, 0]),
            (SOCKET, &[vsock, stream, 0]),
            (SOCKET, &[netlink, raw, generic]),
            (SOCKET, &[netlink, raw, audit]),
            (SOCKETPAIR, &[inet, stream, 0, 0]),
            (KILL, &[other, 0]),
            // The filter lets this one pass, as threads signal each other; Landlock does not.
            (TGKILL, &[other, other, 0]),
        ];
        let given = answers(&thread, &refused);
        assert_eq!(given[..7], [EPERM; 7], "{refused:?}");
        assert!(given[7] == EPERM || !has_scopes(&proxy), "a signal to another process: {}", given[7]);
        let allowed: [(i64, &[i64]); 5] = [
            (SOCKET, &[inet, datagram, 0]),
            (SOCKET, &[inet6, stream, 0]),
            (SOCKET, &[netlink, raw, route]),
            (SOCKET, &[netlink, raw, netfilter]),
            (TGKILL, &[own, thread.parse().unwrap(), 0]),
        ];
        assert!(answers(&thread, &allowed).iter().all(|answer| *answer >= 0), "{allowed:?}");
    }
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    // The proxy goes on to program changes.
    proxy.apply(&[mixed::web().external_ip(crate::support::plan::Family::V4.external_ip(2)).json()]);
    assert!(proxy.stop().success());
}

/// Answers questions for the IPv4 address of a name with 127.0.0.1, and every other one with nothing, until the socket is closed.
fn answer_names(dns: &UdpSocket) {
    let mut question = [0; 512];
    while let Ok((len, client)) = dns.recv_from(&mut question) {
        // The type stands behind the name, which ends with a zero, and before the class.
        let name = question[12..len].iter().position(|byte| *byte == 0).unwrap();
        let end = 12 + name + 5;
        let is_known = question[end - 4..end - 2] == [0, 1];
        let counts = [0x81, 0x80, 0, 1, 0, u8::from(is_known), 0, 0, 0, 0];
        let address: &[u8] = &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 127, 0, 0, 1];
        let address = if is_known { address } else { &[] };
        let answer = [&question[..2], &counts, &question[12..end], address].concat();
        dns.send_to(&answer, client).unwrap();
    }
}

#[test]
fn a_running_proxy_finds_its_api_server_by_name() {
    let node = Namespace::new("name");
    let directory = TempDir::new().unwrap();
    let [resolver, kubeconfig] = ["resolv.conf", "kubeconfig"].map(|name| directory.path().join(name));
    fs::write(&resolver, "nameserver 127.0.0.1\noptions timeout:1\n").unwrap();
    let clusters = json!([{ "name": "c", "cluster": { "server": "https://api.cluster.test:6443" } }]);
    let contexts = json!([{ "name": "c", "context": { "cluster": "c", "user": "u" } }]);
    let users = json!([{ "name": "u", "user": { "token": "x" } }]);
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": clusters, "contexts": contexts, "users": users,
    });
    fs::write(&kubeconfig, text.to_string()).unwrap();
    let (dns, server) =
        node.enter(|| (UdpSocket::bind("127.0.0.1:53").unwrap(), TcpListener::bind("127.0.0.1:6443").unwrap()));
    dns.set_read_timeout(Some(PATIENCE)).unwrap();
    server.set_nonblocking(true).unwrap();
    let script = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", resolver.display());
    let mut proxy = Proxy::with_api(&node, &config(), &kubeconfig);
    proxy.set_wrapper(&["unshare", "--mount", "sh", "-c", &script, "sh"]);
    thread::spawn(move || answer_names(&dns));
    proxy.spawn();
    let end = Instant::now() + PATIENCE;
    while let Err(error) = server.accept() {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(Instant::now() < end, "no connection to the API server: {}", proxy.log());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(proxy.log().contains("otherSyscalls=\"refused\""), "{}", proxy.log());
}

#[test]
fn a_new_configuration_ends_the_process_and_a_broken_one_does_not() {
    // New content of the configuration file ends the process (O5).
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    fs::write(proxy.config_path(), "kind: Nonsense\n").unwrap();
    let end = Instant::now() + PATIENCE;
    while !proxy.log().contains("not valid and not used") {
        assert!(Instant::now() < end, "{}", proxy.log());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(proxy.is_running());
    let rules = list_ruleset(&world.node);
    let mut other = config();
    other["nftables"]["masqueradeAll"] = true.into();
    fs::write(proxy.config_path(), other.to_string()).unwrap();
    assert_eq!(proxy.wait_for_end().code(), Some(1));
    assert!(proxy.log().contains("content of the proxy server's configuration file was updated"), "{}", proxy.log());
    assert_eq!(list_ruleset(&world.node), rules, "the rules stay");
}

#[test]
fn an_old_kernel_is_refused_unless_a_variable_is_set() {
    // A kernel before 5.13 ends the start unless a variable is set (O4). The version that a process sees can be chosen, for
    // programs that look at it.
    let node = Namespace::new("old");
    let (_directory, config) = file(&config());
    let osrelease = TempDir::new().unwrap();
    fs::write(osrelease.path().join("osrelease"), "5.10.0-fake\n").unwrap();
    let fake = osrelease.path().join("osrelease").display().to_string();
    let run = |skip: &str| {
        let script = format!(
            "mount --bind {fake} /proc/sys/kernel/osrelease && KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK={skip} \
             exec {} {config} --init-only",
            binary().display()
        );
        let mut unshare = Command::new("ip");
        unshare.args(["netns", "exec", node.name(), "unshare", "--mount", "sh", "-c", &script]).output().unwrap()
    };
    let refused = run("");
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("5.13"), "{}", text(&refused));
    let allowed = run("yes");
    assert!(allowed.status.success(), "{}", text(&allowed));
}
