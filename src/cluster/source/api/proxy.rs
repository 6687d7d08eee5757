//! Finds the proxy for requests to the API server, by the rules of Go's `http.ProxyFromEnvironment` and of client-go.
//!
//! The module takes the server's URL, `proxy-url` of the kubeconfig and the variables of the environment, and returns a [`Route`]. It does
//! no I/O.
//!
//! The rules: `proxy-url` comes before the environment, and no exception applies to it. `HTTPS_PROXY` is for servers with https://,
//! `HTTP_PROXY` for servers with http://; the variable with the name in lower case counts if that in upper case is not set or empty.
//! `NO_PROXY` lists exceptions, separated by commas: `*`, addresses and names with or without a port, and CIDRs. A name also matches its
//! subdomains; with a leading dot or `*.` it matches only subdomains. `localhost` and loopback addresses need no proxy.
//!
//! Invariants: if the configured proxy cannot be used, no connection is made; Go would connect directly. No error text contains a user or a
//! password.

use std::fmt;
use std::net::IpAddr;

use data_encoding::BASE64;
use hyper::Uri;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;

/// How requests reach the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Without a proxy.
    Direct,
    /// Through this proxy.
    Through(Proxy),
    /// No connection is possible, because the environment names a proxy that cannot be used.
    Unusable(Failure),
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    /// The protocol of the proxy.
    pub(super) kind: Kind,
    /// The proxy's name or address; an IPv6 address is in brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// User and password, if the proxy's URL has them.
    pub(super) user: Option<(String, String)>,
    /// Where the proxy is configured: an environment variable, or `proxy-url` of the kubeconfig.
    origin: &'static str,
}

/// The protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// HTTP.
    Http,
    /// HTTP in TLS.
    Https,
    /// SOCKS 5. The proxy resolves the server's name.
    Socks5,
}

/// Why the server cannot be reached through a proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// The configured value cannot be used.
    #[error("cannot use the proxy of {origin}: {reason}")]
    Unusable {
        /// Where the proxy is configured.
        origin: &'static str,
        /// What is wrong with the value. Does not contain the value, because it may hold a password.
        reason: &'static str,
    },
    /// The proxy answered CONNECT with a status other than 2xx.
    #[error("{proxy} answered {status}")]
    Refused {
        /// The proxy's URL and where it is configured, as [`Proxy`] prints them.
        proxy: String,
        /// Status code and reason phrase.
        status: String,
        code: u16,
    },
    /// There is no connection to the proxy, it does not speak its protocol, or a SOCKS proxy makes no connection to the server.
    #[error("cannot connect through {proxy}: {reason}")]
    Unreachable {
        /// The proxy's URL and where it is configured, as [`Proxy`] prints them.
        proxy: String,
        /// The error, without advice on what to check.
        reason: String,
    },
    /// The proxy did not answer in time.
    #[error("{proxy} gave no connection in time")]
    Silent {
        /// The proxy's URL and where it is configured, as [`Proxy`] prints them.
        proxy: String,
    },
}

impl Failure {
    /// Returns advice for the operator on what to check.
    pub(super) const fn remedy(&self) -> &'static str {
        match self {
            Self::Unusable { .. } => {
                "it has to be scheme://host:port with http, https or socks5, and special characters of a user or password as %XX; where no \
                 proxy is needed, add the API server to NO_PROXY"
            }
            Self::Refused { code: 407, .. } => {
                "it needs a user and a password that it knows, as in http://user:password@host:port"
            }
            Self::Refused { .. } => {
                "it has to allow CONNECT to the API server and reach it; where no proxy is needed, add the API server to NO_PROXY"
            }
            Self::Unreachable { .. } | Self::Silent { .. } => {
                "does the proxy run, is this its address, and may this node connect to it? Where no proxy is needed, add the API server \
                 to NO_PROXY"
            }
        }
    }
}

/// Writes the proxy's URL without user and password, and where the proxy is configured.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the proxy {}://{}:{} ({})", self.kind.scheme(), self.host, self.port, self.origin)
    }
}

/// Writes the same text as [`fmt::Display`], so that no password gets into a log.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Kind {
    const fn scheme(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Socks5 => "socks5",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
            Self::Socks5 => 1080,
        }
    }
}

