//! Turns the facts into lines: what is fine, what is not, and what to do about it. Pure, except that `lines` reads the clock.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nft::{ChainType, Hook, HookedChain};

use super::facts::{Facts, Kernel, Manifests, NoLook, OfConfig, Privileges, Programs, Source};
use super::{Line, Verdict, failure, line, ok, shared, unknown, warning};
use crate::other_proxy::{OtherProxy, Program};
use crate::running::Problem;
use cluster::source::api::{Access, Allowed, ServerReport};
use cluster::source::{NODE_REMEDY, no_such_node};
use component::config::{self, DEFAULT_NODE_PORTS, PortRanges};
use node::configured::NoSettings;
use node::kernel::LOCK;
use node::kernel::leftovers::{FAST_PATH, Left};
use node::kernel::local_ports::LocalPorts;
use node::kernel::sysctl::{self, NoValue};
use rules::model::Family;

/// A certificate that expires within this time gives a warning.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);
/// An answer of the API server that takes longer gives a warning.
const SLOW: Duration = Duration::from_secs(2);
/// The oldest version of nft with which the commands in nft/README.md work.
const OLDEST_NFT: [u32; 3] = [1, 0, 6];

const RIGHTS: &str =
    "run this as root of the node, in its network namespace (for pods: hostNetwork: true and capability NET_ADMIN)";

/// The lines about all facts, area by area.
pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    lines_at(facts, Timestamp::now())
}

/// The lines of the report, with `now` as the current time.
pub(super) fn lines_at(facts: &Facts, now: Timestamp) -> Vec<Line> {
    let config = facts.config.as_ref().ok();
    let mut lines = configuration(facts);
    lines.extend(kernel(&facts.kernel));
    lines.extend(privileges(facts.privileges));
    let runs = facts.programs.proxy.as_ref().is_ok_and(Option::is_some);
    lines.extend(sysctls(config, &facts.kernel, runs, facts.privileges));
    match config {
        Some(config) => lines.extend(source(config, now)),
        None => lines.push(unknown(
            "api-server",
            "without a valid configuration it is not known which API server to ask",
            None,
        )),
    }
    lines.extend(programs(&facts.programs, config));
    lines.extend(shared::lines(&facts.shared));
    lines
}

/// A line for a fact that could not be read.
fn no_look(check: &'static str, what: &str, why: &NoLook) -> Line {
    match why {
        NoLook::NotPermitted => {
            unknown(check, format_args!("{what}: not looked at, this needs CAP_NET_ADMIN"), Some(RIGHTS))
        }
        NoLook::Failed(error) => unknown(check, format_args!("{what}: {error}"), None),
    }
}

fn configuration(facts: &Facts) -> Vec<Line> {
    const AREA: &str = "configuration";
    let mut lines = match &facts.config {
        Ok(config) => vec![ok(
            AREA,
            format_args!("{}: valid; node {}, layout {}", config.origin, config.node_name, config.layout),
        )],
        Err(NoSettings::Invalid(origin, error)) => {
            let error = format!("{error:#}");
            let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
            vec![failure(
                AREA,
                format_args!("{origin}: {error}"),
                "a kube-proxy does not start with it; change what is named",
            )]
        }
        Err(error @ NoSettings::Unseen(_)) => vec![unknown(AREA, error, None)],
    };
    lines.extend(facts.config.iter().filter_map(|config| config.mode_note.as_ref()).map(|note| ok(AREA, note)));
    let warnings = facts.config.iter().flat_map(|config| &config.warnings);
    lines.extend(warnings.map(|text| line(AREA, Verdict::Warning, text, None)));
    lines
}

fn kernel(kernel: &Kernel) -> Vec<Line> {
    const AREA: &str = "kernel";
    let mut lines = vec![match &kernel.too_old {
        None => ok(AREA, format_args!("Linux {}", kernel.release)),
        Some(error) => failure(AREA, error, "use a newer kernel"),
    }];
    for (family, outcome) in &kernel.families {
        lines.push(match outcome {
            Ok(()) => ok(AREA, format_args!("nf_tables has what the rules for {family} need")),
            Err(NoLook::Failed(error)) => {
                failure(AREA, error, "do what this says; before that, a kube-proxy does not start")
            }
            Err(why) => no_look(AREA, &format!("features for {family}"), why),
        });
    }
    if !kernel.families.iter().any(|(family, _)| *family == Family::V6) {
        lines.push(ok(AREA, "IPv6 is switched off: IPv4 is served only"));
    }
    lines
}

