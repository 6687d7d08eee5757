//! The log of the binary: a slow reader, or none, stops nothing, and each line is one record, whatever text objects hold.
//!
//! Runs the binary in a node's namespace (root).

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, PipeReader, PipeWriter, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use std::thread;
use std::time::{Duration, Instant};

use crate::support::objects::{node, service, service_cidr, slice};
use crate::support::plan::Family::V4;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config};
use crate::support::strace;
use crate::support::world::World;
use rustix::fs::OFlags;
use rustix::pipe::fcntl_setpipe_size;
use serde_json::{Value, json};

const HTTP: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const DROPPED: &str = "kubeproxy_nft_log_lines_dropped_total";
const HEALTHZ: &str = "127.0.0.1:10256";
const PATIENCE: Duration = Duration::from_secs(20);

/// The slice of the one Service, with endpoint `n` alone.
fn endpoint(n: u8) -> Value {
    slice("shop", "web", "web-1", &[V4.endpoint(n)], &HTTP)
}

/// A Service on endpoint 0.
fn cluster() -> Vec<Value> {
    let web = service("shop", "web").cluster_ip(V4.cluster_ip(1)).port("http", Proto::Tcp, 80).json();
    vec![node(), service_cidr(), web, endpoint(0)]
}

/// Waits until a condition holds.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Replaces the Service's endpoint, and waits until a connection reaches the new one.
fn move_to(proxy: &Proxy<'_>, world: &World, n: u8) {
    proxy.manifests().apply(&endpoint(n));
    let flow = || Flow::new(Proto::Tcp, V4.shell(), V4.cluster_ip(1), 80);
    wait_for(
        &format!("a connection reaches endpoint {n}"),
        || matches!(probe(&world.shell, flow()), Outcome::Reached(answer) if answer.endpoint == V4.endpoint(n)),
    );
}

/// A pipe of the smallest size that there is.
pub(super) fn narrow_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    fcntl_setpipe_size(&writer, 4096).unwrap();
    (reader, writer)
}

/// Writes into a pipe until nothing more fits. The pipe is opened anew for that: a flag of the writer that is there would be the
/// proxy's too.
pub(super) fn fill(pipe: &PipeWriter) {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
    let mut end = OpenOptions::new().write(true).custom_flags(flags).open(path).unwrap();
    for chunk in [&[b'x'; 512][..], b"x"] {
        let error = std::iter::repeat_with(|| end.write_all(chunk)).find_map(Result::err);
        assert_eq!(error.unwrap().kind(), ErrorKind::WouldBlock);
    }
}

/// A Service with 20,000 endpoints, each of which is a line of the log from `-v=4` on: more than wait for a reader.
fn write_much_to_log(proxy: &Proxy<'_>) -> PathBuf {
    let address = |n: u32| IpAddr::from(Ipv4Addr::from(0x0ac8_0000 + n));
    let slices = (0..20).map(|part| {
        let endpoints: Vec<IpAddr> = (0..1_000).map(|n| address(part * 1_000 + n)).collect();
        slice("shop", "many", &format!("many-{part}"), &endpoints, &HTTP)
    });
    let many = service("shop", "many").cluster_ip(V4.cluster_ip(2)).port("http", Proto::Tcp, 80).json();
    let items: Vec<Value> = slices.chain([many]).collect();
    let path = proxy.manifests().path().join("many.json");
    fs::write(&path, json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()).unwrap();
    path
}

