//! The records of a running proxy as the pipelines of a cluster take them: klog's text, and component-base's JSON.
//!
//! A proxy starts, meets a broken object, has its rules changed by another program, loses its API server and finds it again, and ends
//! with an error; a panic is that of a process of its own. Runs the binary in a node's namespace (root).

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use component::config::{LogFormat, LoggingConfig};
use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use regex::Regex;
use serde_json::{Value, json};

use crate::api::cluster::{Cluster, PORTS, served};
use crate::support::apiserver::{Format, wait_for};
use crate::support::nft;
use crate::support::notifications;
use crate::support::objects::{slices, type_of};
use crate::support::proxy::{Proxy, config};

/// What Kubernetes' own set-up of fluentd has for its components (`cluster/addons/fluentd-gcp`), which most pipelines took over: what
/// begins a record, and what is in it.
const FIRST_LINE: &str = r"^\w\d{4}";
const RECORD: &str = r"(?s)^(?<severity>\w)(?<time>\d{4} [^\s]*)\s+(?<pid>\d+)\s+(?<source>[^ \]]+)\] (?<log>.*)";
/// klog's own description of its header, and behind it a quoted message and fields.
const HEADER: &str = r#"^(?<severity>[IWEF])(?<month>\d\d)(?<day>\d\d) (?<time>\d\d:\d\d:\d\d\.\d{6}) (?<pid>[ \d]{7}) (?<file>\w+\.rs):(?<line>\d+)\] (?<rest>.*)$"#;
const MESSAGE: &str = r#"^"(?<message>(?:[^"\\]|\\.)*)"(?<fields>(?: .*)?)$"#;
/// A field: quoted, a list, a number or boolean, or the beginning of several lines.
const FIELD: &str = r#"^ (?<key>[a-z][A-Za-z]*)=(?<value>"(?:[^"\\]|\\.)*"|\[(?:"(?:[^"\\]|\\.)*",?)*\]|-?\d+(?:\.\d+)?|true|false|<$)"#;

/// The minutes by which the text log's zone is before UTC.
const EAST: i32 = 5 * 60 + 30;

/// What a proxy logged that met all of it, and the times of its start and end.
struct Run {
    log: String,
    began: SystemTime,
    ended: SystemTime,
    pid: u32,
}

/// A proxy of this configuration of the log, from its start to its end by an error.
fn run(logging: &Value) -> Run {
    let began = SystemTime::now();
    let cluster = Cluster::new(Format::Protobuf);
    let mut configuration = config();
    configuration["logging"] = logging.clone();
    let mut proxy = Proxy::with_api(&cluster.node, &configuration, &cluster.server.kubeconfig(&json!({})));
    // The zone is read once, before the process gives its rights up.
    proxy.set_wrapper(&["env", "TZ=IST-5:30"]);
    proxy.launch();
    let pid = proxy.pid();
    cluster.server.wait_for_watches();
    let says = |text: &str| wait_for(text, || proxy.log().contains(text).then_some(()));
    says("Synced for the first time");

    let mut lost = slices("shop", "lost", &[0], &PORTS).remove(0);
    lost["metadata"]["labels"] = json!({});
    cluster.server.apply(&[lost]);
    says("Object has a field that cannot be used");

    cluster.server.apply(&served("api", 2));
    cluster.wait_until_serves("api", true);

    notifications::have_writers_named(&cluster.node);
    nft::load(&cluster.node, "flush chain ip kube-proxy nat-prerouting");
    says("Another program changed our rules");

    cluster.server.close();
    says("Failed to watch");
    cluster.server.open();
    says("Watching again");

    let mut other = configuration.clone();
    other["mode"] = "several\nlines".into();
    other["clusterCIDR"] = "several\nlines".into();
    fs::write(proxy.config_path(), other.to_string()).unwrap();
    says("not valid and not used");
    other = configuration.clone();
    other["nftables"]["masqueradeAll"] = true.into();
    fs::write(proxy.config_path(), other.to_string()).unwrap();
    assert_eq!(proxy.wait_for_end().code(), Some(1));
    Run { log: proxy.log(), began, ended: SystemTime::now(), pid }
}

/// The messages that every run has, with their severities as text has them.
const EXPECTED: [(&str, char); 9] = [
    ("Starting kube-proxy", 'I'),
    ("Synced for the first time", 'I'),
    ("Object has a field that cannot be used", 'W'),
    ("Service changed", 'I'),
    ("Another program changed our rules; comparing and repairing them", 'W'),
    ("Failed to watch; trying again", 'W'),
    ("Watching again", 'I'),
    ("The new content of the configuration file is not valid and not used", 'E'),
    ("Error running ProxyServer", 'E'),
];

