//! Callers that lie, are silent, or are too many.

mod across;
mod shortage;

use std::cell::Cell;
use std::sync::Arc;

use nemesia_core::link::bytes::MOST_LINK_BYTES;
use nemesia_core::link::offers::{LinkOffer, LinkOffers, OfferList, SegmentsOffer};
use nemesia_core::link::proof::{LinkKey, NO_CHALLENGE};
use nemesia_core::link::token::LinkToken;
use nemesia_core::link::wire::{LINK_VERSION, LinkBody, LinkCall, LinkHeader, LinkMessage, MaskedAddress};
use nemesia_core::shared::layout::Geometry;
use nemesia_core::wire::hello::Proof;

use super::look::AT_ONCE;
use super::*;
use crate::config::Config;
use crate::os::testing;
use crate::shm::segments::{MOST_DESCRIPTORS, OwnLink};
use crate::tcp;

const GEOMETRY: Geometry = Geometry { cells: 4, cell_bytes: 4096, fastbox_slots: 4 };
const PATIENCE: Duration = Duration::from_secs(5);

fn world(token: LinkToken, geometry: Geometry, is_apart: bool) -> ShmWorld {
    ShmWorld {
        config: Config::default().local(!is_apart),
        geometry,
        rank: 0,
        size: 1,
        token,
        expedited: true,
        cpus: [1; 8],
        stamp: 0,
        incarnation: 0,
        sealed: false,
        restarts: false,
    }
}

/// What a process decides: each caller has the next number.
struct Terms {
    watch: Watch,
    numbers: u32,
    refusal: Option<(String, bool)>,
    /// How often a peer was granted credit before this process has confirmed.
    grants: Cell<u32>,
}

impl CallTerms for Terms {
    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn decide(&mut self, _: &PeerAddress) -> Result<CallGrant, (String, bool)> {
        self.numbers += 1;
        let granted = CallGrant { number: self.numbers % 8, ..CallGrant::default() };
        self.refusal.clone().map_or(Ok(granted), Err)
    }

    fn granted(&self, _: u32) -> u64 {
        self.grants.set(self.grants.get() + 1);
        7
    }

    fn hear_from(&mut self, _: &PeerAddress) {}

    fn open_port(&mut self) -> Result<Address, ShmError> {
        Ok(tcp::address_at("127.0.0.1:1".parse().unwrap(), 5).unwrap())
    }

    fn expect_stream(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }
}

/// A process.
struct CallingProcess {
    calls: Calls,
    terms: Terms,
    world: Arc<ShmWorld>,
    ours: Arc<OwnSegments>,
}

impl CallingProcess {
    fn new() -> Self {
        Self::of(&[])
    }

    /// Returns the first rank of a world of these ranks, besides itself.
    fn of(others: &[PeerAddress]) -> Self {
        Self::sized(others, GEOMETRY, None)
    }

    /// With a door the process has a machine of its own.
    fn sized(others: &[PeerAddress], geometry: Geometry, door: Option<StreamDoor>) -> Self {
        let mut watch = Watch::new().unwrap();
        let world = Arc::new(world(LinkToken::from_bytes(random().unwrap()), geometry, door.is_some()));
        let ours = OwnSegments::new(&world.config, geometry, world.token.epoch(), &mut Vec::new()).unwrap();
        let (ours, listener) = (Arc::new(ours), world.bind().unwrap());
        let own = place_of(&world, &listener, door.as_ref()).encode();
        let door = door.ok_or_else(|| "the network is off".to_owned());
        let ranks: Vec<_> = if others.is_empty() { Vec::new() } else { [&[own], others].concat() };
        let ranks: Vec<_> = ranks.into_iter().map(|address| (address, 0)).collect();
        let lent = (Arc::clone(&world), Arc::clone(&ours));
        let calls = Calls::listen(lent, (listener, door), &ranks, &mut watch).unwrap();
        calls.open_door(&watch).unwrap();
        Self { calls, terms: Terms { watch, numbers: 0, refusal: None, grants: Cell::new(0) }, world, ours }
    }

    fn speak(&mut self, to: &Self) {
        self.calls.speak(to.calls.own(), None, 0, &self.terms.watch).unwrap();
    }

    fn attend(&mut self) {
        self.calls.attend(&mut self.terms);
    }

    fn outcome(&mut self) -> Option<CallOutcome> {
        self.calls.next_outcome().map(|(_, outcome)| outcome)
    }

    /// Returns the calls that are proved and not decided.
    fn undecided(&self) -> u32 {
        self.calls.links.undecided()
    }

