//! The Services that change, and random changes of them.
//!
//! A lasting Service is never deleted and always has endpoints that serve, so a connection to its first port must be answered at any time,
//! by an address that only this Service has. Pure: each change is a value with the request to the API server.

use std::net::Ipv4Addr;

use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::super::control_plane::path_of;
use super::super::{FIRST, describe_pod};

/// The number of endpoint addresses reserved for one Service; all of them answer on each of [`PORTS`].
pub(super) const ADDRESSES: u8 = 64;
/// The network of all endpoints.
pub(super) const NETWORK: &str = "172.16.0.0/12";
const FIRST_ADDRESS: u32 = 0xac10_0000;
/// The ports that endpoints listen on.
pub(super) const PORTS: [u16; 2] = [8080, 8081];
/// The port of each Service to which the probes connect.
pub(super) const PORT: u16 = 80;
/// The first address that is reserved for a Service's second slice.
const SECOND: u8 = 48;
const FEWEST: usize = 3;
const MOST: usize = 14;

/// A request to the API server.
pub(super) enum Change {
    /// A new object.
    Create(Value),
    /// New content for an object.
    Replace(Value),
    /// The path of an object to delete.
    Delete(String),
}

/// A Service and its slices, as they were last sent.
pub(super) struct App {
    name: String,
    number: u32,
    /// Whether the Service may be deleted: then its cluster IP is not fixed, and no probe connects to it.
    transient: bool,
    endpoints: Vec<Place>,
    /// Endpoints of the second slice; the slice exists only if there are any.
    second: Vec<Place>,
    target: u16,
    /// The Service's second port, when it has one.
    admin: Option<u16>,
}

/// An endpoint: the index of its address, and whether it is terminating.
#[derive(Clone, Copy)]
struct Place {
    address: u8,
    leaving: bool,
}

impl Place {
    const fn new(address: u8) -> Self {
        Self { address, leaving: false }
    }
}

/// Returns the cluster IP and port of the lasting Service with this number.
pub(super) fn frontend(number: u32) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from(0x0a60_0001 + FIRST + number), PORT)
}

/// Returns the number of the Service that an endpoint's address is reserved for.
pub(super) fn owner(endpoint: Ipv4Addr) -> u32 {
    (u32::from(endpoint) - FIRST_ADDRESS) / u32::from(ADDRESSES)
}

impl App {
    /// Makes a lasting Service, which is never deleted.
    pub(super) fn lasting(number: u32, endpoints: u8) -> Self {
        let endpoints = (0..endpoints).map(Place::new).collect();
        let name = format!("web-{number}");
        Self { name, number, transient: false, endpoints, second: Vec::new(), target: PORTS[0], admin: None }
    }

    /// Makes a Service that is created and deleted during the run, with the addresses reserved for this number.
    pub(super) fn transient(name: String, number: u32) -> Self {
        Self { name, transient: true, ..Self::lasting(number, 2) }
    }

    /// Returns the objects to create for the Service.
    pub(super) fn create(&self) -> Vec<Value> {
        vec![self.service(), self.slice()]
    }

    /// Returns the requests that delete the Service.
    pub(super) fn delete(&self) -> Vec<Change> {
        [self.slice(), self.service()].iter().map(|object| Change::Delete(path(object))).collect()
    }

    /// Makes a random change of the Service.
    pub(super) fn change(&mut self, random: &mut StdRng) -> Change {
        match random.random_range(0..100) {
            0..58 => self.replace_endpoint(random),
            58..74 => self.add_endpoint(random),
            74..90 => self.remove_endpoint(random),
            90..94 => {
                self.target = PORTS[usize::from(self.target == PORTS[0])];
                Change::Replace(self.slice())
            }
            94..97 => self.change_ports(random),
            _ => self.change_second_slice(random),
        }
    }

    /// Makes one of the three changes of a rolling update of one pod: 0 adds the new pod, 1 marks an old one as terminating, 2 removes it.
    pub(super) fn roll(&mut self, step: u32) -> Change {
        match step {
            0 => {
                let address = self.unused(0);
                self.endpoints.push(Place::new(address));
            }
            1 => self.endpoints[0].leaving = true,
            _ => drop(self.endpoints.remove(0)),
        }
        Change::Replace(self.slice())
    }