/// The records of a text log: a first line, and those that follow it.
fn records(log: &str) -> Vec<String> {
    let first = Regex::new(FIRST_LINE).unwrap();
    let mut records: Vec<String> = Vec::new();
    for line in log.lines() {
        match records.last_mut() {
            Some(record) if !first.is_match(line) => *record += &format!("\n{line}"),
            _ => records.push(line.to_owned()),
        }
    }
    records
}

/// The message and the fields of a record of text, whose values are as they stand there.
fn parts(record: &str) -> (String, BTreeMap<String, String>) {
    let (first, _) = record.split_once('\n').unwrap_or((record, ""));
    let header = Regex::new(HEADER).unwrap().captures(first).unwrap_or_else(|| panic!("no header: {record}"));
    // What follows the message in the first line, and in the lines of values.
    let rest = record[first.len() - header["rest"].len()..].to_owned();
    let line = rest.split('\n').next().unwrap_or_default();
    let message = Regex::new(MESSAGE).unwrap().captures(line).unwrap_or_else(|| panic!("no message: {record}"));
    let mut fields = BTreeMap::new();
    let mut rest = &rest[line.len() - message["fields"].len()..];
    let field = Regex::new(&FIELD.replace("<$", "<\n")).unwrap();
    while !rest.is_empty() {
        let found = field.captures(rest).unwrap_or_else(|| panic!("no field: {rest:?} in {record}"));
        rest = &rest[found[0].len()..];
        let mut value = found["value"].to_owned();
        if value == "<\n" {
            let (lines, behind) = rest.split_once("\n >").unwrap_or_else(|| panic!("no end: {record}"));
            assert!(lines.split('\n').all(|line| line.starts_with('\t')), "{record}");
            value = lines.replace("\n\t", "\n").trim_start_matches('\t').to_owned();
            rest = behind;
        }
        assert!(fields.insert(found["key"].to_owned(), value).is_none(), "a field twice: {record}");
    }
    (message["message"].to_owned(), fields)
}

#[test]
fn the_records_of_a_running_proxy_go_through_the_usual_pattern_of_klog() {
    let run = run(&json!({ "verbosity": 6 }));
    let (usual, header) = (Regex::new(RECORD).unwrap(), Regex::new(HEADER).unwrap());
    let zone = TimeZone::fixed(Offset::from_seconds(EAST * 60).unwrap());
    let at = |time: SystemTime| {
        zone.to_datetime(Timestamp::try_from(time).unwrap()).strftime("%m%d %H:%M:%S%.6f").to_string()
    };
    let mut seen = BTreeMap::new();
    for record in records(&run.log) {
        let whole = usual.captures(&record).unwrap_or_else(|| panic!("not taken: {record:?}"));
        let first = header.captures(record.lines().next().unwrap()).unwrap_or_else(|| panic!("no header: {record:?}"));
        assert_eq!((&whole["severity"], &whole["pid"]), (&first["severity"], first["pid"].trim()));
        assert_eq!(whole["pid"], run.pid.to_string());
        assert_eq!(whole["source"], format!("{}:{}", &first["file"], &first["line"]));
        let (began, ended) = (at(run.began), at(run.ended));
        assert!(whole["time"] >= *began && whole["time"] <= *ended, "{record}: not from {began} to {ended}");
        let (message, fields) = parts(&record);
        seen.entry(message).or_insert_with(Vec::new).push((first["severity"].chars().next().unwrap(), fields));
    }
    for (message, severity) in EXPECTED {
        let found = seen.get(message).unwrap_or_else(|| panic!("no {message:?} in {}", run.log));
        assert!(found.iter().all(|(found, _)| *found == severity), "{message}: {found:?}");
    }
    let fields = |message: &str| &seen[message][0].1;
    let first = fields("Synced for the first time");
    assert_eq!((&*first["numServices"], &*first["numEndpoints"]), ("1", "4"), "{first:?}");
    assert!(first["elapsed"].ends_with("s\"") && first.contains_key("sinceStart"), "{first:?}");
    let broken = fields("Object has a field that cannot be used");
    assert_eq!((&*broken["endpointSlice"], broken.contains_key("err")), ("\"shop/lost-v4\"", true), "{broken:?}");
    assert!(fields("Failed to watch; trying again")["err"].contains("refused"));
    assert!(
        fields("Another program changed our rules; comparing and repairing them")["by"].starts_with("[\"nft (pid ")
    );
    let invalid = fields("The new content of the configuration file is not valid and not used");
    assert!(invalid["err"].contains("\n  clusterCIDR: "), "a value of several lines: {invalid:?}");
    assert!(fields("Error running ProxyServer")["err"].contains("configuration file was updated"));
    // Verbosity 6 has the commands to the kernel too.
    assert!(
        seen.contains_key("Running nftables command") && seen.contains_key("SyncProxyRules complete"),
        "{}",
        run.log
    );
}

