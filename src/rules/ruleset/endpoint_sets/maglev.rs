//! Computes the Maglev table of scheduler `maglev`: the endpoint at each position of the table. At least half of the positions ("places")
//! stay empty.
//!
//! For each client the rules (`balancer`) compute a sequence of positions from hashes of its source, and use the first position that has
//! an endpoint. All endpoints of the same weight have the same number of positions, so each gets the same share of the clients. When an
//! endpoint is removed, its clients move to their next position, and few others move; a new endpoint takes clients from all others. In a
//! full table the first look-up would always succeed, but a change of the endpoints would move more of the other clients, and the table would
//! need many times the elements.
//!
//! As in Maglev, each endpoint has its own permutation of all positions (that is why their number is prime), and takes the first ones.
//! If two endpoints want one position, a hash decides, whatever the order in which they ask, so the table depends only on the endpoints.

use std::net::{IpAddr, SocketAddr};

use crate::ruleset::balancing::places_of_one;
use crate::ruleset::stable_hash::{fnv1a, mix};
use crate::table::fit;

/// The search of one endpoint for positions in the table.
struct Seeker {
    hash: u64,
    /// The index of the endpoint's first entry in the list.
    first: usize,
    next: u64,
    step: u64,
    /// The number of positions that it still needs.
    needs: u32,
}

/// Fills a table with `size` positions, at least two for each entry of the list. Equal entries belong to one endpoint with a larger weight
/// and follow each other; the endpoint takes as many positions as its entries would take together. Returns the taken positions in order,
/// each with the index of the first entry of its endpoint.
pub(super) fn places(size: u32, endpoints: &[SocketAddr]) -> Vec<(u32, usize)> {
    let modulus = u64::from(size);
    let of_one = places_of_one(size, endpoints.len());
    let mut first = 0;
    let seeker = |same: &[SocketAddr]| {
        let (hash, index) = (hash(&same[0]), first);
        first += same.len();
        let needs = of_one.saturating_mul(fit(same.len()));
        Seeker { hash, first: index, next: hash % modulus, step: mix(hash) % (modulus - 1) + 1, needs }
    };
    let mut seekers: Vec<Seeker> = endpoints.chunk_by(|a, b| a == b).map(seeker).collect();
    let mut taken: Vec<Option<usize>> = vec![None; size as usize];
    let mut open: Vec<usize> = (0..seekers.len()).collect();
    while let Some(number) = open.pop() {
        while seekers[number].needs > 0 {
            let place = seekers[number].next;
            seekers[number].next = (place + seekers[number].step) % modulus;
            let holder = &mut taken[usize::try_from(place).unwrap_or(usize::MAX)];
            // Compares hashes, then addresses: so two endpoints never have the same rank.
            let rank = |number: usize| (mix(seekers[number].hash ^ mix(place)), endpoints[seekers[number].first]);
            if holder.is_none_or(|other| rank(number) > rank(other)) {
                seekers[number].needs -= 1;
                if let Some(loser) = holder.replace(number) {
                    seekers[loser].needs += 1;
                    open.push(loser);
                }
            }
        }
    }
    (0..).zip(taken).filter_map(|(place, number)| Some((place, seekers[number?].first))).collect()
}

/// The endpoint for clients that find only empty positions; an empty slice if there are no endpoints.
pub(super) fn last_resort(endpoints: &[SocketAddr]) -> &[SocketAddr] {
    endpoints.iter().min_by_key(|endpoint| (hash(endpoint), **endpoint)).map_or(&[], std::slice::from_ref)
}

