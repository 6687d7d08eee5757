//! Long-lived TCP connections and UDP flows, on every way, which are asked again and again.
//!
//! TCP connections go to the Service `steady`, whose endpoints leave and enter its slices while their servers run on: a connection
//! stays with its server whatever becomes of the Service. UDP flows go to `rolling`, whose servers do stop: a flow moves on. A datagram
//! may be on its way just when its flow is deleted, and get lost; so a flow is broken when it is silent twice in a row.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use socket2::{Socket, Type};

use super::cluster::{Way, ways};
use super::load::{Load, answer, socket};
use crate::support::figures::Figures;
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::server::Answer;
use crate::support::world::World;

/// The pause between two requests on one connection.
const PAUSE: Duration = Duration::from_millis(100);

/// A TCP connection to `steady`, and the server that answers.
struct Connection {
    name: String,
    socket: Socket,
    first: Answer,
}

/// A UDP flow to `rolling`.
struct Flow {
    name: String,
    socket: Socket,
}

/// All connections and flows.
pub(crate) struct Held {
    connections: Vec<Connection>,
    flows: Vec<Flow>,
    answers: u64,
    datagrams_lost: u64,
    broken: Vec<String>,
}

impl Held {
    /// Opens the connections and flows.
    pub(crate) fn open(world: &World) -> Self {
        let each: Vec<(Way<'_>, Family)> =
            ways(world).into_iter().flat_map(|way| Family::ALL.map(|family| (way, family))).collect();
        let connection = |(way, family): &(Way<'_>, Family)| {
            let target = way.steady(*family);
            let socket = connect(*way, Type::STREAM, *family, target);
            let first = answer(&socket).unwrap_or_else(|error| panic!("{way}: {target}: {error}"));
            Connection { name: format!("TCP {way} to {target}"), socket, first }
        };
        let flow = |(way, family): &(Way<'_>, Family)| {
            let target = way.target(*family, Proto::Udp);
            Flow { name: format!("UDP {way} to {target}"), socket: connect(*way, Type::DGRAM, *family, target) }
        };
        let (connections, flows) = (each.iter().map(connection).collect(), each.iter().map(flow).collect());
        Self { connections, flows, answers: 0, datagrams_lost: 0, broken: Vec::new() }
    }

    /// Sends requests on all of them until the load ends; one that breaks gets no more requests.
    pub(crate) fn keep_asking(&mut self, load: &Load) {
        while load.goes_on() {
            let (answers, broken) = (&mut self.answers, &mut self.broken);
            self.connections.retain(|connection| match connection.ask() {
                Ok(()) => {
                    *answers += 1;
                    true
                }
                Err(error) => {
                    broken.push(format!("{}: {error}", connection.name));
                    false
                }
            });
            let lost = &mut self.datagrams_lost;
            self.flows.retain(|flow| {
                let mut again = || {
                    *lost += 1;
                    ask(&flow.socket)
                };
                match ask(&flow.socket).or_else(|_| again()) {
                    Ok(_) => {
                        *answers += 1;
                        true
                    }
                    Err(error) => {
                        broken.push(format!("{}: {error}", flow.name));
                        false
                    }
                }
            });
            thread::sleep(PAUSE);
        }
    }

    /// The number of broken connections and flows.
    pub(crate) fn broken(&self) -> usize {
        self.broken.len()
    }

    /// Asserts that none is broken, and that all got requests.
    pub(crate) fn assert_unbroken(&self) {
        assert!(self.broken.is_empty(), "long-lived connections broke: {:#?}", self.broken);
        let held = self.connections.len() + self.flows.len();
        assert!(self.answers > 10 * held as u64, "{held} were asked {} times", self.answers);
    }

    /// Adds the rows about connections and flows.
    pub(crate) fn describe(&self, figures: &mut Figures) {
        figures.row("long-lived TCP connections and UDP flows", self.connections.len() + self.flows.len());
        figures.row("answers on them", self.answers);
        figures.row("of them broken", self.broken.len());
        figures.row("datagrams lost on flows that moved", self.datagrams_lost);
    }
}

impl Connection {
    /// The same server answers as at first.
    fn ask(&self) -> io::Result<()> {
        match ask(&self.socket)? {
            answer if answer == self.first => Ok(()),
            answer => Err(io::Error::other(format!("{answer:?} instead of {:?}", self.first))),
        }
    }
}

fn ask(socket: &Socket) -> io::Result<Answer> {
    socket.send(b"?")?;
    answer(socket)
}

fn connect(way: Way<'_>, kind: Type, family: Family, target: SocketAddr) -> Socket {
    let socket = way.from.enter(|| {
        let socket = socket(kind, SocketAddr::new((way.source)(family), 0))?;
        socket.connect(&target.into())?;
        Ok::<_, io::Error>(socket)
    });
    socket.unwrap_or_else(|error| panic!("{way}: {target}: {error}"))
}
