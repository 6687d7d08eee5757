use std::io::Read as _;
use std::sync::Mutex;

use http_body_util::BodyExt as _;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use component::http::testing::{exchange, get, without_date};
use inspect::history::{EntryKind, Repair};

/// Starts a server with every page; returns also the verbosities that clients set.
async fn start() -> (SocketAddr, Server, Arc<Mutex<Vec<u32>>>) {
    let set = Arc::<Mutex<Vec<u32>>>::default();
    let notes = Arc::clone(&set);
    let pages = Pages {
        configz: r#"{"kubeproxy.config.k8s.io":{"mode":"nftables"}}"#.to_owned(),
        flagz: Some(vec![("v".to_owned(), "2".to_owned()), ("config".to_owned(), "/a/b".to_owned())]),
        statusz: Some(Versions { binary: "1.36.2+x".to_owned(), emulation: "1.36".to_owned() }),
        changes: History::new(SystemTime::now()),
        causes: questions::queue(|| ()).0,
        debug: Some(Arc::new(move |level| notes.lock().unwrap().push(level))),
    };
    let (address, server) = serve(pages);
    (address, server, set)
}

/// Pages with all optional ones switched off.
fn none() -> Pages {
    let changes = History::new(SystemTime::now());
    let causes = questions::queue(|| ()).0;
    Pages { configz: "{}".to_owned(), flagz: None, statusz: None, changes, causes, debug: None }
}

fn serve(pages: Pages) -> (SocketAddr, Server) {
    let listener = http::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let router = Arc::new(Router::new(Metrics::new(), pages));
    (address, Server::start(listener, Limits::default(), move |request| Arc::clone(&router).respond(request)))
}

/// Sends a request with these header lines on a new connection; returns the response without the date header.
async fn ask(address: SocketAddr, request: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    let head =
        format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
    without_date(&exchange(address, &(head + body)).await)
}

