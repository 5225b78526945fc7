//! The list of attacks.

use nemesia::Access;
use nemesia_core::port::memory::Facts;

use super::attacker::Attacker;
use super::honest::{Bait, Trap};
use super::{memory, packets, rings};
use crate::memory_port::{Fabric, Verdict, is_wanted};

/// An attack by one rank.
pub(super) struct Attack<F: Fabric> {
    pub(super) trap: Trap,
    pub(super) act: Act<F>,
}

/// What a hostile rank does.
pub(super) type Act<F> = fn(&mut Attacker<'_, F>) -> Verdict;

/// How messages move in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttackedWorld {
    /// The sender of a large message writes it.
    Writing,
    /// The receiver of a large message reads it.
    Reading,
    /// Small packets are written into rings.
    Rings,
}

const HEADER: &[&str] = &["it violated the transport's protocol: a packet has a malformed header"];
const SEQUENCE: &[&str] = &["arrived twice, or is outside the window"];
/// Where a message does not wait for a receive, the fabric may end the connection first.
const OVERDRAWN: &[&str] =
    &["it sent a packet for which it had no credit", "connection lost", "a work request failed"];
/// The fabric has refused something, and has ended the connection.
const ENDED: &[&str] = &["connection lost", "a work request failed"];
const RTS: &[&str] = &["a Rts packet is invalid"];
const CTS: &[&str] = &["a Cts packet is invalid"];
const DATA: &[&str] = &["a Data packet is invalid"];
const FIN: &[&str] = &["a Fin packet is invalid"];
const ACTIVE: &[&str] = &["a Active packet is invalid"];
const RMA: &[&str] = &["a Rma packet is invalid"];
const RMA_REPLY: &[&str] = &["a RmaReply packet is invalid"];
const ACKNOWLEDGED: &[&str] = &["a EagerAcknowledged packet is invalid"];

