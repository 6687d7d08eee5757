//! Reports of the kernel are grouped by packet, with limits on how many are kept.

use nft::decode::{Event, Headers};

use super::*;

fn own() -> TableName {
    TableName::new(Family::Ip, "kube-proxy-trace-7")
}

fn report(packet: u32, table: &TableName, handle: u64) -> Traced {
    Traced {
        packet,
        table: table.clone(),
        chain: "arriving".into(),
        event: Event::Rule(handle),
        verdict: None,
        mark: 0,
        headers: Some(Headers::default()),
    }
}

fn handles(packets: &[Vec<Traced>]) -> Vec<Vec<u64>> {
    let handle = |report: &Traced| match report.event {
        Event::Rule(handle) => handle,
        Event::Return | Event::Policy => 0,
    };
    packets.iter().map(|reports| reports.iter().map(handle).collect()).collect()
}

#[test]
fn reports_are_put_together_by_packet_and_those_of_other_traces_left_out() {
    let (mut packets, now, other) = (Packets::default(), Instant::now(), TableName::new(Family::Ip, "other"));
    for (packet, table, handle) in
        [(1, &own(), 1), (2, &other, 90), (3, &own(), 3), (1, &other, 10), (3, &other, 30), (1, &other, 11)]
    {
        packets.add(report(packet, table, handle), &own(), now);
    }
    assert!(packets.silent(now, SILENCE).is_empty(), "more may come");
    assert_eq!(handles(&packets.silent(now + SILENCE, SILENCE)), [vec![1, 10, 11], vec![3, 30]]);
    assert!(packets.silent(now + SILENCE, Duration::ZERO).is_empty(), "each packet is told once");
}

#[test]
fn a_packet_that_another_trace_marked_before_is_not_ours() {
    let (mut packets, now) = (Packets::default(), Instant::now());
    packets.add(Traced { event: Event::Policy, ..report(1, &own(), 0) }, &own(), now);
    packets.add(report(1, &TableName::new(Family::Ip, "other"), 10), &own(), now);
    assert!(packets.silent(now, Duration::ZERO).is_empty());
}

#[test]
fn a_report_behind_the_translation_is_of_the_same_packet() {
    let (mut packets, now) = (Packets::default(), Instant::now());
    packets.add(report(1, &own(), 1), &own(), now);
    packets.add(Traced { chain: "arrived".into(), ..report(1, &own(), 2) }, &own(), now);
    packets.add(Traced { chain: "arrived".into(), ..report(2, &own(), 2) }, &own(), now);
    assert_eq!(
        handles(&packets.silent(now, Duration::ZERO)),
        [[1, 2]],
        "of a packet that we did not mark nothing is kept"
    );
}

#[test]
fn a_packet_that_is_sent_again_under_the_same_number_is_another_one() {
    let (mut packets, now, other) = (Packets::default(), Instant::now(), TableName::new(Family::Ip, "other"));
    for (table, handle) in [(&own(), 1), (&other, 10), (&own(), 1), (&other, 11)] {
        packets.add(report(1, table, handle), &own(), now);
    }
    assert_eq!(handles(&packets.silent(now, Duration::ZERO)), [vec![1, 10], vec![1, 11]]);
}

#[test]
fn packets_are_told_in_the_order_in_which_they_came() {
    let (mut packets, now) = (Packets::default(), Instant::now());
    for (packet, handle) in [(1, 1), (2, 2), (2, 3)] {
        packets.add(report(packet, &own(), handle), &own(), now);
    }
    assert!(packets.silent(now, SILENCE).is_empty(), "the first is under way, although the second is over");
    assert_eq!(handles(&packets.silent(now + SILENCE, SILENCE)), [[1], [2], [3]]);
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let (mut packets, now, other) = (Packets::default(), Instant::now(), TableName::new(Family::Ip, "other"));
    for packet in 0..2_000 {
        packets.add(report(packet, &own(), 1), &own(), now);
    }
    for _ in 0..3_000 {
        packets.add(report(1, &other, 2), &own(), now);
    }
    assert_eq!(packets.open.len(), PACKETS);
    assert!(packets.open.iter().all(|open| open.reports.len() <= REPORTS));
}
