//! Accesses to the memory of other processes, as the engine's protocols for large messages use them.
//!
//! A *transfer* moves bytes from a buffer of one process to a buffer of another: the receiver gets them, or the sender
//! puts them and reports the end, by a packet or by the last put. When the report arrives, all bytes must be there.
//! Afterwards both buffers belong to their owners again, who fill them with other bytes, and nothing may change these.
//!
//! A process that has had the description of a buffer may be hostile: it accesses the buffer when the exposure has been
//! revoked, or it reports the end of puts to a buffer that is exposed to another process. Then its own connection ends,
//! and nothing else happens.

use nemesia_core::payload::{ReceiveRange, SendRange};
use nemesia_core::port::{Accessed, PacketPieces, PacketPort as _, PeerId, PortFault, RemoteAccess as _};
use nemesia_core::wire::{Envelope, Kind};

use super::fabric::ChannelFabric;
use super::node::Land;
use super::transfer::{ReturnedBuffer, Transfer, TransferKind, TransferSide};
use super::world::{ChannelPacket, ChannelWorld};
use crate::tally::Event;
use crate::violation::{Check, Violation, ensure};

/// Most transfers at a time.
const MOST: usize = 6;
/// Most bytes of a transfer.
const MOST_BYTES: usize = 3000;
/// The tags of the reports begin with these bits.
const MARK: u64 = 0xacce_5500 << 32;

impl Transfer {
    /// Begins the access of the process at `from` to the exposed buffer of `to`. Puts whose last one is the report
    /// begin with the first half, and the rest follows.
    fn access<F: ChannelFabric>(
        &self,
        world: &mut ChannelWorld<F>,
        (from, to): (usize, usize),
    ) -> Option<Accessed> {
        let channel = &mut world.nodes[from].as_mut()?.channel;
        let (peer, len) = (to as PeerId, self.bytes.len());
        let half = self.half();
        // SAFETY: the buffers belong to the transfer until the access has ended, the peer is closed, or the port is
        // gone.
        Some(unsafe {
            match self.kind {
                TransferKind::Get => {
                    let range = ReceiveRange::from_raw(self.receiver.land.base(), len);
                    channel.get(peer, &self.described, 0, range, self.tag)
                }
                TransferKind::Put => {
                    let range = SendRange::from_raw(self.sender.land.base(), len);
                    channel.put(peer, &self.described, 0, range, self.tag)
                }
                TransferKind::PutNotify if self.halfway.is_none() && half > 0 => {
                    let range = SendRange::from_raw(self.sender.land.base(), half);
                    channel.put(peer, &self.described, 0, range, self.tag)
                }
                TransferKind::PutNotify => {
                    let rest = self.sender.land.base().add(half);
                    let range = SendRange::from_raw(rest, len - half);
                    channel.put_last(peer, &self.described, half as u64, range, self.tag)
                }
            }
        })
    }
}

impl<F: ChannelFabric> ChannelWorld<F> {
    /// Begins a transfer between two connected processes.
    pub(super) fn begin_transfer(&mut self, rank: usize) -> Check {
        let to = self.rng.below(self.ranks());
        if to == rank || self.accesses.transfers.len() >= MOST || !self.is_connected(rank, to) {
            return Ok(());
        }
        let Some(node) = &mut self.nodes[to] else { return Ok(()) };
        let offered = node.channel.rendezvous(rank as u32);
        let most = node.channel.access_shape(rank as u32).most_bytes.min(MOST_BYTES as u64) as usize;
        let len = 1 + self.rng.below(most);
        let kinds = if offered.put {
            &[TransferKind::Get, TransferKind::Put, TransferKind::PutNotify][..]
        } else {
            &[TransferKind::Get][..]
        };
        let kind = self.rng.pick(kinds);
        self.accesses.begun += 1;
        let tag = MARK | self.accesses.begun;
        let bytes: Vec<u8> = (0..len).map(|_| self.rng.next() as u8).collect();
        let (sender, receiver) = (Land::new(len as u64), Land::new(len as u64));
        sender.write(&bytes);
        let (owner, peer) = if kind == TransferKind::Get { (rank, to) } else { (to, rank) };
        let Some(node) = &mut self.nodes[owner] else { return Ok(()) };
        // SAFETY: the buffers belong to the transfer until the exposure is revoked, the peer is closed, or the port is
        // gone.
        let (described, exposure) = unsafe {
            match kind {
                TransferKind::Get => {
                    node.channel.expose(peer as u32, SendRange::from_raw(sender.base(), len))
                }
                TransferKind::Put | TransferKind::PutNotify => {
                    let range = ReceiveRange::from_raw(receiver.base(), len);
                    node.channel.expose_for_put(peer as u32, range, tag)
                }
            }
        };
        if exposure.is_none() {
            self.tally.count(Event::NotRegistered);
            return Ok(());
        }
        let notifies = node.channel.notifies(peer as u32, &described);
        let kind = if kind == TransferKind::PutNotify && !notifies { TransferKind::Put } else { kind };
        let side = |rank, land| TransferSide { rank, land, is_over: false };
        let (sender, receiver) = (side(rank, sender), side(to, receiver));
        self.trace.note(self.now.as_micros() as u64, || format!("{rank} exposes {tag:x} to {to}: {kind:?}"));
        self.accesses.transfers.push(Transfer {
            tag,
            kind,
            sender,
            receiver,
            bytes,
            described,
            exposure,
            begun: false,
            ended: false,
            halfway: None,
            under_way: 0,
            reported: false,
        });
        Ok(())
    }

