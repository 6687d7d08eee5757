//! The tables of the pages: which rows of the bench stand in which table, under which heading.
//!
//! Plain data. [`super::pages`] writes the tables.

use super::WITHIN;

/// A table. A column has its heading, and the text that replaces `{}` in the names of rows; a row has its label and its name.
pub(super) struct Grid {
    pub(super) name: &'static str,
    /// The row of the bench to which all rows belong; a row of the table without a name is this one. Empty if the names are whole.
    within: &'static str,
    pub(super) columns: &'static [(&'static str, &'static str)],
    pub(super) rows: &'static [(&'static str, &'static str)],
}

impl Grid {
    /// The name in the bench of what stands in a row and a column.
    pub(super) fn row_of(&self, name: &str, with: &str) -> String {
        let parts: Vec<&str> = [self.within, name].into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(WITHIN).replace("{}", with)
    }
}

/// The rows of a comparison with upstream.
const BESIDE: &[(&str, &str)] = &[
    ("process start to the first answered connection", "start to the first answered connection, {}"),
    (
        "one endpoint, from the API server's answer to a packet, median of 6",
        "one endpoint, from the API server's answer to a packet, median, {}",
    ),
    ("peak resident memory", "peak resident memory, {}"),
    ("the same after the changes", "peak resident memory, {} > resident memory at the end"),
    (
        "processor time of the start, with the programs it ran",
        "peak resident memory, {} > processor time of the start, with children",
    ),
    ("processor time of the API server for it", "peak resident memory, {} > processor time of the API server for it"),
    ("bytes from the API server for it", "peak resident memory, {} > bytes from the API server for it"),
];

/// The rows of new connections; the columns are numbers of Services.
const CONNECT: &[(&str, &str)] = &[
    ("this program, layout `maps`", "connect, layout maps, {} Services, all > p99"),
    ("layout `chains`", "connect, layout chains, {} Services, all > p99"),
    (
        "layout `chains` without chains of endpoints",
        "connect, layout chains without chains of endpoints, {} Services, all > p99",
    ),
    ("upstream, mode nftables", "connect, upstream nftables, {} Services, all > p99"),
    ("upstream, mode iptables", "connect, upstream iptables, {} Services, all > p99"),
    ("upstream, mode ipvs", "connect, upstream ipvs, {} Services, all > p99"),
    ("one rule that translates", "connect, one rule that translates, all > p99"),
    ("no proxy", "connect, no proxy, all > p99"),
];

/// The rows of whole processes; the columns are clusters and where their objects come from.
const PROCESS: &[(&str, &str)] = &[
    ("process start to programmed", "process start to programmed, {}"),
    ("processor time of it", "process start to programmed, {} > processor time of the start"),
    ("peak resident memory", "process start to programmed, {} > peak resident memory"),
    ("resident memory afterwards", "process start to programmed, {} > resident memory afterwards"),
    ("bytes from the server", "process start to programmed, {} > bytes that went through the loopback interface"),
    ("a start that finds its rules", "a start that finds its rules, {}"),
    ("`verify`", "kube-proxy verify, {}"),
    ("its peak resident memory", "kube-proxy verify, {} > peak resident memory"),
    ("`services`", "kube-proxy services, {}"),
    (
        "the kernel's list of all elements alone, nothing decoded",
        "process start to programmed, {} > the kernel's dump of all elements alone, nothing decoded",
    ),
];

/// The rows of the clusters that upstream's users reported, beside upstream.
const REPORTED: &[(&str, &str)] = &[
    ("process start to the first answered connection", ""),
    (
        "one endpoint, from the API server's answer to a packet, median",
        "one endpoint, from the API server's answer to a packet, median",
    ),
    ("the longest of them", "the longest of them"),
    ("a start over existing rules until a change is in force", "start over existing rules until a change is in force"),
    ("peak resident memory", "peak resident memory"),
    ("`verify`", "kube-proxy verify"),
];

