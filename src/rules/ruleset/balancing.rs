//! How an endpoint is chosen: the scheduler, its hashes, and how many map elements it takes.
//!
//! The results are the same on every node and after every start: they depend only on the endpoints, the configuration and the
//! constants of this file. So with schedulers `source-hash` and `maglev`, nodes with the same list of endpoints (and the same byte order,
//! because the kernel's hash depends on it) send a client to the same endpoint.

use nft::{Field, Hashed};

use crate::model::{Family, Scheduler};

/// How endpoints are chosen. A Service can name another scheduler in an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balancing {
    /// The scheduler of Services whose annotations name none.
    pub scheduler: Scheduler,
    /// Whether hashes include the source port besides the address.
    pub with_port: bool,
    /// The number of positions in the Maglev table of scheduler `maglev`; a prime number.
    pub table_size: u32,
}

impl Default for Balancing {
    fn default() -> Self {
        Self { scheduler: Scheduler::Random, with_port: false, table_size: DEFAULT_TABLE_SIZE }
    }
}

/// The default number of positions in a Maglev table: with up to 34 endpoints each endpoint takes 15 positions.
const DEFAULT_TABLE_SIZE: u32 = 1021;
/// A Maglev table has at least this many positions for each position that one endpoint takes. So with two endpoints about one position in
/// 32 is taken, and a client needs about 32 hashes on average to find an endpoint. See `deploy/SCHEDULERS.md` for the measurements.
const PLACES_A_SHARE: u32 = 64;
/// The seed of the hash of scheduler `source-hash` and of the first hash of `maglev`.
const SEED: u32 = 0x6b70_6e66;
/// The difference between the seeds of two successive hashes of `maglev`.
const SEED_STEP: u32 = 0x9e37_79b9;

impl Balancing {
    /// The scheduler of a Service with this annotation and number of endpoints; `Random` for a single endpoint, which needs no choice.
    pub(super) fn scheduler(self, named: Option<Scheduler>, endpoints: usize) -> Scheduler {
        if endpoints < 2 { Scheduler::Random } else { named.unwrap_or(self.scheduler) }
    }

    /// Whether a Service with this annotation and at most so many entries in a list of endpoints may need a Maglev table.
    pub(super) fn has_table(self, named: Option<Scheduler>, endpoints: u64) -> bool {
        self.scheduler(named, usize::try_from(endpoints).unwrap_or(usize::MAX)) == Scheduler::Maglev
    }

    /// The number of positions in the Maglev table for this many endpoints: as configured, or a larger prime number if there are not two
    /// positions for each endpoint.
    pub(super) fn places(self, endpoints: usize) -> u32 {
        let endpoints = u32::try_from(endpoints).unwrap_or(u32::MAX / 8);
        let mut places = self.table_size;
        while places < endpoints.saturating_mul(2) {
            places = next_prime(places.saturating_mul(2));
        }
        places
    }

    /// The number of map elements that a frontend with this many entries in its list of endpoints needs. With `maglev`, one of them is the
    /// endpoint for clients that find only empty positions.
    pub(super) fn elements(self, named: Option<Scheduler>, endpoints: u64) -> u64 {
        let count = usize::try_from(endpoints).unwrap_or(usize::MAX);
        match self.scheduler(named, count) {
            Scheduler::Random | Scheduler::SourceHash => endpoints,
            Scheduler::Maglev => endpoints.saturating_mul(places_of_one(self.places(count), count).into()) + 1,
        }
    }
}

/// The number of positions that each of this many endpoints takes in a Maglev table, which has at least two for each endpoint. All
/// endpoints together take at most half of the positions: see module `maglev`.
pub(super) fn places_of_one(places: u32, endpoints: usize) -> u32 {
    let endpoints = u32::try_from(endpoints).unwrap_or(u32::MAX).max(1);
    (places / PLACES_A_SHARE).min(places / 2 / endpoints).max(1)
}

/// An expression that hashes the packet's source to a number from `offset` to `offset + modulus - 1`. `nth` selects one of several hashes.
pub(super) fn hash(family: Family, with_port: bool, nth: u32, modulus: u32, offset: u32) -> Field {
    let hashed = match (family, with_port) {
        (Family::V4, false) => Hashed::IpSource,
        (Family::V4, true) => Hashed::IpSourceAndPort,
        (Family::V6, false) => Hashed::Ip6Source,
        (Family::V6, true) => Hashed::Ip6SourceAndPort,
    };
    Field::Jhash { hashed, modulus, seed: SEED.wrapping_add(nth.wrapping_mul(SEED_STEP)), offset }
}

/// The smallest prime number that is not less than `from`.
fn next_prime(from: u32) -> u32 {
    let is_prime = |number: &u32| (2..).take_while(|d| d * d <= *number).all(|divisor| !number.is_multiple_of(divisor));
    (from.max(2)..).find(is_prime).unwrap_or(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_at_most_half_full_and_a_prime_number_of_places() {
        let balancing = Balancing::default();
        assert_eq!([2, 10, 34, 35, 510].map(|n| balancing.places(n)), [1021; 5]);
        assert_eq!([2, 34, 35, 100, 510].map(|n| places_of_one(1021, n)), [15, 15, 14, 5, 1]);
        assert_eq!([511, 1022, 5000].map(|n| balancing.places(n)), [2053, 2053, 16_477]);
        for endpoints in 2..3000 {
            let places = balancing.places(endpoints);
            assert!(places_of_one(places, endpoints) as usize * endpoints <= places as usize / 2, "{endpoints}");
        }
    }

    #[test]
    fn a_lone_endpoint_needs_no_scheduler() {
        let balancing = Balancing { scheduler: Scheduler::Maglev, ..Balancing::default() };
        assert_eq!([0, 1, 2].map(|n| balancing.scheduler(None, n) == Scheduler::Maglev), [false, false, true]);
        assert_eq!([1, 2, 10].map(|n| balancing.elements(None, n)), [1, 31, 151]);
        assert_eq!(balancing.elements(Some(Scheduler::SourceHash), 10), 10);
    }
}
