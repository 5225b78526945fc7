//! Two groups of processes meet by the address of one process (what MPI calls spawn, connect and accept).
//!
//! The messages are those of [`nemesia_core::wire::meeting`], in the matching context of barriers. A tag has the number
//! of the meeting, and the way of the message. So it is larger than the number of any round of a barrier of a world,
//! and smaller than the tags of barriers of groups ([`GROUP_TAG`]). Between machines, the tokens in addresses are
//! masked by a key of the link ([`TokenMask`]).

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use nemesia_core::link::proof::TokenMask;
use nemesia_core::matching::{Pattern, Source as CoreSource};
use nemesia_core::payload::SendBuf;
use nemesia_core::peers::{ADDRESS_BYTES, PeerAddress, PeerRef};
use nemesia_core::wire::meeting::{MOST_ADDRESSES, MOST_MEETING_BYTES, MeetingKind, MeetingMessage};

use super::members::PeerGroup;
use crate::endpoint::reserved::{BARRIER_CONTEXT, GROUP_TAG};
use crate::endpoint::{Endpoint, Message, Mode, Status};
use crate::error::Error;
use crate::os::random;

/// The way of a message, in its tag.
const TO_ACCEPTING: u64 = 1 << 32;
const TO_CALLING: u64 = 2 << 32;
const TO_MEMBER: u64 = 3 << 32;
const TO_LEADER: u64 = 4 << 32;
const _: () = assert!(TO_LEADER + (u32::MAX as u64) < GROUP_TAG);

/// Members wait so much longer than their leader, which tells them when it gives up. A leader waits so long for a
/// caller that has begun its call, and that does not wait for anything either.
const GRACE: Duration = Duration::from_secs(10);

/// How a group meets another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// It waits for another group that calls the first process of this one.
    Accept,
    /// It calls the first process of the other group, which has this address.
    Call(PeerAddress),
}

/// What every process of a meeting knows.
#[derive(Clone, Copy, Debug)]
struct MeetingRoom {
    number: u32,
    limit: Option<Duration>,
    deadline: Option<Instant>,
}

impl MeetingRoom {
    /// Returns the time that is left, and `more`.
    fn left(&self, more: Duration) -> Option<Duration> {
        Some((self.deadline? + more).saturating_duration_since(Instant::now()))
    }

    /// Returns the same meeting for one caller, for which a process does not wait longer than this.
    fn with_caller(&self) -> Self {
        Self { deadline: Some(Instant::now() + GRACE), ..*self }
    }

    fn timeout(&self) -> Error {
        Error::Timeout(self.limit.unwrap_or_default())
    }
}

type LetterBytes = Box<[u8; MOST_MEETING_BYTES]>;

/// A message that has come.
#[derive(Debug)]
struct Letter {
    rank: usize,
    kind: MeetingKind,
    token: u64,
    total: usize,
    first: usize,
    addresses: Vec<PeerAddress>,
}

