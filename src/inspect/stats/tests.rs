//! Tests of which requests get a page, of queries, and of what the pages show.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::StatusCode;

use super::answer::is_own;
use super::list;
use super::query::{ListQuery, Order, decoded, encoded, parameter};
use super::reading::{Latest, Reading};
use super::service::{self, Content};
use crate::output::Tone;
use crate::running::{Problem, ProblemKind};
use crate::services::causes::Causes;
use crate::services::testing::{frontend, listing_of};
use crate::tables::{FrontendView, Kind, State};

fn reading(frontends: Vec<FrontendView>) -> Reading {
    Reading::testing(listing_of(frontends), Duration::from_millis(3))
}

fn shop() -> Reading {
    let endpoints = [("10.244.1.10:8080", true), ("10.244.2.10:8080", false)];
    let mut local = frontend("shop/web:http", Some("198.51.100.1"), 80, Kind::LoadBalancer, &[]);
    local.state = Some(State::Dropped);
    reading(vec![
        frontend("shop/api", Some("10.96.0.11"), 443, Kind::ClusterIP, &endpoints[..1]),
        frontend("shop/idle", Some("10.96.0.12"), 80, Kind::ClusterIP, &[]),
        frontend("shop/web:http", Some("10.96.0.10"), 80, Kind::ClusterIP, &endpoints),
        local,
    ])
}

/// The names of the Services that a query selects, in its order.
fn names(query: &str) -> Vec<String> {
    let (reading, query) = (shop(), ListQuery::parse(query));
    let rows = list::rows(&reading);
    list::selected(&rows, &query).into_iter().filter_map(|row| row.name.map(str::to_owned)).collect()
}

#[test]
fn only_hosts_that_are_this_server_are_its_own() {
    let server: SocketAddr = "127.0.0.1:8080".parse().unwrap();
    for host in ["127.0.0.1:8080", "localhost:8080", "LocalHost:8080", "[::1]:8080"] {
        assert!(is_own(host, server), "{host}");
    }
    for host in [
        "",
        "localhost",
        "localhost:81",
        "evil.example:8080",
        "127.0.0.1",
        "127.0.0.2:8080",
        "127.0.0.1.evil.example:8080",
        "localhost.:8080",
        "localhost:8080:8080",
        "[::1]",
        "[::2]:8080",
        "::1:8080",
        "user@localhost:8080",
        "localhost:+8080",
    ] {
        assert!(!is_own(host, server), "{host}");
    }
    let at_default = |host, address: &str| is_own(host, address.parse().unwrap());
    assert!(at_default("localhost", "127.0.0.1:80") && at_default("[::1]", "[::1]:80"), "port 80 is not written");
    assert!(at_default("192.0.2.7:90", "192.0.2.7:90") && !at_default("192.0.2.8:90", "192.0.2.7:90"));
    assert!(at_default("192.0.2.7:90", "[::ffff:192.0.2.7]:90"), "a client of IPv4 at a socket for both families");
}