    /// Continues the transfers of a process.
    pub(super) fn go_on_with_transfers(&mut self, rank: usize) -> Check {
        while let Some(ended) = self.nodes[rank].as_mut().and_then(|node| node.channel.poll_access()) {
            // The access of a closed peer is reported to nobody, so the transfer exists, or it was a hostile access.
            if ended.result.is_ok()
                && let Some(at) = self.accesses.transfers.iter().position(|it| it.tag == ended.operation)
            {
                self.access_has_ended(at)?;
            }
        }
        for at in (0..self.accesses.transfers.len()).rev() {
            let it = &self.accesses.transfers[at];
            if it.ranks().0 != rank || it.sender.is_over || it.receiver.is_over {
                continue;
            }
            if !it.begun || it.halfway.is_some() {
                self.begin_access(at)?;
            } else if it.kind == TransferKind::Put && !it.reported {
                self.report_end(at);
            }
        }
        Ok(())
    }

    fn begin_access(&mut self, at: usize) -> Check {
        let mut transfer = self.accesses.transfers.swap_remove(at);
        let ranks = transfer.ranks();
        let accessed = transfer.access(self, ranks);
        if matches!(accessed, Some(Accessed::Later | Accessed::Done)) {
            transfer.begun = true;
            transfer.under_way += 1;
            let is_first = transfer.kind == TransferKind::PutNotify && transfer.halfway.is_none();
            transfer.halfway = is_first.then(|| transfer.half()).filter(|half| *half > 0);
            transfer.reported |= transfer.kind == TransferKind::PutNotify && transfer.halfway.is_none();
            self.tally.count(Event::Accessed);
        }
        // The peer may still execute the puts before the last one, which is tried again.
        let failed = matches!(accessed, Some(Accessed::Failed(_))) && transfer.halfway.is_none();
        self.accesses.transfers.push(transfer);
        let at = self.accesses.transfers.len() - 1;
        if accessed == Some(Accessed::Done) {
            return self.access_has_ended(at);
        }
        if failed {
            // The memory could not be registered.
            self.tally.count(Event::NotRegistered);
            self.end_transfer(at);
        }
        Ok(())
    }

    /// Processes the end of an access.
    fn access_has_ended(&mut self, at: usize) -> Check {
        let it = &mut self.accesses.transfers[at];
        it.under_way -= 1;
        if it.receiver.is_over {
            it.halfway = None;
        }
        if it.under_way > 0 || it.halfway.is_some() {
            return Ok(());
        }
        it.ended = true;
        if it.kind == TransferKind::Get {
            return self.transfer_arrived(at);
        }
        if it.receiver.is_over {
            self.end_transfer(at);
        }
        Ok(())
    }

    /// Sends the packet that reports the end of puts. With one connection it may leave before the puts have ended.
    fn report_end(&mut self, at: usize) {
        let it = &mut self.accesses.transfers[at];
        let (from, to) = it.ranks();
        let Some(node) = &mut self.nodes[from] else { return };
        if !it.ended && !node.channel.orders_puts(to as u32) || !self.pairs[from][to].backlog.is_empty() {
            return;
        }
        let envelope = Envelope { kind: Kind::Data, context: 0, tag: it.tag, total: 0 };
        if node.channel.send(to as u32, &envelope, PacketPieces::Whole(&[])) == Ok(true) {
            it.reported = true;
            self.pairs[from][to].flying.push_back(ChannelPacket::report(envelope));
        }
    }

    /// Handles a packet that may be a report. Returns whether it was no packet that the sender has sent as such.
    pub(super) fn take_report(
        &mut self,
        rank: usize,
        from: usize,
        envelope: &Envelope,
    ) -> Result<bool, Violation> {
        let is_it = |it: &Transfer| it.tag == envelope.tag && it.is_between(rank, from);
        let Some(at) = self.accesses.transfers.iter().position(is_it) else { return Ok(false) };
        let is_notice = self.accesses.transfers[at].kind == TransferKind::PutNotify;
        if is_notice {
            self.tally.count(Event::PutNotified);
        }
        self.transfer_arrived(at)?;
        Ok(is_notice)
    }

