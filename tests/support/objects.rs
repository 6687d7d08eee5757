//! Builders of the Kubernetes objects a test needs, as JSON.
//!
//! They write what an API server would: defaults filled in, families listed. Nothing is checked, so wrong objects can be built too.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::plan::{Family, NODE, OTHER_NODE, SERVICE_CIDRS};
use super::probe::Proto;

/// A Service being built; [`ServiceBuilder::json`] ends it.
#[derive(Clone)]
pub(crate) struct ServiceBuilder {
    object: Value,
}

/// A Service of type ClusterIP with no address and no port yet.
pub(crate) fn service(namespace: &str, name: &str) -> ServiceBuilder {
    let object = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(namespace, name),
        "spec": {
            "type": "ClusterIP", "clusterIPs": [], "ipFamilies": [], "externalIPs": [], "ports": [],
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None", "selector": { "app": name },
        },
        "status": { "loadBalancer": {} },
    });
    ServiceBuilder { object }
}

impl ServiceBuilder {
    /// Adds a cluster IP; the first one is the primary.
    pub(crate) fn cluster_ip(mut self, address: IpAddr) -> Self {
        let family = if Family::of(address) == Family::V4 { "IPv4" } else { "IPv6" };
        if self.object["spec"]["clusterIP"].is_null() {
            self.object["spec"]["clusterIP"] = json!(address);
        }
        self.push("/spec/clusterIPs", json!(address));
        self.push("/spec/ipFamilies", json!(family));
        self
    }

    /// Adds the cluster IPs number `n` of both families.
    pub(crate) fn cluster_ips(self, n: u8) -> Self {
        Family::ALL.iter().fold(self, |service, family| service.cluster_ip(family.cluster_ip(n)))
    }

    /// Adds a port; its name is also the name of the target port in the slices.
    pub(crate) fn port(mut self, name: &str, protocol: Proto, port: u16) -> Self {
        self.push(
            "/spec/ports",
            json!({ "name": name, "protocol": protocol.name(), "port": port, "targetPort": name }),
        );
        self
    }

    /// Gives the port added last a node port, and the Service at least the type NodePort.
    pub(crate) fn node_port(mut self, node_port: u16) -> Self {
        if self.object["spec"]["type"] == "ClusterIP" {
            self.external_type("NodePort");
        }
        let last = self.object["spec"]["ports"].as_array_mut().and_then(|ports| ports.last_mut());
        last.expect("a port was added before its node port")["nodePort"] = json!(node_port);
        self
    }

    /// Adds an external IP.
    pub(crate) fn external_ip(mut self, address: IpAddr) -> Self {
        self.push("/spec/externalIPs", json!(address));
        self.object["spec"]["externalTrafficPolicy"] = json!("Cluster");
        self
    }

    /// Adds a load balancer's IP, and makes the type LoadBalancer.
    pub(crate) fn load_balancer_ip(mut self, address: IpAddr) -> Self {
        self.external_type("LoadBalancer");
        let status = &mut self.object["status"]["loadBalancer"];
        if status["ingress"].is_null() {
            status["ingress"] = json!([]);
        }
        self.push("/status/loadBalancer/ingress", json!({ "ip": address, "ipMode": "VIP" }));
        self
    }

    /// Adds session affinity: each client is remembered for `seconds` after its last new connection.
    pub(crate) fn client_ip_affinity(self, seconds: u32) -> Self {
        let config = json!({ "clientIP": { "timeoutSeconds": seconds } });
        self.spec("sessionAffinity", json!("ClientIP")).spec("sessionAffinityConfig", config)
    }

    /// Adds a label.
    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.object["metadata"]["labels"][key] = json!(value);
        self
    }

    /// Sets any field of the spec.
    pub(crate) fn spec(mut self, field: &str, value: Value) -> Self {
        self.object["spec"][field] = value;
        self
    }

    /// The object.
    pub(crate) fn json(self) -> Value {
        self.object
    }

    fn external_type(&mut self, name: &str) {
        self.object["spec"]["type"] = json!(name);
        self.object["spec"]["externalTrafficPolicy"] = json!("Cluster");
    }

    fn push(&mut self, path: &str, value: Value) {
        self.object.pointer_mut(path).and_then(Value::as_array_mut).expect("the list is there").push(value);
    }
}

/// An EndpointSlice of `service` called `name` with ready endpoints, each on the node that `plan` gives it.
pub(crate) fn slice(
    namespace: &str,
    service: &str,
    name: &str,
    endpoints: &[IpAddr],
    ports: &[(&str, Proto, u16)],
) -> Value {
    let family = endpoints.first().map_or(Family::V4, |address| Family::of(*address));
    let mut object = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata(namespace, name),
        "addressType": if family == Family::V4 { "IPv4" } else { "IPv6" },
        "endpoints": endpoints.iter().map(|address| endpoint(*address)).collect::<Vec<_>>(),
        "ports": ports.iter().map(|(name, protocol, port)| {
            json!({ "name": name, "protocol": protocol.name(), "port": port })
        }).collect::<Vec<_>>(),
    });
    object["metadata"]["labels"] = json!({ "kubernetes.io/service-name": service });
    object
}

/// Returns one slice for each family, `name-v4` and `name-v6`, with the endpoints of [`super::plan`] whose numbers are in `which`.
pub(crate) fn slices(namespace: &str, service: &str, which: &[u8], ports: &[(&str, Proto, u16)]) -> Vec<Value> {
    let one = |family: Family| {
        let endpoints: Vec<IpAddr> = which.iter().map(|n| family.endpoint(*n)).collect();
        slice(namespace, service, &format!("{service}-{family:?}").to_lowercase(), &endpoints, ports)
    };
    Family::ALL.map(one).to_vec()
}

fn endpoint(address: IpAddr) -> Value {
    let family = Family::of(address);
    let is_local = [family.endpoint(0), family.endpoint(1), family.shell()].contains(&address);
    json!({
        "addresses": [address],
        "conditions": { "ready": true, "serving": true, "terminating": false },
        "nodeName": if is_local { NODE } else { OTHER_NODE },
    })
}

/// The Node under test, with its primary addresses.
pub(crate) fn node() -> Value {
    let addresses = Family::ALL.map(|family| json!({ "type": "InternalIP", "address": family.node() }));
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": NODE, "uid": "node", "labels": { "kubernetes.io/hostname": NODE } },
        "spec": {},
        "status": { "addresses": addresses },
    })
}

/// The ServiceCIDR of both families.
pub(crate) fn service_cidr() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": { "name": "kubernetes", "uid": "service-cidr" },
        "spec": { "cidrs": SERVICE_CIDRS },
        "status": { "conditions": [{
            "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "", "message": "",
        }] },
    })
}

fn metadata(namespace: &str, name: &str) -> Value {
    json!({
        "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"),
        "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {},
    })
}

/// Returns the type of a JSON value, in the words of JSON schemas.
pub(crate) const fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