    fn replace_endpoint(&mut self, random: &mut StdRng) -> Change {
        let address = self.unused(random.random_range(0..SECOND));
        let old = random.random_range(0..self.endpoints.len());
        self.endpoints[old] = Place::new(address);
        Change::Replace(self.slice())
    }

    fn add_endpoint(&mut self, random: &mut StdRng) -> Change {
        if self.endpoints.len() >= MOST {
            return self.remove_endpoint(random);
        }
        let address = self.unused(random.random_range(0..SECOND));
        self.endpoints.push(Place::new(address));
        Change::Replace(self.slice())
    }

    fn remove_endpoint(&mut self, random: &mut StdRng) -> Change {
        if self.endpoints.len() <= FEWEST {
            return self.add_endpoint(random);
        }
        self.endpoints.remove(random.random_range(0..self.endpoints.len()));
        Change::Replace(self.slice())
    }

    fn change_ports(&mut self, random: &mut StdRng) -> Change {
        let other = random.random_range(9_000..9_100);
        self.admin = if self.admin.is_some() && random.random_bool(0.3) { None } else { Some(other) };
        Change::Replace(self.service())
    }

    fn change_second_slice(&mut self, random: &mut StdRng) -> Change {
        if self.second.is_empty() {
            self.second = (SECOND..ADDRESSES).filter(|_| random.random_bool(0.2)).map(Place::new).collect();
            self.second.push(Place::new(SECOND - 1));
            return Change::Create(self.second_slice());
        }
        let path = path(&self.second_slice());
        self.second.clear();
        Change::Delete(path)
    }

    /// Returns the next address, from `wanted` on, that no endpoint of the first slice has.
    fn unused(&self, wanted: u8) -> u8 {
        let mut after = (0..SECOND).map(|step| (wanted + step) % SECOND);
        after.find(|address| self.endpoints.iter().all(|place| place.address != *address)).expect("there are more")
    }

    /// Returns the Service object. The empty entry in `managedFields` keeps the API server from tracking which client set which field: the
    /// tracking takes a third of the server's time for a change.
    fn service(&self) -> Value {
        let port = |name: &str, port: u16| json!({ "name": name, "port": port, "protocol": "TCP" });
        let ports: Vec<Value> =
            [port("http", PORT)].into_iter().chain(self.admin.map(|admin| port("admin", admin))).collect();
        let mut service = json!({ "kind": "Service", "apiVersion": "v1",
            "metadata": { "name": self.name, "namespace": "bench", "managedFields": [{}] }, "spec": { "ports": ports } });
        if !self.transient {
            let ip = frontend(self.number).0.to_string();
            service["spec"]["clusterIP"] = json!(ip);
            service["spec"]["clusterIPs"] = json!([ip]);
        }
        service
    }

    fn slice(&self) -> Value {
        self.slice_of("x", &self.endpoints)
    }

    fn second_slice(&self) -> Value {
        self.slice_of("y", &self.second)
    }

    fn slice_of(&self, suffix: &str, places: &[Place]) -> Value {
        let name = format!("{}-{suffix}", self.name);
        let endpoints: Vec<Value> = places.iter().map(|place| self.endpoint(&name, *place)).collect();
        json!({ "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": { "name": name, "namespace": "bench", "managedFields": [{}], "labels": { "kubernetes.io/service-name": self.name } },
            "endpoints": endpoints,
            "ports": [{ "name": "http", "port": self.target, "protocol": "TCP" },
                { "name": "admin", "port": PORTS[1], "protocol": "TCP" }] })
    }

    fn endpoint(&self, slice: &str, place: Place) -> Value {
        let address = FIRST_ADDRESS + self.number * u32::from(ADDRESSES) + u32::from(place.address);
        let conditions = json!({ "ready": !place.leaving, "serving": true, "terminating": place.leaving });
        let mut endpoint = json!({ "addresses": [Ipv4Addr::from(address).to_string()], "conditions": conditions });
        describe_pod(&mut endpoint, slice, place.address.into());
        endpoint
    }
}

/// Returns the API path of an object.
pub(super) fn path(object: &Value) -> String {
    format!("{}/{}", path_of(object), object["metadata"]["name"].as_str().unwrap_or_default())
}