fn privileges(privileges: Privileges) -> Vec<Line> {
    const AREA: &str = "privileges";
    let net_admin = match privileges.net_admin {
        Some(true) => ok(AREA, "CAP_NET_ADMIN is there"),
        Some(false) => unknown(
            AREA,
            "CAP_NET_ADMIN is missing: a kube-proxy with the privileges of this process does not start",
            Some(RIGHTS),
        ),
        None => unknown(AREA, "the kernel does not say which capabilities this process has", None),
    };
    let bind = (privileges.net_bind_service == Some(false)).then(|| {
        let text = "CAP_NET_BIND_SERVICE is missing: health-check node ports below 1024 cannot be served";
        warning(AREA, text, "add the capability NET_BIND_SERVICE, or ignore this if there are no such ports")
    });
    [net_admin].into_iter().chain(bind).collect()
}

fn sysctls(config: Option<&OfConfig>, kernel: &Kernel, runs: bool, privileges: Privileges) -> Vec<Line> {
    const AREA: &str = "sysctls";
    let settings = config.map_or(&[][..], |config| &config.sysctls);
    let mut lines: Vec<Line> = settings.iter().map(|setting| sysctl_line(setting, runs, privileges)).collect();
    if config.is_none() {
        lines.push(unknown(AREA, "without a valid configuration it is not known what they should be", None));
    }
    let value = |name: &str| kernel.values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    for (name, family) in [("ipv4/ip_forward", Family::V4), ("ipv6/conf/all/forwarding", Family::V6)] {
        let is_served = kernel.families.iter().any(|(served, _)| *served == family);
        let shown = name.replace('/', ".");
        match value(name).filter(|_| is_served) {
            Some("0") => lines.push(warning(
                AREA,
                format_args!(
                    "net.{shown} is 0: this node forwards no {family} packets, so pods reach no endpoint elsewhere"
                ),
                &format!("sysctl -w net.{shown}=1, and keep it in /etc/sysctl.d"),
            )),
            Some(value) => lines.push(ok(AREA, format_args!("net.{shown} is {value}"))),
            None => {}
        }
    }
    for name in ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"] {
        if kernel.has_bridge && value(name) != Some("1") {
            let (shown, now) = (name.replace('/', "."), value(name).unwrap_or("not there"));
            lines.push(warning(
                AREA,
                format_args!("net.{shown} is {now}: between two pods of one bridge, answers do not come back through the translation"),
                &format!("if pods are attached to a bridge: modprobe br_netfilter, sysctl -w net.{shown}=1"),
            ));
        }
    }
    lines.extend(kernel.local_ports.as_ref().map(|local| node_ports(local, config, runs)));
    lines.extend(conntrack_room(value("netfilter/nf_conntrack_count"), value("netfilter/nf_conntrack_max")));
    lines
}

/// Judges whether the kernel may give node ports to programs (N6). Looks at the ports that a proxy reserves when it starts, or else at the
/// default range.
fn node_ports(local: &LocalPorts, config: Option<&OfConfig>, runs: bool) -> Line {
    const AREA: &str = "sysctls";
    let reserves = config.map(|config| &config.reserves).filter(|ports| !ports.is_empty());
    let ports = reserves.cloned().unwrap_or_else(|| PortRanges::of([DEFAULT_NODE_PORTS]));
    let given = local.given_of(&ports);
    let text = format!("of the node ports {ports} a program that asks for any free port may get {given}");
    match (given.is_empty(), reserves) {
        (true, _) => ok(AREA, format_args!("no program gets a node port ({ports}) when it asks for any free port")),
        (false, Some(_)) if !runs => ok(AREA, format_args!("{text}: a start reserves them")),
        _ => warning(AREA, text, &format!("set {}, and keep it in /etc/sysctl.d", local.line(&ports))),
    }
}

fn conntrack_room(count: Option<&str>, max: Option<&str>) -> Option<Line> {
    let (count, max): (u64, u64) = (count?.parse().ok()?, max?.parse().ok()?);
    let text = format!("{count} of {max} tracked connections are in use");
    if count.saturating_mul(10) < max.saturating_mul(9) {
        return Some(ok("sysctls", text));
    }
    Some(warning(
        "sysctls",
        text,
        "raise conntrack.maxPerCore or conntrack.min: when all are in use, new connections are dropped",
    ))
}

