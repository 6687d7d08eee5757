//! Notifications of transactions: which tables a transaction changed, and which program sent it.

use super::messages::Header;
use crate::table::{Family, TableName};
use crate::wire::{Attrs, SUBSYSTEM, kind};

/// The program that sent a transaction, as the kernel names it: by the thread that sent it (`task_pid_nr` and `task_struct.comm`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The id of its thread that sent the transaction, in the initial PID namespace. The main thread's id is the process id.
    pub pid: u32,
    /// The name of that thread, at most 15 bytes; by default the program's name.
    pub name: String,
}

/// One notification of a transaction. The notifications of its objects come first, the notification of its end comes last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An object of this table was made, changed or removed.
    About(TableName),
    /// The transaction is complete.
    End {
        /// The port of the socket that sent it.
        port: u32,
        /// The program that sent it, if the kernel names one.
        by: Option<Process>,
    },
}

/// The content of one notification; `None` when it is not about nf_tables, or about a table of a family that this crate does not know.
#[must_use]
pub fn notice(bytes: &[u8]) -> Option<Notice> {
    const PROCESS_ID: u16 = 2;
    const PROCESS_NAME: u16 = 3;
    let header = Header::read(bytes)?;
    if header.kind >> 8 != SUBSYSTEM {
        return None;
    }
    let attrs = Attrs::new(header.payload.get(4..)?);
    if header.kind & 0xff == kind::NEW_GENERATION {
        let pid = attrs.find(PROCESS_ID).and_then(|attr| attr.u32());
        let name = attrs.find(PROCESS_NAME).and_then(|attr| attr.str());
        let by = pid.zip(name).map(|(pid, name)| Process { pid, name: name.to_owned() });
        return Some(Notice::End { port: header.port, by });
    }
    let (family, name) = object_of(bytes)?;
    Some(Notice::About(TableName::new(family, name)))
}

/// The family and the name of the table that a notification is about.
fn object_of(bytes: &[u8]) -> Option<(Family, &str)> {
    /// The attribute with the table's name, in notifications of tables and of all other objects.
    const TABLE: u16 = 1;
    let header = Header::read(bytes).filter(|header| header.kind >> 8 == SUBSYSTEM)?;
    if header.kind & 0xff == kind::NEW_GENERATION {
        return None;
    }
    let (nfgenmsg, attrs) = header.payload.split_first_chunk::<4>()?;
    Some((Family::from_number(nfgenmsg[0])?, Attrs::new(attrs).find(TABLE)?.str()?))
}

/// Whether a notification is about this table or an object in it.
pub(crate) fn is_about(bytes: &[u8], table: &TableName) -> bool {
    object_of(bytes).is_some_and(|(family, name)| family == table.family && name == &*table.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Writer;

    fn message(kind: u16, family: u8, fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut attrs = Writer::default();
        fill(&mut attrs);
        let payload = [&[family, 0, 0, 0][..], attrs.bytes()].concat();
        let len = u32::try_from(16 + payload.len()).unwrap().to_ne_bytes();
        [&len[..], &kind.to_ne_bytes(), &[0; 10], &payload].concat()
    }

    #[test]
    fn objects_of_every_kind_name_their_table() {
        for kind in [0, 1, 3, 5, 6, 8, 9, 11, 12, 14, 18, 22] {
            let bytes = message(10 << 8 | kind, 2, |attrs| attrs.str(1, "kube-proxy"));
            assert_eq!(notice(&bytes), Some(Notice::About(TableName::new(Family::Ip, "kube-proxy"))), "{kind}");
        }
    }

    #[test]
    fn the_end_names_the_program() {
        let bytes = message(10 << 8 | 15, 0, |attrs| {
            attrs.u32(1, 77);
            attrs.u32(2, 4711);
            attrs.str(3, "firewalld");
        });
        let process = Process { pid: 4711, name: "firewalld".to_owned() };
        assert_eq!(notice(&bytes), Some(Notice::End { port: 0, by: Some(process) }));
        assert_eq!(
            notice(&message(10 << 8 | 15, 0, |attrs| attrs.u32(1, 77))),
            Some(Notice::End { port: 0, by: None })
        );
    }

    #[test]
    fn notifications_that_cannot_be_read_are_skipped() {
        let bytes = message(10 << 8, 2, |attrs| attrs.str(1, "kube-proxy"));
        for len in 0..bytes.len() {
            assert_eq!(notice(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(notice(&message(10 << 8, 2, |_| {})), None);
        assert_eq!(notice(&message(10 << 8, 5, |attrs| attrs.str(1, "arp-table"))), None);
        assert_eq!(notice(&message(2 << 8, 2, |attrs| attrs.str(1, "kube-proxy"))), None);
    }
}