    /// Returns the calls that are answered.
    fn answered(&self) -> usize {
        let parts = self.calls.desk.parts.keys();
        parts.filter(|link| self.calls.links.stage(**link) == LinkStage::Answered).count()
    }
}

/// Lets processes act until one has an outcome, which is the first one's unless it has none.
fn until_outcome(processes: &mut [&mut CallingProcess]) -> CallOutcome {
    loop {
        for process in &mut *processes {
            process.attend();
            if let Some(outcome) = process.outcome() {
                return outcome;
            }
        }
    }
}

/// What a caller says.
struct Said {
    address: PeerAddress,
    offers: OfferList,
    call: u64,
}

/// Returns the message of a call, as `change` makes it of a correct one, with the segment.
fn call_of(from: &CallingProcess, to: &CallingProcess, change: impl FnOnce(&mut Said)) -> (Vec<u8>, OwnLink) {
    let mut offers = OfferList::EMPTY;
    offers.add(&offer(GEOMETRY.cells));
    let mut said = Said { address: *from.calls.own(), offers, call: 1 };
    change(&mut said);
    let key = LinkKey::of(to.calls.own(), None);
    let call = LinkCall {
        call: said.call,
        incarnation: 0,
        number: 0,
        packet_bytes: 4096,
        challenge: 0,
        instance: 0,
        nonce: said.call,
        address: MaskedAddress(key.mask(Some(&NO_CHALLENGE), said.call, said.address.bytes())),
        offers: said.offers.get(true),
        proof: Proof::default(),
    };
    let header = LinkHeader { version: LINK_VERSION, service: LinkService::Engine, to: 0, from: 7 };
    let mut message = LinkMessage { header, body: LinkBody::Call(call) }.encode();
    let proof = key.call_proof(&NO_CHALLENGE, to.calls.own(), message.get());
    message.seal(&proof);
    (message.get().to_vec(), from.ours.link(0).unwrap())
}

fn offer(cells: u32) -> LinkOffer {
    let Geometry { cell_bytes, fastbox_slots, .. } = GEOMETRY;
    let geometry = [cells, cell_bytes, fastbox_slots];
    LinkOffer::Segments(SegmentsOffer { geometry, flags: 1, stamp: 0, processors: [1; 8], credit: 0 })
}

/// Sends a call of this process, with its segments.
fn send_call(
    from: &CallingProcess,
    to: &CallingProcess,
    change: impl FnOnce(&mut Said),
) -> HandoffConnection {
    let connection = dial(to);
    let (message, link) = call_of(from, to, change);
    connection.send(&message, &from.ours.descriptors(&link), Instant::now()).unwrap();
    connection
}

fn dial(to: &CallingProcess) -> HandoffConnection {
    Calls::dial(to.calls.own()).unwrap()
}