fn sysctl_line(setting: &sysctl::Setting, runs: bool, privileges: Privileges) -> Line {
    const AREA: &str = "sysctls";
    let sysctl::Setting { path, wanted, present, writable, .. } = setting;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let present = match present {
        Err(NoValue::Forbidden(error)) => return unknown(AREA, error, Some(RIGHTS)),
        Err(NoValue::Missing(error)) => {
            return failure(
                AREA,
                error,
                "load kernel module nf_conntrack, or set the conntrack value in the configuration to 0",
            );
        }
        Ok(present) if setting.is_right() => return ok(AREA, format_args!("{name} is {present}")),
        Ok(present) => present,
    };
    let text = format!("{name} is {present}, and the configuration wants {wanted}");
    match writable {
        sysctl::Writable::Yes if runs => warning(
            AREA,
            format_args!("{text}: it was changed after the kube-proxy that runs had set it"),
            "find the program that changes it; a restart sets it again",
        ),
        sysctl::Writable::Yes => ok(AREA, format_args!("{text}: a start sets it")),
        sysctl::Writable::Never => warning(
            AREA,
            format_args!("{text}: it belongs to the machine, not to this network namespace"),
            "set it on the machine",
        ),
        // Without CAP_NET_ADMIN this process cannot tell: a kube-proxy that has it may be able to write the sysctl.
        sysctl::Writable::No if privileges.net_admin != Some(true) => unknown(
            AREA,
            format_args!("{text}: this process cannot write it, and does not know whether the kube-proxy can"),
            Some(RIGHTS),
        ),
        sysctl::Writable::No => failure(
            AREA,
            format_args!("{text}: this process cannot write it"),
            "let a privileged init container run `kube-proxy --init-only` with the same configuration, or set the conntrack value in the \
             configuration to 0 to leave the kernel's as it is",
        ),
    }
}

fn source(config: &OfConfig, now: Timestamp) -> Vec<Line> {
    const AREA: &str = "api-server";
    match &config.source {
        Source::Manifests(dir, Ok(Manifests { problems, lacks_node })) => {
            let problems = problems.iter().map(|problem| line(AREA, Verdict::Warning, problem, None));
            let lines: Vec<Line> = problems.chain(lacks_node.then(|| no_node(AREA, &config.node_name))).collect();
            let fine = || ok(AREA, format_args!("none is used: the manifests of {} have no problem", dir.display()));
            if lines.is_empty() { vec![fine()] } else { lines }
        }
        Source::Manifests(_, Err(error)) => vec![failure(AREA, error, "give --manifests a directory that can be read")],
        Source::Elsewhere(why) => vec![unknown(AREA, why, None)],
        Source::Api(Err(error)) => vec![failure(AREA, error, "correct the kubeconfig or the files that it names")],
        Source::Api(Ok(look)) => [api_server(look, now), permissions(look, &config.node_name)].concat(),
    }
}

fn api_server(look: &ServerReport, now: Timestamp) -> Vec<Line> {
    const AREA: &str = "api-server";
    let url = &look.url;
    let withheld = look.withheld.then(|| {
        let remedy = "use https in the kubeconfig or in --master";
        warning(AREA, format_args!("{url}: no credentials are sent to it, because http does not encrypt them"), remedy)
    });
    let reached = match &look.reached {
        Ok(reached) => reached,
        Err(error) => {
            let remedy = "the permissions were not looked at; repeat this once it answers";
            return [failure(AREA, format_args!("{url}: {error}"), remedy)].into_iter().chain(withheld).collect();
        }
    };
    let through = prefixed(" through ", look.proxy.as_deref().unwrap_or_default());
    let version = prefixed(", version ", &reached.version);
    let text = format!("{url} answers{through} in {} ms{version}", reached.took.as_millis());
    let answer = if reached.took > SLOW {
        warning(AREA, text, "look at the network between this node and the API server, and at the load of the server")
    } else {
        ok(AREA, text)
    };
    let server = reached.certificate_end.map(|end| certificate("the server's certificate", end, now));
    let client = look.client_certificate_end.map(|end| certificate("the client's certificate", end, now));
    let skipped = look.skipped.iter().map(|why| {
        let remedy = "remove it from the CA file, or put the right one there; the others are used";
        warning(AREA, format_args!("the CA file has a certificate that cannot be used: {why}"), remedy)
    });
    let release = config::outside(&reached.version).map(|why| {
        warning(
            AREA,
            why,
            "look for a release of this program for that of the cluster: deploy/COMPATIBILITY.md says what was tried",
        )
    });
    [answer].into_iter().chain(withheld).chain(release).chain(server).chain(client).chain(skipped).collect()
}

fn prefixed(prefix: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{prefix}{text}") }
}

