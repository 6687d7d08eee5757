//! The numbers that `top` shows for each service port and its endpoints, from a walk over the tracked connections and its difference to the
//! previous walk.
//!
//! Takes the frontends with their names and endpoints, and a [`TrafficSample`]; returns a [`Sample`]. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::traffic::{Count, TrafficSample, added};

/// The service port that a frontend belongs to, and the frontend's endpoints.
#[derive(Clone, Debug)]
pub(super) struct Named {
    /// `namespace/name[:port]`.
    pub(super) service: Arc<str>,
    /// The connections that the frontend's counter counted; `None` without a counter (field `nftables.counters` of the proxy's configuration).
    pub(super) counted: Option<u64>,
    /// The endpoints that the tables have for the frontend, each with the number that its counter counted.
    pub(super) endpoints: Vec<(SocketAddr, Option<u64>)>,
    /// Whether all frontends of the service port share the counters of the endpoints.
    pub(super) shares_counters: bool,
}

/// The numbers of all service ports at one moment.
#[derive(Debug)]
pub(super) struct Sample {
    /// The frontends, in the order of `look.frontends`.
    frontends: Arc<[Named]>,
    look: TrafficSample,
    /// The service ports, sorted by name, each with its numbers and the positions of its frontends.
    services: Vec<ServiceCount>,
    /// The time since the previous sample; `None` for the first one.
    pub(super) since: Option<Duration>,
    /// Whether the kernel counts packets and bytes of new connections.
    pub(super) accounting: bool,
    /// How long it took to take the sample.
    pub(super) took: Duration,
    /// The problems of the node, in sentences.
    pub(super) problems: Vec<String>,
}

#[derive(Debug)]
struct ServiceCount {
    name: Arc<str>,
    count: Count,
    counted: Option<u64>,
    frontends: Vec<usize>,
}

impl ServiceCount {
    /// A service port without frontends.
    fn of(name: &Arc<str>) -> Self {
        Self { name: Arc::clone(name), count: Count::default(), counted: None, frontends: Vec::new() }
    }
}

impl Sample {
    /// Adds up the numbers by service port. `look` has the numbers of `frontends`, in their order.
    pub(super) fn new(
        frontends: Arc<[Named]>,
        look: TrafficSample,
        since: Option<Duration>,
        accounting: bool,
        took: Duration,
    ) -> Self {
        let mut by_name: BTreeMap<&Arc<str>, ServiceCount> = BTreeMap::new();
        for (position, (named, count)) in frontends.iter().zip(&look.frontends).enumerate() {
            let sum = by_name.entry(&named.service).or_insert_with(|| ServiceCount::of(&named.service));
            sum.count.add(*count);
            sum.counted = added(sum.counted, named.counted, u64::saturating_add);
            sum.frontends.push(position);
        }
        let services = by_name.into_values().collect();
        Self { frontends, look, services, since, accounting, took, problems: Vec::new() }
    }