fn plain(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn fixed_pages_are_exact() {
    let (address, _server, _) = start().await;
    for (path, body) in [
        ("/proxyMode", "nftables"),
        ("/healthz", "ok"),
        ("/healthz/ping", "ok"),
        ("/healthz?verbose", "[+]ping ok\nhealthz check passed\n"),
        ("/healthz?a=b&verbose=1", "[+]ping ok\nhealthz check passed\n"),
    ] {
        assert_eq!(without_date(&get(address, path).await), plain(body), "{path}");
    }
    let body = r#"{"kubeproxy.config.k8s.io":{"mode":"nftables"}}"#;
    let configz = plain(body).replace("text/plain; charset=utf-8", "application/json");
    assert_eq!(without_date(&get(address, "/configz").await), configz);
    let missing = plain("404 page not found\n").replace("200 OK", "404 Not Found");
    for path in ["/", "/nothing", "/metrics/", "/debug", "/debug/pprof/heap"] {
        assert_eq!(without_date(&get(address, path).await), missing, "{path}");
    }
}

/// A history with one repair, and pages that show it.
fn changes() -> (History, Pages) {
    let changes = History::new(SystemTime::now());
    let repair = EntryKind::Repair(Repair { times: 1, ..Repair::default() });
    changes.push(SystemTime::now(), Some(1), repair);
    let pages = Pages { changes: changes.clone(), ..none() };
    (changes, pages)
}

fn json_body(response: &str) -> Value {
    serde_json::from_str(response.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[tokio::test]
async fn the_page_of_changes_goes_on_where_its_reader_stopped() {
    let (changes, pages) = changes();
    let (address, _server) = serve(pages);
    let first = get(address, "/debug/changes").await;
    assert!(first.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"), "{first}");
    let first = json_body(&first);
    assert_eq!((&first["changes"][0]["kind"], &first["last"]), (&json!("repair"), &json!(1)));
    changes.push(SystemTime::now(), Some(2), EntryKind::Repair(Repair::default()));
    let next = json_body(&get(address, "/debug/changes?after=1").await);
    assert_eq!(next["changes"][0]["number"], 2);
    let wrong = get(address, "/debug/changes?since=5m").await;
    assert!(wrong.starts_with("HTTP/1.1 400 Bad Request\r\n") && wrong.contains("not a number of seconds"), "{wrong}");
}

#[tokio::test]
async fn other_hosts_see_changes_only_with_profiling() {
    let ask = |from: &str, pages: Pages| {
        let ends = Ends { client: from.parse().unwrap(), server: "192.0.2.2:10249".parse().unwrap() };
        Router::new(Metrics::new(), pages).changes(Some(ends), "").status()
    };
    for host in ["127.0.0.1:9", "[::1]:9", "[::ffff:127.0.0.1]:9", "192.0.2.2:9"] {
        assert_eq!(ask(host, changes().1), StatusCode::OK, "{host}");
    }
    let profiling = || Pages { debug: Some(Arc::new(|_| {})), ..changes().1 };
    for host in ["192.0.2.3:9", "[2001:db8::1]:9"] {
        assert_eq!(ask(host, changes().1), StatusCode::NOT_FOUND, "{host}");
        assert_eq!(ask(host, profiling()), StatusCode::OK, "{host}");
    }
}

#[tokio::test]
async fn pages_that_are_switched_off_are_not_found() {
    let (address, _server) = serve(none());
    for path in ["/flagz", "/statusz", "/debug/pprof", "/debug/pprof/", "/debug/flags", "/debug/flags/v"] {
        assert!(get(address, path).await.starts_with("HTTP/1.1 404 Not Found\r\n"), "{path}");
    }
}

#[tokio::test]
async fn metrics_come_in_the_format_that_is_asked_for() {
    let (address, _server, _) = start().await;
    let classic = get(address, "/metrics").await;
    assert!(classic.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{classic}");
    assert!(classic.contains("# TYPE kubeproxy_nft_transactions_total counter\n"), "{classic}");
    assert!(!classic.contains("# EOF"));
    let open = ask(address, "GET /metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n", "").await;
    assert!(open.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"), "{open}");
    assert!(open.contains("# TYPE kubeproxy_nft_transactions counter\n") && open.ends_with("\n# EOF\n"), "{open}");
}

#[tokio::test]
async fn service_level_indicators_can_be_reset() {
    let (address, _server, _) = start().await;
    get(address, "/healthz").await;
    get(address, "/healthz").await;
    let slis = get(address, "/metrics/slis").await;
    assert!(slis.contains("\nkubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"), "{slis}");
    let all = "\nkubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 2\n";
    assert!(slis.contains(all), "{slis}");
    assert_eq!(ask(address, "DELETE /metrics/slis", "", "").await, plain("metrics reset\n"));
    assert!(!get(address, "/metrics/slis").await.contains("kubernetes_healthcheck"));
}

/// The lines of a text page, with the separator between name and value replaced by `|`.
fn lines(answer: &str, names: &[&str]) -> Vec<String> {
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let line = |line: &str| {
        let value = names.iter().find_map(|name| line.strip_prefix(name).map(|rest| (name, rest)));
        let Some((name, rest)) = value else { return line.to_owned() };
        let separator = zpages_separator(rest);
        format!("{name}|{}", &rest[separator.len()..])
    };
    body.lines().map(line).collect()
}

fn zpages_separator(rest: &str) -> &'static str {
    let longest_first = [": ", ":", "=", " "];
    longest_first.into_iter().find(|separator| rest.starts_with(separator)).unwrap()
}

#[tokio::test]
async fn flags_as_text_and_as_an_object() {
    let (address, _server, _) = start().await;
    let text = get(address, "/flagz").await;
    let lines = lines(&text, &["config", "v"]);
    assert_eq!((&*lines[0], &*lines[1], &*lines[3]), ("", "kube-proxy flagz", ""));
    assert!(lines[2].starts_with("Warning: "), "{text}");
    assert_eq!(lines[4..], ["config|/a/b", "v|2"]);
    let expected = r#"{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"kube-proxy"},"flags":{"config":"/a/b","v":"2"}}"#;
    let json = ask(address, "GET /flagz", "Accept: application/json;v=v1beta1;g=config.k8s.io;as=Flagz\r\n", "").await;
    let wanted = plain(&format!("{expected}\n")).replace("text/plain; charset=utf-8", "application/json");
    assert_eq!(json, wanted);
    let yaml = ask(address, "GET /flagz", "Accept: application/yaml;v=v1alpha1;g=config.k8s.io;as=Flagz\r\n", "").await;
    assert!(yaml.contains("Content-Type: application/yaml\r\n") && yaml.contains("Warning: 299 - \""), "{yaml}");
    let read: Value = serde_saphyr::from_str(yaml.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(read["apiVersion"], "config.k8s.io/v1alpha1");
    assert_eq!(read["flags"], json!({"config": "/a/b", "v": "2"}));
}

#[tokio::test]
async fn status_as_text_and_as_an_object() {
    let (address, _server, _) = start().await;
    let text = get(address, "/statusz").await;
    let names = ["Started", "Up", "Go version", "Binary version", "Emulation version", "Paths"];
    let lines = lines(&text, &names);
    assert_eq!((&*lines[0], &*lines[1], &*lines[3]), ("", "kube-proxy statusz", ""));
    let found: Vec<_> = lines[4..].iter().map(|line| line.split_once('|').unwrap().0).collect();
    assert_eq!(found, names);
    assert!(["Up|0 hr 00 min 00 sec", "Up|0 hr 00 min 01 sec"].contains(&&*lines[5]), "{}", lines[5]);
    assert_eq!(
        lines[7..],
        ["Binary version|1.36.2+x", "Emulation version|1.36", "Paths|/configz /flagz /healthz /metrics /proxyMode"]
    );
    let accept = "Accept: application/json;v=v1beta1;g=config.k8s.io;as=Statusz\r\n";
    let answer = ask(address, "GET /statusz", accept, "").await;
    let read: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(read["kind"], "Statusz");
    assert_eq!(read["metadata"], json!({"name": "kube-proxy"}));
    assert_eq!(read["emulationVersion"], "1.36");
    assert_eq!(read["paths"], json!(["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"]));
    assert!(read["uptimeSeconds"].is_u64() && read["goVersion"].is_string());
    let started: Timestamp = read["startTime"].as_str().unwrap().parse().unwrap();
    assert!(started.subsec_nanosecond() == 0 && (Timestamp::now() - started).get_seconds().abs() < 60);
}

#[tokio::test]
async fn an_unknown_representation_is_not_acceptable() {
    let (address, _server, _) = start().await;
    for path in ["/flagz", "/statusz"] {
        let answer = ask(address, &format!("GET {path}"), "Accept: application/json\r\n", "").await;
        assert!(answer.starts_with("HTTP/1.1 406 Not Acceptable\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn the_verbosity_can_be_put() {
    let (address, _server, set) = start().await;
    let put = |body: &'static str| ask(address, "PUT /debug/flags/v", "", body);
    assert!(put("4").await.ends_with("\r\n\r\nsuccessfully set klog.logging.verbosity to 4"));
    for body in ["2147483648", "loud", "-1", ""] {
        assert!(put(body).await.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{body}");
    }
    assert_eq!(*set.lock().unwrap(), [4]);
    for method in ["GET", "POST", "DELETE"] {
        let answer = ask(address, &format!("{method} /debug/flags/v"), "", "4").await;
        assert!(answer.starts_with("HTTP/1.1 406 Not Acceptable\r\n"), "{answer}");
    }
    assert!(get(address, "/debug/flags").await.contains("/debug/flags/v"));
}

#[tokio::test]
async fn the_page_of_profiles_says_why_it_is_empty() {
    let (address, _server, _) = start().await;
    let answer = get(address, "/debug/pprof").await;
    assert!(
        answer.starts_with("HTTP/1.1 302 Found\r\n") && answer.contains("\r\nLocation: /debug/pprof/\r\n"),
        "{answer}"
    );
    assert!(get(address, "/debug/pprof/").await.contains("written in Rust"));
}

#[tokio::test]
async fn metrics_are_compressed_for_clients_that_take_gzip() {
    let text = "# TYPE a gauge\na 1\n# EOF\n";
    let mut headers = HeaderMap::new();
    let plain = exposition(&headers, text.to_owned());
    assert!(plain.headers().get(CONTENT_ENCODING).is_none());
    assert_eq!(plain.headers()[VARY], "accept-encoding");
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    let compressed = exposition(&headers, text.to_owned());
    assert_eq!(compressed.headers()[CONTENT_ENCODING], "gzip");
    assert_eq!(compressed.headers()[CONTENT_TYPE], plain.headers()[CONTENT_TYPE]);
    let body = |response: Response| async { response.into_body().collect().await.unwrap().to_bytes() };
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(&*body(compressed).await).read_to_string(&mut unpacked).unwrap();
    assert_eq!(unpacked.as_bytes(), &*body(plain).await);
}