/// A hash of an endpoint that is the same on every node.
fn hash(endpoint: &SocketAddr) -> u64 {
    let port = endpoint.port().to_be_bytes();
    mix(match endpoint.ip() {
        IpAddr::V4(ip) => fnv1a(&[&ip.octets()[..], &port].concat()),
        IpAddr::V6(ip) => fnv1a(&[&ip.octets()[..], &port].concat()),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    use nft::Field;
    use proptest::prelude::*;

    use super::*;
    use crate::model::Family;
    use crate::ruleset::balancing;
    use crate::ruleset::endpoint_sets::balancer::TRIES;

    fn endpoint(number: u32) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::from(0x0af4_0000 + number).into(), 8080)
    }

    fn endpoints(numbers: impl IntoIterator<Item = u32>) -> Vec<SocketAddr> {
        numbers.into_iter().map(endpoint).collect()
    }

    /// The endpoints that the nftables rules would choose for this many clients.
    fn reached(size: u32, endpoints: &[SocketAddr], clients: u32) -> Vec<SocketAddr> {
        let places: BTreeMap<u32, usize> = places(size, endpoints).into_iter().collect();
        let of = |client: u32| {
            let tries = (0..TRIES).map(|nth| {
                let Field::Jhash { modulus, seed, .. } = balancing::hash(Family::V4, false, nth, size, 0) else {
                    panic!("no hash")
                };
                nft::jhash_below(&client.to_be_bytes(), seed, modulus)
            });
            let found = tries.filter_map(|place| places.get(&place)).next();
            found.map_or_else(|| last_resort(endpoints)[0], |number| endpoints[*number])
        };
        (0..clients).map(|client| of(0xc633_0000 + client)).collect()
    }

    /// Removes endpoint `gone` of `count`; returns the number of clients that moved divided by the number of clients that it had.
    fn moved(size: u32, count: u32, gone: u32) -> f64 {
        const CLIENTS: u32 = 20_000;
        let before = reached(size, &endpoints(0..count), CLIENTS);
        let after = reached(size, &endpoints((0..count).filter(|number| *number != gone)), CLIENTS);
        let had_to = before.iter().filter(|reached| **reached == endpoint(gone)).count();
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        f64::from(u32::try_from(moved).unwrap()) / f64::from(u32::try_from(had_to).unwrap())
    }

    // Each endpoint gets the same share of the client addresses (E10).
    #[test]
    fn clients_are_shared_evenly() {
        const CLIENTS: u32 = 20_000;
        // Number of endpoints, and the value that chi-squared exceeds with probability 0.001 (degrees of freedom: endpoints - 1).
        for (count, limit) in [(2, 10.83), (3, 13.82), (10, 27.88), (30, 58.30), (100, 148.23)] {
            let endpoints = endpoints(0..count);
            let mut had: BTreeMap<SocketAddr, f64> = endpoints.iter().map(|endpoint| (*endpoint, 0.0)).collect();
            reached(1021, &endpoints, CLIENTS).iter().for_each(|reached| *had.get_mut(reached).unwrap() += 1.0);
            let expected = f64::from(CLIENTS) / f64::from(count);
            let chi_squared: f64 = had.values().map(|had| (had - expected).powi(2) / expected).sum();
            assert!(chi_squared < limit, "{count} endpoints: {chi_squared}");
        }
    }

    // An endpoint of weight 3 has three times the positions and clients (E15).
    #[test]
    fn an_endpoint_of_weight_three_gets_three_times_the_clients() {
        const CLIENTS: u32 = 20_000;
        let list = [0, 1, 1, 1, 2].map(endpoint);
        let taken = places(1021, &list);
        let of = |number: u32| taken.iter().filter(|(_, index)| list[*index] == endpoint(number)).count();
        assert_eq!([of(0), of(1), of(2)], [15, 45, 15]);
        let reached = reached(1021, &list, CLIENTS);
        let share = |number: u32| {
            let count = reached.iter().filter(|reached| **reached == endpoint(number)).count();
            f64::from(u32::try_from(count).unwrap()) / f64::from(CLIENTS)
        };
        for (number, wanted) in [(0, 0.2), (1, 0.6), (2, 0.2)] {
            assert!((share(number) - wanted).abs() < 0.02, "{number}: {}", share(number));
        }
    }

    // At most 1.5 times as many clients move as the removed endpoint had (E10).
    #[test]
    fn little_more_clients_move_than_those_of_the_endpoint_that_goes() {
        for (count, limit) in [(2, 1.0), (3, 1.05), (10, 1.5), (30, 1.5)] {
            let all: Vec<f64> = (0..count.min(6)).map(|gone| moved(1021, count, gone)).collect();
            let mean = all.iter().sum::<f64>() / f64::from(count.min(6));
            assert!((1.0..=limit).contains(&mean), "{count} endpoints: {all:?}");
        }
    }

    // Compares with a fixed table, so that no new version sends clients to other endpoints than the previous one (E11).
    #[test]
    fn the_table_is_the_same_in_every_version() {
        let of = |places: Vec<(u32, usize)>| places.into_iter().map(|(place, number)| format!("{place}:{number}"));
        let table: Vec<String> = of(places(251, &endpoints(0..3))).collect();
        assert_eq!(table.join(" "), "3:0 54:1 98:0 159:0 183:1 205:2 211:2 217:2 244:1");
    }

    proptest! {
        #[test]
        fn each_endpoint_has_as_many_places_as_the_others_whatever_their_order(
            numbers in proptest::collection::btree_set(0_u32..5000, 2..80),
            rotation in 0_usize..80,
        ) {
            let sorted = endpoints(numbers);
            let mut other = sorted.clone();
            other.rotate_left(rotation % sorted.len());
            let table = |list: &[SocketAddr]| -> Vec<(u32, SocketAddr)> {
                places(509, list).into_iter().map(|(place, number)| (place, list[number])).collect()
            };
            let first = table(&sorted);
            prop_assert_eq!(&first, &table(&other));
            prop_assert_eq!(last_resort(&sorted), last_resort(&other));
            for endpoint in &sorted {
                let has = first.iter().filter(|(_, other)| other == endpoint).count();
                prop_assert_eq!(has, places_of_one(509, sorted.len()) as usize);
            }
        }
    }
}