fn milliseconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1000.0
}

#[test]
fn the_records_of_a_running_proxy_go_through_a_pipeline_of_json() {
    let run = run(&json!({ "verbosity": 6, "format": "json" }));
    let (place, key) = (Regex::new(r"^\w+/\w+\.rs:\d+$").unwrap(), Regex::new("^[a-z][A-Za-z]*$").unwrap());
    let mut types: BTreeMap<String, &str> = BTreeMap::new();
    let mut seen: BTreeMap<String, Value> = BTreeMap::new();
    for line in run.log.lines() {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let fields = record.as_object().unwrap_or_else(|| panic!("no object: {line}"));
        assert!(
            line.starts_with("{\"ts\":") && line.contains(",\"caller\":\"") && line.contains(",\"msg\":\""),
            "{line}"
        );
        let ts = record["ts"].as_f64().unwrap_or_else(|| panic!("no time: {line}"));
        // A hundredth of a millisecond is what floating point may lose here.
        assert!(ts >= milliseconds(run.began) - 0.01 && ts <= milliseconds(run.ended) + 0.01, "{line}");
        assert!(record["caller"].as_str().is_some_and(|caller| place.is_match(caller)), "{line}");
        let is_error = record.get("v").is_none();
        assert!(is_error == (line.ends_with("\"}") && record.get("err").is_some() && is_error), "{line}");
        for (name, value) in fields {
            assert!(key.is_match(name), "{name}: {line}");
            let before = *types.entry(name.clone()).or_insert(type_of(value));
            assert_eq!(before, type_of(value), "{name} has two types: {line}");
        }
        seen.entry(record["msg"].as_str().unwrap_or_else(|| panic!("no message: {line}")).to_owned()).or_insert(record);
    }
    for (message, severity) in EXPECTED {
        let record = seen.get(message).unwrap_or_else(|| panic!("no {message:?} in {}", run.log));
        // The format has no warnings.
        let verbosity = if message == "Service changed" { json!(2) } else { json!(0) };
        assert_eq!(record.get("v"), (severity != 'E').then_some(&verbosity), "{record}");
    }
    assert_eq!(seen["SyncProxyRules complete"]["v"], 4);
    assert_eq!(seen["Running nftables command"]["v"], 6);
    assert_eq!(seen["Synced for the first time"]["numServices"], 1);
    let broken = &seen["Object has a field that cannot be used"];
    assert_eq!(broken["endpointSlice"], json!({ "name": "lost-v4", "namespace": "shop" }));
    let expected = [
        ("ts", "number"),
        ("caller", "string"),
        ("msg", "string"),
        ("v", "number"),
        ("err", "string"),
        ("numServices", "number"),
        ("elapsed", "string"),
        ("service", "object"),
        ("by", "array"),
        ("fullSync", "boolean"),
    ];
    for (name, kind) in expected {
        assert_eq!(types.get(name), Some(&kind), "{name} in {types:?}");
    }
}

/// What a process that panics writes to standard error.
fn panic_in(format: &str) -> String {
    let Output { stderr, .. } = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "log_lines::child_that_panics", "--nocapture"])
        .envs([("FORMAT_OF_THE_LOG", format), ("RUST_BACKTRACE", "1")])
        .stdout(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(stderr).unwrap()
}

#[test]
fn a_panic_is_a_record_of_text() {
    let log = panic_in("text");
    let records = records(&log);
    let record = records.iter().find(|record| record.contains("Observed a panic")).unwrap_or_else(|| panic!("{log}"));
    assert!(record.starts_with('E') && record.contains(" log_lines.rs:"), "{record}");
    let (_, fields) = parts(record);
    assert_eq!((&*fields["panic"], &*fields["thread"]), ("first line\nsecond line", "\"worker\""), "{record}");
    assert!(fields["stacktrace"].lines().count() > 3, "{record}");
}

