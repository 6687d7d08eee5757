//! Which form of a page a client wants: the `Accept` header, read as far as it matters here.

/// The version of a structured page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Old, still served, with a warning.
    V1Alpha1,
    /// The present one.
    V1Beta1,
}

/// How a structured page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Yaml,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// For people.
    Text,
    /// For programs.
    Structured(Version, Encoding),
}

/// One wish of an `Accept` header.
struct Wish<'a> {
    /// Such as `text/plain`.
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    /// 0 to 1; 0 is a refusal.
    quality: f32,
}

impl<'a> Wish<'a> {
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

    /// A structured form has to be asked for with group, version and kind; without them the media type means nothing.
    fn form(&self, kind: &str) -> Option<Form> {
        let encoding = match self.media {
            "text/plain" | "text/*" | "*/*" => return Some(Form::Text),
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
        Some(Form::Structured(version, encoding))
    }
}

/// The wishes of a header, best first, without refusals.
fn wishes(accept: &str) -> Vec<Wish<'_>> {
    let mut wishes: Vec<_> = accept.split(',').map(Wish::parse).filter(|wish| wish.quality > 0.0).collect();
    // Stable: of equals the first is preferred.
    wishes.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    wishes
}

/// The form in which a page of this kind is to be given; `None` when no wish can be met.
pub(super) fn form(accept: Option<&str>, kind: &str) -> Option<Form> {
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else { return Some(Form::Text) };
    wishes(accept).iter().find_map(|wish| wish.form(kind))
}

/// Whether OpenMetrics is wanted, and more than the classic text.
pub(super) fn wants_open_metrics(accept: &str) -> bool {
    let known = |wish: &Wish<'_>| match wish.media {
        "application/openmetrics-text" => {
            matches!(wish.parameter("version"), None | Some("0.0.1" | "1.0.0")).then_some(true)
        }
        "text/plain" | "text/*" | "*/*" => Some(false),
        _ => None,
    };
    wishes(accept).iter().find_map(known).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_and_browsers_get_text() {
        for accept in [None, Some(""), Some("text/plain"), Some("*/*"), Some("text/html,*/*;q=0.8")] {
            assert_eq!(form(accept, "Flagz"), Some(Form::Text), "{accept:?}");
        }
    }

    #[test]
    fn a_structure_needs_group_version_and_kind() {
        let json = |version| Some(Form::Structured(version, Encoding::Json));
        let of = |accept: &str| form(Some(accept), "Flagz");
        assert_eq!(of("application/json;v=v1beta1;g=config.k8s.io;as=Flagz"), json(Version::V1Beta1));
        assert_eq!(of("application/json; as=Flagz; v=v1alpha1; g=config.k8s.io"), json(Version::V1Alpha1));
        let yaml = Form::Structured(Version::V1Beta1, Encoding::Yaml);
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
    fn the_best_wish_that_can_be_met_counts() {
        let accept = "text/plain;q=0.5, application/json, application/json;v=v1beta1;g=config.k8s.io;as=Flagz;q=0.9";
        let json = Form::Structured(Version::V1Beta1, Encoding::Json);
        assert_eq!(form(Some(accept), "Flagz"), Some(json));
        assert_eq!(form(Some("application/json,text/plain;q=0.1"), "Flagz"), Some(Form::Text));
    }

    #[test]
    fn open_metrics_is_for_those_who_prefer_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.3";
        assert!(wants_open_metrics(prometheus));
        let classic = "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5";
        assert!(!wants_open_metrics(classic));
        assert!(!wants_open_metrics("*/*"));
        assert!(!wants_open_metrics("application/vnd.google.protobuf"));
    }
}
