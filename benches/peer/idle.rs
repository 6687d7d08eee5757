//! Measures what a proxy costs its node while nothing changes: how often its threads wake, and their processor time, as `/proc` counts them.
//!
//! With `BENCH_PEER` the API server is Kubernetes' own, and upstream's proxy is measured as well; without it, the server is that of the tests.

use std::env;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::control_plane::{ControlPlane, Garbage};
use super::{ENDPOINTS, FIRST, Who, config, host, objects, programs};
use crate::inspect::load_connections;
use crate::process::delete_rules;
use crate::support::apiserver::{ApiServer, Format, Scheme};
use crate::support::netns::Namespace;
use crate::support::objects as own;
use crate::support::proxy::{Proxy, binary};
use crate::table::Table;

/// How long a proxy has for what follows its first sync, and for how long it is measured then.
const SETTLED: Duration = Duration::from_secs(20);
const MEASURED: Duration = Duration::from_secs(30);
/// How long a real API server may take for the objects. On two processors it takes longer for 100,000 Services.
const CREATED_WITHIN: Duration = Duration::from_secs(300);

/// The server that has the objects.
enum Server<'a> {
    Real(ControlPlane<'a>, PathBuf),
    Tests(ApiServer),
}

impl Server<'_> {
    /// Adds Services; returns whether the server has taken them in time.
    fn create(&self, services: Range<u32>) -> bool {
        match self {
            Self::Real(plane, _) => plane.create_within(objects(services, ENDPOINTS), CREATED_WITHIN),
            Self::Tests(server) => {
                server.apply(&objects(services, ENDPOINTS));
                true
            }
        }
    }

    fn kubeconfig(&self) -> PathBuf {
        match self {
            Self::Real(plane, _) => plane.kubeconfig(),
            Self::Tests(server) => server.kubeconfig(&json!({})),
        }
    }
}

/// Adds the rows; `quick` leaves out the largest size.
pub(crate) fn rows(table: &mut Table, quick: bool) {
    let sizes: &[u32] = if quick { &[100, 5_000] } else { &[100, 5_000, 100_000] };
    let node = host();
    let peers = env::var_os("BENCH_PEER").map(|_| programs(&["kube-proxy", "kube-apiserver", "etcd"]));
    node.enter(|| {
        let server = match &peers {
            Some(programs) => {
                let upstream = programs.join("kube-proxy");
                Server::Real(ControlPlane::start(&node, programs, Garbage::Collected), upstream)
            }
            None => {
                let server = ApiServer::start_with(Scheme::Https, Format::Protobuf);
                server.apply(&[own::node(), own::service_cidr()]);
                Server::Tests(server)
            }
        };
        let mut loaded = 0;
        for &services in sizes {
            if !server.create(loaded..services) {
                let why = format!("n/a: the API server has not taken them within {} s", CREATED_WITHIN.as_secs());
                table.text(&format!("idle, {services} x {ENDPOINTS}"), &why, "");
                break;
            }
            loaded = services;
            measure(table, &node, &server, (Who::Ours, &binary()), services);
            if let Server::Real(_, upstream) = &server {
                measure(table, &node, &server, (Who::Upstream, upstream), services);
            }
        }
    });
}

/// Measures a proxy without tracked connections but its own, and with many.
fn measure(table: &mut Table, node: &Namespace, server: &Server<'_>, (who, binary): (Who, &Path), services: u32) {
    let config: Value = config(who);
    let mut proxy = Proxy::with_api(node, &config, &server.kubeconfig());
    proxy.set_binary(binary);
    proxy.launch();
    for is_loaded in [false, true] {
        let tracked = if is_loaded { load_connections(node, FIRST, services, ENDPOINTS) } else { 0 };
        sleep(SETTLED);
        let before = proxy.activity();
        sleep(MEASURED);
        let idle = proxy.activity().since(before);
        let a_second = |amount: f64| amount / MEASURED.as_secs_f64();
        let [wakeups, time] = if who == Who::Upstream { [""; 2] } else { ["3 a second", "150 us"] };
        let what = format!("idle, {services} x {ENDPOINTS}, {tracked} tracked connections, {}", who.name());
        let rate = a_second(f64::from(u32::try_from(idle.wakeups).unwrap_or(u32::MAX)));
        table.text(&format!("{what}: wake-ups"), &format!("{rate:.1} a second"), wakeups);
        let time_of_second = a_second(idle.processor_time.as_secs_f64()) * 1e6;
        table.text("  processor time of a second", &format!("{time_of_second:.0} us"), time);
    }
    proxy.stop();
    delete_rules(node);
    // The connections would be in the next measurement otherwise.
    node.command("conntrack").arg("--flush").output().expect("conntrack is installed");
}