    /// The numbers of all service ports, sorted by name.
    pub(super) fn services(&self) -> impl ExactSizeIterator<Item = Row> + '_ {
        self.services.iter().map(|service| self.row(Arc::clone(&service.name), service.count, service.counted))
    }

    /// Whether a rule counts the connections to a frontend.
    pub(super) fn has_counters(&self) -> bool {
        self.frontends.iter().any(|named| named.counted.is_some())
    }

    /// The endpoints of a service port, sorted by address: the endpoints in the tables, and endpoints that still have connections.
    pub(super) fn endpoints(&self, service: &str) -> Vec<EndpointRow> {
        let Ok(place) = self.services.binary_search_by(|known| (*known.name).cmp(service)) else { return Vec::new() };
        let frontends = &self.services[place].frontends;
        let mut found: BTreeMap<SocketAddr, Found> = BTreeMap::new();
        for position in frontends {
            let named = &self.frontends[*position];
            for (endpoint, counted) in &named.endpoints {
                let found = found.entry(*endpoint).or_default();
                found.listed = true;
                found.counted =
                    if named.shares_counters { *counted } else { added(found.counted, *counted, u64::saturating_add) };
            }
        }
        for ((position, endpoint), count) in &self.look.endpoints {
            if frontends.contains(position) {
                found.entry(*endpoint).or_default().count.add(*count);
            }
        }
        let rows = found.into_iter();
        rows.map(|(address, found)| EndpointRow {
            address,
            listed: found.listed,
            row: self.row("".into(), found.count, found.counted),
        })
        .collect()
    }

    /// The number of connections that are not closed.
    pub(super) fn connections(&self) -> u64 {
        self.look.frontends.iter().map(|count| count.open + count.unanswered).sum()
    }

    /// The sampling factor: rates come from one in this many connections.
    pub(super) fn one_in(&self) -> u32 {
        self.look.one_in
    }

    fn row(&self, name: Arc<str>, count: Count, by_rules: Option<u64>) -> Row {
        let rate = |number: u64| self.since.map(|since| per_second(number, since));
        let since = count.since.unwrap_or_default();
        let (total, came) = (count.counters.unwrap_or_default(), since.counters.unwrap_or_default());
        let counted = |number| self.accounting.then_some(number);
        Row {
            name,
            new: self.since.map(|time| per_second(since.connections.saturating_mul(10), time)),
            open: count.open,
            unanswered: count.unanswered,
            packets: counted(total.packets),
            bytes: counted(total.bytes),
            packet_rate: counted(came.packets).and_then(rate),
            byte_rate: counted(came.bytes).and_then(rate),
            counted: by_rules,
        }
    }

    /// The document of `-o json` and `-o yaml` for these rows.
    pub(super) fn document(&self, rows: &[Row]) -> Document {
        let milliseconds = self.since.map_or(0, |since| u32::try_from(since.as_millis()).unwrap_or(u32::MAX));
        let services = rows.iter().map(|row| {
            let endpoints = self.endpoints(&row.name).into_iter().map(|endpoint| EndpointDocument {
                address: endpoint.address.ip().to_string(),
                port: endpoint.address.port(),
                in_table: endpoint.listed,
                numbers: endpoint.row,
            });
            ServiceDocument { service: row.name.to_string(), endpoints: endpoints.collect(), numbers: row.clone() }
        });
        Document {
            seconds: f64::from(milliseconds) / 1000.0,
            accounting: self.accounting,
            one_in: self.look.one_in,
            services: services.collect(),
            problems: self.problems.clone(),
        }
    }
}

/// The numbers of an endpoint, and whether the tables list it.
#[derive(Default)]
struct Found {
    count: Count,
    counted: Option<u64>,
    listed: bool,
}

/// Converts a number of events in this time to a number per second.
fn per_second(number: u64, time: Duration) -> u64 {
    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    number.saturating_mul(1000) / milliseconds
}

/// The numbers of a service port or an endpoint, as values and in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    /// `namespace/name[:port]`; empty for an endpoint.
    #[serde(skip)]
    pub(super) name: Arc<str>,
    /// New connections per second, in tenths; `None` in the first sample.
    #[serde(rename = "newPerSecond", serialize_with = "in_ones")]
    pub(super) new: Option<u64>,
    /// See [`Count::open`].
    pub(super) open: u64,
    /// See [`Count::unanswered`].
    pub(super) unanswered: u64,
    /// Packets of the tracked connections; `None` while accounting is off.
    pub(super) packets: Option<u64>,
    /// Bytes of the tracked connections; `None` while accounting is off.
    pub(super) bytes: Option<u64>,
    /// Packets per second since the previous sample; `None` in the first sample and while accounting is off.
    #[serde(rename = "packetsPerSecond")]
    pub(super) packet_rate: Option<u64>,
    /// Bytes per second since the previous sample; `None` in the first sample and while accounting is off.
    #[serde(rename = "bytesPerSecond")]
    pub(super) byte_rate: Option<u64>,
    /// Connections that the nftables counters have counted since they were created; `None` without counters.
    pub(super) counted: Option<u64>,
}

/// A number of tenths, as a number with a fraction.
#[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
fn in_ones<S: Serializer>(tenths: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    tenths.map(|tenths| f64::from(u32::try_from(tenths).unwrap_or(u32::MAX)) / 10.0).serialize(to)
}

/// An endpoint of a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointRow {
    pub(super) address: SocketAddr,
    /// Whether the tables have the endpoint. If not, it was removed and only has older connections.
    pub(super) listed: bool,
    pub(super) row: Row,
}

impl EndpointRow {
    /// A remark about the endpoint, compared with the other endpoints of its service port; `None` when it is normal.
    pub(super) fn remark(&self, others: &[Self]) -> Option<&'static str> {
        let has_traffic = |row: &Row| row.open > 0 || row.new.is_some_and(|new| new > 0);
        if !self.listed {
            Some("no longer in the table")
        } else if self.row.unanswered > 0 && self.row.open == 0 {
            Some("does not answer")
        } else if !has_traffic(&self.row) && others.iter().any(|other| other.listed && has_traffic(&other.row)) {
            Some("no traffic")
        } else {
            None
        }
    }
}