fn certificate(what: &str, end: Timestamp, now: Timestamp) -> Line {
    const AREA: &str = "api-server";
    let left = end.duration_since(now);
    let days = left.as_hours() / 24;
    if left.is_negative() {
        return failure(
            AREA,
            format_args!("{what} ended at {end}"),
            "renew it (kubeadm certs renew), if this node's clock is right",
        );
    }
    let text = format!("{what} ends at {end}, in {days} days");
    if left < SOON { warning(AREA, text, "renew it (kubeadm certs renew)") } else { ok(AREA, text) }
}

fn permissions(look: &ServerReport, node_name: &str) -> Vec<Line> {
    const AREA: &str = "permissions";
    let mut lines: Vec<Line> = look.access.iter().map(permission).collect();
    if look.has_node == Some(false) {
        lines.push(no_node(AREA, node_name));
    }
    lines
}

/// Reports that a Node is missing: a proxy is not ready while there is no Node of its name.
fn no_node(area: &'static str, name: &str) -> Line {
    failure(area, no_such_node(name), NODE_REMEDY)
}

fn permission(access: &Access) -> Line {
    const AREA: &str = "permissions";
    const ROLE: &str = "apply deploy/base/rbac.yaml, or bind the ClusterRole system:node-proxier to this user";
    let Access { verb, resource, is_optional, outcome } = access;
    match outcome {
        Allowed::Yes => ok(AREA, format_args!("{verb} {resource}: allowed")),
        Allowed::NoSuchKind if *is_optional => {
            ok(AREA, format_args!("{verb} {resource}: this cluster has none, and a proxy does without"))
        }
        Allowed::NoSuchKind => failure(
            AREA,
            format_args!("{verb} {resource}: the server has no such kind"),
            "is this the URL of an API server?",
        ),
        Allowed::No(reason) if *is_optional => {
            let text = format!("{verb} {resource}: {reason}; a proxy does without");
            warning(AREA, text, ROLE)
        }
        Allowed::No(reason) => failure(AREA, format_args!("{verb} {resource}: {reason}"), ROLE),
        Allowed::Unknown(reason) => unknown(AREA, format_args!("{verb} {resource}: {reason}"), None),
    }
}

fn programs(programs: &Programs, config: Option<&OfConfig>) -> Vec<Line> {
    const AREA: &str = "other-programs";
    let mut lines = vec![match (&programs.waits, &programs.proxy) {
        (Some(waits), _) => warning(AREA, waits, "what it lacks is named above, and in its log"),
        (None, Ok(Some(proxy))) => ok(AREA, format_args!("a kube-proxy of this program runs: {proxy}")),
        (None, Ok(None)) => ok(AREA, "no kube-proxy of this program runs"),
        (None, Err(why)) => no_look(AREA, "whether a kube-proxy runs", why),
    }];
    lines.extend(programs.other.as_ref().map(other_proxy));
    if programs.proxy == Ok(None) && programs.other.is_none() && programs.waits.is_none() {
        let used = config.iter().flat_map(|config| &config.ports).filter(|(_, _, is_used)| *is_used);
        lines.extend(used.map(|(name, address, _)| {
            let text = format!("another program listens on port {}, which the {name} server needs", address.port());
            warning(AREA, text, "it may be another kube-proxy: find it with `ss -ltnp`, and end one of the two")
        }));
    }
    lines.extend(programs.owned.iter().map(|(family, program)| {
        let problem = Problem::owned(*family, program);
        failure(AREA, problem.text, "when it has ended, a kube-proxy that runs programs the family within 2 s")
    }));
    match &programs.left {
        Ok(left) => lines.extend(leftovers(left)),
        Err(why) => lines.push(no_look(AREA, "rules of other modes of kube-proxy", why)),
    }
    lines.push(nft_program(programs.nft.as_deref()));
    match &programs.chains {
        Ok(chains) => lines.extend(hooks(chains)),
        Err(why) => lines.push(no_look(AREA, "rules of other programs", why)),
    }
    lines.extend(programs.unread.iter().map(|text| unknown(AREA, text, None)));
    lines
}

fn other_proxy(OtherProxy { program, signs }: &OtherProxy) -> Line {
    const AREA: &str = "other-programs";
    let signs = signs.join("; ");
    match program {
        Program::Upstream(mode) => warning(
            AREA,
            format_args!("upstream's kube-proxy in mode {mode} runs on this node: {signs}"),
            "end it before a kube-proxy of this program starts, as deploy/INSTALL.md says",
        ),
        Program::Own => warning(
            AREA,
            format_args!("a kube-proxy of this program runs and has not written its rules yet: {signs}"),
            "its log and its page /readyz say what it waits for",
        ),
        Program::Unknown => warning(
            AREA,
            format_args!("another kube-proxy runs on this node: {signs}"),
            "only one of them may go on: end upstream's as deploy/INSTALL.md says; one of this program waits for the other to end",
        ),
    }
}