/// Returns the text of the refusal that this caller has received.
fn refusal(connection: &HandoffConnection) -> String {
    let mut bytes = [0; MOST_LINK_BYTES];
    let Ok((len, _)) = connection.recv(&mut bytes, MOST_DESCRIPTORS, Instant::now() + PATIENCE) else {
        return "gone".into();
    };
    match LinkMessage::decode(&bytes[..len], LINK_VERSION).map(|message| message.body) {
        Ok(LinkBody::Refuse(refuse)) => refuse.text.get().to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn two_processes_are_open_to_each_other_whoever_calls() {
    for [first, second] in [[true, false], [false, true], [true, true]] {
        let (mut one, mut two) = (CallingProcess::new(), CallingProcess::new());
        if first {
            one.speak(&two);
        }
        if second {
            two.speak(&one);
        }
        let mut opened = 0;
        while opened < 2 {
            opened += u32::from(matches!(until_outcome(&mut [&mut one, &mut two]), CallOutcome::Opened(_)));
        }
        for process in [&mut one, &mut two] {
            process.attend();
            assert!(process.outcome().is_none() && !process.calls.is_busy());
            let desk = &process.calls.desk;
            assert!(desk.carriers.is_empty() && desk.parts.is_empty(), "the connection is the caller's");
        }
        // Whose call counts confirms: after that, the other one may send and make no progress any more.
        let (one, two) = (one.terms.grants.get(), two.terms.grants.get());
        assert_eq!(one + two, 1);
        assert!(first == second || (one == 1) == first);
    }
}

#[test]
fn claims_that_the_kernel_contradicts_and_sizes_that_differ_are_refused_in_words() {
    type Lie = fn(&mut Said);
    let other_process = |said: &mut Said| {
        let claimed = address::decode(&said.address).unwrap();
        said.address = LinkAddress { pid: 1, ..claimed }.encode();
    };
    let other_machine = |said: &mut Said| {
        let claimed = address::decode(&said.address).unwrap();
        said.address = LinkAddress { machine: claimed.machine + 1, ..claimed }.encode();
    };
    let no_address = |said: &mut Said| said.address = PeerAddress::from_bytes([0; 64]);
    let other_sizes = |said: &mut Said| {
        said.offers = OfferList::EMPTY;
        said.offers.add(&offer(8));
    };
    let no_offer = |said: &mut Said| said.offers = OfferList::EMPTY;
    let lies: [(Lie, &str); 5] = [
        (other_process, "comes from elsewhere"),
        (other_machine, "comes from elsewhere"),
        (no_address, "comes from elsewhere"),
        (other_sizes, "NEMESIA_CELLS is 8 there, and 4 here"),
        (no_offer, "no segments"),
    ];
    let (one, mut two) = (CallingProcess::new(), CallingProcess::new());
    for (lie, words) in lies {
        let caller = send_call(&one, &two, lie);
        while two.calls.is_busy() || !caller.has_disconnected() {
            two.attend();
        }
        let refused = refusal(&caller);
        assert!(refused.contains(words), "{refused}");
        assert_eq!((two.undecided(), two.answered()), (0, 0));
    }
}

#[test]
fn garbage_other_versions_and_segments_that_do_not_fit_end_the_call_only() {
    let (one, mut two) = (CallingProcess::new(), CallingProcess::new());
    let garbage = dial(&two);
    garbage.send(&[0xff; 200], &[], Instant::now()).unwrap();
    let (mut bytes, _) = call_of(&one, &two, |_| ());
    bytes[2] = LINK_VERSION + 1;
    let newer = dial(&two);
    newer.send(&bytes, &[], Instant::now()).unwrap();
    // A call without segments, and one with those of another process.
    let bare = dial(&two);
    bare.send(&call_of(&one, &two, |_| ()).0, &[], Instant::now()).unwrap();
    let three = CallingProcess::new();
    let foreign = dial(&two);
    let (message, _) = call_of(&one, &two, |said| said.call = 2);
    let link = three.ours.link(0).unwrap();
    foreign.send(&message, &three.ours.descriptors(&link), Instant::now()).unwrap();
    while [&garbage, &newer, &bare, &foreign].into_iter().any(|it| !it.has_disconnected()) {
        two.attend();
    }
    assert!(refusal(&garbage).contains("malformed"));
    assert!(refusal(&newer).contains("versions of links differ"));
    assert!(refusal(&bare).contains("0 descriptors"));
    assert!(refusal(&foreign).contains("epoch") || !refusal(&foreign).contains("Answer"));
    assert_eq!((two.undecided(), two.answered()), (0, 0));
    let mut undone = std::iter::from_fn(|| two.outcome());
    assert!(undone.all(|it| matches!(it, CallOutcome::Undone(why) if why.contains("its call was refused"))));
}

#[test]
fn silent_callers_do_not_keep_a_call_from_being_heard() {
    let (one, mut two) = (CallingProcess::new(), CallingProcess::new());
    let (_, most) = two.calls.callers();
    let silent: Vec<_> = (0..most + 50).map(|_| dial(&two)).collect();
    let _caller = send_call(&one, &two, |_| ());
    while two.answered() == 0 {
        two.attend();
        assert!(two.calls.callers().0[0] <= most);
    }
    drop(silent);
}

/// A process of another user cannot keep the queue full: all its connections are closed in one look.
#[test]
fn the_connections_of_other_users_take_no_turn_of_a_caller() {
    const NAME: &str = concat!(module_path!(), "::the_connections_of_other_users_take_no_turn_of_a_caller");
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return testing::skipped("only root can act as another user");
    }
    if !testing::is_child() {
        return testing::run_again(NAME, || Ok(()));
    }
    let (one, mut two) = (CallingProcess::new(), CallingProcess::new());
    // SAFETY: takes numbers only; this process has the user for itself.
    unsafe { libc::seteuid(65534) };
    let strangers: Vec<_> = (0..2 * AT_ONCE).map(|_| dial(&two)).collect();
    // SAFETY: as above.
    unsafe { libc::seteuid(0) };
    let _caller = send_call(&one, &two, |_| ());
    two.attend();
    assert_eq!((two.answered(), two.calls.links.unproved()), (1, [0; 2]));
    drop(strangers);
}

/// Lets `one` call `two`, which answers.
fn answer(one: &mut CallingProcess, two: &mut CallingProcess) {
    one.speak(two);
    one.attend();
    while two.answered() == 0 {
        two.attend();
    }
}

#[test]
fn a_caller_that_says_something_else_or_goes_is_forgotten() {
    for says in [&b"something else"[..], b""] {
        let (one, mut two) = (CallingProcess::new(), CallingProcess::new());
        let caller = send_call(&one, &two, |_| ());
        while two.answered() == 0 {
            two.attend();
        }
        assert!(two.outcome().is_none() && two.calls.is_busy());
        if says.is_empty() {
            drop(caller);
        } else {
            caller.send(says, &[], Instant::now()).unwrap();
        }
        let undone = until_outcome(&mut [&mut two]);
        assert!(matches!(&undone, CallOutcome::Undone(why) if why.is_empty()), "{undone:?}");
        assert_eq!((two.answered(), two.calls.links.links()), (0, 0));
    }
}

#[test]
fn an_answer_of_another_process_than_the_one_called_is_refused() {
    let (mut one, mut two, three) = (CallingProcess::new(), CallingProcess::new(), CallingProcess::new());
    one.speak(&two);
    one.attend();
    let connection = two.calls.listener.accept(Instant::now() + PATIENCE).unwrap();
    let mut bytes = [0; MOST_LINK_BYTES];
    let (len, _) = connection.recv(&mut bytes, MOST_DESCRIPTORS, Instant::now() + PATIENCE).unwrap();
    let call = LinkMessage::decode(&bytes[..len], LINK_VERSION).unwrap();
    let LinkBody::Call(LinkCall { proof, .. }) = call.body else { panic!("{call:?}") };
    let answer = nemesia_core::link::wire::LinkAnswer {
        calls: 0,
        incarnation: 0,
        number: 0,
        packet_bytes: 4096,
        word: 0,
        chosen: 1,
        offers: LinkOffers::new(&[], 0, false).unwrap(),
        proof: Proof::default(),
    };
    let header = LinkHeader { to: call.header.from, from: 7, ..call.header };
    let mut message = LinkMessage { header, body: LinkBody::Answer(answer) }.encode();
    let key = LinkKey::of(three.calls.own(), None);
    message.seal(&key.answer_proof(&proof, message.get()));
    connection.send(message.get(), &[], Instant::now()).unwrap();
    let ended = until_outcome(&mut [&mut one]);
    let words = "not by the process with the address that was called";
    assert!(
        matches!(&ended, CallOutcome::Ended(LinkEnding::Refused(_), why) if why.contains(words)),
        "{ended:?}"
    );
    two.attend();
}

#[test]
fn calls_to_nobody_end_at_once() {
    let (mut one, two) = (CallingProcess::new(), CallingProcess::new());
    one.speak(&two);
    drop(two);
    one.attend();
    assert!(matches!(one.outcome(), Some(CallOutcome::Ended(LinkEnding::Died, _))));
}

#[test]
fn a_peer_that_calls_again_and_again_has_one_place() {
    let (one, mut two) = (CallingProcess::new(), CallingProcess::new());
    let mut callers = Vec::new();
    for number in 1..20 {
        callers.push(send_call(&one, &two, |said| said.call = number));
        let heard = two.terms.numbers;
        while two.terms.numbers == heard {
            two.attend();
        }
    }
    assert_eq!((two.answered(), two.calls.links.links(), two.undecided()), (1, 1, 1));
    assert_eq!(two.calls.desk.carriers.len(), 1);
}

#[test]
fn a_process_that_leaves_is_heard_and_another_cannot_say_so_for_it() {
    let mut one = CallingProcess::new();
    let other = CallingProcess::new();
    let mut two = CallingProcess::of(&[*one.calls.own(), *other.calls.own()]);
    let until = Instant::now() + PATIENCE;
    // The kernel names another process than the address of this one.
    let claimed = address::decode(other.calls.own()).unwrap();
    let forged = LinkProcess::alone(LinkAddress { pid: 1, ..claimed });
    let lent = (vec![Slot::default()], vec![List::new()], vec![Slot::default()], Vec::new());
    let mut forged =
        Links::<GrowingLinks>::new(forged, LinkLimits::new(PATIENCE), lent, [random().unwrap(); 2]);
    forged.close(LeaveManner::Closed);
    let forger = dial(&two);
    forger.send(forged.departure(two.calls.own(), CarrierKind::HandOff).get(), &[], until).unwrap();
    one.calls.send_goodbyes(false, &one.terms.watch);
    one.calls.announce_leave(two.calls.own(), until);
    let address = *one.calls.own();
    // The announcement is there although its sender has gone; nothing is lost if it is read late.
    drop(one);
    let mut left = Vec::new();
    while left.is_empty() || two.calls.is_busy() {
        two.attend();
        left.extend(std::iter::from_fn(|| two.calls.next_outcome()));
        assert!(Instant::now() < until + PATIENCE);
    }
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].0, address);
    assert!(matches!(left[0].1, CallOutcome::Ended(LinkEnding::Dropped, _)), "{left:?}");
    assert!(forger.has_disconnected());
}