/// # Meetings
///
/// Two groups meet by one address, that of the first process of one of them. So a runtime starts further processes, or
/// accepts others: all processes of both groups then know each other, and connect on demand.
///
/// ```
/// use std::time::Duration;
/// use nemesia::{Config, Endpoint, Meeting};
///
/// const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// let mut parent = Endpoint::alone(&Config::default())?;
/// let address = *parent.address()?;
/// let child = std::thread::spawn(move || {
///     let mut child = Endpoint::alone(&Config::default())?;
///     // A group of one process. Others are made with the addresses of its processes.
///     let own = child.group(&[*child.address()?])?;
///     let parents = child.meet(&own, Meeting::Call(address), 1, LIMIT)?;
///     let all = parents.followed_by(&own);
///     let to = child.rank_of(all.peer(0).ok_or(nemesia::Error::Members)?)?;
///     child.send(to, 7, b"hello")?;
///     child.recv(nemesia::Source::Rank(to), nemesia::Tag::Exactly(8), &mut [0; 5])?;
///     child.close()
/// });
/// let own = parent.group(&[address])?;
/// let children = parent.meet(&own, Meeting::Accept, 1, LIMIT)?;
/// let from = parent.rank_of(children.peer(0).ok_or("no child")?)?;
/// parent.recv(nemesia::Source::Rank(from), nemesia::Tag::Exactly(7), &mut [0; 5])?;
/// parent.send(from, 8, b"hello")?;
/// parent.close()?;
/// # child.join().expect("the other thread")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Endpoint {
    /// Meets another group of processes, and returns it. Collective: every process of `group` calls this function with
    /// the same `number`, and so does the other group, one of the two with [`Meeting::Accept`]. Only the first process
    /// of each group speaks with the other group, and only its `meeting` counts.
    ///
    /// Meetings at one address at the same time are told apart by their numbers. A call that comes before the other
    /// group accepts waits for it. The first process of the accepting group may accept again and again: each time one
    /// group comes. `None` as `limit` waits for ever.
    ///
    /// The first process of a group speaks with the other group once all ranks of its world that are in its own have
    /// begun to meet. The processes of the other group are known afterwards, but not connected. If one of either group
    /// dies meanwhile, the others may meet nevertheless; operations with it then fail. The accepting group gives up a
    /// caller that is stopped for 10 s in the middle of its call, and waits for the next one; if the caller had its
    /// answer, it may still think that it has met the group.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the other group has not come within `limit`; the process that calls has withdrawn its call.
    /// [`Error::Members`] if this process is not in `group`, and [`Error::Peer`] if the first process of either group
    /// refuses or gives up: for instance, because a process is in both groups. [`Error::PeerFailed`] if the first
    /// process of this group, or the one that is called, is gone. Otherwise as for [`Endpoint::connect`].
    pub fn meet(
        &mut self,
        group: &PeerGroup,
        meeting: Meeting,
        number: u32,
        limit: Option<Duration>,
    ) -> Result<PeerGroup, Error> {
        self.check_origin()?;
        self.address()?;
        let room = MeetingRoom { number, limit, deadline: limit.map(|limit| Instant::now() + limit) };
        group.place().ok_or(Error::Members)?;
        let token = self.next_meeting(group)?;
        if let Some(leader) = group.peer(0) {
            let (peer, leader) = (leader, self.rank_of(leader)?);
            if self.is_rank_of_world(peer) {
                self.write(leader, TO_LEADER, &room, &MeetingMessage::bare(MeetingKind::Present, token))?;
            }
            let addresses = self.hear_members(leader, token, &room)?;
            return self.group(&addresses);
        }
        let met = match meeting {
            // It does not accept as a member of this one.
            Meeting::Call(address) if group.addresses().contains(&address) => Err(self.refusal_by(&address)),
            _ => self.await_ranks(group, token, &room),
        };
        let met = met.and_then(|()| match meeting {
            Meeting::Accept => self.accept_group(group, &room),
            Meeting::Call(address) => self.call_group(group, &address, &room),
        });
        self.tell_members(group, met.as_deref().ok(), token, &room)?;
        self.group(&met?)
    }

    /// Returns the token of the next meeting of a group, which is the same in all of its processes.
    fn next_meeting(&mut self, group: &PeerGroup) -> Result<u64, Error> {
        self.with_peers(|peers, _| {
            let count = peers.meetings.entry(group.name()).or_insert(0);
            *count += 1;
            Ok(group.name().wrapping_add(*count))
        })
    }

    /// Waits for the call of another group, agrees with it, and returns its addresses.
    fn accept_group(&mut self, group: &PeerGroup, room: &MeetingRoom) -> Result<Vec<PeerAddress>, Error> {
        loop {
            let call = self.letter(CoreSource::Any, TO_ACCEPTING, room, Duration::ZERO)?;
            // Others are what is left of a meeting that has ended.
            if let Some(call) = call.filter(|call| call.kind == MeetingKind::Call && call.first == 0) {
                match self.hear_call(call, group, &room.with_caller()) {
                    Ok(None) | Err(Error::PeerFailed { .. } | Error::NoPeer(_) | Error::Timeout(_)) => {}
                    Ok(Some(addresses)) => return Ok(addresses),
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Answers a call. Returns the addresses of the other group; `None` if the call was refused or withdrawn.
    fn hear_call(
        &mut self,
        call: Letter,
        group: &PeerGroup,
        room: &MeetingRoom,
    ) -> Result<Option<Vec<PeerAddress>>, Error> {
        let (rank, token) = (call.rank, call.token);
        let addresses = self.rest_of_list(call, TO_ACCEPTING, room)?;
        let caller = self.peer_of(rank).and_then(|peer| self.address_of(peer).ok().copied());
        let Some(addresses) = addresses.filter(|it| it.first() == caller.as_ref() && are_apart(it, group))
        else {
            self.write(rank, TO_CALLING, room, &MeetingMessage::bare(MeetingKind::Refusal, token))?;
            return Ok(None);
        };
        self.write_list((rank, TO_CALLING), (MeetingKind::Answer, token), room, group.addresses())?;
        loop {
            let next = self.letter(CoreSource::Rank(rank as u32), TO_ACCEPTING, room, Duration::ZERO)?;
            match next.filter(|next| next.token == token).map(|next| next.kind) {
                Some(MeetingKind::Confirmation) => return Ok(Some(addresses)),
                Some(MeetingKind::Withdrawal) => return Ok(None),
                _ => {}
            }
        }
    }

    /// Calls another group, and returns its addresses.
    fn call_group(
        &mut self,
        group: &PeerGroup,
        address: &PeerAddress,
        room: &MeetingRoom,
    ) -> Result<Vec<PeerAddress>, Error> {
        let peer = self.connect(address)?;
        let rank = self.wait_connected(peer, room.left(Duration::ZERO))?;
        let token = u64::from_le_bytes(random()?);
        self.write_list((rank, TO_ACCEPTING), (MeetingKind::Call, token), room, group.addresses())?;
        let answer = self.hear_answer(rank, token, room);
        let addresses = answer.and_then(|addresses| match addresses {
            Some(it) if it.first() == Some(address) && are_apart(&it, group) => Ok(it),
            _ => Err(refusal(rank)),
        });
        let kind = if addresses.is_ok() { MeetingKind::Confirmation } else { MeetingKind::Withdrawal };
        let decided = self.write(rank, TO_ACCEPTING, room, &MeetingMessage::bare(kind, token));
        let addresses = addresses?;
        decided?;
        Ok(addresses)
    }

    /// Waits for the answer to a call. `None` if it is invalid.
    fn hear_answer(
        &mut self,
        rank: usize,
        token: u64,
        room: &MeetingRoom,
    ) -> Result<Option<Vec<PeerAddress>>, Error> {
        loop {
            let next = self.letter(CoreSource::Rank(rank as u32), TO_CALLING, room, Duration::ZERO)?;
            match next.filter(|next| next.token == token) {
                Some(next) if next.kind == MeetingKind::Answer => {
                    return self.rest_of_list(next, TO_CALLING, room);
                }
                Some(next) if next.kind == MeetingKind::Refusal => return Err(refusal(rank)),
                _ => {}
            }
        }
    }

    /// Returns the error of a meeting with a process of this group.
    fn refusal_by(&mut self, address: &PeerAddress) -> Error {
        let rank = self.connect(address).and_then(|peer| self.rank_of(peer));
        rank.map_or_else(|error| error, refusal)
    }

    fn is_rank_of_world(&self, peer: PeerRef) -> bool {
        self.peer_table().is_ok_and(|peers| peers.is_rank(peer))
    }

    /// Waits until the ranks of this world among a group take calls: the other group gets their addresses next. Other
    /// processes have given theirs away themselves.
    fn await_ranks(&mut self, group: &PeerGroup, token: u64, room: &MeetingRoom) -> Result<(), Error> {
        let members = (1..group.size()).filter_map(|place| group.peer(place));
        let ranks: Vec<_> = members.filter(|peer| self.is_rank_of_world(*peer)).collect();
        for peer in ranks {
            let present = self.rank_of(peer).and_then(|rank| {
                let source = CoreSource::Rank(rank as u32);
                // Others are what is left of a meeting that was given up.
                while self
                    .letter(source, TO_LEADER, room, Duration::ZERO)?
                    .is_none_or(|letter| (letter.kind, letter.token) != (MeetingKind::Present, token))
                {
                }
                Ok(())
            });
            match present {
                // The others meet without a process that is gone.
                Ok(()) | Err(Error::PeerFailed { .. } | Error::NoPeer(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells the other processes of a group whom they have met.
    fn tell_members(
        &mut self,
        group: &PeerGroup,
        met: Option<&[PeerAddress]>,
        token: u64,
        room: &MeetingRoom,
    ) -> Result<(), Error> {
        for peer in (1..group.size()).filter_map(|place| group.peer(place)) {
            let told = self.rank_of(peer).and_then(|rank| match met {
                Some(met) => self.write_list((rank, TO_MEMBER), (MeetingKind::Members, token), room, met),
                None => self.write(rank, TO_MEMBER, room, &MeetingMessage::bare(MeetingKind::Failed, token)),
            });
            match told {
                // The others meet without a process that is gone.
                Ok(()) | Err(Error::PeerFailed { .. } | Error::NoPeer(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the leader says whom this group has met.
    fn hear_members(
        &mut self,
        leader: usize,
        token: u64,
        room: &MeetingRoom,
    ) -> Result<Vec<PeerAddress>, Error> {
        let problem = |problem: &str| Error::Peer { rank: leader, problem: problem.into() };
        loop {
            let next = self.letter(CoreSource::Rank(leader as u32), TO_MEMBER, room, GRACE)?;
            match next.filter(|next| next.token == token) {
                Some(next) if next.kind == MeetingKind::Members => {
                    let list = self.rest_of_list(next, TO_MEMBER, room)?;
                    return list.ok_or_else(|| problem("its list of a group that it has met is invalid"));
                }
                Some(_) => return Err(problem("it has not met the other group, or has given up")),
                // What is left of a meeting for which this process has not waited.
                None => {}
            }
        }
    }

    /// Waits for the further messages of a list. `None` if one of them is not the next part of it.
    fn rest_of_list(
        &mut self,
        begun: Letter,
        way: u64,
        room: &MeetingRoom,
    ) -> Result<Option<Vec<PeerAddress>>, Error> {
        let Letter { rank, kind, token, total, first, mut addresses } = begun;
        if first > 0 {
            return Ok(None);
        }
        while addresses.len() < total {
            let next = self.letter(CoreSource::Rank(rank as u32), way, room, GRACE)?;
            let is_next = |it: &Letter| {
                (it.kind, it.token, it.total, it.first) == (kind, token, total, addresses.len())
            };
            let Some(next) = next.filter(is_next) else { return Ok(None) };
            addresses.extend(next.addresses);
        }
        Ok(Some(addresses))
    }

    /// Waits for the next message. `None` if it is invalid.
    fn letter(
        &mut self,
        source: CoreSource,
        way: u64,
        room: &MeetingRoom,
        more: Duration,
    ) -> Result<Option<Letter>, Error> {
        let pattern =
            Pattern { source, context: BARRIER_CONTEXT, tag: way | u64::from(room.number), ignore: 0 };
        let message = self.take_within(&pattern, room.left(more)).map_err(|error| match error {
            Error::Timeout(_) => room.timeout(),
            error => error,
        })?;
        let status = message.status();
        let mask = self.peer_table()?.mask_of(status.rank);
        // A longer one is received into nothing, as every message that is dropped.
        let bytes = if status.len <= MOST_MEETING_BYTES { self.open_letter(message)? } else { None };
        let message = bytes.as_ref().and_then(|bytes| MeetingMessage::decode(&bytes[..status.len]));
        Ok(message.map(|message| {
            let MeetingMessage { kind, token, total, first, addresses } = message;
            let (addresses, _) = addresses.as_chunks::<ADDRESS_BYTES>();
            let addresses = addresses.iter().copied().map(PeerAddress::from_bytes);
            let addresses = masked(mask, (pattern.tag, token, first), addresses).collect();
            Letter { rank: status.rank, kind, token, total: total as usize, first: first as usize, addresses }
        }))
    }

    /// Receives a message that was taken out of the queue. `None` if its sender does not complete it.
    fn open_letter(&mut self, message: Message) -> Result<Option<LetterBytes>, Error> {
        let mut bytes = ManuallyDrop::new(Box::new([0; MOST_MEETING_BYTES]));
        // SAFETY: the bytes lie on the heap. No code uses them before the request has ended, and they are freed only
        // then.
        let request = unsafe { self.imrecv(message, bytes.as_mut_ptr(), bytes.len()) }?;
        let ended = self.wait_timeout(request, GRACE);
        // Otherwise the engine may still write to the bytes, so they are never freed.
        let bytes = has_ended(&ended).then(|| ManuallyDrop::into_inner(bytes));
        match ended {
            Ok(_) => Ok(bytes),
            // An honest sender has sent it whole.
            Err(Error::PeerFailed { .. } | Error::Timeout(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(
        &mut self,
        to: usize,
        way: u64,
        room: &MeetingRoom,
        message: &MeetingMessage<'_>,
    ) -> Result<(), Error> {
        let mut bytes = ManuallyDrop::new(Box::new([0; MOST_MEETING_BYTES]));
        let len = message.encode(&mut bytes);
        // SAFETY: the bytes lie on the heap. No code changes them before the request has ended, and they are freed only
        // then.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), len) };
        let request = self.start(to, BARRIER_CONTEXT, way | u64::from(room.number), buf, Mode::Standard)?;
        let ended = match room.left(GRACE) {
            Some(limit) => self.wait_timeout(request, limit),
            None => self.wait(request),
        };
        if has_ended(&ended) {
            drop(ManuallyDrop::into_inner(bytes));
        }
        // Otherwise the engine may still read the bytes, so they are never freed.
        match ended {
            Err(Error::Timeout(_)) => Err(room.timeout()),
            ended => ended.map(drop),
        }
    }

    fn write_list(
        &mut self,
        (to, way): (usize, u64),
        (kind, token): (MeetingKind, u64),
        room: &MeetingRoom,
        list: &[PeerAddress],
    ) -> Result<(), Error> {
        let mask = self.peer_table()?.mask_of(to);
        for (at, part) in list.chunks(MOST_ADDRESSES).enumerate() {
            let (total, first) = (list.len() as u32, (at * MOST_ADDRESSES) as u32);
            let part = masked(mask, (way | u64::from(room.number), token, first), part.iter().copied());
            let addresses: Vec<u8> = part.flat_map(|address| *address.bytes()).collect();
            self.write(to, way, room, &MeetingMessage { kind, token, total, first, addresses: &addresses })?;
        }
        Ok(())
    }
}

/// Returns whether a request that was waited for has ended: the engine does not use its buffer any more.
const fn has_ended(waited: &Result<Status, Error>) -> bool {
    matches!(waited, Ok(_) | Err(Error::PeerFailed { .. } | Error::Truncated(_)))
}

/// Returns addresses of a message with this tag and token, from this position of the list on, whose tokens are masked,
/// or without their masks.
fn masked(
    mask: Option<TokenMask>,
    (tag, token, first): (u64, u64, u32),
    addresses: impl Iterator<Item = PeerAddress>,
) -> impl Iterator<Item = PeerAddress> {
    addresses.zip(u64::from(first)..).map(move |(address, at)| match mask {
        Some(mask) => mask.apply([tag, token, at], &address),
        None => address,
    })
}

/// Returns whether no process is in both groups.
fn are_apart(other: &[PeerAddress], group: &PeerGroup) -> bool {
    let known: std::collections::HashSet<_> = group.addresses().iter().collect();
    !other.iter().any(|address| known.contains(address))
}

fn refusal(rank: usize) -> Error {
    let problem = "it refuses to meet, or its answer is invalid: is a process in both groups?";
    Error::Peer { rank, problem: problem.into() }
}