fn leftovers(left: &Left) -> Vec<Line> {
    const AREA: &str = "other-programs";
    if *left == Left::default() {
        return vec![ok(AREA, "no rules of kube-proxy's modes iptables and ipvs are left")];
    }
    let removable = left.removable.iter().map(|what| {
        let text = format!("{what} are from kube-proxy in another mode");
        warning(AREA, text, "a start removes them after its first sync; `kube-proxy --cleanup` does when none runs")
    });
    removable.chain(left.unknown.iter().map(|text| unknown(AREA, text, None))).collect()
}

fn nft_program(version: Option<&str>) -> Line {
    const AREA: &str = "other-programs";
    let Some(text) = version else { return ok(AREA, "there is no nft program, and none is needed") };
    let word = text.split_whitespace().find_map(|word| word.strip_prefix('v'));
    let numbers: Vec<u32> =
        word.into_iter().flat_map(|word| word.split('.')).map_while(|part| part.parse().ok()).collect();
    if !numbers.is_empty() && numbers[..] < OLDEST_NFT[..] {
        let remedy = "this program does not need it; the commands of nft/README.md want 1.0.6 or newer";
        return warning(AREA, format_args!("{text} is old: it may not list these tables"), remedy);
    }
    ok(AREA, text)
}

/// Warns of other programs' base chains that may drop packets to Services, or change what our rules see.
fn hooks(chains: &[HookedChain]) -> Vec<Line> {
    const AREA: &str = "other-programs";
    let is_ours = |chain: &&HookedChain| {
        let name = &*chain.outline.table.name;
        name == "kube-proxy" || name == LOCK || name == FAST_PATH
    };
    let others: Vec<&HookedChain> = chains.iter().filter(|chain| !is_ours(chain)).collect();
    let mut lines: Vec<Line> = others.iter().flat_map(|chain| hook(chain)).collect();
    if lines.is_empty() {
        let text = match others.len() {
            0 => "no other program has rules at the hooks of ours".to_owned(),
            1 => "1 base chain of another program: it neither drops nor translates before our rules".to_owned(),
            count => format!("{count} base chains of other programs: none drops or translates before our rules"),
        };
        lines.push(ok(AREA, text));
    }
    lines
}

/// The priority at which our rules translate destinations (`NF_IP_PRI_NAT_DST`).
const DSTNAT: i32 = -100;

fn hook(chain: &HookedChain) -> Vec<Line> {
    const AREA: &str = "other-programs";
    let HookedChain { outline, effects } = chain;
    let hook = format!("{:?}", outline.hook).to_lowercase();
    let place = format!("chain {} of table {} ({hook}, priority {})", outline.chain, outline.table, outline.priority);
    let (before, is_nat) = (outline.priority < DSTNAT, *outline.kind == *ChainType::Nat.name());
    let mut lines = Vec::new();
    match outline.hook {
        Hook::Prerouting | Hook::Output => {
            // Of two chains with the same priority either may run first.
            if effects.translates && (before || is_nat && outline.priority <= DSTNAT) {
                lines.push(warning(
                    AREA,
                    format_args!("{place} may translate destinations before our rules see them"),
                    "give it a priority above -100 (dstnat), or see that it leaves the addresses of Services alone",
                ));
            }
            if effects.untracks && before {
                lines.push(warning(
                    AREA,
                    format_args!("{place} may keep packets out of connection tracking, so that no Service serves them"),
                    "see that its notrack rules leave the addresses of Services and of endpoints alone",
                ));
            }
            if (effects.drops || outline.drops) && before {
                lines.push(warning(
                    AREA,
                    format_args!("{place} may drop packets while they still have the address of a Service"),
                    "see that it lets traffic to Services pass",
                ));
            }
        }
        Hook::Input | Hook::Forward => {
            if outline.drops {
                let what = if outline.hook == Hook::Input { "to this host" } else { "to endpoints elsewhere" };
                lines.push(warning(
                    AREA,
                    format_args!("{place} drops what its rules do not accept"),
                    &format!("see that they accept traffic {what}, which has the address of an endpoint by then"),
                ));
            }
        }
        Hook::Postrouting => {}
    }
    lines
}
