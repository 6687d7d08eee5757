//! Remembers at which addresses a health-check node port cannot be listened on, and decides when to report that.
//!
//! Takes the outcome of each try. Logs a failure and reports it to the observer when it begins, when its reason changes and every five
//! minutes, and logs its end. One line reports a failure that several Services have at one address for one reason. Invariant: only failures
//! that last are kept, so memory is bounded by the number of health checks and addresses.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{CheckName, ListenFailure, Observer};

/// The interval at which a failure that lasts is reported again.
const TOLD_EVERY: Duration = Duration::from_secs(300);

/// Too many open files (`EMFILE`).
const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();

/// The key of a listener: a Service in one family, and the address with the port.
type Place = (CheckName, SocketAddr);

/// The last report about a failure.
struct LastLogged {
    errno: Option<i32>,
    at: Instant,
}

/// The failures that last (`lasting`), and those to report now (`due`).
#[derive(Default)]
pub(super) struct Failing {
    lasting: BTreeMap<Place, LastLogged>,
    /// By IP address and reason (`errno`): the first failure to report, and how many further listeners failed in this way.
    due: BTreeMap<(std::net::IpAddr, Option<i32>), (ListenFailure, usize)>,
}

impl Failing {
    /// Notes a failed try to listen.
    pub(super) fn failed(&mut self, name: &CheckName, address: SocketAddr, error: io::Error, now: Instant) {
        let (place, errno) = ((name.clone(), address), error.raw_os_error());
        let is_told = |told: &LastLogged| told.errno == errno && now.saturating_duration_since(told.at) < TOLD_EVERY;
        if self.lasting.get(&place).is_some_and(is_told) {
            return;
        }
        self.lasting.insert(place, LastLogged { errno, at: now });
        let failure = ListenFailure { service: name.service.clone(), address, error };
        let same = self.due.entry((address.ip(), errno));
        same.and_modify(|(_, others)| *others += 1).or_insert((failure, 0));
    }

    /// Notes a successful try to listen.
    pub(super) fn succeeded(&mut self, name: &CheckName, address: SocketAddr) {
        if !self.lasting.is_empty() && self.lasting.remove(&(name.clone(), address)).is_some() {
            info!(service = %name.service, %address, "Started healthcheck that had failed");
        }
    }

    /// Forgets the failures of listeners that are no longer needed.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&CheckName, SocketAddr) -> bool) {
        self.lasting.retain(|(name, address), _| is_wanted(name, *address));
    }

    /// Reports the failures that are due to the log and the observer.
    pub(super) fn tell(&mut self, observer: &dyn Observer) {
        for (failure, others) in std::mem::take(&mut self.due).into_values() {
            let ListenFailure { service, address, error } = &failure;
            let remedy = remedy(*address, error);
            warn!(
                err = %error, %service, %address, otherServices = others, remedy,
                "Failed to start healthcheck; trying again every second"
            );
            observer.listen_failed(&failure);
        }
    }
}

/// Returns what an operator can do about the failure.
fn remedy(address: SocketAddr, error: &io::Error) -> String {
    let (ip, port) = (address.ip(), address.port());
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "`ss -ltnp sport = :{port}` shows the program that has the port: stop it, or have it use another port"
            )
        }
        io::ErrorKind::AddrNotAvailable => format!(
            "`ip address show to {ip}` shows the address and its state: where it says tentative or dadfailed, another machine may \
             have it as well; remove it from one of the two"
        ),
        _ if error.raw_os_error() == Some(EMFILE) => {
            "have the process start with a higher limit of open files (ulimit -n)".to_owned()
        }
        _ => "the kernel's error says what is missing".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::testing::Notes;
    use rules::model::{Family, ObjectName};

    const EADDRINUSE: i32 = rustix::io::Errno::ADDRINUSE.raw_os_error();
    const EADDRNOTAVAIL: i32 = rustix::io::Errno::ADDRNOTAVAIL.raw_os_error();

    fn check(name: &str) -> CheckName {
        CheckName { service: ObjectName::new("ns", name), family: Family::V4 }
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn told(failing: &mut Failing) -> Vec<String> {
        let notes = Notes::new();
        failing.tell(&*notes);
        notes.take()
    }

    // A failure that lasts is reported once in five minutes, and again when its reason changes (K4).
    #[test]
    fn a_failure_that_lasts_is_told_once_in_five_minutes() {
        let (mut failing, start) = (Failing::default(), Instant::now());
        let fail = |failing: &mut Failing, errno: i32, seconds| {
            failing.failed(
                &check("web"),
                at(30_000),
                io::Error::from_raw_os_error(errno),
                start + Duration::from_secs(seconds),
            );
            told(failing).len()
        };
        let counts = [(EADDRINUSE, 0), (EADDRINUSE, 1), (EADDRINUSE, 299), (EADDRINUSE, 300)];
        assert_eq!(counts.map(|(errno, seconds)| fail(&mut failing, errno, seconds)), [1, 0, 0, 1]);
        assert_eq!(fail(&mut failing, EADDRNOTAVAIL, 301), 1, "another reason");
        failing.succeeded(&check("web"), at(30_000));
        assert_eq!(fail(&mut failing, EADDRNOTAVAIL, 302), 1, "it worked meanwhile");
        failing.retain(|_, _| false);
        assert!(failing.lasting.is_empty());
    }

    #[test]
    fn what_many_services_have_in_common_is_one_line() {
        let (mut failing, now) = (Failing::default(), Instant::now());
        for port in 30_000..31_000 {
            failing.failed(&check(&format!("web-{port}")), at(port), io::Error::from_raw_os_error(EADDRNOTAVAIL), now);
        }
        assert_eq!(told(&mut failing), ["ns/web-30000 192.0.2.1:30000 AddrNotAvailable"]);
    }

    #[test]
    fn each_reason_has_a_remedy_that_names_what_to_look_at() {
        let remedy = |errno: i32| remedy(at(30_000), &io::Error::from_raw_os_error(errno));
        assert!(remedy(EADDRINUSE).contains("sport = :30000"));
        assert!(remedy(EADDRNOTAVAIL).contains("ip address show to 192.0.2.1"));
        assert!(remedy(EMFILE).contains("ulimit -n"));
    }
}