#[test]
fn the_call_of_a_process_that_leaves_is_over() {
    for finished in [true, false] {
        let (mut one, mut two) = (CallingProcess::new(), CallingProcess::new());
        answer(&mut one, &mut two);
        one.calls.send_goodbyes(finished, &one.terms.watch);
        let undone = until_outcome(&mut [&mut two]);
        assert!(matches!(&undone, CallOutcome::Undone(why) if why.is_empty()), "{undone:?}");
    }
}

#[test]
fn a_caller_that_lives_may_confirm_at_any_time() {
    let (mut one, mut two) = (CallingProcess::new(), CallingProcess::new());
    answer(&mut one, &mut two);
    two.calls.expire();
    two.attend();
    assert!(two.outcome().is_none() && !two.calls.is_busy() && two.answered() == 1);
    for opened in [until_outcome(&mut [&mut one]), until_outcome(&mut [&mut two])] {
        assert!(matches!(opened, CallOutcome::Opened(_)), "{opened:?}");
    }
    assert!(!two.calls.give_up_one(&two.terms.watch), "it is not among the answered any more");
}

#[test]
fn a_call_that_was_given_up_is_made_once_more_and_is_no_death() {
    let (mut one, mut two) = (CallingProcess::new(), CallingProcess::new());
    answer(&mut one, &mut two);
    assert!(!two.calls.give_up_one(&two.terms.watch), "it has time left");
    two.calls.expire();
    assert!(two.calls.give_up_one(&two.terms.watch) && !two.calls.give_up_one(&two.terms.watch));
    assert!(matches!(two.outcome(), Some(CallOutcome::Undone(_))));
    // The answer is there, but has no meaning any more: the caller calls again.
    for process in [&mut one, &mut two] {
        process.attend();
        assert!(process.outcome().is_none());
    }
    let opened = until_outcome(&mut [&mut one, &mut two]);
    assert!(matches!(opened, CallOutcome::Opened(_)), "{opened:?}");
}