/// The document of `-o json` and `-o yaml`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    /// The time since the previous sample.
    seconds: f64,
    accounting: bool,
    one_in: u32,
    services: Vec<ServiceDocument>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ServiceDocument {
    service: String,
    #[serde(flatten)]
    numbers: Row,
    endpoints: Vec<EndpointDocument>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointDocument {
    address: String,
    port: u16,
    in_table: bool,
    #[serde(flatten)]
    numbers: Row,
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::traffic::Since;
    use node::kernel::connections::Counters;

    /// A sample two seconds after the previous one: `shop/web:http` has a busy endpoint, a dead one, an idle one and one that is no longer in
    /// the table, and `shop/api` has no traffic.
    pub(in super::super) fn shop(accounting: bool) -> Sample {
        let named = |service: &str, endpoints: &[&str]| Named {
            service: service.into(),
            counted: None,
            endpoints: endpoints.iter().map(|text| (text.parse().unwrap(), None)).collect(),
            shares_counters: false,
        };
        let web = ["10.244.0.1:8080", "10.244.0.2:8080", "10.244.0.3:8080"];
        let frontends: Arc<[Named]> = Arc::new([
            named("shop/web:http", &web),
            named("shop/api", &["10.244.0.9:80"]),
            named("shop/web:http", &web),
        ]);
        let count = |open, unanswered, new, bytes| {
            let counters = accounting.then_some(Counters { packets: bytes / 100, bytes });
            Count { open, unanswered, ended: 0, counters, since: Some(Since { connections: new, counters }) }
        };
        let busy = count(40, 0, 21, 5_000_000);
        let dead = count(0, 3, 3, 400);
        let gone = count(1, 0, 0, 100);
        let at = |text: &str| text.parse().unwrap();
        let mut web_total = busy;
        web_total.add(dead);
        let none = count(0, 0, 0, 0);
        let look = TrafficSample {
            frontends: vec![web_total, none, gone],
            endpoints: [((0, at(web[0])), busy), ((0, at(web[1])), dead), ((2, at("10.244.0.7:8080")), gone)].into(),
            one_in: 1,
        };
        Sample::new(frontends, look, Some(Duration::from_secs(2)), accounting, Duration::from_millis(12))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::shop;
    use super::*;

    fn document(sample: &Sample) -> Document {
        sample.document(&sample.services().collect::<Vec<_>>())
    }

    #[test]
    fn the_frontends_of_a_service_port_are_added_up() {
        let sample = shop(true);
        let rows: Vec<Row> = sample.services().collect();
        assert_eq!(rows.iter().map(|row| &*row.name).collect::<Vec<_>>(), ["shop/api", "shop/web:http"]);
        assert_eq!((rows[1].open, rows[1].unanswered, rows[1].new), (41, 3, Some(120)));
        assert_eq!((rows[1].bytes, rows[1].byte_rate), (Some(5_000_500), Some(2_500_250)));
        assert_eq!(sample.connections(), 44);
    }

    #[test]
    fn dead_idle_and_removed_endpoints_are_told_from_others() {
        let rows = shop(false).endpoints("shop/web:http");
        let remarks: Vec<_> = rows.iter().map(|row| (row.address.ip().to_string(), row.remark(&rows))).collect();
        let expected = [
            ("10.244.0.1", None),
            ("10.244.0.2", Some("does not answer")),
            ("10.244.0.3", Some("no traffic")),
            ("10.244.0.7", Some("no longer in the table")),
        ];
        assert_eq!(remarks, expected.map(|(ip, remark)| (ip.to_owned(), remark)));
        let idle = shop(false).endpoints("shop/api");
        assert_eq!(idle[0].remark(&idle), None, "no client uses this Service");
    }

    #[test]
    fn what_is_not_counted_is_null_in_json() {
        let json = serde_json::to_value(document(&shop(false))).unwrap();
        let web = &json["services"][1];
        assert_eq!(
            (&json["accounting"], &web["open"], &web["newPerSecond"]),
            (&false.into(), &41.into(), &12.0.into())
        );
        assert!(["packets", "bytes", "packetsPerSecond", "bytesPerSecond"].iter().all(|field| web[field].is_null()));
        assert_eq!(
            web["endpoints"][3],
            serde_json::json!({
                "address": "10.244.0.7", "port": 8080, "inTable": false, "newPerSecond": 0.0, "open": 1, "unanswered": 0,
                "packets": null, "bytes": null, "packetsPerSecond": null, "bytesPerSecond": null, "counted": null,
            })
        );
        let counted = serde_json::to_value(document(&shop(true))).unwrap();
        assert_eq!(counted["services"][1]["bytesPerSecond"], 2_500_250);
        assert_eq!(counted["services"][0]["bytes"], 0, "counted, and nothing came");
    }
}
