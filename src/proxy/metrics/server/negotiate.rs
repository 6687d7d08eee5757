//! Content negotiation: which representation of a page the `Accept` header of a request prefers, and whether `Accept-Encoding` accepts gzip.

/// The version of a structured page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Deprecated: served with a warning.
    V1Alpha1,
    /// The current version.
    V1Beta1,
}

/// The encoding of a structured page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Yaml,
}

/// The representation of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Representation {
    /// Plain text for people.
    Text,
    /// An object for programs.
    Structured(Version, Encoding),
}

/// A media range of an `Accept` header (RFC 9110, section 12.5.1), or a coding of an `Accept-Encoding` header, which has the same form.
struct MediaRange<'a> {
    /// The media type, such as `text/plain`, or the coding, such as `gzip`.
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    /// The weight `q`, 0 to 1; 0 means not acceptable.
    quality: f32,
}

impl<'a> MediaRange<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
        let quality = parameters.iter().find(|(name, _)| *name == "q").and_then(|(_, value)| value.parse().ok());
        Self { media, parameters, quality: quality.unwrap_or(1.0) }
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    /// The representation that the range asks for, if the page has it. JSON and YAML need group, version and kind as parameters.
    fn representation(&self, kind: &str) -> Option<Representation> {
        let encoding = match self.media {
            "text/plain" | "text/*" | "*/*" => return Some(Representation::Text),
            "application/json" => Encoding::Json,
            "application/yaml" => Encoding::Yaml,
            _ => return None,
        };
        if self.parameter("g") != Some("config.k8s.io") || self.parameter("as") != Some(kind) {
            return None;
        }
        let version = match self.parameter("v")? {
            "v1beta1" => Version::V1Beta1,
            "v1alpha1" => Version::V1Alpha1,
            _ => return None,
        };
        Some(Representation::Structured(version, encoding))
    }
}

/// The media ranges of a header, the preferred one first, without those of quality 0.
fn ranges(accept: &str) -> Vec<MediaRange<'_>> {
    let mut ranges: Vec<_> = accept.split(',').map(MediaRange::parse).filter(|range| range.quality > 0.0).collect();
    // The sort is stable: of ranges with equal quality the first is preferred.
    ranges.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    ranges
}

/// The representation of a page of this kind that the client prefers; `None` when the page has none that the client accepts.
pub(super) fn representation(accept: Option<&str>, kind: &str) -> Option<Representation> {
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else { return Some(Representation::Text) };
    ranges(accept).iter().find_map(|range| range.representation(kind))
}

/// Whether the client prefers OpenMetrics to the classic text format.
pub(super) fn wants_open_metrics(accept: &str) -> bool {
    let known = |range: &MediaRange<'_>| match range.media {
        "application/openmetrics-text" => {
            matches!(range.parameter("version"), None | Some("0.0.1" | "1.0.0")).then_some(true)
        }
        "text/plain" | "text/*" | "*/*" => Some(false),
        _ => None,
    };
    ranges(accept).iter().find_map(known).unwrap_or(false)
}

/// Whether an `Accept-Encoding` header accepts gzip (RFC 9110, section 12.5.3). Without the header the text is not compressed.
pub(super) fn takes_gzip(accept_encoding: &str) -> bool {
    let quality_of = |wanted: &str| {
        let mut all = accept_encoding.split(',').map(MediaRange::parse);
        all.find(|range| range.media.eq_ignore_ascii_case(wanted)).map(|range| range.quality)
    };
    quality_of("gzip").or_else(|| quality_of("*")).is_some_and(|quality| quality > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_for_clients_that_take_it() {
        for header in ["gzip", "deflate, gzip;q=0.5", "GZIP", "*", "br, *;q=0.1"] {
            assert!(takes_gzip(header), "{header}");
        }
        for header in ["", "identity", "gzip;q=0", "br", "*;q=0", "*, gzip;q=0"] {
            assert!(!takes_gzip(header), "{header}");
        }
    }

    #[test]
    fn people_and_browsers_get_text() {
        for accept in [None, Some(""), Some("text/plain"), Some("*/*"), Some("text/html,*/*;q=0.8")] {
            assert_eq!(representation(accept, "Flagz"), Some(Representation::Text), "{accept:?}");
        }
    }

    #[test]
    fn a_structure_needs_group_version_and_kind() {
        let json = |version| Some(Representation::Structured(version, Encoding::Json));
        let of = |accept: &str| representation(Some(accept), "Flagz");
        assert_eq!(of("application/json;v=v1beta1;g=config.k8s.io;as=Flagz"), json(Version::V1Beta1));
        assert_eq!(of("application/json; as=Flagz; v=v1alpha1; g=config.k8s.io"), json(Version::V1Alpha1));
        let yaml = Representation::Structured(Version::V1Beta1, Encoding::Yaml);
        assert_eq!(of("application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz"), Some(yaml));
        for accept in [
            "application/json",
            "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
            "application/json;v=v1;g=config.k8s.io;as=Flagz",
            "application/json;v=v1beta1;as=Flagz",
            "image/png",
            "text/plain;q=0",
        ] {
            assert_eq!(of(accept), None, "{accept}");
        }
    }

    #[test]
    fn the_most_preferred_representation_that_exists_counts() {
        let accept = "text/plain;q=0.5, application/json, application/json;v=v1beta1;g=config.k8s.io;as=Flagz;q=0.9";
        let json = Representation::Structured(Version::V1Beta1, Encoding::Json);
        assert_eq!(representation(Some(accept), "Flagz"), Some(json));
        assert_eq!(representation(Some("application/json,text/plain;q=0.1"), "Flagz"), Some(Representation::Text));
    }

    #[test]
    fn open_metrics_is_given_to_clients_that_prefer_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.3";
        assert!(wants_open_metrics(prometheus));
        let classic = "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5";
        assert!(!wants_open_metrics(classic));
        assert!(!wants_open_metrics("*/*"));
        assert!(!wants_open_metrics("application/vnd.google.protobuf"));
    }
}
