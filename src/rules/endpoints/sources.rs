//! Computes the client ranges that may connect to a Service's load balancer IPs (`spec.loadBalancerSourceRanges`).

use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::{Family, Node, Service};

/// The client ranges that may connect to the Service's load balancer IPs of a family; `None` if all clients may.
///
/// All clients may connect if the Service has no range of the family, or one with prefix length 0 (A9); so ranges of one family leave the
/// other open. If a range contains the node's own address, the load balancer IPs may connect as well: the node may have a load balancer IP
/// on an interface and use it as its source address (D18).
pub(crate) fn allowed_sources(service: &Service, family: Family, node: Option<&Node>) -> Option<Vec<IpNet>> {
    let of_family = |range: &&IpNet| Family::of(range.addr()) == family;
    let mut ranges: Vec<IpNet> = service.source_ranges.iter().filter(of_family).copied().collect();
    if ranges.is_empty() || ranges.iter().any(|range| range.prefix_len() == 0) {
        return None;
    }
    if node_address(node, family).is_some_and(|ip| ranges.iter().any(|range| range.contains(&ip))) {
        let balancers = service.load_balancer_ips.iter().filter(|ip| Family::of(**ip) == family);
        ranges.extend(balancers.copied().map(IpNet::from));
    }
    Some(IpNet::aggregate(&ranges))
}

fn node_address(node: Option<&Node>, family: Family) -> Option<IpAddr> {
    match family {
        Family::V4 => node?.ipv4().map(IpAddr::V4),
        Family::V6 => node?.ipv6().map(IpAddr::V6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing;

    fn service(ranges: &[&str], balancers: &[&str]) -> Service {
        let mut service = testing::service("shop/web", &[]);
        service.source_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        service.load_balancer_ips = balancers.iter().map(|ip| ip.parse().unwrap()).collect();
        service
    }

    fn node(ip: &str) -> Node {
        Node { ips: vec![ip.parse().unwrap()], ..Node::default() }
    }

    fn allowed(service: &Service, family: Family, node: Option<&Node>) -> Option<Vec<String>> {
        allowed_sources(service, family, node).map(|ranges| ranges.iter().map(ToString::to_string).collect())
    }

    // Source ranges restrict a family only if one of them is of that family (A9).
    #[test]
    fn ranges_of_one_family_leave_the_other_open() {
        let service = service(&["203.0.113.0/25"], &[]);
        assert_eq!(allowed(&service, Family::V4, None), Some(vec!["203.0.113.0/25".to_owned()]));
        assert_eq!(allowed(&service, Family::V6, None), None);
    }

    // A range with prefix length 0 lifts the restriction of its family (A9).
    #[test]
    fn a_range_that_covers_everything_opens_its_own_family() {
        let service = service(&["203.0.113.0/25", "0.0.0.0/0", "2001:db8::/32"], &[]);
        assert_eq!(allowed(&service, Family::V4, None), None);
        assert_eq!(allowed(&service, Family::V6, None), Some(vec!["2001:db8::/32".to_owned()]));
    }

    // If the node is in a source range, the Service's load balancer IPs are allowed too: the node may use one as its source address (D18).
    #[test]
    fn a_range_with_the_node_admits_the_load_balancer_ips() {
        let service = service(&["192.168.0.0/24"], &["1.2.3.4", "2001:db8::4"]);
        let inside = Some(vec!["1.2.3.4/32".to_owned(), "192.168.0.0/24".to_owned()]);
        assert_eq!(allowed(&service, Family::V4, Some(&node("192.168.0.2"))), inside);
        let outside = Some(vec!["192.168.0.0/24".to_owned()]);
        assert_eq!(allowed(&service, Family::V4, Some(&node("192.168.1.2"))), outside);
    }

    #[test]
    fn overlapping_ranges_are_joined() {
        let service = service(&["10.0.0.0/24", "10.0.0.0/16", "10.1.0.0/16"], &[]);
        assert_eq!(allowed(&service, Family::V4, None), Some(vec!["10.0.0.0/15".to_owned()]));
    }
}