    /// Checks that all bytes of a transfer have arrived, and ends it.
    fn transfer_arrived(&mut self, at: usize) -> Check {
        let it = &self.accesses.transfers[at];
        let here = it.receiver.land.read(it.bytes.len());
        ensure!(
            it.receiver.is_over || here == it.bytes,
            "transfer {:x} from {} to {} has ended, and bytes are missing",
            it.tag,
            it.sender.rank,
            it.receiver.rank
        );
        // Where restarted processes wait to be accepted, a living one cannot connect again.
        let may_attack = !self.holds && self.nodes[it.receiver.rank].is_some() && !it.receiver.is_over;
        if may_attack && self.rng.one_in(3) {
            return self.attack(at);
        }
        self.end_transfer(at);
        Ok(())
    }

    /// Gives the buffers back to their owners, as far as the channel has finished with them.
    fn end_transfer(&mut self, at: usize) {
        let (_, owner) = self.accesses.transfers[at].ranks();
        let it = &mut self.accesses.transfers[at];
        if let (Some(node), Some(exposure)) = (&mut self.nodes[owner], it.exposure.take()) {
            let peer = it.ranks().0 as u32;
            node.channel.revoke(peer, exposure);
        }
        let it = &self.accesses.transfers[at];
        let (accessing, _) = it.ranks();
        // The source of a put belongs to its owner when the put has ended.
        let is_used = it.under_way > 0;
        for rank in [it.sender.rank, it.receiver.rank] {
            if rank != accessing || !is_used {
                self.return_buffer(at, rank);
            }
        }
        let it = &self.accesses.transfers[at];
        if it.sender.is_over && it.receiver.is_over {
            self.accesses.transfers.swap_remove(at);
        }
    }

    /// Gives the buffer of one process back to it.
    fn return_buffer(&mut self, at: usize, rank: usize) {
        let key = self.rng.next();
        let it = &mut self.accesses.transfers[at];
        let len = it.bytes.len();
        for side in it.sides() {
            if side.rank == rank && !std::mem::replace(&mut side.is_over, true) {
                let bytes: Vec<u8> = (0..len as u64).map(|at| key.wrapping_add(at * at) as u8).collect();
                let land = std::mem::replace(&mut side.land, Land::new(1));
                land.write(&bytes);
                self.accesses.returned.push(ReturnedBuffer { rank, land, bytes });
            }
        }
    }

    /// Ends the transfers of a process with a peer that it has closed: none of its buffers is used any more.
    pub(super) fn end_transfers(&mut self, rank: usize, peer: usize) {
        for at in (0..self.accesses.transfers.len()).rev() {
            if self.accesses.transfers[at].is_between(rank, peer) {
                self.return_buffer(at, rank);
                let it = &self.accesses.transfers[at];
                let is_gone = |side: &TransferSide| side.is_over || self.nodes[side.rank].is_none();
                if is_gone(&it.sender) && is_gone(&it.receiver) {
                    self.accesses.transfers.swap_remove(at);
                }
            }
        }
        let is_it = |liar: &mut (usize, usize, u64)| (liar.0, liar.1) == (peer, rank);
        let ended: Vec<_> = self.accesses.liars.extract_if(.., is_it).collect();
        ended.into_iter().for_each(|(.., tag)| self.end_tagged(tag));
    }

    /// Ends the transfer of which another process has sent a wrong report.
    fn end_tagged(&mut self, tag: u64) {
        if let Some(at) = self.accesses.transfers.iter().position(|it| it.tag == tag) {
            self.end_transfer(at);
        }
    }

    /// Ends the transfers of a process that is gone, on its side.
    pub(super) fn forget_transfers(&mut self, rank: usize) {
        for at in (0..self.accesses.transfers.len()).rev() {
            let it = &mut self.accesses.transfers[at];
            it.sides().into_iter().filter(|side| side.rank == rank).for_each(|side| side.is_over = true);
            if it.sender.is_over && it.receiver.is_over {
                self.accesses.transfers.swap_remove(at);
            }
        }
        let is_it = |liar: &mut (usize, usize, u64)| liar.0 == rank || liar.1 == rank;
        let ended: Vec<_> = self.accesses.liars.extract_if(.., is_it).collect();
        ended.into_iter().for_each(|(.., tag)| self.end_tagged(tag));
    }