impl Proxy {
    /// Parses the URL of a proxy. A URL without a scheme means an HTTP proxy.
    ///
    /// # Errors
    /// Fails if the text is not a URL with a host, has a scheme other than http, https, socks5 and socks5h, or has a port, user or password
    /// that cannot be used.
    pub(super) fn of_url(origin: &'static str, text: &str) -> Result<Self, Failure> {
        let unusable = |reason| Failure::Unusable { origin, reason };
        let text = text.trim();
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url: Uri = full.parse().map_err(|_| unusable("it is not a URL"))?;
        let kind = match url.scheme_str() {
            Some("http") => Kind::Http,
            Some("https") => Kind::Https,
            Some("socks5" | "socks5h") => Kind::Socks5,
            _ => return Err(unusable("its scheme is none of http, https and socks5")),
        };
        let host = url.host().filter(|host| !host.is_empty()).ok_or_else(|| unusable("it names no host"))?.to_owned();
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let (user, address) = authority.rsplit_once('@').map_or((None, authority), |(user, rest)| (Some(user), rest));
        let port = match address.strip_prefix(&*host).and_then(|rest| rest.strip_prefix(':')) {
            None | Some("") => kind.default_port(),
            Some(port) => {
                port.parse().ok().filter(|port| *port > 0).ok_or_else(|| unusable("its port is no number"))?
            }
        };
        let user =
            user.map(|user| user_and_password(user).ok_or_else(|| unusable("its user or password is not UTF-8")));
        let user = user.transpose()?;
        if kind == Kind::Socks5 && user.as_ref().is_some_and(|(user, password)| user.len().max(password.len()) > 255) {
            return Err(unusable("SOCKS takes a user and a password of at most 255 bytes"));
        }
        Ok(Self { kind, host, port, user, origin })
    }

    /// Returns the error that this proxy cannot be used for the given reason.
    pub(super) const fn unusable(&self, reason: &'static str) -> Failure {
        Failure::Unusable { origin: self.origin, reason }
    }

    /// Returns the value of `Proxy-Authorization`, if the URL has a user.
    pub(super) fn authorization(&self) -> Option<String> {
        let (user, password) = self.user.as_ref()?;
        Some(format!("Basic {}", BASE64.encode(format!("{user}:{password}").as_bytes())))
    }
}

/// Returns the decoded user and password of a URL; `None` if they are not UTF-8. Without a password it is empty.
pub(super) fn user_and_password(text: &str) -> Option<(String, String)> {
    let decoded = |text| percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned());
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    Some((decoded(user)?, decoded(password)?))
}

/// Returns the route to a server according to the environment. `variable` returns the value of an environment variable.
pub(super) fn by_environment(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Route {
    let first = |names: [&'static str; 2]| {
        let value = |name| variable(name).filter(|value| !value.is_empty()).map(|value| (name, value));
        names.into_iter().find_map(value)
    };
    let is_https = server.scheme_str() == Some("https");
    let names = if is_https { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    let Some((origin, value)) = first(names) else { return Route::Direct };
    let exceptions = first(["NO_PROXY", "no_proxy"]).map(|(_, value)| value).unwrap_or_default();
    let host = server.host().unwrap_or_default();
    let port = server.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    if !needs_proxy(host, port, &exceptions) {
        return Route::Direct;
    }
    if !is_https && variable("REQUEST_METHOD").is_some_and(|method| !method.is_empty()) {
        // A client of a CGI program can set HTTP_PROXY with the header `Proxy`, so refuse the variable, as Go does.
        let reason = "REQUEST_METHOD is set, as for a CGI program, where a client can set this variable";
        return Route::Unusable(Failure::Unusable { origin, reason });
    }
    Proxy::of_url(origin, &value).map_or_else(Route::Unusable, Route::Through)
}

/// Returns whether connections to this host and port need the proxy; `exceptions` is the value of `NO_PROXY`.
fn needs_proxy(host: &str, port: u16, exceptions: &str) -> bool {
    let host = without_brackets(host).to_ascii_lowercase();
    let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return false;
    }
    let mut exceptions = exceptions.split(',').map(|entry| entry.trim().to_ascii_lowercase());
    !exceptions.any(|entry| is_exception(&entry, &host, address, port))
}

/// Returns whether an entry of `NO_PROXY`, in lower case, matches a host.
fn is_exception(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address));
    }
    // The text after the last colon is a port, except in an IPv6 address without brackets.
    let (name, wanted) = match entry.rsplit_once(':') {
        Some((name, wanted)) if !without_brackets(name).contains(':') || name.ends_with(']') => (name, wanted),
        _ => (entry, ""),
    };
    if !wanted.is_empty() && wanted.parse() != Ok(port) {
        return false;
    }
    let name = without_brackets(name);
    if let Ok(wanted) = name.parse::<IpAddr>() {
        return address == Some(wanted.to_canonical());
    }
    let below = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
    if below.is_empty() || address.is_some() {
        return false;
    }
    if below.starts_with('.') {
        return host.ends_with(below);
    }
    host == below || host.strip_suffix(below).is_some_and(|rest| rest.ends_with('.'))
}

