use clap::Parser as _;
use serde_json::json;

use super::*;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(arguments: &[&str]) -> Result<Args, String> {
    let line = Line::try_parse_from(std::iter::once("changes").chain(arguments.iter().copied()));
    line.map(|line| line.args).map_err(|error| error.to_string())
}

fn entries() -> Vec<Entry> {
    let endpoints = |added: &[&str], removed: &[&str], before: usize, after: usize| {
        json!({
            "before": before, "after": after, "added": added, "moreAdded": 0, "removed": removed, "moreRemoved": 0,
        })
    };
    let service = |number: u32, result: &str, error: Option<&str>, endpoints: &serde_json::Value| {
        json!({
            "number": number, "time": format!("2026-11-22T21:05:0{number}.123456Z"), "sync": number + 40, "kind": "service",
            "service": "shop/web", "action": "changed", "trigger": {"kind": "slice", "object": "shop/web-x1"},
            "latencySeconds": 0.000_412, "clusterLatencySeconds": 1.25, "result": result, "error": error,
            "fields": [], "fronts": [], "moreFronts": 0, "endpoints": endpoints,
        })
    };
    let found = json!([
        service(1, "committed", None, &endpoints(&["10.244.1.9:8080"], &["10.244.1.2:8080"], 3, 3)),
        service(2, "refused", Some("cannot commit: no"), &endpoints(&[], &["10.244.1.9:8080"], 3, 2)),
        {
            "number": 3, "time": "2026-11-22T21:05:03Z", "sync": 43, "kind": "repair",
            "by": [{"name": "nft", "pid": 4711}], "found": [], "services": ["shop/web"], "moreServices": 0, "times": 1,
            "elementsAdded": 1, "elementsRemoved": 0,
        },
        {
            "number": 4, "time": "2026-11-22T21:05:04Z", "sync": null, "kind": "apiServer", "state": "lost",
            "resource": "services", "error": "https://192.0.2.1:6443: connection refused", "lastedSeconds": null,
        },
    ]);
    serde_json::from_value(found).unwrap()
}

fn printed(print: impl FnOnce(&mut Output<'_>)) -> String {
    let mut bytes = Vec::new();
    print(&mut Output::to(&mut bytes, false));
    String::from_utf8(bytes).unwrap()
}

#[test]
fn entries_are_a_table_for_people() {
    let text = printed(|out| out.table(&table(&entries(), false)).unwrap());
    let expected = "\
TIME                      SYNC  SERVICE   TRIGGER            LATENCY  RESULT     CHANGE
2026-11-22T21:05:01.123Z    41  shop/web  slice shop/web-x1   412 us  committed  endpoints 3 -> 3: +10.244.1.9:8080 -10.244.1.2:8080
2026-11-22T21:05:02.123Z    42  shop/web  slice shop/web-x1   412 us  refused    endpoints 3 -> 2: -10.244.1.9:8080; cannot commit: no
2026-11-22T21:05:03.000Z    43  -         repair                   -  committed  nft (pid 4711) had changed the tables of shop/web; repaired: +1 -0 elements
2026-11-22T21:05:04.000Z     -  -         -                        -  -          API server lost (services): https://192.0.2.1:6443: connection refused
";
    assert_eq!(text, expected);
    let wide = printed(|out| out.table(&table(&entries(), true)).unwrap());
    assert!(wide.lines().next().unwrap().contains("SINCE-CLUSTER  NUMBER") && wide.contains("1.2 s"), "{wide}");
}

#[test]
fn a_reader_that_follows_gets_a_line_an_entry() {
    let text = |format| {
        let (first, rest) = (entries()[..1].to_vec(), entries()[1..].to_vec());
        printed(|out| {
            let mut widths = None;
            [first, rest].iter().for_each(|some| print(some, format, &mut widths, out).unwrap());
        })
    };
    let table = text(Format::Table);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 5 && lines[0].starts_with("TIME ") && !table[1..].contains("TIME "), "{table}");
    let at = |line: &str, word: &str| line.find(word).unwrap();
    assert_eq!(at(lines[0], "RESULT"), at(lines[1], "committed"), "{table}");
    assert_eq!(at(lines[0], "CHANGE"), at(lines[4], "API server lost"), "{table}");
    let json = text(Format::Json);
    let read: Vec<Entry> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, entries());
    assert_eq!(text(Format::Yaml).matches("---\n").count(), 4);
}

#[test]
fn what_the_kernel_did_not_take_is_something_that_was_found() {
    let [committed, refused, repaired, lost] = &entries()[..] else { panic!("four entries") };
    let of = |entry: &Entry| outcome(std::slice::from_ref(entry));
    assert_eq!([of(committed), of(refused), of(repaired), of(lost)].map(CommandOutcome::exit_code), [0, 1, 0, 0]);
}

#[test]
fn the_address_is_that_of_the_flag_or_of_the_file() {
    let address = |arguments: &[&str]| args(arguments).unwrap().metrics.address().map(|address| address.to_string());
    assert_eq!(address(&[]).unwrap(), "127.0.0.1:10249");
    assert_eq!(address(&["--metrics-bind-address", "192.0.2.1"]).unwrap(), "192.0.2.1:10249");
    assert_eq!(address(&["--metrics-bind-address=[::1]:99"]).unwrap(), "[::1]:99");
    let file = std::env::temp_dir().join(format!("kube-proxy-changes-{}.yaml", std::process::id()));
    let text =
        "{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, metricsBindAddress: '0.0.0.0:7'}";
    std::fs::write(&file, text).unwrap();
    let found = address(&["--config", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(found.unwrap(), "0.0.0.0:7");
    let missing = address(&["--config", "/does/not/exist"]).unwrap_err();
    assert!(format!("{missing:#}").contains("/does/not/exist"), "{missing:#}");
}

#[test]
fn wrong_arguments_are_named() {
    for (arguments, text) in [
        (["--since", "5"], "expected a number with a unit"),
        (["--since", "-5m"], "less than nothing"),
        (["--service", "shop/"], "NAMESPACE/NAME"),
    ] {
        let [name, value] = arguments;
        let error = args(&[&format!("{name}={value}")]).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
}