#[test]
fn a_panic_is_a_record_of_json() {
    let log = panic_in("json");
    let records = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    let record = records.into_iter().find(|record: &Value| record["msg"] == "Observed a panic").expect("a record");
    assert_eq!((&record["panic"], &record["thread"]), (&json!("first line\nsecond line"), &json!("worker")));
    assert!(
        record["caller"].as_str().unwrap().starts_with("process/log_lines.rs:") && record.get("v").is_none(),
        "{log}"
    );
}

#[test]
#[ignore = "run by panic_in, as a process of its own"]
fn child_that_panics() {
    let _ending = component::logging::FlushOnDrop;
    let is_json = std::env::var("FORMAT_OF_THE_LOG").unwrap() == "json";
    let format = if is_json { LogFormat::Json } else { LogFormat::Text };
    component::logging::init(&LoggingConfig { format, ..LoggingConfig::default() });
    let worker = thread::Builder::new().name("worker".to_owned()).spawn(|| panic!("first line\nsecond line")).unwrap();
    worker.join().unwrap_err();
}

/// A proxy with two streams: what it wrote to standard output and to standard error until a change was synced, and then until its end.
fn two_streams(format: &str, options: &Value) -> [[String; 2]; 2] {
    let cluster = Cluster::new(Format::Protobuf);
    let mut configuration = config();
    configuration["featureGates"] = json!({ "LoggingAlphaOptions": true });
    configuration["logging"] = json!({ "format": format, "flushFrequency": "1h", "options": { format: options } });
    let mut proxy = Proxy::with_api(&cluster.node, &configuration, &cluster.server.kubeconfig(&json!({})));
    let path = proxy.directory().join("stderr");
    proxy.set_stderr(File::create(&path).unwrap().into());
    proxy.launch();
    cluster.server.wait_for_watches();
    cluster.server.close();
    let streams = || [proxy.log(), fs::read_to_string(&path).unwrap()];
    wait_for("a warning", || streams().concat().contains("Failed to watch").then_some(()));
    let before = streams();
    fs::write(proxy.config_path(), "kind: Nonsense\n").unwrap();
    wait_for("an error", || streams()[1].contains("not valid and not used").then_some(()));
    assert!(proxy.stop().success());
    [before, [proxy.log(), fs::read_to_string(&path).unwrap()]]
}

// As upstream: only informational lines go to standard output; JSON has no warnings, so that they are among them.
#[test]
fn informational_lines_go_to_standard_output_if_that_is_asked_for() {
    let [_, [stdout, stderr]] = two_streams("text", &json!({ "splitStream": true }));
    assert!(
        stdout.contains("Synced for the first time") && stdout.lines().all(|line| line.starts_with('I')),
        "{stdout}"
    );
    assert!(stderr.contains("Failed to watch") && stderr.contains("not valid and not used"), "{stderr}");
    assert!(stderr.lines().all(|line| !line.starts_with('I')), "{stderr}");

    let [_, [stdout, stderr]] = two_streams("json", &json!({ "splitStream": true }));
    assert!(stdout.contains("Failed to watch") && stdout.lines().all(|line| line.contains(",\"v\":0")), "{stdout}");
    assert!(stderr.contains("not valid and not used") && !stderr.contains("\"v\":"), "{stderr}");
}

#[test]
fn what_is_buffered_comes_out_at_the_end() {
    let [before, [stdout, stderr]] = two_streams("text", &json!({ "splitStream": true, "infoBufferSize": "1Mi" }));
    assert_eq!(before[0], "", "an hour and a mebibyte are far away");
    assert!(before[1].contains("Failed to watch"), "{stderr}");
    assert!(stdout.contains("Starting kube-proxy") && stdout.contains("the rules stay in force"), "{stdout}");
}

// The verbosity of one file.
#[test]
fn vmodule_is_about_source_files() {
    let shows = |pattern: &str| {
        let vmodule = json!([{ "filePattern": pattern, "verbosity": 6 }]);
        let cluster = Cluster::new(Format::Protobuf);
        let mut configuration = config();
        configuration["logging"] = json!({ "vmodule": vmodule });
        let mut proxy = Proxy::with_api(&cluster.node, &configuration, &cluster.server.kubeconfig(&json!({})));
        proxy.launch();
        // All lines are written then.
        assert!(proxy.stop().success());
        let log = proxy.log();
        ["SyncProxyRules complete", "Running nftables command", "Synced\" sync="].map(|text| log.contains(text))
    };
    assert_eq!(shows("nothing"), [false; 3]);
    assert_eq!(shows("sync"), [true, false, false]);
    assert_eq!(shows("k?rnel"), [false, true, false]);
    assert_eq!(shows("l[n-p]g"), [false, false, true]);
}