fn dropped(proxy: &Proxy<'_>) -> u64 {
    let text = proxy.get("127.0.0.1:10249", "/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(DROPPED)).map(str::trim);
    value.unwrap_or_else(|| panic!("no {DROPPED} in {text}")).parse().unwrap()
}

/// The number in the line about dropped lines.
fn number_of_dropped(line: &str) -> Option<u64> {
    line.split_once("\"Dropped log lines because the reader of the log was too slow\" lines=")?.1.parse().ok()
}

#[test]
fn a_log_that_no_program_reads_stops_nothing() {
    let world = World::new();
    let (reader, writer) = narrow_pipe();
    let mut config = config();
    // Each sync is logged then, by its own thread.
    config["logging"] = json!({ "verbosity": 4 });
    let mut proxy = Proxy::prepare(&world.node, &config, &cluster());
    proxy.set_stderr(writer.try_clone().unwrap().into());
    proxy.launch();
    fill(&writer);
    for n in [1, 2, 3, 0] {
        move_to(&proxy, &world, n);
    }
    assert_eq!(dropped(&proxy), 0);

    let many = write_much_to_log(&proxy);
    wait_for("lines are dropped", || dropped(&proxy) > 0);
    move_to(&proxy, &world, 1);
    let answer = proxy.get(HEALTHZ, "/livez");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    fs::remove_file(many).unwrap();
    proxy.wait_until_quiet();

    let count = dropped(&proxy);
    let mut lines = BufReader::new(reader.try_clone().unwrap()).lines();
    let number =
        lines.find_map(|line| number_of_dropped(&line.unwrap())).expect("the log says how many lines are missing");
    assert!(number >= count, "{number} in the log, {count} counted before");
    assert_eq!(number, dropped(&proxy));
    move_to(&proxy, &world, 2);

    drop(lines);
    fill(&writer);
    let asked = Instant::now();
    assert!(proxy.stop().success());
    assert!(asked.elapsed() < Duration::from_secs(5), "SIGTERM: {:?}", asked.elapsed());
}

#[test]
fn a_start_and_an_error_at_its_end_do_not_wait_for_a_reader() {
    let world = World::new();
    let (reader, writer) = narrow_pipe();
    fill(&writer);
    let mut proxy = Proxy::prepare(&world.node, &config(), &cluster());
    proxy.set_stderr(writer.try_clone().unwrap().into());
    proxy.launch();
    let mut other = config();
    other["nftables"]["masqueradeAll"] = true.into();
    fs::write(proxy.config_path(), other.to_string()).unwrap();
    assert_eq!(proxy.wait_for_end().code(), Some(1));

    // With a reader, the error comes out.
    drop((reader, writer));
    let (reader, writer) = narrow_pipe();
    proxy.set_stderr(writer.into());
    proxy.launch();
    fs::write(proxy.config_path(), config().to_string()).unwrap();
    proxy.set_stderr(fs::File::open("/dev/null").unwrap().into());
    let read = thread::spawn(|| std::io::read_to_string(reader).unwrap());
    assert_eq!(proxy.wait_for_end().code(), Some(1));
    let log = read.join().unwrap();
    assert!(log.contains("\"Error running ProxyServer\" err=\"content of the proxy server's configuration"), "{log}");
}

#[test]
fn a_sync_thread_that_is_stuck_is_reported_by_livez_and_healthz() {
    let world = World::new();
    let mut config = config();
    config["nftables"]["syncPeriod"] = "1s".into();
    let proxy = Proxy::start(&world.node, &config, &cluster());
    let answers = |path| proxy.get(HEALTHZ, path);
    wait_for("healthy at first", || answers("/healthz").starts_with("HTTP/1.1 200 OK\r\n"));

    // strace holds the thread in its next call to netlink for a minute, or until strace ends.
    let mut strace = strace::hold(&thread_of(&proxy, "sync"));
    let mut turn = 0;
    for path in ["/livez", "/healthz"] {
        wait_for("unhealthy", || {
            // A change, so that the sync thread calls netlink.
            turn += 1;
            proxy.manifests().apply(&endpoint(turn % 4));
            answers(path).starts_with("HTTP/1.1 503 Service Unavailable\r\n")
        });
    }
    let answer = answers("/livez");
    let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!((&body["healthy"], &body["status"]["IPv4"]["healthy"]), (&json!(false), &json!(false)), "{body}");
    assert!(body["reason"].as_str().unwrap().starts_with("the sync thread has been busy for "), "{body}");

    strace.kill().unwrap();
    strace.wait().unwrap();
    wait_for("healthy again", || answers("/livez").starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(!answers("/livez").contains("reason"));
}

/// The id of the proxy's thread of this name.
fn thread_of(proxy: &Proxy<'_>, name: &str) -> String {
    let mut tasks = fs::read_dir(format!("/proc/{}/task", proxy.pid())).unwrap().map(|task| task.unwrap().path());
    let is_it = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap().trim_end() == name;
    let task = tasks.find(is_it).unwrap_or_else(|| panic!("no thread {name}"));
    task.file_name().unwrap().to_str().unwrap().to_owned()
}

/// What a tenant would like to see in the log: lines of his own, and text that a terminal shows in another order or another place.
const FOREIGN: &str =
    "x\nE0101 00:00:00.000000       1 FORGED.go:1] \"FORGED\"\r\u{1b}[2J\u{85}\u{2028}\u{2029}\u{202e}\u{2066}\u{9b}y";

/// The same, as far as YAML takes it.
const FOREIGN_IN_YAML: &str = "x\nE0101 00:00:00.000000       1 FORGED.go:1] \"FORGED\"\r\u{1b}[2Jy";

/// JSON that is ASCII, as YAML has no place for control characters.
fn ascii(value: &Value) -> String {
    let escape = |c: char| if c.is_ascii() { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) };
    value.to_string().chars().map(escape).collect()
}

/// Services with foreign text in a name, a field's name, and values.
fn foreign_objects(text: &str) -> [Value; 5] {
    let mut objects = [(); 5].map(|()| cluster().swap_remove(2));
    objects[0]["metadata"]["name"] = text.into();
    objects[1]["spec"][text] = 1.into();
    objects[2]["spec"]["ports"][0]["protocol"] = text.into();
    objects[3]["spec"]["ports"][0]["port"] = text.into();
    objects[4]["spec"]["externalIPs"] = json!([text]);
    objects
}

/// Manifests with such objects, and one whose file has foreign text as its name.
fn write_foreign(proxy: &Proxy<'_>) {
    for (number, object) in foreign_objects(FOREIGN).iter().enumerate() {
        fs::write(proxy.manifests().path().join(format!("foreign-{number}.json")), ascii(object)).unwrap();
    }
    fs::write(proxy.manifests().path().join(format!("foreign {FOREIGN}.json").replace('/', "")), "{").unwrap();
    fs::write(proxy.manifests().path().join("last.json"), "{").unwrap();
}

/// A configuration whose errors are several lines with foreign text.
fn write_bad_configuration(proxy: &Proxy<'_>) {
    let mut bad = config();
    bad["mode"] = FOREIGN_IN_YAML.into();
    bad["clusterCIDR"] = FOREIGN_IN_YAML.into();
    fs::write(proxy.config_path(), bad.to_string()).unwrap();
}

/// The log of a proxy that met foreign text.
fn log_of_foreign_text(format: &str) -> String {
    let world = World::new();
    let mut config = config();
    config["logging"] = json!({ "format": format });
    config["nftables"][FOREIGN_IN_YAML] = 1.into();
    let mut proxy = Proxy::start(&world.node, &config, &cluster());
    write_foreign(&proxy);
    wait_for("the last file is complained about", || proxy.log().contains("last.json"));
    write_bad_configuration(&proxy);
    wait_for("the configuration is refused", || proxy.log().contains("not valid and not used"));
    proxy.stop();
    let log = proxy.log();
    assert!(log.matches("FORGED").count() >= 7, "{log:?}");
    log
}

/// Whether text has what moves a cursor, ends a line or turns the direction of writing.
fn has_controls(line: &str) -> bool {
    let turns =
        |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    line.contains(|c: char| c.is_control() || turns(c))
}

#[test]
fn only_the_first_line_of_a_record_looks_like_one() {
    let log = log_of_foreign_text("text");
    let mut is_in_value = false;
    for line in log.split_terminator('\n') {
        if is_in_value && line.starts_with('\t') {
            assert!(!has_controls(line.trim_start_matches('\t')), "a control character: {line:?}");
            continue;
        }
        // The end of a value of several lines, or a record that ends with the first line of one.
        assert!(line.starts_with(" >") == is_in_value, "no record of ours: {line:?}");
        let is_record = !is_in_value && ["I", "W", "E"].iter().any(|severity| line.starts_with(severity));
        let is_ours = line.split_once("] \"").is_some_and(|(header, _)| header.contains(".rs:"));
        assert!((is_in_value || is_record && is_ours) && !has_controls(line), "no record of ours: {line:?}");
        is_in_value = line.ends_with("=<");
    }
}

#[test]
fn each_line_of_the_json_log_is_one_record() {
    let log = log_of_foreign_text("json");
    for line in log.split_terminator('\n') {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let is_ours = record["caller"].as_str().is_some_and(|caller| caller.contains(".rs:"));
        assert!(is_ours && !has_controls(line), "no record of ours: {line:?}");
    }
    let says = |text: &str| log.lines().any(|line| line.contains(text));
    assert!(says("\\u202e"), "{log}");
}

/// The most bytes of log that a document of a manifest, or the configuration, may cause.
const OF_DOCUMENT: usize = 16 << 10;

#[test]
fn manifests_and_the_configuration_cause_a_bounded_amount_of_log() {
    // Values are cut, and messages about one file are limited (O21).
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &cluster());
    let logged = |what: &str, last: &str, write: &dyn Fn()| {
        let (before, times) = (proxy.log().len(), proxy.log().matches(last).count());
        write();
        wait_for(what, || proxy.log().matches(last).count() > times);
        proxy.log().len() - before
    };
    let texts = ["\u{1}", "\n", "\u{202e}"].map(|fill| format!("x{}", fill.repeat(240_000 / fill.len())));
    let write = |file: &str, text: &str| fs::write(proxy.manifests().path().join(file), text).unwrap();
    for (number, text) in texts.iter().enumerate() {
        for (field, object) in foreign_objects(text).iter().enumerate() {
            let last = format!("b-{number}-{field}.json");
            let bytes = logged("the last file", &last, &|| {
                write(&format!("a-{number}-{field}.json"), &ascii(object));
                write(&last, "{");
            });
            assert!(bytes < OF_DOCUMENT, "object {field} with text {number}: {bytes} bytes of log");
        }
        let mut bad = config();
        for field in ["mode", "clusterCIDR", text] {
            bad[field] = text.as_str().into();
        }
        let bytes = logged("the configuration", "not valid and not used", &|| {
            fs::write(proxy.config_path(), ascii(&bad)).unwrap();
        });
        assert!(bytes < OF_DOCUMENT, "a configuration with text {number}: {bytes} bytes of log");
    }
    let bytes = logged("the last document", "\"Left out messages about objects", &|| {
        write("many.yaml", &vec![ascii(&foreign_objects("x")[4]); 3_000].join("\n---\n"));
    });
    assert!(bytes < 200 << 10, "{bytes} bytes of log for a file of 3,000 documents");
    proxy.stop();
    let before = proxy.log().len();
    proxy.spawn();
    proxy.wait_for_end();
    assert!(proxy.log().len() - before < OF_DOCUMENT, "a start with the last configuration");
}
