//! `/flagz` and `/statusz`: text for people, a versioned object for programs.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use hyper::StatusCode;
use hyper::header::{HeaderValue, WARNING};
use jiff::{Timestamp, Unit};
use serde::Serialize;

use super::Versions;
use super::negotiate::{Encoding, Representation, Version, representation};
use component::http::{self, JSON, PLAIN, Response};

/// The component name that every page shows.
const COMPONENT: &str = "kube-proxy";
const YAML: &str = "application/yaml";
/// The format requires this field, but there is no Go version.
const GO_VERSION: &str = "none (written in Rust)";
/// Separators between a name and its value. Each page chooses one at random at the start, as upstream does, so that no program relies on it.
const SEPARATORS: [&str; 4] = [":", ": ", "=", " "];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PageObject<'a, T> {
    kind: &'a str,
    api_version: &'a str,
    metadata: BTreeMap<&'a str, &'a str>,
    #[serde(flatten)]
    content: T,
}

/// The page in the representation that the client prefers, or status 406 if it accepts none that the page has.
fn page<T: Serialize>(accept: Option<&str>, kind: &str, text: impl FnOnce() -> String, content: T) -> Response {
    let (version, encoding) = match representation(accept, kind) {
        Some(Representation::Text) => return http::response(StatusCode::OK, PLAIN, text()),
        Some(Representation::Structured(version, encoding)) => (version, encoding),
        None => {
            let json = format!("application/json;v=v1beta1;g=config.k8s.io;as={kind}");
            let body = format!("this page comes as text/plain, {json} and the same with application/yaml\n");
            return http::response(StatusCode::NOT_ACCEPTABLE, PLAIN, body);
        }
    };
    let api_version = match version {
        Version::V1Alpha1 => "config.k8s.io/v1alpha1",
        Version::V1Beta1 => "config.k8s.io/v1beta1",
    };
    let object = PageObject { kind, api_version, metadata: BTreeMap::from([("name", COMPONENT)]), content };
    let body = match encoding {
        Encoding::Json => serde_json::to_string(&object).map(|text| (JSON, text + "\n")).ok(),
        Encoding::Yaml => serde_saphyr::to_string(&object).map(|text| (YAML, text)).ok(),
    };
    let Some((content_type, body)) = body else {
        return http::response(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "the page cannot be written\n");
    };
    let mut response = http::response(StatusCode::OK, content_type, body);
    if version == Version::V1Alpha1 {
        let warning = HeaderValue::from_static("299 - \"config.k8s.io/v1alpha1 is deprecated: use v1beta1\"");
        response.headers_mut().insert(WARNING, warning);
    }
    response
}

fn title(page: &str) -> String {
    format!("\n{COMPONENT} {page}\nWarning: this text is for people only; its format may change at any time.\n\n")
}

fn separator() -> &'static str {
    SEPARATORS[rand::random_range(0..SEPARATORS.len())]
}

/// The page `/flagz`.
pub(super) struct Flagz {
    separator: &'static str,
    flags: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Flags<'a> {
    flags: &'a BTreeMap<String, String>,
}

impl Flagz {
    pub(super) fn new(flags: Vec<(String, String)>) -> Self {
        Self { separator: separator(), flags: flags.into_iter().collect() }
    }

    pub(super) fn respond(&self, accept: Option<&str>) -> Response {
        page(accept, "Flagz", || self.text(), Flags { flags: &self.flags })
    }

    fn text(&self) -> String {
        let lines = self.flags.iter().map(|(name, value)| format!("{name}{}{value}\n", self.separator));
        title("flagz") + &lines.collect::<String>()
    }
}

/// The page `/statusz`: the versions and the age of the process.
pub(super) struct Statusz {
    separator: &'static str,
    versions: Versions,
    paths: Vec<&'static str>,
    started: SystemTime,
    since: Instant,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    start_time: String,
    uptime_seconds: u64,
    go_version: &'a str,
    binary_version: &'a str,
    emulation_version: &'a str,
    paths: &'a [&'a str],
}

impl Statusz {
    /// `started` and `since` are the same moment on two clocks: one to show, one to measure with.
    pub(super) fn new(versions: Versions, paths: Vec<&'static str>, started: SystemTime, since: Instant) -> Self {
        Self { separator: separator(), versions, paths, started, since }
    }

    pub(super) fn respond(&self, accept: Option<&str>, now: Instant) -> Response {
        let uptime_seconds = now.saturating_duration_since(self.since).as_secs();
        let started = Timestamp::try_from(self.started).and_then(|time| time.round(Unit::Second)).unwrap_or_default();
        let status = Status {
            start_time: started.to_string(),
            uptime_seconds,
            go_version: GO_VERSION,
            binary_version: &self.versions.binary,
            emulation_version: &self.versions.emulation,
            paths: &self.paths,
        };
        page(accept, "Statusz", || self.text(started, uptime_seconds), status)
    }

    fn text(&self, started: Timestamp, uptime: u64) -> String {
        let uptime = format!("{} hr {:02} min {:02} sec", uptime / 3600, uptime / 60 % 60, uptime % 60);
        let lines = [
            ("Started", started.strftime("%a %b %e %H:%M:%S UTC %Y").to_string()),
            ("Up", uptime),
            ("Go version", GO_VERSION.to_owned()),
            ("Binary version", self.versions.binary.clone()),
            ("Emulation version", self.versions.emulation.clone()),
            ("Paths", self.paths.join(" ")),
        ];
        let lines = lines.map(|(name, value)| format!("{name}{}{value}\n", self.separator));
        title("statusz") + &lines.concat()
    }
}