/// An attack as a line of the list.
type AttackLine<F> = (&'static str, Bait, Act<F>, &'static [&'static str]);

/// Returns the attacks of a world that are [`is_wanted`] by their names. `has_read_rights`: the fabric checks whether
/// memory may be read.
pub(super) fn possible<F: Fabric>(
    world: AttackedWorld,
    facts: &Facts,
    has_read_rights: bool,
) -> Vec<Attack<F>> {
    let mut lines = match world {
        AttackedWorld::Writing => [of_packets(), while_writing(facts)].concat(),
        AttackedWorld::Reading => [of_memory(facts), while_reading()].concat(),
        AttackedWorld::Rings => of_rings(),
    };
    if has_read_rights {
        lines.push(of_read_rights(world));
    }
    let attack = |(name, bait, act, words)| Attack { trap: Trap { name, bait, words }, act };
    lines.into_iter().filter(|line| is_wanted(line.0)).map(attack).collect()
}

fn of_packets<F: Fabric>() -> Vec<AttackLine<F>> {
    use Bait::Nothing;
    vec![
        ("a message without bytes", Nothing, packets::empty, HEADER),
        ("half a header", Nothing, packets::half_a_header, HEADER),
        ("a message that is longer than a receive", Nothing, packets::too_long, ENDED),
        ("an unknown kind", Nothing, packets::unknown_kind, HEADER),
        ("reserved bits", Nothing, packets::reserved_bits, HEADER),
        ("an update with a payload", Nothing, packets::full_update, HEADER),
        ("a close with a payload", Nothing, packets::full_close, HEADER),
        ("a number that was used", Nothing, packets::used_number, SEQUENCE),
        ("a number far ahead", Nothing, packets::number_far_ahead, SEQUENCE),
        ("a report of too many receives", Nothing, packets::too_many_receives, HEADER),
        ("a report of no receives to keep", Nothing, packets::no_receives, HEADER),
        ("packets without credit", Nothing, packets::overdrawn, OVERDRAWN),
        ("all units that there are, and half a header", Bait::Send, packets::all_units, HEADER),
        ("the slots of a ring that does not exist", Nothing, packets::false_slots, HEADER),
        ("a stop of a ring that does not exist", Nothing, packets::false_stop, HEADER),
        ("an answer about a ring that nobody has stopped", Nothing, packets::false_stopped, HEADER),
        ("a ring with three slots", Nothing, packets::false_ring, HEADER),
        ("half an RTS", Nothing, packets::half_an_rts, RTS),
        ("an RTS of more bytes than memory has", Nothing, packets::huge_rts, RTS),
        ("an RTS whose descriptor is longer than it", Nothing, packets::overflowing_rts, RTS),
        ("a CTS for a message that was never sent", Nothing, packets::false_cts, CTS),
        ("a CTS beyond the end of the message", Bait::Send, packets::cts_beyond_end, CTS),
        ("two CTS for one message", Bait::Send, packets::second_cts, CTS),
        ("data that nobody has requested", Nothing, packets::false_data, DATA),
        ("a FIN for a message that was never sent", Nothing, packets::false_fin, FIN),
        ("half an acknowledged message", Nothing, packets::half_acknowledged, ACKNOWLEDGED),
        ("an active message shorter than its header", Nothing, packets::short_active, ACTIVE),
        ("an unknown one-sided operation", Nothing, packets::unknown_operation, RMA),
        ("half a put", Nothing, packets::half_a_put, RMA),
        ("a get by a key that it never got, and half a header", Nothing, packets::unknown_get, HEADER),
        ("an answer to a get that nobody has begun", Nothing, packets::false_reply, RMA_REPLY),
        ("an answer to a withdrawal that nobody has sent", Nothing, packets::false_answer, RMA_REPLY),
    ]
}

/// Attacks in a world whose senders write.
fn while_writing<F: Fabric>(facts: &Facts) -> Vec<AttackLine<F>> {
    let mut lines: Vec<AttackLine<F>> = vec![
        ("a CTS with a key that nobody has", Bait::Send, memory::false_key_in_cts, ENDED),
        ("an enormous message, of which too much is sent", Bait::Receive, memory::more_than_requested, DATA),
        ("a write behind the buffer of a receive", Bait::Receive, memory::behind_receive, ENDED),
        ("a write before the buffer of a receive", Bait::Receive, memory::before_receive, ENDED),
        ("a write after the end of a receive", Bait::CompleteReceive, memory::after_receive, ENDED),
    ];
    if facts.immediates {
        lines.extend::<[AttackLine<F>; 2]>([
            ("an immediate that nobody has agreed on", Bait::Nothing, memory::unknown_immediate, HEADER),
            ("an immediate for the second time", Bait::CompleteReceive, memory::second_immediate, HEADER),
        ]);
    }
    lines
}

/// Attacks in a world whose receivers read.
fn while_reading<F: Fabric>() -> Vec<AttackLine<F>> {
    vec![
        ("an RTS with a key that nobody has", Bait::Receive, memory::false_key_in_rts, ENDED),
        ("a read behind a message", Bait::Send, memory::behind_message, ENDED),
        ("a read after the end of a message", Bait::Send, memory::after_message, ENDED),
        ("a write into a message", Bait::Send, memory::write_message, ENDED),
    ]
}

fn of_memory<F: Fabric>(facts: &Facts) -> Vec<AttackLine<F>> {
    let [read, both] = [Access::Read, Access::ReadWrite].map(Bait::Region);
    let mut lines: Vec<AttackLine<F>> = vec![
        ("a write with a key that it never got", Bait::Nothing, memory::unknown_write, ENDED),
        ("a read with a key that it never got", Bait::Nothing, memory::unknown_read, ENDED),
        ("a write across the end of a region", both, memory::across_end, ENDED),
        ("a write behind a region", both, memory::behind_region, ENDED),
        ("a write before a region", both, memory::before_region, ENDED),
        ("a read across the end of a region", both, memory::read_across_end, ENDED),
        ("a write of 2 GiB into a region", both, memory::wrapping_place, ENDED),
        ("a write into a region to be read", read, memory::behind_rights, ENDED),
        ("a write after the region was revoked", both, memory::write_revoked, ENDED),
        ("a read after the region was revoked", read, memory::read_revoked, ENDED),
    ];
    if facts.atomics {
        lines.push(("an addition with a key that it never got", Bait::Nothing, memory::unknown_add, ENDED));
        lines.push(("an addition to a region", both, memory::add_to_region, ENDED));
    }
    lines
}

/// Returns a read of memory that the attacker may only write.
fn of_read_rights<F: Fabric>(world: AttackedWorld) -> AttackLine<F> {
    match world {
        AttackedWorld::Writing => {
            ("a read from the buffer of a receive", Bait::Receive, memory::read_receive, ENDED)
        }
        AttackedWorld::Reading => {
            let region = Bait::Region(Access::Write);
            ("a read from a region to be written", region, memory::read_behind_rights, ENDED)
        }
        AttackedWorld::Rings => ("a read from the ring", Bait::Nothing, rings::read, ENDED),
    }
}

fn of_rings<F: Fabric>() -> Vec<AttackLine<F>> {
    use Bait::Nothing;
    vec![
        ("a packet in a ring longer than its slot", Nothing, rings::long_packet, HEADER),
        ("a slot of zeros with a valid end", Nothing, rings::zeros, HEADER),
        ("a slot of ones with a valid end", Nothing, rings::ones, HEADER),
        ("an update in a ring", Nothing, rings::update, HEADER),
        ("a packet about rings in a ring", Nothing, rings::notice, HEADER),
        ("a false report in a ring", Nothing, rings::false_report, HEADER),
        ("a cached header in the first packet of a ring", Nothing, rings::cached_first, HEADER),
        ("a cached header with a reserved bit", Nothing, rings::cached_reserved, HEADER),
        ("a cached header with a false report", Nothing, rings::cached_report, HEADER),
        ("a packet with a cached header longer than its slot", Nothing, rings::cached_long, HEADER),
        ("a number far ahead in a ring", Nothing, rings::far_ahead, SEQUENCE),
        ("noise in all slots, and half a header", Nothing, rings::noise, HEADER),
        ("a write behind the ring", Nothing, rings::behind, ENDED),
        ("a write before the ring", Nothing, rings::before, ENDED),
        ("a ring in memory that nobody has", Bait::Send, rings::nowhere, ENDED),
    ]
}
