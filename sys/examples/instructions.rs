//! The program that `tests/instructions` counts: `instructions MODE COUNT [BYTES]` passes messages (of 8 bytes
//! by default) between two endpoints of this process. Each counted operation stands in a `counted_...`
//! function, from call to return; everything else is outside.
//!
//! | mode | sequence |
//! |---|---|
//! | `blocking` | a send, then its receive, whose message has arrived |
//! | `tcp` | the same over TCP, in both directions in turn: what is reported to the peer goes with the next message |
//! | `posted` | windows: receives are posted, messages are sent, receives are waited for |
//! | `arrived` | windows: messages are sent, each is received and tested |
//! | `immediate` | a send with immediate data, then its receive, whose message has arrived |
//! | `acknowledged` | a synchronous send, its receive, and the wait for the send, whose acknowledgement has arrived |
//! | `pending` | a receive is posted and tested before its message |
//! | `pending-beside` | the same, beside a window of other posted receives |

use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use nemesia::bootstrap::{BootstrapError, Exchange};
use nemesia::{Config, Endpoint, NetChoice, Request, SendOp, Source, Status, Tag};

/// The number of messages in a window.
const WINDOW: usize = 16;
const TAG: u64 = 7;
const MOST: usize = 8192;
static MESSAGE: [u8; MOST] = [b'm'; MOST];

/// The exchange of two endpoints of one process.
struct Cards {
    rank: usize,
    cards: Arc<Mutex<HashMap<String, String>>>,
    barrier: Arc<Barrier>,
}

impl Exchange for Cards {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        2
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), BootstrapError> {
        let mut cards = self.cards.lock().unwrap_or_else(PoisonError::into_inner);
        cards.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn get(&mut self, key: &str) -> Result<String, BootstrapError> {
        let cards = self.cards.lock().unwrap_or_else(PoisonError::into_inner);
        cards.get(key).cloned().ok_or_else(|| BootstrapError::KeyNotFound {
            key: key.to_owned(),
            reason: "the other endpoint has not put it".to_owned(),
        })
    }

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.barrier.wait();
        Ok(())
    }

    fn finalize(&mut self) -> Result<(), BootstrapError> {
        Ok(())
    }
}

type Opened = Result<Endpoint, nemesia::Error>;