/// The rows of the time from change to packet; the columns are programs and rates.
const LATENCY: &[(&str, &str)] = &[
    ("changes made a second", ""),
    ("median", "one endpoint, from the API server's answer to a packet, median"),
    ("p99", "one endpoint, from the API server's answer to a packet, p99"),
    ("longest", "one endpoint, from the API server's answer to a packet, longest"),
    ("until another client has the event, p99", "from the API server's answer until another client has the event, p99"),
    ("from that event to a packet, p99", "from that event to a packet, p99"),
    ("share of one CPU", "processor time of the proxy, share of one CPU"),
    ("syncs a second", "syncs a second"),
    ("waits for RCU in the kernel, share of the time", "waits of the proxy for RCU in the kernel, share of the time"),
];

/// The rows of a cluster that changes all the time; the columns are formats.
const CHANGES: &[(&str, &str)] = &[
    ("changes", ""),
    (
        "a second, without the time that writers waited for the API server; goal 1,000",
        "a second, without the time that writers waited for the API server",
    ),
    ("restart of the API server, ended in order", "restart of the API server, ended in order"),
    ("by SIGKILL", "restart of the API server, ended by SIGKILL"),
    ("changes of the rolling update", "changes of the rolling update of all Services"),
    ("connections to Services meanwhile", "connections to Services meanwhile"),
    ("of them failed", "of them failed"),
    ("the longest of the others", "the longest of the others"),
    ("resident memory after a tenth of the time", "resident memory after a tenth of the time"),
    ("at the end", "resident memory at the end"),
    ("rules and elements of a fresh start", "rules and elements of a fresh start"),
    ("that differ from those of the end", "that differ from those of the end"),
    (
        "`verify` finds nothing wrong, after the last change",
        "kube-proxy verify finds nothing wrong, after the last change",
    ),
];

/// The rows of the commands beside a running proxy; the columns are what is measured of each.
const COMMANDS: &[(&str, &str)] = &[
    ("`services`", "kube-proxy services{}"),
    ("`services --stats`", "kube-proxy services --stats{}"),
    ("`explain`", "kube-proxy explain --from{}"),
    ("`verify`, objects from the API server", "kube-proxy verify --config{}"),
    ("`top --once`, two looks, 0.1 s between them", "kube-proxy top --once{}"),
    ("`trace` for 0.1 s", "kube-proxy trace --from{}"),
    ("`changes`", "kube-proxy changes --config{}"),
    ("`check`", "kube-proxy check --config{}"),
];

/// The rows of clusters and of those of twice the size; the columns are what is measured of each.
const TWICE: &[(&str, &str)] = &[
    ("one Service with 5,000 endpoints", "first sync of one Service with 5,000 endpoints{}"),
    ("5,000 Services with one endpoint", "first sync of 5,000 Services with one endpoint{}"),
    ("1,000 node ports", "first sync of 1,000 node ports{}"),
    ("2,000 load balancer IPs with source ranges", "first sync of 2,000 load balancer IPs with source ranges{}"),
    ("500 Services with affinity", "first sync of 500 Services with affinity{}"),
    ("2,500 Services with affinity", "first sync of 2,500 Services with affinity{}"),
];