#[test]
fn words_of_addresses_are_read_back() {
    for word in ["", "web", "a/b?c=d&e+f g%", "<script>\"'", "ü\u{202e}\n"] {
        assert_eq!(decoded(&encoded(word)), word);
        assert!(encoded(word).bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte)), "{word:?}");
    }
    for (text, word) in
        [("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("%+1", "%+1"), ("a%00b", "a\0b"), ("%ff", "\u{fffd}")]
    {
        assert_eq!(decoded(text), word);
    }
    assert_eq!(
        (parameter("a=1&to=10.96.0.1%3A80+", "to").as_str(), parameter("a", "b").as_str()),
        ("10.96.0.1:80", "")
    );
}

// During an error too, however many browsers ask, the tables are read now and then only.
#[test]
fn a_reading_serves_for_a_while_whether_it_failed_or_not() {
    for fails in [false, true] {
        let (latest, mut count) = (Latest::default(), 0);
        let answers = [(); 3].map(|()| {
            let read = |_| {
                count += 1;
                if fails { Err(anyhow::anyhow!("no table").context("cannot read")) } else { Ok(shop()) }
            };
            latest.with(read, |reading| reading.listing.view.frontends.len()).map_err(|error| format!("{error:#}"))
        });
        let expected = if fails { Err("cannot read: no table".to_owned()) } else { Ok(4) };
        assert_eq!((answers, count), ([(); 3].map(|()| expected.clone()), 1));
    }
}

#[test]
fn a_list_has_one_address() {
    for query in ["", "q=a%2Fb&state=refused&sort=open&reverse=1&page=3", "sort=bytes"] {
        let list = ListQuery::parse(query);
        assert_eq!(list.address(), if query.is_empty() { "/".to_owned() } else { format!("/?{query}") });
        assert_eq!(ListQuery::parse(query), list);
    }
    let odd = ListQuery::parse("state=<b>&sort=no&page=0&page=-1&reverse=yes&other=1&&=");
    assert_eq!(odd, ListQuery::default(), "what is not known has no effect");
}

#[test]
fn services_are_found_by_name_frontend_and_endpoint() {
    assert_eq!(names(""), ["shop/api", "shop/idle", "shop/web"], "the frontends of a Service are one row");
    assert_eq!(names("q=WEB"), ["shop/web"]);
    assert_eq!(names("q=10.96.0.1"), ["shop/api", "shop/idle", "shop/web"], "a part of an address");
    assert_eq!(names("q=:443"), ["shop/api"]);
    assert_eq!(names("q=10.244.2.10"), ["shop/web"], "an endpoint");
    assert_eq!(names("q=10.244.2.1"), [""; 0], "a part of an endpoint's address is none");
    assert_eq!(names("state=dropped"), ["shop/web"], "one of its frontends is");
    assert_eq!(names("state=served&q=api"), ["shop/api"]);
}

#[test]
fn services_are_sorted_in_both_directions() {
    assert_eq!(names("sort=state"), ["shop/web", "shop/idle", "shop/api"], "the worst first");
    assert_eq!(names("sort=endpoints"), ["shop/idle", "shop/api", "shop/web"]);
    assert_eq!(names("sort=endpoints&reverse=1"), ["shop/web", "shop/api", "shop/idle"]);
    assert_eq!(names("sort=name&reverse=1"), ["shop/web", "shop/idle", "shop/api"]);
    assert_eq!(names("sort=open"), ["shop/api", "shop/idle", "shop/web"], "equal ones in the order of their names");
    let words: Vec<&str> = Order::ALL.iter().map(|(order, _, _)| order.word()).collect();
    assert_eq!(words, ["name", "state", "endpoints", "open", "new", "bytes"]);
}

#[test]
fn the_list_shows_problems_first_and_a_hundred_services() {
    let many = (0..250).map(|n| frontend(&format!("many/s{n:03}"), Some("10.96.1.1"), 1000 + n, Kind::ClusterIP, &[]));
    let mut reading = reading(many.collect());
    reading.listing.problems.push(Problem::of_node(ProblemKind::ApiServerLost, "The API server is <lost>".to_owned()));
    let page = |query: &str| {
        let page = list::page(&reading, &ListQuery::parse(query));
        assert_eq!(page.status, StatusCode::OK);
        page.html
    };
    let first = page("");
    assert!(first.find("The API server is &lt;lost&gt;").unwrap() < first.find("many/s000").unwrap());
    assert_eq!(first.matches("data-column=\"service\"").count(), 100);
    assert!(first.contains("1 to 100 of 250") && first.contains("href=\"/?page=2\"") && !first.contains("Previous"));
    assert!(
        first.contains(">250 Services<") && first.contains(">refused 250<") && !first.contains(">served 0<"),
        "{first}"
    );
    let last = page("page=9&sort=endpoints&reverse=1");
    assert!(
        last.contains("201 to 250 of 250") && !last.contains("rel=\"next\""),
        "the last page stands for later ones"
    );
    assert!(last.contains("href=\"/?sort=endpoints&amp;reverse=1&amp;page=2\""), "{last}");
    assert!(page("q=nothing").contains("No Service is like that."));
}

// Other programs may write any comment into the tables.
#[test]
fn no_name_becomes_markup() {
    let name = "shop/<script>alert(1)</script>:\"'&";
    let reading = reading(vec![frontend(name, Some("10.96.0.10"), 80, Kind::ClusterIP, &[("10.244.1.10:80", true)])]);
    let list = list::page(&reading, &ListQuery::parse("q=%3Cscript%3E\"")).html
        + &list::page(&reading, &ListQuery::default()).html;
    assert!(list.contains("value=\"&lt;script&gt;&quot;\""), "{list}");
    assert!(list.contains("href=\"/service/shop/%3Cscript%3Ealert%281%29%3C%2Fscript%3E\""), "{list}");
    let service = "shop/<script>alert(1)</script>";
    let content = Content::of(&reading, service).unwrap();
    let changes = Err((Tone::Warning, "<i>".to_owned()));
    let page = service::page(service, &content, &Causes::default(), &changes).html;
    for html in [list, page] {
        assert!(!html.contains("<script>") && !html.contains("<i>"), "{html}");
        assert_eq!(html.matches("<script").count(), html.matches("<script src=\"/live.js\" defer></script>").count());
        // The pages' Content-Security-Policy allows neither of these attributes.
        assert!(!html.contains(" style=") && !html.contains(" onclick"), "{html}");
    }
}

#[test]
fn a_service_has_its_frontends_and_its_endpoints_once() {
    let reading = shop();
    let page = |name: &str| {
        let content = Content::of(&reading, name).unwrap();
        service::page(name, &content, &Causes::default(), &Ok(Vec::new())).html
    };
    let web = page("shop/web");
    assert_eq!((web.matches("10.244.1.10:8080").count(), web.matches("10.244.2.10:8080").count()), (1, 1));
    assert!(web.contains("of 1 of 2 frontends"), "the load balancer has no endpoint: {web}");
    assert!(web.contains("href=\"/explain?to=10.96.0.10%3A80%2FTCP\""), "{web}");
    let error = Content::of(&reading, "shop/wbe").unwrap_err().to_string();
    assert!(error.contains("did you mean shop/web"), "{error}");
}