/// Opens both endpoints, ranks 0 and 1.
fn pair(is_over_tcp: bool) -> Result<(Endpoint, Endpoint), Box<dyn Error>> {
    let (cards, barrier) = (Arc::default(), Arc::new(Barrier::new(2)));
    let open = |rank| -> Opened {
        let exchange = Cards { rank, cards: Arc::clone(&cards), barrier: Arc::clone(&barrier) };
        // Both are used by one thread, where neither can wait for a call of the other.
        let mut config = Config::default().connect_on_demand(false);
        if is_over_tcp {
            config = config.local(false).net(NetChoice::Tcp).net_address(Some("127.0.0.1"));
        }
        Endpoint::open_with(&config, Box::new(exchange))
    };
    let (zero, one) = std::thread::scope(|scope| {
        let zero = scope.spawn(|| open(0));
        let one = open(1);
        (zero.join(), one)
    });
    Ok((zero.map_err(|_| "rank 0 panicked")??, one?))
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_send(endpoint: &mut Endpoint, to: usize, tag: u64, bytes: &[u8]) -> Result<(), nemesia::Error> {
    endpoint.send(to, tag, bytes)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_receive(
    endpoint: &mut Endpoint,
    from: usize,
    tag: u64,
    buf: &mut [u8],
) -> Result<Status, nemesia::Error> {
    endpoint.recv(Source::Rank(from), Tag::Exactly(tag), buf)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_isend(
    endpoint: &mut Endpoint,
    to: usize,
    tag: u64,
    bytes: &'static [u8],
) -> Result<Request, nemesia::Error> {
    // SAFETY: static bytes stay as they are.
    unsafe { endpoint.isend(to, tag, bytes.as_ptr(), bytes.len()) }
}

/// # Safety
/// There is room for `len` bytes at `base`, which nothing else uses until the request is complete.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe fn counted_irecv(
    endpoint: &mut Endpoint,
    from: usize,
    tag: u64,
    base: *mut u8,
    len: usize,
) -> Result<Request, nemesia::Error> {
    // SAFETY: the caller's promise.
    unsafe { endpoint.irecv(Source::Rank(from), Tag::Exactly(tag), base, len) }
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_test(endpoint: &mut Endpoint, request: Request) -> Result<Option<Status>, nemesia::Error> {
    endpoint.test(request)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_wait(endpoint: &mut Endpoint, request: Request) -> Result<Status, nemesia::Error> {
    endpoint.wait(request)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_isend_op(endpoint: &mut Endpoint, op: SendOp<'static>) -> Result<Request, nemesia::Error> {
    // SAFETY: static bytes stay as they are.
    unsafe { endpoint.isend_op(op) }
}

type Passed = Result<(), Box<dyn Error>>;

fn check(status: Option<Status>, got: &[u8]) -> Passed {
    check_with(status, None, got)
}

fn check_with(status: Option<Status>, wanted: Option<u64>, got: &[u8]) -> Passed {
    match status {
        Some(Status { rank: 0, tag: TAG, len, immediate })
            if immediate == wanted && got == &MESSAGE[..len] =>
        {
            Ok(())
        }
        other => Err(format!("received {got:?}: {other:?}").into()),
    }
}

fn blocking(zero: &mut Endpoint, one: &mut Endpoint, len: usize) -> Passed {
    let mut got = [0; MOST];
    let got = &mut got[..len];
    counted_send(zero, 1, TAG, black_box(&MESSAGE[..len]))?;
    let status = counted_receive(one, 0, TAG, black_box(&mut *got))?;
    check(Some(status), got)
}

/// Passes a message there and one back. Over TCP neither endpoint could send for ever without a receive.
fn to_and_fro(zero: &mut Endpoint, one: &mut Endpoint, len: usize) -> Passed {
    blocking(zero, one, len)?;
    let mut got = [0; MOST];
    let got = &mut got[..len];
    counted_send(one, 0, TAG, black_box(&MESSAGE[..len]))?;
    let status = counted_receive(zero, 1, TAG, black_box(&mut *got))?;
    check(Some(Status { rank: 0, ..status }), got)
}

/// Passes messages in both directions without a call that waits, until each endpoint has heard of the other and knows
/// where to look for the next one: first at the fastbox of the other, or at its connection.
fn get_going(zero: &mut Endpoint, one: &mut Endpoint) -> Passed {
    const MESSAGES: usize = 256;
    for _ in 0..MESSAGES {
        let mut got = [[0; 8]; 2];
        let [first, second] = got.each_mut().map(|it| it.as_mut_ptr());
        // SAFETY: `got` is not used before every request is complete; an error ends the process.
        let (to_zero, to_one) = unsafe {
            (
                zero.irecv(Source::Rank(1), Tag::Exactly(TAG), first, 8)?,
                one.irecv(Source::Rank(0), Tag::Exactly(TAG), second, 8)?,
            )
        };
        // SAFETY: static bytes stay as they are.
        let sent =
            unsafe { [zero.isend(1, TAG, MESSAGE.as_ptr(), 8)?, one.isend(0, TAG, MESSAGE.as_ptr(), 8)?] };
        let mut left = [vec![to_zero, sent[0]], vec![to_one, sent[1]]];
        while left.iter().any(|it| !it.is_empty()) {
            for (endpoint, left) in [&mut *zero, &mut *one].into_iter().zip(&mut left) {
                if let Some(request) = left.first()
                    && endpoint.test(*request)?.is_some()
                {
                    let _ = left.remove(0);
                }
            }
        }
    }
    Ok(())
}

/// Passes a message that is sent with these options.
fn with_options(
    zero: &mut Endpoint,
    one: &mut Endpoint,
    len: usize,
    (immediate, synchronous): (Option<u64>, bool),
) -> Passed {
    let mut got = [0; MOST];
    let got = &mut got[..len];
    let mut op = SendOp::new(1, TAG, black_box(&MESSAGE[..len]));
    if let Some(immediate) = immediate {
        op = op.immediate(immediate);
    }
    if synchronous {
        op = op.synchronous();
    }
    let request = counted_isend_op(zero, op)?;
    let status = counted_receive(one, 0, TAG, black_box(&mut *got))?;
    check_with(Some(status), immediate, got)?;
    counted_wait(zero, request)?;
    Ok(())
}

fn send_window(zero: &mut Endpoint, len: usize) -> Passed {
    for _ in 0..WINDOW {
        let request = counted_isend(zero, 1, TAG, black_box(&MESSAGE[..len]))?;
        counted_test(zero, request)?.ok_or("a send found no room")?;
    }
    Ok(())
}

fn posted(zero: &mut Endpoint, one: &mut Endpoint, len: usize) -> Passed {
    let mut got = vec![0; len * WINDOW];
    let base = got.as_mut_ptr();
    let mut requests = Vec::with_capacity(WINDOW);
    for at in 0..WINDOW {
        // SAFETY: `len` bytes of `got`, which is not used before every request is complete; an error ends the process.
        requests.push(unsafe { counted_irecv(one, 0, TAG, base.add(len * at), black_box(len)) }?);
    }
    send_window(zero, len)?;
    let mut statuses = Vec::with_capacity(WINDOW);
    for request in requests {
        statuses.push(Some(counted_wait(one, request)?));
    }
    statuses.into_iter().enumerate().try_for_each(|(at, status)| check(status, &got[len * at..][..len]))
}

fn arrived(zero: &mut Endpoint, one: &mut Endpoint, len: usize) -> Passed {
    send_window(zero, len)?;
    for _ in 0..WINDOW {
        let mut got = [0; MOST];
        // SAFETY: `got` is not used before the request is complete; an error ends the process.
        let request = unsafe { counted_irecv(one, 0, TAG, got.as_mut_ptr(), black_box(len)) }?;
        let status = counted_test(one, request)?;
        check(status, &got[..len])?;
    }
    Ok(())
}

/// Tests a receive whose message does not come `count` times, beside so many other posted receives.
fn pending(one: &mut Endpoint, count: usize, beside: usize) -> Passed {
    let mut got = [0; 8];
    let base = got.as_mut_ptr();
    // SAFETY: `got` outlives the requests: the endpoint withdraws each below, and an error ends the process.
    let mut post = |tag| unsafe { one.irecv(Source::Rank(0), Tag::Exactly(tag), base, 8) };
    let others = (0..beside).map(|at| post(TAG + 1 + at as u64)).collect::<Result<Vec<_>, _>>()?;
    let request = post(TAG)?;
    for _ in 0..count {
        if counted_test(one, request)?.is_some() {
            return Err("a message came from nowhere".into());
        }
    }
    for request in others.into_iter().chain([request]) {
        if !one.cancel(request) {
            return Err("a receive has matched nothing".into());
        }
    }
    Ok(())
}

type Pass = fn(&mut Endpoint, &mut Endpoint, usize) -> Passed;

fn main() -> Passed {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next();
    let (pass, messages): (Pass, usize) = match mode.as_deref() {
        Some("pending") => (|_, one, _| pending(one, WINDOW, 0), WINDOW),
        Some("pending-beside") => (|_, one, _| pending(one, WINDOW, WINDOW), WINDOW),
        Some("blocking") => (blocking, 1),
        Some("tcp") => (to_and_fro, 2),
        Some("immediate") => (|zero, one, len| with_options(zero, one, len, (Some(1), false)), 1),
        Some("acknowledged") => (|zero, one, len| with_options(zero, one, len, (None, true)), 1),
        Some("posted") => (posted, WINDOW),
        Some("arrived") => (arrived, WINDOW),
        _ => {
            return Err(
                "usage: instructions MODE COUNT [BYTES]; MODE is blocking, tcp, immediate, acknowledged, posted, \
                 arrived, pending or pending-beside"
                    .into()
            );
        }
    };
    let count: usize = arguments.next().ok_or("no count")?.parse()?;
    let len = arguments.next().map_or(Ok(8), |len| len.parse())?;
    if len > MOST {
        return Err(format!("{len} bytes: {MOST} are the most").into());
    }
    let (mut zero, mut one) = pair(mode.as_deref() == Some("tcp"))?;
    get_going(&mut zero, &mut one)?;
    for _ in 0..count / messages {
        pass(&mut zero, &mut one, len)?;
    }
    Ok(())
}
