//! `kube-proxy stats`: which requests get a page, what the pages show, and what the process may do.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::run;
use crate::support::mixed;
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects::slices;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, binary, config};
use crate::support::world::World;

const PATIENCE: Duration = Duration::from_secs(30);
const ADDRESS: &str = "127.0.0.1:8080";

/// The server of the pages in a node's namespace; killed when dropped.
pub(super) struct Stats<'world> {
    node: &'world Namespace,
    child: Child,
}

/// An answer: its status, its header in small letters, and its body.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) header: String,
    pub(super) body: String,
}

impl<'world> Stats<'world> {
    /// Starts `kube-proxy stats ARGUMENTS`, and waits until it serves.
    pub(super) fn start(node: &'world Namespace, arguments: &[&str]) -> Self {
        let mut command = node.command(binary());
        let mut child = command.arg("stats").args(arguments).stdout(Stdio::piped()).spawn().expect("it can be run");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it can be read");
        assert!(line.starts_with("Serving http://"), "{line:?}");
        Self { node, child }
    }

    /// The answer to a GET with the right Host.
    pub(super) fn get(&self, path: &str) -> Answer {
        self.ask(ADDRESS, &format!("GET {path} HTTP/1.1\r\nHost: {ADDRESS}\r\n"))
    }

    /// The answer to the first lines of a request.
    fn ask(&self, address: &str, lines: &str) -> Answer {
        let text = self.node.enter(|| {
            let mut stream = TcpStream::connect(address).expect("the server listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a time-out");
            write!(stream, "{lines}Connection: close\r\n\r\n").expect("a request can be written");
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("the answer is text");
            text
        });
        let (header, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = header.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {header}"));
        Answer { status, header: header.to_lowercase(), body: body.to_owned() }
    }

    /// Waits until a page has this text, and returns its body.
    fn wait_for(&self, path: &str, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let body = self.get(path).body;
            if body.contains(text) {
                return body;
            }
            assert!(Instant::now() < end, "no {text} in {path}: {body}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Stats<'_> {
    fn drop(&mut self) {
        // The process may have ended on its own; then there is nothing to kill.
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// A node with the rules of the cluster `kube-dns` in which one Service has another name.
pub(super) fn node_with(name: &str) -> Namespace {
    let node = Namespace::new("stats");
    let rules = rules();
    assert!(rules.contains("ym/echo-app"));
    nft::load(&node, &rules.replace("ym/echo-app", name));
    node
}

/// The rules of the cluster `kube-dns`: three Services.
pub(super) fn rules() -> String {
    let path = format!("{}/nft/rulesets/maps/kube-dns.nft", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(Path::new(&path)).expect("the ruleset can be read")
}

// A page loads nothing from elsewhere (Q13).
#[test]
fn each_page_answers_and_may_load_nothing_from_elsewhere() {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    let stats = Stats::start(&world.node, &[]);
    let list = stats.get("/");
    for (path, status, text) in [
        ("/", 200, "shop/sticky"),
        ("/?q=sticky&state=served&sort=open&page=1", 200, "1 to 1 of 1"),
        ("/service/shop/web", 200, "4 (2 local)"),
        ("/service/shop/empty", 200, "no EndpointSlice has an IPv4 one"),
        ("/service/shop/wbe", 404, "did you mean shop/web"),
        ("/service/shop", 404, "There is no such page"),
        ("/history", 200, "first sync of 6 Services"),
        ("/explain", 200, "Nothing is sent"),
        ("/explain?from=10.244.1.99&to=shop%2Fweb%3Ahttp&protocol=tcp", 200, "one of 4 endpoints"),
        ("/explain?from=10.244.1.99&to=10.96.0.1%3A53&protocol=udp", 200, "shop/web:dns"),
        ("/explain?from=10.244.1.99&to=10.96.0.1&protocol=icmp", 200, "ICMP"),
        ("/explain?from=nobody&to=10.96.0.1%3A80", 200, "cannot read the source: expected IP"),
        ("/explain?from=10.244.1.99&to=shop%2Fno", 200, "no Service shop/no"),
        ("/explain?from=10.244.1.99&to=fd00%3A10%3A96%3A%3A1", 200, "cannot read the destination"),
        ("/style.css", 200, "prefers-color-scheme:dark"),
        ("/live.js", 200, "fetch(location.href)"),
        ("/icon.svg", 200, "<svg"),
        ("/favicon.ico", 404, "There is no such page"),
        ("/..%2f..%2fetc/passwd", 404, "There is no such page"),
    ] {
        let answer = stats.get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.body.contains(text), "no {text} in {path}: {}", answer.body);
        for line in [
            "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(answer.header.lines().any(|found| found == line), "no {line} at {path}: {}", answer.header);
        }
        let elsewhere = answer.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("://") && !elsewhere.contains("url("), "{path}: {elsewhere}");
    }
    assert!(list.body.contains("refused") && list.body.contains("6 Services"), "{}", list.body);

    // What happens is on the pages: a change with its Service, and a proxy that is gone.
    proxy.apply(&slices("shop", "web", &[0], &[("http", Proto::Tcp, 8080)]));
    let history = stats.wait_for("/history", " -10.244.1.11:8080");
    assert!(history.contains("<a href=\"/service/shop/web\">shop/web</a>"), "{history}");
    stats.wait_for("/service/shop/web", " -10.244.1.11:8080");
    proxy.kill();
    stats.wait_for("/history", "What the proxy changed is not known");
    assert_eq!(stats.get("/").status, 200, "the rules are there without a proxy");
}

// A web site whose name has the address 127.0.0.1 gets a browser to ask for the pages, with its own name as Host (Q13).
#[test]
fn only_requests_for_this_address_get_a_page() {
    let node = node_with("ym/echo-app");
    let stats = Stats::start(&node, &["--listen", "[::1]:8080"]);
    let ask = |lines: &str| stats.ask("[::1]:8080", lines);
    for host in ["[::1]:8080", "localhost:8080", "127.0.0.1:8080"] {
        assert_eq!(ask(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n")).status, 200, "{host}");
    }
    for request in [
        "GET / HTTP/1.1\r\nHost: evil.example:8080\r\n",
        "GET /style.css HTTP/1.1\r\nHost: evil.example:8080\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\n",
        "GET / HTTP/1.1\r\nHost: localhost:8081\r\n",
        "GET / HTTP/1.1\r\nHost: \r\n",
        "GET / HTTP/1.0\r\n",
        "GET / HTTP/1.1\r\nHost: localhost:8080\r\nHost: evil.example:8080\r\n",
        "GET http://evil.example:8080/ HTTP/1.1\r\nHost: localhost:8080\r\n",
    ] {
        let answer = ask(request);
        assert_eq!(answer.status, 421, "{request}");
        assert!(
            answer.body.starts_with("this server answers only requests whose Host is its own address"),
            "{}",
            answer.body
        );
    }
    for method in ["POST", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let answer = ask(&format!("{method} / HTTP/1.1\r\nHost: localhost:8080\r\nContent-Length: 0\r\n"));
        assert_eq!(answer.status, 405, "{method}");
        assert!(answer.header.contains("\r\nallow: get"), "{}", answer.header);
    }
}

// An address that other hosts reach is refused without a flag (Q13).
#[test]
fn an_address_that_other_hosts_reach_needs_a_flag() {
    let node = node_with("ym/echo-app");
    for address in ["0.0.0.0:8080", "[::]:8080", "192.0.2.2:8080"] {
        // A server that does listen is ended after a while, with another code.
        let output = node.command("timeout").arg("20").arg(binary()).args(["stats", "--listen", address]).output();
        let output = output.expect("it can be run");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(&format!("cannot listen on {address}")) && error.contains("--allow-remote"), "{error}");
    }
    node.ip(&["addr add 192.0.2.2/32 dev lo"]);
    let stats = Stats::start(&node, &["--listen", "0.0.0.0:8080", "--allow-remote"]);
    let ask = |host: &str| stats.ask("192.0.2.2:8080", &format!("GET / HTTP/1.1\r\nHost: {host}\r\n")).status;
    assert_eq!([ask("192.0.2.2:8080"), ask("0.0.0.0:8080"), ask("node.example:8080")], [200, 421, 421]);
    let (code, _, error) = run(&node, &["stats"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("cannot listen for the pages on 127.0.0.1:8080") && error.contains("ss -ltnp"), "{error}");
}

// Before the first request only CAP_NET_ADMIN is left (Q13).
#[test]
fn the_server_keeps_one_capability_and_ends_in_order() {
    let node = node_with("ym/echo-app");
    for signal in [Signal::TERM, Signal::INT] {
        let mut stats = Stats::start(&node, &[]);
        assert_eq!(stats.get("/").status, 200);
        let pid = stats.child.id();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
        for task in tasks {
            let status = fs::read_to_string(task.expect("a thread").path().join("status")).expect("its status");
            let of =
                |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t")).unwrap_or("");
            let net_admin = format!("{:016x}", 1 << 12);
            assert_eq!([of("CapEff"), of("CapPrm"), of("CapBnd")], [&*net_admin; 3], "{status}");
            assert_eq!((of("NoNewPrivs"), of("Seccomp")), ("1", "2"), "{status}");
        }
        let process = Pid::from_raw(pid.try_into().expect("a process id fits")).expect("it is not 0");
        kill_process(process, signal).expect("a child can be signalled");
        assert_eq!(stats.child.wait().expect("it ends").code(), Some(0), "{signal:?}");
    }
    let output = node.command("setpriv").args(["--bounding-set=-net_admin"]).arg(binary()).arg("stats").output();
    let output = output.expect("setpriv can be run");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("CAP_NET_ADMIN"), "{output:?}");
}

// Any program may write any comment into the tables; none becomes markup (Q13).
#[test]
fn a_name_with_markup_in_it_is_text_on_each_page() {
    let node = node_with("ym/<script>alert(1)</script>");
    let stats = Stats::start(&node, &[]);
    let address = "/service/ym/%3Cscript%3Ealert%281%29%3C%2Fscript%3E";
    let list = stats.get("/").body;
    assert!(list.contains(&format!("href=\"{address}\"")), "{list}");
    let to = list.split("<span class=\"address\">").nth(3).and_then(|rest| rest.split('/').next()).expect("an address");
    let explain = format!("/explain?from=10.200.192.7&to={to}");
    for path in
        ["/", address, &explain, "/history?service=%3Cscript%3Ealert(1)", "/explain?from=<script>&to=\"><script>"]
    {
        let answer = stats.get(&path.replace('<', "%3C").replace('>', "%3E").replace('"', "%22"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(answer.body.contains("&lt;script&gt;"), "{path}: {}", answer.body);
        assert_eq!(answer.body.matches("<script").count(), 1, "{path}: {}", answer.body);
    }
}

// The drawing of the command and of the page is one (Q14).
#[test]
fn the_page_draws_what_the_command_draws() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    let stats = Stats::start(&world.node, &[]);
    for (from, to, verdict) in
        [("203.0.113.7", "192.0.2.2:30080", "translated"), ("10.244.1.99", "10.96.0.6:80", "refused")]
    {
        let (_, svg, error) = run(&world.node, &["explain", "--from", from, "--to", to, "-o", "svg"]);
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n") && error.is_empty(), "{svg}{error}");
        assert!(svg.contains(&format!("<desc id=\"way-text\">{verdict}: ")), "{svg}");
        assert_eq!(svg.matches(">decides<").count(), 1, "{svg}");
        // The file has its own paper, style sheet and colours; the shapes behind these are the same.
        let shapes = svg.split_once("rx=\"8\"/>").expect("the paper").1.trim_end();
        let page = stats.get(&format!("/explain?from={from}&to={to}")).body;
        assert!(page.contains(shapes), "{shapes} is not in {page}");
    }
}

#[test]
fn what_is_wrong_with_the_tables_is_on_top() {
    let empty = Namespace::new("empty");
    let stats = Stats::start(&empty, &[]);
    let answer = stats.get("/");
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("no kube-proxy of this program has written its rules here"), "{}", answer.body);

    let node = node_with("ym/echo-app");
    nft::load(&node, "add table ip kube-proxy { flags dormant; }");
    let stats = Stats::start(&node, &[]);
    let list = stats.get("/").body;
    let problem = list.find("The IPv4 table is dormant").unwrap_or_else(|| panic!("{list}"));
    assert!(problem < list.find("ym/echo-app").expect("the Services"), "{list}");
}

// However often the pages are asked for, the tables are read once in two seconds (Q13).
#[test]
fn one_reading_serves_the_requests_of_two_seconds() {
    let node = node_with("ym/echo-app");
    let stats = Stats::start(&node, &[]);
    for number in 0.. {
        assert!(number < 20, "the machine was too slow each time");
        let name = format!("new/s{number}");
        stats.wait_for("/", "Read from the kernel 0 s ago");
        // This reading may be half a second old.
        let start = Instant::now();
        let element = format!("{{ 10.97.0.{} . tcp . 80 comment \"{name}\" : goto KUBE-REJECT }}", number + 1);
        nft::load(&node, &format!("add element ip kube-proxy no-endpoints {element}"));
        let is_there = (0..5).any(|_| stats.get("/").body.contains(&name));
        let took = start.elapsed();
        stats.wait_for("/", &name);
        if took < Duration::from_millis(1_200) {
            assert!(!is_there, "it was read again after {took:?}");
            return;
        }
    }
}
