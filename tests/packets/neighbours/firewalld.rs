//! firewalld beside the proxy: it accepts what was translated, so traffic of Services passes; what is not translated needs rules of its own.
//! A reload leaves the proxy's tables alone.
//!
//! Runs Debian's firewalld in the node's namespace with a bus and a configuration of its own. It has no polkit, so firewalld accepts root's
//! commands.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{WEB, assert_web_is_forwarded, objects, pods, tcp, unpacked};
use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run, try_run};
use crate::support::nft;
use crate::support::objects::{service, slices};
use crate::support::plan::{Family, SERVED_PORTS};
use crate::support::probe::{Connection, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const HEALTH_CHECK: u16 = 32_123;
/// Longer than firewalld takes to start on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// firewalld in a node's namespace, with its bus; both are ended when the value is dropped.
struct Firewalld<'a> {
    node: &'a Namespace,
    directory: TempDir,
    running: Vec<Child>,
}

impl<'a> Firewalld<'a> {
    /// Starts firewalld with its defaults, and waits until it has written its rules.
    fn start(node: &'a Namespace) -> Self {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let at = |name: &str| directory.path().join(name).display().to_string();
        fs::write(at("bus.conf"), bus(&at("bus"))).expect("a file can be written");
        let ready = |path: &str| Path::new(path).exists();
        let start = |command: &mut Command| {
            command.stdin(Stdio::null()).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}; try `make deps`"))
        };
        let mut dbus = node.command("dbus-daemon");
        dbus.args(["--nofork", "--nopidfile", "--config-file", &at("bus.conf")]).stderr(Stdio::null());
        let mut this = Self { node, running: vec![start(&mut dbus)], directory };
        this.wait("the bus", || ready(&this.at("bus")));
        run(Command::new("cp").arg("-r").arg(unpacked("etc/firewalld")).arg(this.at("etc")));
        let mut daemon = this.python("usr/sbin/firewalld");
        daemon.args(["--nofork", "--nopid", "--system-config", &this.at("etc"), "--log-file", &this.at("log")]);
        daemon.arg("--default-config").arg(unpacked("usr/lib/firewalld"));
        this.running.push(start(daemon.stdout(Stdio::null())));
        this.wait("firewalld", || try_run(this.cmd(&["--state"]).stderr(Stdio::null()), "").is_ok());
        this
    }

    fn at(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// One of the unpacked programs, with its modules.
    fn python(&self, program: &str) -> Command {
        let mut command = self.node.command("/usr/bin/python3");
        command.arg(unpacked(program)).env("PYTHONPATH", unpacked("usr/lib/python3/dist-packages"));
        command.env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", self.at("bus")));
        command
    }

    fn cmd(&self, arguments: &[&str]) -> Command {
        let mut command = self.python("usr/bin/firewall-cmd");
        command.args(arguments);
        command
    }

    /// `firewall-cmd` with these arguments, which must succeed.
    fn set(&self, arguments: &[&str]) {
        run(&mut self.cmd(arguments));
    }

    fn wait(&self, what: &str, is_there: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_there() {
            let log = fs::read_to_string(self.at("log")).unwrap_or_default();
            assert!(Instant::now() < end, "{what} does not start: {log}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Firewalld<'_> {
    fn drop(&mut self) {
        for child in &mut self.running {
            // A process that has ended already is no fault.
            let _ended = child.kill().and_then(|()| child.wait());
        }
    }
}

/// The configuration of a bus on which everything is allowed.
fn bus(path: &str) -> String {
    format!(
        r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth><policy context="default">
<allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_type="signal"/>
<allow send_type="method_return"/><allow send_type="error"/><allow receive_type="method_call"/>
<allow receive_type="signal"/><allow receive_type="method_return"/><allow receive_type="error"/>
</policy></busconfig>"#
    )
}

/// The objects of all tests, Service shop/edge with a health-check node port, and Service shop/old without endpoints.
fn all_objects() -> Vec<Value> {
    let edge = service("shop", "edge").cluster_ips(2).port("http", Proto::Tcp, 80);
    let edge = edge.load_balancer_ip(Family::V4.load_balancer_ip(2)).spec("externalTrafficPolicy", json!("Local"));
    let edge = edge.spec("healthCheckNodePort", json!(HEALTH_CHECK)).json();
    let old = service("shop", "old").cluster_ips(3).port("http", Proto::Tcp, 80).json();
    [objects(), vec![edge, old], slices("shop", "edge", &[0], &super::PORTS)].concat()
}

/// Traffic of Services passes, and Services without endpoints are refused at once.
fn assert_services_pass(world: &World) {
    for family in Family::ALL {
        assert_web_is_forwarded(world, family);
        let own = tcp(family.node(), family.cluster_ip(1), 80);
        assert_reaches(&world.node, own, &endpoints(family, &WEB, 8080), Source::Kept, FEW);
        assert_outcome(&world.shell, tcp(family.shell(), family.cluster_ip(3), 80), &Outcome::Refused);
    }
    let balanced = tcp(Family::V4.client(), Family::V4.load_balancer_ip(2), 80);
    assert_reaches(&world.client, balanced, &endpoints(Family::V4, &[0], 8080), Source::Kept, 8);
}

/// Whether the client gets an answer of the health-check node port.
fn checks_health(world: &World) -> bool {
    let ask = || {
        let address = SocketAddr::new(Family::V4.node(), HEALTH_CHECK);
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()
    };
    world.client.enter(ask).is_some()
}

/// Whether a pod of another node reaches a pod of this node without a Service.
fn reaches_pod(world: &World, family: Family) -> bool {
    let flow = tcp(family.endpoint(2), family.endpoint(0), SERVED_PORTS[0]);
    matches!(probe(&world.remote, flow), Outcome::Reached(_))
}

test_in_each_layout!(firewalld_lets_services_pass_and_a_reload_leaves_them);
fn firewalld_lets_services_pass_and_a_reload_leaves_them(layout: Layout) {
    // firewalld accepts what was translated. No rule of the proxy opens anything else (D21).
    let world = World::new();
    let firewalld = Firewalld::start(&world.node);
    let proxy = Proxy::start(&world.node, &config_in(layout), &all_objects());
    assert_services_pass(&world);
    assert!(!checks_health(&world), "health-check node ports are closed");
    assert!(
        Family::ALL.into_iter().all(|family| !reaches_pod(&world, family)),
        "traffic between pods is not translated"
    );

    // The remedy of `deploy/WISHES.md`, which a reload keeps.
    for family in Family::ALL {
        firewalld.set(&["--permanent", "--zone=trusted", &format!("--add-source={}", pods(family))]);
    }
    firewalld.set(&["--permanent", &format!("--add-port={HEALTH_CHECK}/tcp")]);
    let held = Connection::open(&world.client, tcp(Family::V4.client(), Family::V4.node(), super::NODE_PORT)).0;
    let before = ours(&world.node);
    // firewalld drops new connections for a moment, and no open one.
    while_asking(&held, || firewalld.set(&["--reload"]));
    assert_eq!(ours(&world.node), before, "a reload changed the proxy's tables");
    let log = proxy.log();
    assert!(!log.contains("Another program changed our rules"), "{log}");
    assert_services_pass(&world);
    assert!(checks_health(&world), "health-check node ports are open");
    assert!(Family::ALL.into_iter().all(|family| reaches_pod(&world, family)), "pods are trusted");
}

/// The proxy's tables, as nft lists them, without what changes by itself.
fn ours(node: &Namespace) -> Vec<(String, Vec<String>)> {
    let all = nft::normalised(&nft::list_ruleset(node));
    let is_ours = |(name, _): &(String, Vec<String>)| name.contains("kube-proxy");
    let ours: Vec<_> = all.into_iter().filter(is_ours).collect();
    assert!(!ours.is_empty(), "the proxy has tables");
    ours
}

/// Asks a connection all the time while `work` runs: each question is answered.
fn while_asking(held: &Connection, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asker = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                held.ask();
                thread::sleep(Duration::from_millis(5));
            }
        });
        work();
        over.store(true, Ordering::Relaxed);
        asker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