    /// Lets a process access a buffer that is not exposed to it, or is no longer.
    fn attack(&mut self, at: usize) -> Check {
        let it = &self.accesses.transfers[at];
        let (accessing, owner) = it.ranks();
        let third = (0..self.ranks()).find(|rank| *rank != accessing && *rank != owner);
        if it.kind == TransferKind::PutNotify
            && it.exposure.is_some()
            && let Some(third) = third
            && self.is_connected(third, owner)
        {
            return self.report_falsely(at, (third, owner));
        }
        // The description outlives the transfer.
        let stale = Transfer {
            tag: MARK | u64::from(u32::MAX) << 16,
            kind: it.kind,
            sender: TransferSide {
                rank: it.sender.rank,
                land: Land::new(it.bytes.len() as u64),
                is_over: false,
            },
            receiver: TransferSide {
                rank: it.receiver.rank,
                land: Land::new(it.bytes.len() as u64),
                is_over: false,
            },
            bytes: it.bytes.clone(),
            described: it.described,
            exposure: None,
            begun: true,
            ended: false,
            halfway: None,
            under_way: 1,
            reported: true,
        };
        self.end_transfer(at);
        if self.is_connected(accessing, owner)
            && matches!(stale.access(self, (accessing, owner)), Some(Accessed::Later | Accessed::Done))
        {
            self.trace.note(self.now.as_micros() as u64, || format!("{accessing} attacks {owner}"));
            self.tally.count(Event::StaleAccess);
            self.suspect(accessing, owner);
            self.accesses.transfers.push(stale);
        }
        Ok(())
    }

    /// Lets a process report the end of puts to a buffer that is exposed to another one.
    fn report_falsely(&mut self, at: usize, (liar, owner): (usize, usize)) -> Check {
        let it = &self.accesses.transfers[at];
        let land = Land::new(it.bytes.len() as u64);
        land.write(&it.bytes);
        let (described, len, tag) = (it.described, it.bytes.len(), it.tag);
        let Some(node) = &mut self.nodes[liar] else { return Ok(()) };
        // SAFETY: the buffer is kept until the ports are gone.
        let range = unsafe { SendRange::from_raw(land.base(), len) };
        let accessed = node.channel.put_last(owner as u32, &described, 0, range, MARK);
        if accessed == Accessed::Later {
            self.trace.note(self.now.as_micros() as u64, || format!("{liar} lies to {owner}"));
            self.tally.count(Event::FalseReport);
            self.suspect(liar, owner);
            self.accesses.liars.push((liar, owner, tag));
        } else {
            self.end_transfer(at);
        }
        let bytes = land.read(len);
        self.accesses.returned.push(ReturnedBuffer { rank: liar, land, bytes });
        Ok(())
    }

    pub(super) fn is_connected(&self, one: usize, other: usize) -> bool {
        let ready = |from: usize, to: usize| {
            let report = self.nodes[from].as_ref().map(|node| node.channel.report(to as u32));
            report.is_some_and(|report| report.ready > 0)
        };
        let is_alive = |from: usize, to: usize| {
            !self.died[from][to] && self.lives[from].leaving.is_none() && !self.has_parted(from, to)
        };
        ready(one, other) && ready(other, one) && is_alive(one, other) && is_alive(other, one)
    }

    /// Expects that the connections between two processes end.
    pub(super) fn suspect(&mut self, one: usize, other: usize) {
        (self.died[one][other], self.died[other][one]) = (true, true);
    }

    /// Returns whether a process has sent a wrong report, so that this is the fault of it.
    pub(super) fn has_lied(&self, from: usize, to: usize, fault: PortFault) -> bool {
        fault == PortFault::Header && self.accesses.liars.iter().any(|liar| (liar.0, liar.1) == (from, to))
    }

    /// Returns whether a packet may be the report of a transfer.
    pub(super) fn is_report(&self, envelope: &Envelope) -> bool {
        envelope.kind == Kind::Data && self.accesses.transfers.iter().any(|it| it.tag == envelope.tag)
    }

    /// Returns the description of a transfer that is under way.
    pub(super) fn first_transfer(&self) -> String {
        self.accesses.transfers.first().map(|it| format!("{it:?}")).unwrap_or_default()
    }

    /// Returns whether transfers are under way.
    pub(super) fn has_transfers(&self) -> bool {
        !self.accesses.transfers.is_empty()
    }

    /// Returns whether a process may leave in good order: none of its connections is about to end, and it has no
    /// transfers.
    pub(super) fn is_settled(&self, rank: usize) -> bool {
        let is_suspect = |other: usize| self.died[rank][other] || self.died[other][rank];
        let has = |it: &Transfer| it.sender.rank == rank || it.receiver.rank == rank;
        !(0..self.ranks()).any(is_suspect) && !self.accesses.transfers.iter().any(has)
    }

    /// Checks that nothing has changed buffers that their owners have got back.
    pub(super) fn check_returned(&self) -> Check {
        for it in &self.accesses.returned {
            ensure!(
                it.land.read(it.bytes.len()) == it.bytes,
                "a buffer of rank {} has changed after the access to it had ended",
                it.rank
            );
        }
        Ok(())
    }
}