#[test]
fn a_call_that_is_refused_for_now_is_made_until_the_limit_and_ends_with_the_reason() {
    let (mut one, mut two) = (CallingProcess::new(), CallingProcess::new());
    two.terms.refusal = Some(("there is no number".into(), true));
    one.speak(&two);
    while two.terms.numbers < 4 {
        one.attend();
        two.attend();
        assert!(one.outcome().is_none());
    }
    one.calls.start -= Duration::from_secs(one.world.config.timeout_seconds.into());
    let ended = until_outcome(&mut [&mut one, &mut two]);
    let is_full = |end| matches!(end, LinkEnding::Refused(nemesia_core::link::wire::RefusalCode::Full));
    assert!(matches!(&ended, CallOutcome::Ended(end, _) if is_full(*end)), "{ended:?}");
}

#[test]
fn a_caller_that_confirms_is_not_given_up() {
    let (mut one, mut two) = (CallingProcess::new(), CallingProcess::new());
    answer(&mut one, &mut two);
    assert!(matches!(until_outcome(&mut [&mut one]), CallOutcome::Opened(_)));
    two.calls.expire();
    assert!(matches!(until_outcome(&mut [&mut two]), CallOutcome::Opened(_)));
}

/// Strangers that have an answer each and never confirm it do not keep others from calling.
#[test]
fn callers_that_never_confirm_give_their_places_to_others() {
    let (one, mut two) = (CallingProcess::new(), CallingProcess::new());
    // None of them is old before all have come.
    two.calls.freeze();
    let most = LinkLimits::new(PATIENCE).most_undecided;
    let mut silent = Vec::new();
    for number in 0..most {
        let caller = CallingProcess::new();
        silent.push(send_call(&caller, &two, |_| ()));
        while two.answered() <= number as usize {
            two.attend();
        }
    }
    let other = send_call(&one, &two, |_| ());
    while !other.has_disconnected() {
        two.attend();
    }
    assert!(refusal(&other).contains("too many calls"));
    two.calls.expire();
    let _other = send_call(&one, &two, |said| said.call = 2);
    let link = |two: &CallingProcess| two.calls.links.find(one.calls.own(), ENGINE.0, ENGINE.1);
    while link(&two).is_none() {
        two.attend();
    }
    assert_eq!((two.answered(), two.undecided()), (most as usize, most));
}