/// Removes the brackets around an IPv6 address in a URL.
pub(super) fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Returns host and port of a server's URL. An IPv6 address has no brackets.
pub(super) fn host_and_port(url: &Uri) -> Option<(&str, u16)> {
    let default = if url.scheme_str() == Some("http") { 80 } else { 443 };
    Some((without_brackets(url.host()?), url.port_u16().unwrap_or(default)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the route to a server with these environment variables as text: `direct`, the proxy's URL, or the error.
    fn route(server: &str, variables: &[(&str, &str)]) -> String {
        let value =
            |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned());
        match by_environment(&server.parse().unwrap(), value) {
            Route::Direct => "direct".to_owned(),
            Route::Through(proxy) => format!("{}://{}:{}", proxy.kind.scheme(), proxy.host, proxy.port),
            Route::Unusable(failure) => failure.to_string(),
        }
    }

    #[test]
    fn values_are_read_as_go_reads_them() {
        // Cases of Go's TestProxyFromEnvironment and some more, each for http:// and https://.
        for (value, expected) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("cache.corp.example.com:1234", "http://cache.corp.example.com:1234"),
            ("cache.corp.example.com", "http://cache.corp.example.com:80"),
            ("https://cache.corp.example.com", "https://cache.corp.example.com:443"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("https://127.0.0.1:8080", "https://127.0.0.1:8080"),
            ("socks5://127.0.0.1", "socks5://127.0.0.1:1080"),
            ("socks5h://proxy:9050", "socks5://proxy:9050"),
            ("http://user:secret@proxy:3128/", "http://proxy:3128"),
            ("HTTP://proxy", "http://proxy:80"),
            ("http://[fd00::1]:3128", "http://[fd00::1]:3128"),
            ("http://[fd00::1]", "http://[fd00::1]:80"),
            ("http://proxy:", "http://proxy:80"),
            (" http://proxy:3128 ", "http://proxy:3128"),
            ("", "direct"),
        ] {
            assert_eq!(route("http://example.com", &[("HTTP_PROXY", value)]), expected, "{value}");
            assert_eq!(route("https://example.com", &[("HTTPS_PROXY", value)]), expected, "{value}");
        }
    }

    #[test]
    fn the_servers_scheme_says_which_variable_counts_and_lower_case_comes_second() {
        let both = [("HTTP_PROXY", "plain"), ("HTTPS_PROXY", "secure")];
        assert_eq!(route("http://example.com", &both), "http://plain:80");
        assert_eq!(route("https://example.com", &both), "http://secure:80");
        for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
            assert_eq!(route("https://example.com", &[(variable, "proxy")]), "direct", "{variable}");
        }
        assert_eq!(route("http://example.com", &[("HTTPS_PROXY", "proxy")]), "direct");
        assert_eq!(route("https://example.com", &[("https_proxy", "lower")]), "http://lower:80");
        assert_eq!(route("http://example.com", &[("http_proxy", "lower")]), "http://lower:80");
        let cases = [("https_proxy", "lower"), ("HTTPS_PROXY", "upper")];
        assert_eq!(route("https://example.com", &cases), "http://upper:80");
        let empty = [("https_proxy", "lower"), ("HTTPS_PROXY", "")];
        assert_eq!(route("https://example.com", &empty), "http://lower:80");
        let exceptions = [("HTTPS_PROXY", "proxy"), ("NO_PROXY", ""), ("no_proxy", "example.com")];
        assert_eq!(route("https://example.com", &exceptions), "direct");
    }

    #[test]
    fn a_cgi_program_does_not_use_what_a_client_can_set() {
        let variables = [("HTTP_PROXY", "proxy"), ("HTTPS_PROXY", "proxy"), ("REQUEST_METHOD", "GET")];
        assert!(route("http://example.com", &variables).contains("REQUEST_METHOD"));
        assert_eq!(route("https://example.com", &variables), "http://proxy:80");
        assert_eq!(route("http://localhost", &variables), "direct");
    }

    #[test]
    fn exceptions_are_those_of_go() {
        // The value of NO_PROXY and the hosts follow the table in Go's TestUseProxy; each host has whether it needs the proxy.
        let gos = "foobar.com, .barbaz.net, *.bar.foo, *.wildcard.io, 192.0.2.1, 192.0.2.2:81, 192.0.2.3:80, 10.0.0.0/30, 2001:db8::52:0:1, \
                   [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, 2002:db8:a::45/64";
        for (host, needs) in [
            ("localhost", false),
            ("LocalHost", false),
            ("127.0.0.1", false),
            ("127.0.0.2", false),
            ("[::1]", false),
            ("[::ffff:127.0.0.1]", false),
            ("[::2]", true),
            ("192.0.2.1", false),
            ("192.0.2.2", true),
            ("192.0.2.3", false),
            ("192.0.2.4", true),
            ("10.0.0.2", false),
            ("10.0.0.4", true),
            ("[::ffff:10.0.0.2]", false),
            ("[2001:db8::52:0:1]", false),
            ("[2001:db8::52:0:2]", true),
            ("[2001:db8::52:0:3]", false),
            ("[2002:db8:a::123]", false),
            ("[fe80::424b:c8be:1643:a1b6]", true),
            ("barbaz.net", true),
            ("www.barbaz.net", false),
            ("foobar.com", false),
            ("www.foobar.com", false),
            ("foofoobar.com", true),
            ("baz.com", true),
            ("localhost.net", true),
            ("local.localhost", true),
            ("barbarbaz.net", true),
            ("bar.foo", true),
            ("a.bar.foo", false),
            ("wildcard.io", true),
            ("nested.wildcard.io", false),
            ("awildcard.io", true),
            ("FOOBAR.com", false),
        ] {
            assert_eq!(needs_proxy(host, 80, gos), needs, "{host}");
        }
        for (exceptions, host, port, needs) in [
            ("*", "192.0.2.9", 443, false),
            ("a, *", "api.example", 6443, false),
            ("example.com:443", "www.example.com", 443, false),
            ("example.com:443", "www.example.com", 6443, true),
            ("example.com:", "example.com", 6443, false),
            (" EXAMPLE.com ,,", "example.com", 6443, false),
            (":443", "example.com", 443, true),
            (".", "example.com", 443, true),
            ("*ample.com", "example.com", 443, true),
            // An entry for a name does not match the end of an address.
            ("2.1", "192.0.2.1", 443, true),
            (".1", "192.0.2.1", 443, true),
            // Unlike Go, this program also matches an address in brackets without a port.
            ("[2001:db8::1]", "[2001:db8::1]", 443, false),
            ("2001:db8::1", "[2001:db8:0::1]", 443, false),
            ("10.96.0.0/12", "10.96.0.1", 443, false),
            ("10.96.0.0/12", "api.example", 443, true),
            ("10.96.0.0/64, http://x, [", "10.96.0.1", 443, true),
        ] {
            assert_eq!(needs_proxy(host, port, exceptions), needs, "{exceptions} {host}:{port}");
        }
    }

    #[test]
    fn the_port_of_a_server_without_one_is_that_of_its_scheme() {
        let variables = [("HTTP_PROXY", "p"), ("HTTPS_PROXY", "p"), ("NO_PROXY", "a:443,b:80")];
        assert_eq!(route("https://a", &variables), "direct");
        assert_eq!(route("http://a", &variables), "http://p:80");
        assert_eq!(route("http://b", &variables), "direct");
        assert_eq!(route("https://b", &variables), "http://p:80");
        assert_eq!(route("https://a:6443", &variables), "http://p:80");
    }

    #[test]
    fn a_value_that_cannot_be_used_is_no_way_past_the_proxy_and_no_secret_is_shown() {
        for (value, why) in [
            ("ftp://user:secret@proxy", "scheme"),
            ("http://user:secret@proxy:port", "port is no number"),
            ("http://user:secret@proxy:70000", "port is no number"),
            ("http://user:sec^ret@proxy", ""),
            ("http://user:secret@:3128", ""),
            ("http://user:%ff%fesecret@proxy", "not UTF-8"),
            ("http://proxy with spaces", "not a URL"),
            ("://proxy", ""),
            ("http://user:secret@proxy:0", "port"),
        ] {
            let text = route("https://example.com", &[("HTTPS_PROXY", value)]);
            assert!(text.starts_with("cannot use the proxy of HTTPS_PROXY: ") && text.contains(why), "{value}: {text}");
            assert!(!text.contains("secret") && !text.contains("user:"), "{text}");
            let exception = [("HTTPS_PROXY", value), ("NO_PROXY", "example.com")];
            assert_eq!(route("https://example.com", &exception), "direct");
        }
    }

    #[test]
    fn user_and_password_are_decoded_and_never_shown() {
        let proxy = Proxy::of_url("HTTPS_PROXY", "http://me:p%40ss%3Aw%25@proxy:3128").unwrap();
        assert_eq!(proxy.user, Some(("me".to_owned(), "p@ss:w%".to_owned())));
        assert_eq!(proxy.authorization(), Some(format!("Basic {}", BASE64.encode(b"me:p@ss:w%"))));
        assert_eq!(proxy.to_string(), "the proxy http://proxy:3128 (HTTPS_PROXY)");
        assert_eq!(format!("{proxy:?}"), proxy.to_string());
        let alone = Proxy::of_url("HTTPS_PROXY", "http://me@proxy").unwrap();
        assert_eq!(alone.authorization(), Some(format!("Basic {}", BASE64.encode(b"me:"))));
        assert_eq!(Proxy::of_url("HTTPS_PROXY", "proxy").unwrap().authorization(), None);
        let long = format!("socks5://{}:p@proxy", "u".repeat(256));
        assert!(Proxy::of_url("HTTPS_PROXY", &long).is_err());
    }
}