/// Every table.
pub(super) const GRIDS: &[Grid] = &[
    Grid {
        name: "beside",
        within: "",
        columns: &[
            ("this program, 1,000 Services", "1000 x 10, ours"),
            ("upstream", "1000 x 10, upstream"),
            ("this program, 5,000", "5000 x 10, ours"),
            ("upstream", "5000 x 10, upstream"),
        ],
        rows: BESIDE,
    },
    Grid {
        name: "layouts",
        within: "",
        columns: &[
            ("`chains`, 1,000 Services", "1000 x 10, ours, layout chains"),
            ("without chains of endpoints", "1000 x 10, ours, layout chains without chains of endpoints"),
            ("`chains`, 5,000", "5000 x 10, ours, layout chains"),
            ("without", "5000 x 10, ours, layout chains without chains of endpoints"),
        ],
        rows: BESIDE,
    },
    Grid {
        name: "sizes",
        within: "",
        columns: &[("1,000 Services", "1000"), ("5,000", "5000"), ("20,000", "20000"), ("100,000", "100000")],
        rows: &[
            ("first sync, from objects in memory", "first sync, {} x 10, from objects in memory"),
            ("`nft -f` of the same table", "nft -f of the same table, {} x 10"),
            ("one endpoint replaced, median", "one endpoint replaced, {} Services, median"),
            ("one endpoint replaced, p99", "one endpoint replaced, {} Services, p99"),
            ("10 to 11 endpoints, median", "10 to 11 endpoints, {} Services, median"),
            ("layout `chains`: first sync", "layout chains: first sync, {} x 10"),
            (
                "without chains of endpoints: first sync",
                "layout chains without chains of endpoints: first sync, {} x 10",
            ),
            (
                "process start to programmed, API server, protobuf",
                "process start to programmed, {} x 10, API server, Protobuf",
            ),
            ("`verify`, API server, protobuf", "kube-proxy verify, {} x 10, API server, Protobuf"),
        ],
    },
    Grid {
        name: "connections",
        within: "",
        columns: &[("100 Services", "100"), ("1,000", "1000"), ("5,000", "5000"), ("20,000", "20000")],
        rows: CONNECT,
    },
    Grid {
        name: "processes",
        within: "",
        columns: &[
            ("20,000 x 10, protobuf", "20000 x 10, API server, Protobuf"),
            ("JSON", "20000 x 10, API server, Json"),
            ("manifest files", "20000 x 10, manifest files of 20000"),
            ("100,000 x 10, protobuf", "100000 x 10, API server, Protobuf"),
            ("JSON", "100000 x 10, API server, Json"),
            ("manifest files", "100000 x 10, manifest files of 20000"),
        ],
        rows: PROCESS,
    },
    Grid {
        name: "large",
        within: "",
        columns: &[
            ("5,006 Services x 50 endpoints", "5006 x 50, manifest files of 20000"),
            ("45,000 x 1", "45000 x 1, manifest files of 20000"),
        ],
        rows: PROCESS,
    },
    Grid {
        name: "large beside",
        within: "start to the first answered connection, {}",
        columns: &[
            ("this program, 5,006 x 50", "5006 x 50, ours"),
            ("upstream", "5006 x 50, upstream"),
            ("this program, 45,000 x 1", "45000 x 1, ours"),
            ("upstream", "45000 x 1, upstream"),
        ],
        rows: REPORTED,
    },
    Grid {
        name: "latency",
        within: "{}: changes made a second",
        columns: &[
            ("this program, 100 a second", "ours, 100 changes a second"),
            ("upstream", "upstream, 100 changes a second"),
            ("this program, 1,000", "ours, 1000 changes a second"),
            ("`minSyncPeriod` 1 s", "ours, minSyncPeriod 1s, 1000 changes a second"),
            ("upstream", "upstream, 1000 changes a second"),
        ],
        rows: LATENCY,
    },
    Grid {
        name: "changes",
        within: "2000 Services that change, {}: changes",
        columns: &[("protobuf", "application/vnd.kubernetes.protobuf"), ("JSON", "application/json")],
        rows: CHANGES,
    },
    Grid {
        name: "commands",
        within: "commands beside a proxy, 20000 x 10: connections",
        columns: &[
            ("time", ""),
            ("peak resident memory", " > peak resident memory"),
            (
                "the proxy's mean sync meanwhile, against none",
                " > a sync of one endpoint meanwhile, mean, against none",
            ),
        ],
        rows: COMMANDS,
    },
    Grid {
        name: "twice",
        within: "",
        columns: &[
            ("time", ""),
            ("twice as many, against that; goal 2.5 x", " > against that"),
            ("this program's part of it", " > against that > our part of it"),
            ("the kernel's", " > against that > the kernel's part"),
        ],
        rows: TWICE,
    },
];
